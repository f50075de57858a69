// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/text/char_bpe.hpp>

#include "../support/catch.hpp"

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

using decant::ByteBpe;
using decant::CharBpe;
using decant::Token;
using decant::TokenKind;
using decant::Vocabulary;
using Ids = std::vector<std::int32_t>;

namespace {

// 0 to 7; bytes of characters without a piece are 8 and 9 for 0xC3 and 0xA9.
constexpr std::array<std::string_view, 10> pieces{"?",
                                                  "a",
                                                  "b",
                                                  "ab",
                                                  "\xE2\x96\x81",
                                                  "\xE2\x96\x81"
                                                  "a",
                                                  "aa",
                                                  "aaaa",
                                                  "<0xC3>",
                                                  "<0xA9>"};

Vocabulary vocabulary() {
    std::vector<TokenKind> kinds(pieces.size(), TokenKind::text);
    kinds[0] = TokenKind::control;
    kinds[8] = kinds[9] = TokenKind::byte;
    return Vocabulary::build(pieces, kinds, decant::PieceSpelling::sentence_piece).value();
}

CharBpe::Rules rules() {
    CharBpe::Rules out;
    out.bytes.fill(ByteBpe::no_token);
    out.bytes[0xC3] = Token{8};
    out.bytes[0xA9] = Token{9};
    out.merges = {{Token{1}, Token{1}, Token{6}},
                  {Token{1}, Token{2}, Token{3}},
                  {Token{4}, Token{1}, Token{5}},
                  {Token{6}, Token{6}, Token{7}}};
    return out;
}

Ids encode(const CharBpe::Rules& rules, std::string_view text) {
    CharBpe::Scratch scratch;
    std::vector<Token> tokens;
    CharBpe(rules).encode(text, vocabulary(), scratch, tokens);
    Ids out;
    for (const Token token : tokens) out.push_back(id(token));
    return out;
}

}  // namespace

TEST_CASE("characters merge by rank, leftmost first", "[text][char_bpe]") {
    CHECK(encode(rules(), "").empty());
    CHECK(encode(rules(), "ab") == Ids{3});
    CHECK(encode(rules(), "aab") == Ids{6, 2});
    CHECK(encode(rules(), "aaaaab") == Ids{7, 3});
    CHECK(encode(rules(), " ab") == Ids{4, 3});
    CHECK(encode(rules(), "b a") == Ids{2, 5});
}

TEST_CASE("a character without a piece is bytes, else unknown, else nothing", "[text][char_bpe]") {
    CHECK(encode(rules(),
                 "a\xC3\xA9"
                 "b") == Ids{1, 8, 9, 2});
    CHECK(encode(rules(), "a\xC3") == Ids{1, 8});  // no UTF-8, but a byte token
    CHECK(encode(rules(), "axyb") == Ids{3});      // left out before merging
    auto unknown = rules();
    unknown.unknown = Token{0};
    CHECK(encode(unknown, "axyb") == Ids{1, 0, 0, 2});
    CHECK(encode(unknown, "\xFF\xFE") == Ids{0, 0});
    unknown.fuse_unknown = true;
    CHECK(encode(unknown, "axybx") == Ids{1, 0, 2, 0});
    CHECK(encode(unknown, "x\xC3\xA9x") == Ids{0, 8, 9, 0});
}

TEST_CASE("split at spaces, nothing merges over the beginning of one", "[text][char_bpe]") {
    auto split = rules();
    split.merges = {{Token{2}, Token{4}, Token{3}},
                    {Token{4}, Token{1}, Token{5}}};  // "b" and " " would be joined first
    CHECK(encode(split, "b a") == Ids{3, 1});
    split.split_spaces = true;
    CHECK(encode(split, "b a") == Ids{2, 5});
    CHECK(encode(split, "  a ") == Ids{4, 5, 4});
}

TEST_CASE("a long run takes no quadratic time", "[text][char_bpe]") {
    const std::clock_t start = std::clock();
    CHECK(encode(rules(), std::string(400'000, 'a')).size() == 100'000);
    CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < 5.0);
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "support.hpp"

#include <decant/text/vocabulary.hpp>

#include <string>

using decant::ErrorCode;
using decant::Token;
using decant::TokenKind;

namespace {

decant::Result<decant::Tokenizer> open_case(const std::string& name) {
    const auto weights = decant::Weights::open(decant_test::data("text/cases/" + name));
    REQUIRE(weights);
    return decant::Tokenizer::from(*weights);
}
bool mentions(const decant::Error& error, const std::string& part) {
    return error.message().find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("MF-12: tokenizer arrays must be of the right kind and agree in length", "[text][vocabulary][case]") {
    for (const char* name : {"MF-12-ok.gguf", "MF-12-types-i64.gguf", "MF-12-types-u8.gguf"}) {
        INFO(name);
        const auto tokenizer = open_case(name);
        INFO((tokenizer ? std::string() : tokenizer.error().message()));
        REQUIRE(tokenizer);
        CHECK(tokenizer->size() == 260);
        // The types are read as such: bytes in the first file, text in the two others.
        CHECK(tokenizer->piece(Token{3 + 0x41}) == (name == std::string("MF-12-ok.gguf") ? "A" : "<0x41>"));
    }
    const auto types_missing = open_case("MF-12-types-missing.gguf");
    REQUIRE_FALSE(types_missing);
    CHECK(types_missing.error().code == ErrorCode::missing);
    CHECK(mentions(types_missing.error(), "tokenizer.ggml.token_type"));
    const auto scores_short = open_case("MF-12-scores-short.gguf");
    REQUIRE_FALSE(scores_short);
    CHECK(scores_short.error().code == ErrorCode::mismatch);
    for (const char* part : {"tokenizer.ggml.scores", "10", "260", "MF-12-scores-short.gguf"})
        CHECK(mentions(scores_short.error(), part));

    const auto scores_u8 = open_case("MF-12-scores-u8.gguf");
    REQUIRE_FALSE(scores_u8);
    CHECK(mentions(scores_u8.error(), "tokenizer.ggml.scores"));
    for (const char* name : {"MF-12-tokens-not-array.gguf", "MF-12-tokens-ints.gguf", "MF-12-tokens-empty.gguf"}) {
        INFO(name);
        const auto tokenizer = open_case(name);
        REQUIRE_FALSE(tokenizer);
        CHECK(mentions(tokenizer.error(), "tokenizer.ggml.tokens"));
    }
}

TEST_CASE("a short token_type array names the key and both lengths", "[text][vocabulary]") {
    auto file = decant_test::byte_tokenizer();
    file.types.resize(7);
    const auto tokenizer = decant::Tokenizer::from(file.open());
    REQUIRE_FALSE(tokenizer);
    CHECK(tokenizer.error().code == ErrorCode::mismatch);
    for (const char* part : {"test.gguf", "tokenizer.ggml.token_type", " 7 ", " 256"})
        CHECK(mentions(tokenizer.error(), part));
}

TEST_CASE("token types outside the format are refused", "[text][vocabulary]") {
    for (const int wrong : {0, 7, -1}) {
        auto file = decant_test::byte_tokenizer();
        file.types[9] = wrong;
        const auto tokenizer = decant::Tokenizer::from(file.open());
        REQUIRE_FALSE(tokenizer);
        CHECK(tokenizer.error().code == ErrorCode::bad_format);
        CHECK(mentions(tokenizer.error(), "element 9 is " + std::to_string(wrong)));
    }
}

TEST_CASE("SentencePiece pieces: marks are spaces, numbered bytes are bytes and come last", "[text][vocabulary]") {
    decant_test::TokenizerFile file;
    file.tokens = {"<0x0A>", "\xE2\x96\x81x\xE2\x96\x81", "\n", "<\xE2\x96\x81>", "\xC4\xA0", "<0xfF>", "<0x41>", "A"};
    file.types = {6, 1, 4, 3, 1, 6, 6, 1};
    const auto weights = file.open();
    const auto vocabulary =
        decant::Vocabulary::read(weights.metadata(), weights.name(), decant::PieceSpelling::sentence_piece);
    REQUIRE(vocabulary);
    CHECK(vocabulary->piece(Token{0}) == "\n");
    CHECK(vocabulary->piece(Token{1}) == " x ");
    CHECK(vocabulary->piece(Token{3}) == "<\xE2\x96\x81>");  // a control token stays as spelled
    CHECK(vocabulary->piece(Token{4}) == "\xC4\xA0");
    CHECK(vocabulary->piece(Token{5}) == "\xFF");
    CHECK(vocabulary->find("\n") == Token{2});
    CHECK(vocabulary->find("A") == Token{7});
    CHECK(vocabulary->find("\xFF") == Token{5});
    CHECK(vocabulary->find_text("\xFF") == std::nullopt);
    CHECK(vocabulary->kind(Token{0}) == TokenKind::byte);

    for (const char* wrong : {"", "A", "<0x4>", "<0x4G>", "<0x041>", "<0X41>", "<0x41>>", "<0x-1>"}) {
        INFO(wrong);
        file.tokens[6] = wrong;
        const auto bad = file.open();
        const auto refused =
            decant::Vocabulary::read(bad.metadata(), bad.name(), decant::PieceSpelling::sentence_piece);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code == ErrorCode::bad_format);
        for (const char* part : {"test.gguf", "tokenizer.ggml.tokens", "token 6"})
            CHECK(mentions(refused.error(), part));
    }
}

TEST_CASE("pieces are bytes, found by their bytes; text comes before other kinds", "[text][vocabulary]") {
    decant_test::TokenizerFile file;
    file.tokens = {"<x>",
                   "\xC4\xA0"
                   "a",
                   " a",
                   "\xE4\xB8\xAD",
                   "",
                   "<x>",
                   "b"};
    file.types = {3, 1, 4, 1, 5, 1, 2};
    const auto weights = file.open();
    const auto vocabulary = decant::Vocabulary::read(weights.metadata(), weights.name());
    REQUIRE(vocabulary);
    CHECK(vocabulary->size() == 7);
    CHECK(vocabulary->piece(Token{1}) == " a");
    CHECK(vocabulary->piece(Token{3}) == "\xE4\xB8\xAD");  // not in the alphabet: as it is
    CHECK(vocabulary->find(" a") == Token{1});
    CHECK(vocabulary->find("<x>") == Token{5});
    CHECK(vocabulary->find_text("b") == std::nullopt);
    CHECK(vocabulary->find("") == Token{4});
    CHECK(vocabulary->find("c") == std::nullopt);
    CHECK(vocabulary->kind(Token{0}) == TokenKind::control);
    CHECK(vocabulary->kind(Token{6}) == TokenKind::control);
    for (const int outside : {-1, 7, 1 << 30}) {
        CHECK(vocabulary->piece(Token{outside}).empty());
        CHECK(vocabulary->kind(Token{outside}) == TokenKind::unused);
    }
}

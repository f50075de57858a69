// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "../support/catch.hpp"

#include <decant/text/byte_bpe.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using decant::Token;
using Table = std::vector<decant::MergeRule>;

std::array<Token, 256> identity() {
    std::array<Token, 256> bytes;
    for (int i = 0; i < 256; ++i) bytes[static_cast<std::size_t>(i)] = Token{i};
    return bytes;
}

// The definition, word for word.
std::vector<Token> reference(const std::string& word, const Table& rules) {
    std::vector<Token> tokens;
    for (const char c : word) tokens.push_back(Token{static_cast<unsigned char>(c)});
    while (true) {
        std::size_t best_rank = rules.size();
        std::size_t best_at = 0;
        for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
            for (std::size_t rank = 0; rank < best_rank; ++rank) {
                if (rules[rank].left == tokens[i] && rules[rank].right == tokens[i + 1]) {
                    best_rank = rank;
                    best_at = i;
                }
            }
        }
        if (best_rank == rules.size()) return tokens;
        tokens[best_at] = rules[best_rank].merged;
        tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
    }
}

}  // namespace

TEST_CASE("merging is that of the definition, for short and long words", "[text][byte_bpe]") {
    std::mt19937 random(3);
    for (int round = 0; round < 300; ++round) {
        // Random rules over a small alphabet, each joining two tokens that exist by then.
        Table rules;
        std::vector<Token> known{Token{'a'}, Token{'b'}, Token{'c'}};
        const std::size_t count = 1 + random() % 20;
        for (std::size_t i = 0; i < count; ++i) {
            const Token merged{static_cast<std::int32_t>(256 + i)};
            rules.push_back({known[random() % known.size()], known[random() % known.size()], merged});
            known.push_back(merged);
        }
        std::shuffle(rules.begin(), rules.end(), random);
        const decant::ByteBpe bpe(identity(), rules);
        decant::ByteBpe::Scratch scratch;
        for (int words = 0; words < 8; ++words) {
            std::string word(1 + random() % 80, 'a');
            for (char& c : word) c = static_cast<char>('a' + random() % 3);
            std::vector<Token> tokens;
            bpe.encode(word, scratch, tokens);
            REQUIRE(tokens == reference(word, rules));
        }
    }
}

TEST_CASE("bytes without a token are left out before merging", "[text][byte_bpe]") {
    auto bytes = identity();
    bytes['x'] = decant::ByteBpe::no_token;
    const decant::ByteBpe bpe(bytes, {{Token{'a'}, Token{'b'}, Token{300}}});
    decant::ByteBpe::Scratch scratch;
    for (const std::size_t padding : {0u, 100u}) {  // the short and the long way
        std::vector<Token> tokens;
        bpe.encode("axb" + std::string(padding, 'x'), scratch, tokens);
        CHECK(tokens == std::vector<Token>{Token{300}});
        tokens.clear();
        bpe.encode(std::string(padding, 'x'), scratch, tokens);
        CHECK(tokens.empty());
    }
}

TEST_CASE("the index finds every entry, among equal hashes too", "[text][hash_index]") {
    using Entry = decant::detail::HashIndex::Entry;
    std::vector<Entry> entries;
    for (std::uint32_t i = 0; i < 1000; ++i) entries.push_back({i % 10 == 0 ? 42u : decant::detail::mix_bits(i), i, 0});
    std::reverse(entries.begin(), entries.end());
    const decant::detail::HashIndex index(entries, [](const Entry& a, const Entry& b) { return a.first < b.first; });
    for (std::uint32_t i = 0; i < 1000; ++i) {
        const auto* found = index.find(i % 10 == 0 ? 42u : decant::detail::mix_bits(i), [&](const Entry& e) {
            return e.first < i ? -1 : e.first > i ? 1 : 0;
        });
        REQUIRE(found != nullptr);
        REQUIRE(found->first == i);
    }
    CHECK(index.find(42, [](const Entry& e) { return e.first < 5 ? -1 : 1; }) == nullptr);
    CHECK(decant::detail::HashIndex().find(42, [](const Entry&) { return 0; }) == nullptr);
}

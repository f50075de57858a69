// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Byte-pair merging on characters, as tokenizer.json describes the vocabularies that come from SentencePiece: no
/// words, a merge table, and what becomes of characters without a piece.

#include <decant/core/token.hpp>
#include <decant/text/byte_bpe.hpp>
#include <decant/text/utf8.hpp>
#include <decant/text/vocabulary.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// When a space goes before the text.
enum class SpacePrefix : std::uint8_t {
    never,
    each,             ///< before every stretch between special tokens
    each_unless_one,  ///< the same, but not before a space
    first,            ///< before the first stretch if the text begins with it, but not before a space
};

/// Const after construction. Spaces are spaces here: files spell them U+2581.
class CharBpe {
 public:
    struct Scratch {
        std::vector<Token> tokens;
        ByteBpe::Scratch merges;
    };

    struct Rules {
        std::vector<MergeRule> merges;   ///< in order of rank
        std::array<Token, 256> bytes{};  ///< tokens of bytes of characters without a piece; `ByteBpe::no_token`: none
        std::optional<Token> unknown;    ///< in place of a character that has neither; left out without one
        bool fuse_unknown = false;       ///< of several in a row, one
        bool split_spaces = false;       ///< nothing is joined over the beginning of a space
    };

    explicit CharBpe(const Rules& rules)
        : merges_(rules.bytes, rules.merges),
          unknown_(rules.unknown),
          fuse_unknown_(rules.fuse_unknown),
          split_spaces_(rules.split_spaces) {}

    /// Appends the tokens of text without special tokens in it. Bytes that are not UTF-8 count as characters.
    /// O(n log n) for n bytes.
    void encode(std::string_view text, const Vocabulary& vocabulary, Scratch& scratch, std::vector<Token>& out) const {
        if (split_spaces_)
            for (std::size_t space = text.find(' ', 1); space != std::string_view::npos; space = text.find(' ', 1)) {
                encode_stretch(text.substr(0, space), vocabulary, scratch, out);
                text.remove_prefix(space);
            }
        encode_stretch(text, vocabulary, scratch, out);
    }

 private:
    void encode_stretch(std::string_view text, const Vocabulary& vocabulary, Scratch& scratch,
                        std::vector<Token>& out) const {
        auto& tokens = scratch.tokens;
        tokens.clear();
        bool after_unknown = false;
        while (!text.empty()) {
            const Utf8Char next = decode_utf8(text);
            const std::string_view character = text.substr(0, next.status == Utf8Status::valid ? next.bytes : 1);
            text.remove_prefix(character.size());
            const bool fused = std::exchange(after_unknown, false) && fuse_unknown_;
            if (const auto token = vocabulary.find_joinable(character)) {
                tokens.push_back(*token);
            } else if (has_bytes(character)) {
                for (const char c : character) tokens.push_back(merges_.byte_token(static_cast<std::uint8_t>(c)));
            } else if (unknown_) {
                if (!fused) tokens.push_back(*unknown_);
                after_unknown = true;
            }
        }
        merges_.merge(tokens, scratch.merges, out);
    }

    [[nodiscard]] bool has_bytes(std::string_view character) const noexcept {
        return std::all_of(character.begin(), character.end(), [&](char c) {
            return merges_.byte_token(static_cast<std::uint8_t>(c)) != ByteBpe::no_token;
        });
    }

    ByteBpe merges_;
    std::optional<Token> unknown_;
    bool fuse_unknown_;
    bool split_spaces_;
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What a `Tokenizer` holds, whatever file it was read from, and what the readers share.

#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/text/byte_bpe.hpp>
#include <decant/text/char_bpe.hpp>
#include <decant/text/pre_tokenizer.hpp>
#include <decant/text/sentence_piece.hpp>
#include <decant/text/special_tokens.hpp>
#include <decant/text/vocabulary.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Filled in place: `specials` views the vocabulary and `spellings`.
struct TokenizerData {
    TokenizerData() = default;
    TokenizerData(const TokenizerData&) = delete;
    TokenizerData& operator=(const TokenizerData&) = delete;

    Vocabulary vocabulary;
    SplitPattern pattern;  // of byte-level vocabularies
    ByteBpe bpe;
    std::optional<SentencePieceBpe> sentence_piece;  // one of these in place of the two before
    std::optional<CharBpe> characters;
    SpacePrefix prefix = SpacePrefix::never;  // of the latter two

    SpecialTokens specials;
    /// Found in what lies between those; where spaces are marked (`SpacePrefix::each`), after a space was put before
    /// it, and then only behind a space, which is part of them.
    SpecialTokens late_specials;
    std::deque<std::string> spellings;

    std::optional<Token> bos;
    std::optional<Token> eos;
    std::vector<Token> ends;
    bool add_bos = false;
};

inline void add_end(std::optional<Token> token, TokenizerData& data) {
    constexpr std::size_t most = 1024;  // a list without end would make every pick slow
    if (token && data.ends.size() < most && std::find(data.ends.begin(), data.ends.end(), *token) == data.ends.end())
        data.ends.push_back(*token);
}

/// Files name one end of sequence; models also end with these.
inline void add_known_ends(TokenizerData& data) {
    for (const std::string_view spelling :
         {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>"}) {
        const auto token = data.vocabulary.find(spelling);
        if (token && data.vocabulary.kind(*token) == TokenKind::control) add_end(token, data);
    }
}

/// The tokens of single bytes of a byte-level vocabulary.
[[nodiscard]] inline std::array<Token, 256> find_byte_tokens(const Vocabulary& vocabulary) {
    std::array<Token, 256> bytes;
    for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
        const char c = static_cast<char>(static_cast<std::uint8_t>(byte));
        bytes[byte] = vocabulary.find_text({&c, 1}).value_or(ByteBpe::no_token);
    }
    return bytes;
}

/// Adds merges one by one, in order of rank.
class MergeList {
 public:
    MergeList(const Vocabulary& vocabulary, PieceSpelling spelling) : vocabulary_(&vocabulary), spelling_(spelling) {}

    /// The two pieces as the file spells them. The error has no place.
    [[nodiscard]] Result<void> add(std::string_view left, std::string_view right) {
        bytes_.clear();
        if (left.empty() || right.empty() || !append(left)) return malformed(left, right);
        const std::size_t left_bytes = bytes_.size();
        if (!append(right)) return malformed(left, right);
        const std::string_view whole = bytes_;
        const auto first = vocabulary_->find_joinable(whole.substr(0, left_bytes));
        const auto second = vocabulary_->find_joinable(whole.substr(left_bytes));
        const auto merged = vocabulary_->find_joinable(whole);
        if (!first || !second || !merged)
            return wrong(ErrorCode::mismatch, left, right,
                         "joins or makes a piece that is not a text token of the vocabulary");
        rules.push_back({*first, *second, *merged});
        return {};
    }
    /// The same, with a space between them.
    [[nodiscard]] Result<void> add(std::string_view line) {
        const std::size_t space = line.find(' ');
        if (space == std::string_view::npos) return malformed(line, "");
        return add(line.substr(0, space), line.substr(space + 1));
    }

    std::vector<MergeRule> rules;

 private:
    [[nodiscard]] bool append(std::string_view piece) {
        if (spelling_ == PieceSpelling::byte_level) return append_byte_level(piece, bytes_);
        append_unmarked(piece, bytes_);
        return true;
    }
    [[nodiscard]] Error wrong(ErrorCode code, std::string_view left, std::string_view right,
                              std::string_view why) const {
        return {
            code,
            text("merge ", rules.size(), " ", detail::quoted(text(left, right.empty() ? "" : " ", right)), " ", why),
            "", ""};
    }
    [[nodiscard]] Error malformed(std::string_view left, std::string_view right) const {
        return wrong(ErrorCode::bad_format, left, right, "is not two pieces with a space between");
    }

    const Vocabulary* vocabulary_;
    PieceSpelling spelling_;
    std::string bytes_;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// BPE as SentencePiece does it (Kudo and Richardson 2018, arXiv:1808.06226): on characters, without splitting into
/// words, and with scores of pieces in place of a merge table. The adjacent pair that together is the piece of highest
/// score is joined, the leftmost of equals, until no pair is a piece. O(n log n) for n bytes.

#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/metadata.hpp>
#include <decant/text/utf8.hpp>
#include <decant/text/vocabulary.hpp>
#include <decant/text/word_mark.hpp>

#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// The scores of a vocabulary and what becomes of characters without a piece. Const after construction.
class SentencePieceBpe {
 public:
    /// No text encodes to a longer piece, so that looking one up takes a bounded number of steps.
    static constexpr std::size_t max_bytes = 256;

    /// Working memory of `encode`, kept by the caller between calls; any thread may use its own.
    class Scratch {
        friend class SentencePieceBpe;
        struct Symbol {
            std::size_t begin;
            std::size_t bytes;  // 0: joined to the one before
            std::size_t previous;
            std::size_t next;
            Token token;  // of a symbol that was joined
        };
        struct Candidate {
            float score;
            Token joined;
            std::size_t position;
            std::size_t bytes;
            // A heap of the standard library has its greatest element on top.
            friend bool operator<(const Candidate& a, const Candidate& b) noexcept {
                return a.score != b.score ? a.score < b.score : a.position > b.position;
            }
        };
        std::string text_;
        std::vector<Symbol> symbols_;
        std::vector<Candidate> heap_;
        bool unknown_ = false;  // the last character became the unknown token
    };

    /// Reads `tokenizer.ggml.scores` (required, no NaN), `unknown_token_id` and `add_space_prefix` (absent: true).
    /// `vocabulary` is of the same metadata, in the spelling of SentencePiece.
    [[nodiscard]] static Result<SentencePieceBpe> read(const Metadata& metadata, const Vocabulary& vocabulary,
                                                       std::string_view file);

    /// Whether a space is put before text: before each stretch between special tokens.
    [[nodiscard]] bool space_prefix() const noexcept { return space_prefix_; }

    /// Appends the tokens of text without special tokens in it. U+2581 counts as a space. A character that no piece
    /// holds, or a byte that is not UTF-8, becomes byte tokens; where the vocabulary lacks these, a run of such
    /// characters becomes one unknown token, or is left out if there is none.
    void encode(std::string_view text, const Vocabulary& vocabulary, Scratch& scratch, std::vector<Token>& out) const {
        if (text.empty()) return;
        scratch.text_.assign(space_prefix_ ? 1 : 0, ' ');
        detail::append_unmarked(text, scratch.text_);
        scratch.unknown_ = false;
        // Nothing is joined over a place that no piece has within, so the stretches between are independent.
        const std::string_view whole = scratch.text_;
        std::size_t begin = 0;
        for (std::size_t i = 1; i < whole.size(); ++i) {
            if (within_piece(whole[i - 1], whole[i]) || continues_character(whole[i])) continue;
            encode_stretch(whole.substr(begin, i - begin), vocabulary, scratch, out);
            begin = i;
        }
        encode_stretch(whole.substr(begin), vocabulary, scratch, out);
    }

 private:
    static constexpr Token no_token{-1};
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    [[nodiscard]] static std::size_t pair(char left, char right) noexcept {
        return (std::size_t{static_cast<std::uint8_t>(left)} << 8) | static_cast<std::uint8_t>(right);
    }
    [[nodiscard]] bool within_piece(char left, char right) const noexcept { return pairs_[pair(left, right)]; }
    [[nodiscard]] static bool continues_character(char c) noexcept {
        return (static_cast<std::uint8_t>(c) & 0xC0) == 0x80;
    }

    // A linked list of symbols and a heap of candidate pairs; stale candidates are recognized when they come up.
    void encode_stretch(std::string_view text, const Vocabulary& vocabulary, Scratch& scratch,
                        std::vector<Token>& out) const {
        auto& symbols = scratch.symbols_;
        auto& heap = scratch.heap_;
        symbols.clear();
        heap.clear();
        for (std::size_t at = 0; at < text.size(); at += symbols.back().bytes) {
            const Utf8Char next = decode_utf8(text.substr(at));
            const std::size_t i = symbols.size();
            symbols.push_back({at, next.status == Utf8Status::valid ? next.bytes : 1, i - 1, i + 1, no_token});
        }
        symbols.back().next = none;  // the first one's previous is none

        const auto candidate = [&](std::size_t position) {
            const auto& left = symbols[position];
            if (left.next == none) return false;
            const std::size_t bytes = left.bytes + symbols[left.next].bytes;
            if (bytes > longest_) return false;
            const auto joined = vocabulary.find_text(text.substr(left.begin, bytes));
            if (joined) heap.push_back({scores_[static_cast<std::size_t>(id(*joined))], *joined, position, bytes});
            return joined.has_value();
        };
        const auto push = [&](std::size_t position) {
            if (candidate(position)) std::push_heap(heap.begin(), heap.end());
        };
        for (std::size_t i = 0; i < symbols.size(); ++i) candidate(i);
        std::make_heap(heap.begin(), heap.end());

        while (!heap.empty()) {
            std::pop_heap(heap.begin(), heap.end());
            const auto best = heap.back();
            heap.pop_back();
            auto& left = symbols[best.position];
            // Symbols only grow or vanish: the pair is as it was if its size is.
            if (left.bytes == 0 || left.next == none || left.bytes + symbols[left.next].bytes != best.bytes) continue;
            auto& right = symbols[left.next];
            left.bytes = best.bytes;
            left.token = best.joined;
            left.next = right.next;
            right.bytes = 0;
            if (left.next != none) symbols[left.next].previous = best.position;
            push(best.position);
            if (left.previous != none) push(left.previous);
        }
        for (std::size_t i = 0; i != none; i = symbols[i].next) {
            if (symbols[i].token == no_token)
                encode_character(text.substr(symbols[i].begin, symbols[i].bytes), vocabulary, scratch, out);
            else
                put(symbols[i].token, scratch, out);
        }
    }

    static void put(Token token, Scratch& scratch, std::vector<Token>& out) {
        out.push_back(token);
        scratch.unknown_ = false;
    }

    void encode_character(std::string_view character, const Vocabulary& vocabulary, Scratch& scratch,
                          std::vector<Token>& out) const {
        const auto byte_token = [&](char c) { return bytes_[static_cast<std::uint8_t>(c)]; };
        if (const auto token = vocabulary.find_text(character)) {
            put(*token, scratch, out);
        } else if (std::all_of(character.begin(), character.end(), [&](char c) { return byte_token(c) != no_token; })) {
            for (const char c : character) put(byte_token(c), scratch, out);
        } else {
            if (unknown_ && !scratch.unknown_) out.push_back(*unknown_);
            scratch.unknown_ = true;
        }
    }

    std::vector<float> scores_;  // [vocabulary]
    std::array<Token, 256> bytes_;
    std::optional<Token> unknown_;
    std::bitset<65536> pairs_;  // bytes that stand side by side in a piece
    std::size_t longest_ = 0;   // bytes of a piece
    bool space_prefix_ = true;
};

inline Result<SentencePieceBpe> SentencePieceBpe::read(const Metadata& metadata, const Vocabulary& vocabulary,
                                                       std::string_view file) {
    constexpr std::string_view scores_key = "tokenizer.ggml.scores";
    constexpr std::string_view prefix_key = "tokenizer.ggml.add_space_prefix";
    SentencePieceBpe bpe;
    DECANT_TRY(bpe.scores_, metadata.floats(scores_key));
    if (bpe.scores_.size() != vocabulary.size())
        return Error{ErrorCode::mismatch,
                     detail::text(bpe.scores_.size(), " scores for ", vocabulary.size(), " tokens"),
                     Vocabulary::place(scores_key, file), ""};
    DECANT_TRY(bpe.unknown_, vocabulary.token_at(metadata, "tokenizer.ggml.unknown_token_id", file));
    if (metadata.contains(prefix_key)) {
        DECANT_TRY(bpe.space_prefix_, metadata.boolean(prefix_key));
    }
    bpe.bytes_.fill(no_token);
    for (std::size_t i = 0; i < vocabulary.size(); ++i) {
        const Token token{static_cast<std::int32_t>(i)};
        const std::string_view piece = vocabulary.piece(token);
        const TokenKind kind = vocabulary.kind(token);
        if (std::isnan(bpe.scores_[i]))
            return Error{ErrorCode::bad_format, detail::text("element ", i, " is not a number"),
                         Vocabulary::place(scores_key, file), ""};
        if (kind == TokenKind::byte) {
            Token& byte = bpe.bytes_[static_cast<std::uint8_t>(piece.front())];
            if (byte == no_token) byte = token;
        }
        if (kind != TokenKind::text || piece.size() > max_bytes) continue;
        bpe.longest_ = (std::max)(bpe.longest_, piece.size());
        for (std::size_t b = 1; b < piece.size(); ++b) bpe.pairs_.set(pair(piece[b - 1], piece[b]));
    }
    return bpe;
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Byte-pair merging of one word (Sennrich et al. 2016, on bytes): join the adjacent pair of lowest rank, the leftmost
/// of equals, until no pair is in the merge table. O(n log n) for a word of n bytes.

#include <decant/core/token.hpp>
#include <decant/text/hash_index.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {

/// `left` and `right`, adjacent, become `merged`.
struct MergeRule {
    Token left;
    Token right;
    Token merged;
};

/// The merge table and the tokens of single bytes. Const after construction.
class ByteBpe {
 public:
    static constexpr Token no_token{-1};

    /// Working memory of `encode`, kept by the caller between words; any thread may use its own.
    class Scratch {
        friend class ByteBpe;
        struct Symbol {
            Token token;
            std::size_t previous;
            std::size_t next;
        };
        struct Candidate {
            std::uint32_t rank;
            Token left;
            Token right;
            std::size_t position;
            // A heap of the standard library has its greatest element on top.
            friend bool operator<(const Candidate& a, const Candidate& b) noexcept {
                return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
            }
        };
        std::vector<Symbol> symbols_;
        std::vector<Candidate> heap_;
    };

    ByteBpe() { bytes_.fill(no_token); }

    /// `bytes[b]` is the token of byte b, or `no_token`; `rules` are in order of rank (the first of two for one pair
    /// counts).
    ByteBpe(const std::array<Token, 256>& bytes, const std::vector<MergeRule>& rules) : bytes_(bytes) {
        std::vector<detail::HashIndex::Entry> entries;
        entries.reserve(rules.size());
        for (std::size_t rank = 0; rank < rules.size(); ++rank)
            entries.push_back({pair_hash(rules[rank].left, rules[rank].right), static_cast<std::uint32_t>(rank),
                               static_cast<std::uint32_t>(id(rules[rank].merged))});
        const auto equal = [](const detail::HashIndex::Entry&, const detail::HashIndex::Entry&) { return false; };
        rules_ = detail::HashIndex(entries, equal);
    }

    /// Appends what is left of `tokens` when no pair of them is in the merge table any more.
    void merge(std::span<const Token> tokens, Scratch& scratch, std::vector<Token>& out) const {
        scratch.symbols_.clear();
        for (const Token token : tokens) append_symbol(token, scratch);
        merge_symbols(scratch, out);
    }

    /// Appends the tokens of `word`. A byte without a token is left out before merging.
    void encode(std::string_view word, Scratch& scratch, std::vector<Token>& out) const {
        if (word.size() <= short_word)
            encode_short(word, out);
        else
            encode_long(word, scratch, out);
    }

    [[nodiscard]] Token byte_token(std::uint8_t byte) const noexcept { return bytes_[byte]; }

 private:
    static constexpr std::size_t short_word = 32;
    static constexpr std::size_t none = static_cast<std::size_t>(-1);
    static constexpr std::uint32_t no_rank = static_cast<std::uint32_t>(-1);

    // The hash is a bijection of the pair, so equal hashes are equal pairs.
    [[nodiscard]] static std::uint64_t pair_hash(Token left, Token right) noexcept {
        return detail::mix_bits((std::uint64_t{static_cast<std::uint32_t>(id(left))} << 32) |
                                static_cast<std::uint32_t>(id(right)));
    }
    [[nodiscard]] const detail::HashIndex::Entry* rule(Token left, Token right) const {
        return rules_.find(pair_hash(left, right), [](const detail::HashIndex::Entry&) { return 0; });
    }
    [[nodiscard]] std::uint32_t rank(Token left, Token right) const {
        const auto* found = rule(left, right);
        return found != nullptr ? found->first : no_rank;
    }
    [[nodiscard]] Token merged(Token left, Token right) const {
        return Token{static_cast<std::int32_t>(rule(left, right)->second)};
    }

    // Quadratic in at most 32 bytes, without memory of its own: nearly all words.
    void encode_short(std::string_view word, std::vector<Token>& out) const {
        std::array<Token, short_word> tokens;
        std::array<std::uint32_t, short_word> ranks;  // ranks[i]: of the pair (i, i + 1)
        std::size_t count = 0;
        for (const char c : word)
            if (const Token token = bytes_[static_cast<std::uint8_t>(c)]; token != no_token) tokens[count++] = token;
        for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = rank(tokens[i], tokens[i + 1]);
        while (count > 1) {
            const std::size_t best =
                static_cast<std::size_t>(std::min_element(ranks.data(), ranks.data() + count - 1) - ranks.data());
            if (ranks[best] == no_rank) break;
            tokens[best] = merged(tokens[best], tokens[best + 1]);
            std::copy(tokens.data() + best + 2, tokens.data() + count, tokens.data() + best + 1);
            if (best + 2 < count) std::copy(ranks.data() + best + 2, ranks.data() + count - 1, ranks.data() + best + 1);
            --count;
            if (best + 1 < count) ranks[best] = rank(tokens[best], tokens[best + 1]);
            if (best > 0) ranks[best - 1] = rank(tokens[best - 1], tokens[best]);
        }
        out.insert(out.end(), tokens.data(), tokens.data() + count);
    }

    void encode_long(std::string_view word, Scratch& scratch, std::vector<Token>& out) const {
        scratch.symbols_.clear();
        for (const char c : word)
            if (const Token token = bytes_[static_cast<std::uint8_t>(c)]; token != no_token)
                append_symbol(token, scratch);
        merge_symbols(scratch, out);
    }

    static void append_symbol(Token token, Scratch& scratch) {
        const std::size_t i = scratch.symbols_.size();
        scratch.symbols_.push_back({token, i == 0 ? none : i - 1, i + 1});
    }

    // A linked list of symbols and a heap of candidate pairs; stale candidates are recognized when they come up.
    void merge_symbols(Scratch& scratch, std::vector<Token>& out) const {
        auto& symbols = scratch.symbols_;
        auto& heap = scratch.heap_;
        heap.clear();
        if (symbols.empty()) return;
        symbols.back().next = none;

        const auto candidate = [&](std::size_t position) {
            const std::size_t next = symbols[position].next;
            if (next == none) return;
            const Token left = symbols[position].token;
            const Token right = symbols[next].token;
            if (const std::uint32_t r = rank(left, right); r != no_rank) heap.push_back({r, left, right, position});
        };
        for (std::size_t i = 0; i < symbols.size(); ++i) candidate(i);
        std::make_heap(heap.begin(), heap.end());
        const auto push = [&](std::size_t position) {
            const std::size_t before = heap.size();
            candidate(position);
            if (heap.size() != before) std::push_heap(heap.begin(), heap.end());
        };

        while (!heap.empty()) {
            std::pop_heap(heap.begin(), heap.end());
            const auto best = heap.back();
            heap.pop_back();
            auto& left = symbols[best.position];
            if (left.token != best.left || left.next == none || symbols[left.next].token != best.right) continue;
            auto& right = symbols[left.next];
            left.token = merged(best.left, best.right);
            left.next = right.next;
            right.token = no_token;  // no candidate names it any more
            if (left.next != none) symbols[left.next].previous = best.position;
            push(best.position);
            if (left.previous != none) push(left.previous);
        }
        for (std::size_t i = 0; i != none; i = symbols[i].next) out.push_back(symbols[i].token);
    }

    std::array<Token, 256> bytes_;
    detail::HashIndex rules_;
};

}  // namespace decant::inline DECANT_ABI

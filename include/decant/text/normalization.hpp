// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Normalization form C: characters and their combining marks in the one spelling that composes them.
/// Source: The Unicode Standard, chapter 3.11, and UAX #15.

#include <decant/text/normalization_table.hpp>
#include <decant/text/utf8.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Hangul syllables are composed by arithmetic (chapter 3.12).
struct Hangul {
    static constexpr char32_t lead = 0x1100, vowel = 0x1161, tail = 0x11A7, syllable = 0xAC00;
    static constexpr char32_t leads = 19, vowels = 21, tails = 28, syllables = leads * vowels * tails;
};

[[nodiscard]] constexpr std::uint8_t combining_class(char32_t code) noexcept {
    const auto* after = std::upper_bound(std::begin(combining_ranges), std::end(combining_ranges), code,
                                         [](char32_t c, const CombiningRange& range) { return c < range.first; });
    if (after == std::begin(combining_ranges)) return 0;
    return code <= (after - 1)->last ? (after - 1)->combining_class : std::uint8_t{0};
}

[[nodiscard]] constexpr const Decomposition* find_decomposition(char32_t code) noexcept {
    const auto* at = std::lower_bound(std::begin(decompositions), std::end(decompositions), code,
                                      [](const Decomposition& d, char32_t c) { return d.code < c; });
    return at != std::end(decompositions) && at->code == code ? at : nullptr;
}

/// The character that the two compose to, or 0.
[[nodiscard]] constexpr char32_t compose(char32_t first, char32_t second) noexcept {
    using H = Hangul;
    if (first >= H::lead && first < H::lead + H::leads && second >= H::vowel && second < H::vowel + H::vowels)
        return H::syllable + ((first - H::lead) * H::vowels + (second - H::vowel)) * H::tails;
    if (first >= H::syllable && first < H::syllable + H::syllables && (first - H::syllable) % H::tails == 0 &&
        second > H::tail && second < H::tail + H::tails)
        return first + (second - H::tail);
    const std::pair wanted{first, second};
    const auto pair = [](std::uint16_t i) { return std::pair{decompositions[i].first, decompositions[i].second}; };
    const auto* at = std::lower_bound(std::begin(compositions), std::end(compositions), wanted,
                                      [&](std::uint16_t i, const auto& key) { return pair(i) < key; });
    return at != std::end(compositions) && pair(*at) == wanted ? decompositions[*at].code : U'\0';
}

class Composer {
 public:
    /// Appends the normalization form C of `text` to `out`.
    void run(std::string_view text, std::string& out) {
        chars_.clear();
        while (!text.empty()) {
            const Utf8Char c = decode_utf8(text);
            const std::size_t bytes = c.status == Utf8Status::valid ? c.bytes : 1;
            if (c.status == Utf8Status::valid)
                decompose(c.code);
            else
                chars_.push_back({not_a_character + static_cast<std::uint8_t>(text.front()), 0});
            text.remove_prefix(bytes);
        }
        order();
        join();
        for (const Char& c : chars_) {
            if (c.code >= not_a_character)
                out.push_back(static_cast<char>(static_cast<std::uint8_t>(c.code - not_a_character)));
            else
                append_utf8(out, c.code);
        }
    }

 private:
    static constexpr char32_t not_a_character = 0x110000;  // and above: bytes that are no UTF-8

    struct Char {
        char32_t code;
        std::uint8_t combining_class;
    };

    void put(char32_t code) { chars_.push_back({code, combining_class(code)}); }

    void decompose(char32_t code) {
        using H = Hangul;
        if (code >= H::syllable && code < H::syllable + H::syllables) {
            const char32_t index = code - H::syllable;
            chars_.push_back({H::lead + index / (H::vowels * H::tails), 0});
            chars_.push_back({H::vowel + index % (H::vowels * H::tails) / H::tails, 0});
            if (index % H::tails != 0) chars_.push_back({H::tail + index % H::tails, 0});
            return;
        }
        // Only the first part of a mapping decomposes further.
        std::array<char32_t, 8> rest;
        std::size_t count = 0;
        for (const auto* found = find_decomposition(code); found != nullptr; found = find_decomposition(code)) {
            code = found->first;
            if (found->second != 0 && count < rest.size()) rest[count++] = found->second;
        }
        put(code);
        while (count > 0) put(rest[--count]);
    }

    void order() {
        for (auto at = chars_.begin(); at != chars_.end();) {
            const auto is_mark = [](const Char& c) { return c.combining_class != 0; };
            const auto first = std::find_if(at, chars_.end(), is_mark);
            at = std::find_if_not(first, chars_.end(), is_mark);
            std::stable_sort(first, at,
                             [](const Char& a, const Char& b) { return a.combining_class < b.combining_class; });
        }
    }

    void join() {
        constexpr std::size_t none = static_cast<std::size_t>(-1);
        std::size_t starter = none, kept = 0;
        for (const Char c : std::vector<Char>(std::move(chars_))) {
            // Between a starter and what may join it lies nothing that blocks: nothing, or marks of lower classes.
            const bool adjacent = starter != none && kept == starter + 1;
            const bool open = adjacent || (starter != none && c.combining_class != 0 &&
                                           joined_[kept - 1].combining_class < c.combining_class);
            const char32_t composed = open ? compose(joined_[starter].code, c.code) : U'\0';
            if (composed != 0) {
                joined_[starter].code = composed;
                continue;
            }
            if (c.combining_class == 0) starter = kept;
            joined_.push_back(c);
            ++kept;
        }
        chars_ = std::move(joined_);
        joined_.clear();
    }

    std::vector<Char> chars_;
    std::vector<Char> joined_;
};

}  // namespace detail

/// The normalization form C of `text`; `buffer` holds it if it is not `text` itself. Bytes that are not UTF-8 stay
/// where they are. O(n log n) at worst, for text of nothing but marks.
[[nodiscard]] inline std::string_view normalize_nfc(std::string_view text, std::string& buffer) {
    // Nothing below U+0300, whose first byte is 0xCC, composes, decomposes or moves.
    const bool stays =
        std::all_of(text.begin(), text.end(), [](char c) { return static_cast<std::uint8_t>(c) < 0xCC; });
    if (stays) return text;
    buffer.clear();
    detail::Composer().run(text, buffer);
    return buffer;
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `char_kind(code_point)`: the few character classes that pre-tokenizers split by.

#include <decant/core/config.hpp>
#include <decant/text/unicode_table.hpp>

#include <algorithm>
#include <iterator>

namespace decant::inline DECANT_ABI {

/// Class of a code point in the Unicode version of unicode_table.hpp. Unassigned code points, surrogates and values
/// above U+10FFFF are `CharKind::other`.
[[nodiscard]] constexpr CharKind char_kind(char32_t code) noexcept {
    if (code < 0x80) {
        const char32_t letter = code | 0x20;
        if (letter >= 'a' && letter <= 'z') return CharKind::letter;
        if (code >= '0' && code <= '9') return CharKind::number;
        return code == ' ' || (code >= '\t' && code <= '\r') ? CharKind::space : CharKind::other;
    }
    const auto* after = std::upper_bound(std::begin(detail::char_ranges), std::end(detail::char_ranges), code,
                                         [](char32_t c, const detail::CharRange& range) { return c < range.first; });
    if (after == std::begin(detail::char_ranges)) return CharKind::other;
    const detail::CharRange& range = *(after - 1);
    return code <= range.last ? range.kind : CharKind::other;
}

}  // namespace decant::inline DECANT_ABI

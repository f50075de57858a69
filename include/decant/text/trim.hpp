// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Text without the white space at its ends.

#include <decant/text/unicode.hpp>
#include <decant/text/utf8.hpp>

#include <cstddef>
#include <string_view>

namespace decant::inline DECANT_ABI {
namespace detail {

/// What `str.strip` of Python takes away, and so the filter `trim` of Jinja.
[[nodiscard]] constexpr bool is_trimmed(char32_t code) noexcept {
    return char_kind(code) == CharKind::space || (code >= 0x1C && code <= 0x1F);
}

/// Without the characters at the left end that `wanted` holds for.
template <class Wanted>
[[nodiscard]] constexpr std::string_view trim_left(std::string_view text, Wanted wanted) {
    while (!text.empty()) {
        const Utf8Char c = decode_utf8(text);
        if (!wanted(c.code)) break;
        text.remove_prefix(c.bytes);
    }
    return text;
}

/// The same at the right end.
template <class Wanted>
[[nodiscard]] constexpr std::string_view trim_right(std::string_view text, Wanted wanted) {
    while (!text.empty()) {
        std::size_t begin = text.size() - 1;
        while (begin > 0 && text.size() - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80)
            --begin;
        const Utf8Char c = decode_utf8(text.substr(begin));
        if (begin + c.bytes != text.size() || !wanted(c.code)) break;
        text.remove_suffix(c.bytes);
    }
    return text;
}

/// Without white space at the end, as regular expressions know it (\s).
[[nodiscard]] constexpr std::string_view trim_left(std::string_view text) {
    return trim_left(text, [](char32_t code) { return char_kind(code) == CharKind::space; });
}
[[nodiscard]] constexpr std::string_view trim_right(std::string_view text) {
    return trim_right(text, [](char32_t code) { return char_kind(code) == CharKind::space; });
}

/// Without white space at both ends, as the filter `trim` of Jinja does it.
[[nodiscard]] constexpr std::string_view trim(std::string_view text) {
    return trim_right(trim_left(text, is_trimmed), is_trimmed);
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// How SentencePiece spells pieces: a space as the mark U+2581 (lower one eighth block), a byte by its number.

#include <decant/core/config.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {
namespace detail {

/// The bytes of U+2581, which stands for a space.
inline constexpr std::string_view word_mark = "\xE2\x96\x81";

/// Appends `spelling` with spaces in place of marks.
inline void append_unmarked(std::string_view spelling, std::string& out) {
    for (std::size_t mark = spelling.find(word_mark); mark != std::string_view::npos; mark = spelling.find(word_mark)) {
        out.append(spelling.substr(0, mark));
        out.push_back(' ');
        spelling.remove_prefix(mark + word_mark.size());
    }
    out.append(spelling);
}

/// Appends the byte that "<0xNN>" names, two hexadecimal digits. False, and nothing is appended, for other text.
[[nodiscard]] inline bool append_numbered_byte(std::string_view spelling, std::string& out) {
    if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return false;
    int byte = 0;
    for (const char c : spelling.substr(3, 2)) {
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                 : -1;
        if (digit < 0) return false;
        byte = byte * 16 + digit;
    }
    out.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    return true;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The alphabet in which byte-level vocabularies (GPT-2 and its descendants) spell bytes: printable Latin-1 stands for
/// itself, the other 68 bytes are U+0100 and up, in order. A space is spelled U+0120.

#include <decant/core/config.hpp>
#include <decant/text/utf8.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Whether the alphabet writes `byte` as the code point of the same value.
[[nodiscard]] constexpr bool spelled_as_itself(std::size_t byte) noexcept {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// For each code point below 324 the byte that it spells, or -1.
inline constexpr std::array<std::int16_t, 324> byte_level_table = [] {
    std::array<std::int16_t, 324> table{};
    std::size_t next = 256;
    for (std::size_t byte = 0; byte < 256; ++byte) {
        if (spelled_as_itself(byte)) {
            table[byte] = static_cast<std::int16_t>(byte);
        } else {
            table[byte] = -1;
            table[next++] = static_cast<std::int16_t>(byte);
        }
    }
    return table;
}();

/// Appends the bytes that `spelling` stands for. False if a character is outside the alphabet; `out` is then unchanged.
[[nodiscard]] inline bool append_byte_level(std::string_view spelling, std::string& out) {
    const std::size_t before = out.size();
    while (!spelling.empty()) {
        const Utf8Char c = decode_utf8(spelling);
        const int byte =
            c.status == Utf8Status::valid && c.code < byte_level_table.size() ? byte_level_table[c.code] : -1;
        if (byte < 0) {
            out.resize(before);
            return false;
        }
        out.push_back(static_cast<char>(byte));
        spelling.remove_prefix(c.bytes);
    }
    return true;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

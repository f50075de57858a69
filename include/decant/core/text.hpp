// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Building messages without locale, streams or format strings: `detail::text(...)` and `detail::quoted(...)`.

#include <decant/core/config.hpp>

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {
namespace detail {

inline void append(std::string& out, std::string_view part) { out.append(part); }
inline void append(std::string& out, const char* part) { out.append(part); }

template <std::integral T>
void append(std::string& out, T number) {
    if constexpr (std::same_as<T, bool>) {
        out.append(number ? "true" : "false");
    } else if constexpr (std::same_as<T, char>) {
        out.push_back(number);
    } else {
        char digits[24];
        const auto end = std::to_chars(digits, digits + sizeof digits, number);
        out.append(digits, end.ptr);
    }
}

template <std::floating_point T>
void append(std::string& out, T number) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, number);
    out.append(digits, end.ptr);
}

/// Concatenates strings and numbers (shortest decimal form, never the locale's).
template <class... Parts>
[[nodiscard]] std::string text(const Parts&... parts) {
    std::string out;
    (append(out, parts), ...);
    return out;
}

/// Text from a file, made safe to show: in quotes, control and non-ASCII bytes as \xNN, cut after 64 bytes.
[[nodiscard]] inline std::string quoted(std::string_view raw) {
    constexpr std::size_t limit = 64;
    constexpr char hex[] = "0123456789abcdef";
    std::string out = "\"";
    for (const char c : raw.substr(0, limit)) {
        const auto byte = static_cast<std::uint8_t>(c);
        if (byte < 0x20 || byte > 0x7e) {
            out.append({'\\', 'x', hex[byte >> 4], hex[byte & 15]});
        } else {
            if (c == '"' || c == '\\') out.push_back('\\');
            out.push_back(c);
        }
    }
    out.append(raw.size() > limit ? "...\"" : "\"");
    return out;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Numbers for people.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace experiment {

/// A number with a fixed count of decimals.
inline std::string fixed(double value, int decimals) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
    return buffer;
}

/// With a comma between thousands.
inline std::string grouped(double value) {
    const std::string digits = fixed(std::round(value), 0);
    std::string out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        const bool group = (digits.size() - i) % 3 == 0 && i > 0 && digits[i - 1] != '-';
        if (group) out += ',';
        out += digits[i];
    }
    return out;
}
inline std::string count(std::size_t value) { return grouped(static_cast<double>(value)); }

/// Three significant digits or so.
inline std::string rounded(double value) {
    const double size = std::abs(value);
    if (size == 0) return "0";
    if (size >= 1000) return grouped(value);
    return fixed(value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.995 ? 2 : 3);
}

inline std::string megabytes(double bytes) {
    return bytes >= 999.5e6 ? rounded(bytes / 1e9) + " GB" : rounded(bytes / 1e6) + " MB";
}
inline std::string megabytes(std::uint64_t bytes) { return megabytes(static_cast<double>(bytes)); }
inline std::string bytes_text(double bytes) {
    return bytes < 999.5e3 ? rounded(bytes / 1e3) + " kB" : megabytes(bytes);
}

inline std::string duration(double seconds) {
    return seconds < 0.9995 ? rounded(seconds * 1e3) + " ms" : rounded(seconds) + " s";
}
inline std::string percent(double share) { return fixed(share * 100, share > 0.0995 || share == 0 ? 0 : 1) + " %"; }
/// A share that only says 100 % if it is.
inline std::string exact_percent(std::size_t part, std::size_t whole) {
    if (part == whole) return "100 %";
    const double share = static_cast<double>(part) / static_cast<double>(whole);
    return fixed(std::floor(share * 1000) / 10, 1) + " %";
}
inline std::string rate(double per_second) { return rounded(per_second) + " tok/s"; }

}  // namespace experiment

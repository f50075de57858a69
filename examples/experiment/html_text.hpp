// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Text of a file, a model or a user as HTML text or as the value of a quoted attribute.

#include <cstddef>
#include <string>
#include <string_view>

namespace experiment {

/// Length of the UTF-8 character that `text` begins with, or 0 if it begins with none (RFC 3629).
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
    const unsigned first = byte(0), second = byte(1);
    if (first < 0x80) return text.empty() ? 0 : 1;
    if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
    if (first >= 0xE0 && first <= 0xEF) {
        const bool valid = !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second >= 0xA0);
        return valid && follows(1) && follows(2) ? 3 : 0;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        const bool valid = !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second >= 0x90);
        return valid && follows(1) && follows(2) && follows(3) ? 4 : 0;
    }
    return 0;
}

/// Nothing in the result is markup; bytes that are no text become U+FFFD, control characters other than white space
/// vanish.
[[nodiscard]] inline std::string escaped(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        const std::string_view character = text.substr(0, length == 0 ? 1 : length);
        text.remove_prefix(character.size());
        if (length == 0) {
            out += "&#xFFFD;";
            continue;
        }
        switch (const char c = character[0]) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '"': out += "&quot;"; break;
            case '\'': out += "&#39;"; break;
            case '\n':
            case '\t': out += c; break;
            default:
                if (length > 1 || (c >= 0x20 && c != 0x7F)) out += character;
        }
    }
    return out;
}

}  // namespace experiment

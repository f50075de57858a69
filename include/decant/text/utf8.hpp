// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// UTF-8 on bytes that may be anything: decoding, validation, repair, and `Utf8Stream` for text that arrives in pieces.
///
/// Ill-formed input follows the practice "substitution of maximal subparts" (The Unicode Standard, chapter 3.9): the
/// longest prefix of a well-formed sequence, or one byte, is replaced by one U+FFFD.

#include <decant/core/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {

enum class Utf8Status : std::uint8_t {
    valid,       ///< a whole character
    invalid,     ///< can never become a character, whatever follows
    incomplete,  ///< the text ends inside what may be a character
};

/// One step of decoding.
struct Utf8Char {
    char32_t code = 0xFFFD;  ///< the code point; U+FFFD unless valid
    std::size_t bytes = 0;   ///< how many bytes it takes: 1 to 4 if valid, 1 to 3 otherwise; 0 only for empty text
    Utf8Status status = Utf8Status::incomplete;
};

/// The bytes of U+FFFD, the replacement character.
inline constexpr std::string_view utf8_replacement = "\xEF\xBF\xBD";

/// Decodes the first character of `text`. Surrogates, overlong forms and values above U+10FFFF are invalid.
[[nodiscard]] constexpr Utf8Char decode_utf8(std::string_view text) noexcept {
    if (text.empty()) return {};
    const auto lead = static_cast<std::uint8_t>(text[0]);
    if (lead < 0x80) return {lead, 1, Utf8Status::valid};
    if (lead < 0xC2 || lead > 0xF4) return {0xFFFD, 1, Utf8Status::invalid};
    const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // Table 3-7 of the standard: only the second byte has a range that depends on the lead.
    std::uint8_t low = 0x80;
    std::uint8_t high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    char32_t code = lead & (0x7Fu >> length);
    for (std::size_t i = 1; i < length; ++i) {
        if (i == text.size()) return {0xFFFD, i, Utf8Status::incomplete};
        const auto byte = static_cast<std::uint8_t>(text[i]);
        if (byte < low || byte > high) return {0xFFFD, i, Utf8Status::invalid};
        code = (code << 6) | (byte & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    return {code, length, Utf8Status::valid};
}

/// Whether `text` is well-formed UTF-8.
[[nodiscard]] constexpr bool is_utf8(std::string_view text) noexcept {
    while (!text.empty()) {
        const Utf8Char next = decode_utf8(text);
        if (next.status != Utf8Status::valid) return false;
        text.remove_prefix(next.bytes);
    }
    return true;
}

/// Appends a code point (a scalar value, at most U+10FFFF) as UTF-8.
inline void append_utf8(std::string& out, char32_t code) {
    const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<std::uint8_t>(byte))); };
    if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xC0 | (code >> 6));
        put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        put(0xE0 | (code >> 12));
        put(0x80 | ((code >> 6) & 0x3F));
        put(0x80 | (code & 0x3F));
    } else {
        put(0xF0 | (code >> 18));
        put(0x80 | ((code >> 12) & 0x3F));
        put(0x80 | ((code >> 6) & 0x3F));
        put(0x80 | (code & 0x3F));
    }
}

/// Turns bytes that arrive in pieces into whole characters: a tail that may still become a character is held (at most
/// 3 bytes), what can no longer become one is replaced at once. Copyable; the copy goes on independently.
class Utf8Stream {
 public:
    /// Appends to `out` the text that `bytes` complete.
    void push(std::string_view bytes, std::string& out) {
        if (skips_space_ && !bytes.empty()) {
            if (bytes.front() == ' ') bytes.remove_prefix(1);
            skips_space_ = false;
        }
        // A held tail is completed byte by byte; it is gone after three more bytes at the latest.
        while (held_ != 0 && !bytes.empty()) {
            tail_[held_] = bytes.front();
            const Utf8Char next = decode_utf8({tail_.data(), held_ + 1u});
            if (next.status == Utf8Status::invalid) {  // the new byte is not part of it and is looked at afresh
                out += utf8_replacement;
                held_ = 0;
                break;
            }
            bytes.remove_prefix(1);
            ++held_;
            if (next.status == Utf8Status::valid) {
                out.append(tail_.data(), held_);
                held_ = 0;
            }
        }
        std::size_t good = 0;  // bytes[0, good) is valid and not yet copied
        while (good < bytes.size()) {
            const Utf8Char next = decode_utf8(bytes.substr(good));
            if (next.status == Utf8Status::valid) {
                good += next.bytes;
                continue;
            }
            out.append(bytes.substr(0, good));
            bytes.remove_prefix(good);
            good = 0;
            if (next.status == Utf8Status::incomplete) {
                for (const char c : bytes) tail_[held_++] = c;
                return;
            }
            out += utf8_replacement;
            bytes.remove_prefix(next.bytes);
        }
        out.append(bytes);
    }

    /// The text has ended: a held tail becomes one U+FFFD. The stream is then as new.
    void finish(std::string& out) {
        if (held_ != 0) out += utf8_replacement;
        held_ = 0;
        skips_space_ = false;
    }

    /// If the next byte is a space, it is left out.
    void skip_space() noexcept { skips_space_ = true; }
    [[nodiscard]] bool skips_space() const noexcept { return skips_space_; }

    /// How many bytes are held.
    [[nodiscard]] std::size_t held() const noexcept { return held_; }
    /// The bytes that are held: pushed into a new stream they give the same state.
    [[nodiscard]] std::string_view tail() const& noexcept { return {tail_.data(), held_}; }

 private:
    std::array<char, 4> tail_{};
    std::uint8_t held_ = 0;
    bool skips_space_ = false;
};

}  // namespace decant::inline DECANT_ABI

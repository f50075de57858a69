// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ByteReader`: little-endian numbers, strings and counts from bytes that nobody vouches for. This is the one place
/// where numbers of a file are compared with the bytes that are left, before anything is sized or moved by them.

#include <decant/core/result.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace decant::inline DECANT_ABI {
namespace detail {

/// a + b, or nothing where it does not fit.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
    if (a > (std::numeric_limits<std::uint64_t>::max)() - b) return std::nullopt;
    return a + b;
}

/// a * b, or nothing where it does not fit.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) noexcept {
    if (b != 0 && a > (std::numeric_limits<std::uint64_t>::max)() / b) return std::nullopt;
    return a * b;
}

/// The number stored little-endian at `at`, at any alignment.
template <class T>
[[nodiscard]] T load_little(const std::byte* at) noexcept {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    std::array<std::byte, sizeof(T)> raw;
    std::memcpy(raw.data(), at, sizeof(T));
    if constexpr (std::endian::native == std::endian::big) std::reverse(raw.begin(), raw.end());
    return std::bit_cast<T>(raw);
}

}  // namespace detail

/// A cursor over `bytes`, which must outlive it and whatever it returns. A failed read leaves the cursor where it was;
/// its error says what was being read (`what`), the byte offset, and how many bytes were left.
class ByteReader {
 public:
    /// Starts at `position`, which must lie within `bytes` or at their end.
    explicit ByteReader(std::span<const std::byte> bytes, std::uint64_t position = 0) noexcept
        : bytes_(bytes), position_(static_cast<std::size_t>(position)) {
        DECANT_ASSERT(position <= bytes.size());
    }

    [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
    [[nodiscard]] std::uint64_t remaining() const noexcept { return bytes_.size() - position_; }
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

    /// The next number.
    template <class T>
    [[nodiscard]] Result<T> number(std::string_view what) {
        if (remaining() < sizeof(T)) return cut_off(what, sizeof(T));
        const T value = detail::load_little<T>(bytes_.data() + position_);
        position_ += sizeof(T);
        return value;
    }

    /// The next `count` bytes.
    [[nodiscard]] Result<std::span<const std::byte>> take(std::uint64_t count, std::string_view what) {
        if (count > remaining()) return cut_off(what, count);
        const auto part = bytes_.subspan(position_, static_cast<std::size_t>(count));
        position_ += part.size();
        return part;
    }

    /// The next `count` elements of `bytes_each` bytes.
    [[nodiscard]] Result<std::span<const std::byte>> take(std::uint64_t count, std::uint64_t bytes_each,
                                                          std::string_view what) {
        const auto total = detail::checked_multiply(count, bytes_each);
        if (!total || *total > remaining()) return too_many(what, count, bytes_each, position_);
        return take(*total, what);
    }

    /// A 64-bit count of things that take at least `minimum_bytes` each: refused unless that many bytes are left.
    [[nodiscard]] Result<std::uint64_t> count(std::uint64_t minimum_bytes, std::string_view what) {
        const std::size_t start = position_;
        DECANT_TRY(const std::uint64_t value, number<std::uint64_t>(what));
        const auto total = detail::checked_multiply(value, minimum_bytes);
        if (!total || *total > remaining()) {
            Error error = too_many(what, value, minimum_bytes, start);
            position_ = start;
            return error;
        }
        return value;
    }

    /// A 64-bit length and that many bytes.
    [[nodiscard]] Result<std::string_view> string(std::string_view what) {
        std::string_view text;
        if (!next_string(text)) {
            if (remaining() < sizeof(std::uint64_t)) return cut_off(what, sizeof(std::uint64_t));
            return too_many(what, detail::load_little<std::uint64_t>(bytes_.data() + position_), 1, position_);
        }
        return text;
    }

    /// `string` for long arrays, without the cost of a `Result` each: false, and nothing read, if it is not all there.
    [[nodiscard]] bool next_string(std::string_view& text) noexcept {
        if (remaining() < sizeof(std::uint64_t)) return false;
        const auto length = detail::load_little<std::uint64_t>(bytes_.data() + position_);
        if (length > remaining() - sizeof(std::uint64_t)) return false;
        position_ += sizeof(std::uint64_t);
        text = {reinterpret_cast<const char*>(bytes_.data()) + position_, static_cast<std::size_t>(length)};
        position_ += text.size();
        return true;
    }

 private:
    [[nodiscard]] Error cut_off(std::string_view what, std::uint64_t needed) const {
        return {ErrorCode::bad_format,
                detail::text(what, " needs ", needed, " bytes, but only ", remaining(), " are left"),
                detail::text("byte ", position_), "the file is cut off or damaged"};
    }
    [[nodiscard]] Error too_many(std::string_view what, std::uint64_t count, std::uint64_t bytes_each,
                                 std::uint64_t at) const {
        const std::string each = bytes_each > 1 ? detail::text(" (of at least ", bytes_each, " bytes)") : std::string();
        return {ErrorCode::bad_format,
                detail::text(what, " is ", count, each, ", but only ", remaining(), " bytes are left"),
                detail::text("byte ", at), "the file is cut off or damaged"};
    }

    std::span<const std::byte> bytes_;
    std::size_t position_ = 0;
};

}  // namespace decant::inline DECANT_ABI

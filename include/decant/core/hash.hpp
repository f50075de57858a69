// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Hash64`: 64 bits over bytes that come in pieces, the same on every machine. Against damage, not against forgery.

#include <decant/core/config.hpp>

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace decant::inline DECANT_ABI {

/// Eight bytes at a time. Each step is a bijection of the state and of the word, so that a change within one word
/// always changes the hash, and any other change but for one in 2^64.
class Hash64 {
 public:
    /// How the bytes are cut into pieces counts.
    void add(std::span<const std::byte> bytes) noexcept {
        mix(bytes.size());
        std::size_t at = 0;
        for (; at + sizeof(std::uint64_t) <= bytes.size(); at += sizeof(std::uint64_t))
            mix(word(bytes.data() + at, sizeof(std::uint64_t)));
        if (at < bytes.size()) mix(word(bytes.data() + at, bytes.size() - at));
    }
    void add(std::string_view text) noexcept { add(std::as_bytes(std::span(text))); }
    void add(std::integral auto number) noexcept { mix(static_cast<std::uint64_t>(number)); }
    void add(float number) noexcept { mix(std::bit_cast<std::uint32_t>(number)); }
    template <class E>
    requires(std::is_enum_v<E>) void add(E value) noexcept { mix(static_cast<std::uint64_t>(value)); }
    template <class A, class B, class... More>
    void add(const A& a, const B& b, const More&... more) noexcept {
        add(a);
        add(b);
        (add(more), ...);
    }

    [[nodiscard]] std::uint64_t value() const noexcept {
        std::uint64_t hash = state_;
        hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93u;
        return hash ^ hash >> 32;
    }

 private:
    void mix(std::uint64_t word) noexcept {
        // The second product spreads what the first leaves in the highest bit, where the next word could undo it.
        state_ = std::rotl((state_ ^ word) * 0x9e3779b97f4a7c15u, 29) * 0xd6e8feb86659fd93u;
    }
    /// Little-endian, filled with zeros.
    [[nodiscard]] static std::uint64_t word(const std::byte* at, std::size_t bytes) noexcept {
        std::uint64_t value = 0;
        if constexpr (std::endian::native == std::endian::little) {
            std::memcpy(&value, at, bytes);
        } else {
            for (std::size_t i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(at[i]) << 8 * i;
        }
        return value;
    }

    std::uint64_t state_ = 0x243f6a8885a308d3u;
};

}  // namespace decant::inline DECANT_ABI

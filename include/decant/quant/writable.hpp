// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the formats share that numbers can be written in.

#include <decant/core/config.hpp>
#include <decant/quant/float16.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace decant::inline DECANT_ABI {

/// A format that numbers can be written in: `quantize` makes one block. A block with a NaN or an infinity comes back as
/// NaNs; numbers beyond the reach of a block's 16-bit floats as infinities or NaNs.
template <class Format>
concept WritableFormat = requires(const float* numbers, std::byte* block) {
    Format::quantize(numbers, block);
};

namespace detail {

template <class T>
inline void store(std::byte* to, T value) noexcept {
    std::memcpy(to, &value, sizeof value);
}

/// The largest magnitude of 32 numbers; an infinity or a NaN if one of them is. In integers, because maxima of floats
/// lose NaNs and are not vectorised.
[[nodiscard]] inline float largest_magnitude(const float* numbers) noexcept {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < 32; ++i) {
        const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(numbers[i]) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return std::bit_cast<float>(largest);
}

/// Whether what `largest_magnitude` gave is finite.
[[nodiscard]] inline bool is_finite_magnitude(float magnitude) noexcept {
    return std::bit_cast<std::uint32_t>(magnitude) < 0x7F800000u;
}

/// What a block is divided by and what is stored of it: NaN where a number was not finite, so that it cannot pass
/// unseen.
struct BlockScale {
    float inverse;
    std::uint16_t half;

    BlockScale(float scale, bool finite) noexcept
        : inverse(finite && scale != 0.0f ? 1.0f / scale : 0.0f), half(finite ? float_to_half(scale) : 0x7E00u) {}
};

/// The whole part of `value`, brought into 0..largest; a NaN becomes 0.
[[nodiscard]] inline std::uint8_t code_of(float value, float largest) noexcept {
    const float positive = value > 0.0f ? value : 0.0f;
    return static_cast<std::uint8_t>(static_cast<std::int32_t>(positive < largest ? positive : largest));
}

}  // namespace detail

}  // namespace decant::inline DECANT_ABI

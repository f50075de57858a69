// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Conversions between F32 and the 16-bit float formats, as IEEE 754 defines them. None depends on the processor's
/// treatment of subnormal numbers, which hosts often set to flush. They select with masks instead of conditions,
/// because compilers turn conditions into branches and then vectorise no loop over them.

#include <decant/core/config.hpp>

#include <bit>
#include <cstdint>

namespace decant::inline DECANT_ABI {

namespace detail {

/// All ones if a < b, else zero; for numbers below 2^31.
[[nodiscard]] constexpr std::uint32_t mask_less(std::uint32_t a, std::uint32_t b) noexcept {
    return static_cast<std::uint32_t>(static_cast<std::int32_t>(a - b) >> 31);
}

}  // namespace detail

/// F16 (IEEE binary16) to F32: exact. A NaN keeps its payload.
[[nodiscard]] constexpr float half_to_float(std::uint16_t half) noexcept {
    constexpr std::uint32_t rebias = (127u - 15u) << 23;
    constexpr std::uint32_t one_exponent = 1u << 23;
    const std::uint32_t sign = (half & 0x8000u) << 16;
    const std::uint32_t magnitude = (half & 0x7FFFu) << 13;
    const std::uint32_t subnormal = detail::mask_less(magnitude, one_exponent);
    const std::uint32_t special = detail::mask_less((31u << 23) - 1, magnitude);
    // A subnormal half is mantissa * 2^-24: place the mantissa below a leading one worth 2^-14, then take that one
    // away.
    const float raised = std::bit_cast<float>(magnitude + rebias + (subnormal & one_exponent));
    const float finite = raised - std::bit_cast<float>(subnormal & (rebias + one_exponent));
    return std::bit_cast<float>(sign | (std::bit_cast<std::uint32_t>(finite) + (special & rebias)));
}

/// F32 to F16 (IEEE binary16), to nearest, ties to even. Magnitudes from 65520 on become infinity; a NaN becomes quiet
/// and keeps the upper bits of its payload.
[[nodiscard]] constexpr std::uint16_t float_to_half(float value) noexcept {
    constexpr std::uint32_t rebias = (127u - 15u) << 23;
    constexpr std::uint32_t one_half = 126u << 23;         // 0.5, whose last place is the smallest half, 2^-24
    constexpr std::uint32_t smallest_normal = 113u << 23;  // 2^-14
    constexpr std::uint32_t overflow = 0x477FF000u;        // 65520, the tie between the largest half and infinity
    constexpr std::uint32_t infinity = 0x7F800000u;
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits & 0x80000000u) >> 16;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t is_subnormal = detail::mask_less(magnitude, smallest_normal);
    const std::uint32_t is_finite = detail::mask_less(magnitude, overflow);
    const std::uint32_t is_nan = detail::mask_less(infinity, magnitude);
    const std::uint32_t normal = (magnitude - rebias + 0x0FFFu + ((magnitude >> 13) & 1u)) >> 13;
    const float rounded = std::bit_cast<float>(magnitude & is_subnormal) + std::bit_cast<float>(one_half);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(rounded) - one_half;
    const std::uint32_t finite = (subnormal & is_subnormal) | (normal & ~is_subnormal);
    const std::uint32_t special = 0x7C00u | (is_nan & (0x0200u | ((magnitude >> 13) & 0x03FFu)));
    return static_cast<std::uint16_t>(sign | (finite & is_finite) | (special & ~is_finite));
}

/// BF16 (the upper half of an F32) to F32: exact.
[[nodiscard]] constexpr float bfloat16_to_float(std::uint16_t bfloat16) noexcept {
    return std::bit_cast<float>(std::uint32_t{bfloat16} << 16);
}

/// F32 to BF16, to nearest, ties to even. A NaN becomes quiet and keeps the upper bits of its payload.
[[nodiscard]] constexpr std::uint16_t float_to_bfloat16(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t is_nan = detail::mask_less(0x7F800000u, bits & 0x7FFFFFFFu);
    const std::uint32_t rounded = bits + ((0x7FFFu + ((bits >> 16) & 1u)) & ~is_nan);
    return static_cast<std::uint16_t>((rounded | (0x00400000u & is_nan)) >> 16);
}

}  // namespace decant::inline DECANT_ABI

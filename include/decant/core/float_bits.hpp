// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What a float is, by its bits: also right where the host compiles with -ffast-math, which lets the compiler assume
/// that there is no NaN and no infinity.

#include <decant/core/config.hpp>

#include <bit>
#include <cstdint>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Whether comparisons may be trusted with NaN and infinities.
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
inline constexpr bool finite_math = true;
#else
inline constexpr bool finite_math = false;
#endif

[[nodiscard]] constexpr bool is_nan(float x) noexcept {
    return (std::bit_cast<std::uint32_t>(x) & 0x7fffffffu) > 0x7f800000u;
}
[[nodiscard]] constexpr bool is_finite(float x) noexcept {
    return (std::bit_cast<std::uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}
/// NaN of any sign, or +inf.
[[nodiscard]] constexpr bool is_nan_or_infinity(float x) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return (bits & 0x7f800000u) == 0x7f800000u && bits != 0xff800000u;
}
[[nodiscard]] constexpr bool is_minus_infinity(float x) noexcept {
    return std::bit_cast<std::uint32_t>(x) == 0xff800000u;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

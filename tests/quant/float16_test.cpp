// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/float16.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

using decant::bfloat16_to_float;
using decant::float_to_bfloat16;
using decant::float_to_half;
using decant::half_to_float;

namespace {

using decant_test::infinity;

static_assert(half_to_float(0x3C00) == 1.0f && half_to_float(0xC000) == -2.0f && half_to_float(0x7BFF) == 65504.0f);
static_assert(half_to_float(0x7C00) == infinity && float_to_half(-infinity) == 0xFC00);
static_assert(float_to_half(1.0f) == 0x3C00 && float_to_half(-2.0f) == 0xC000 && float_to_half(65504.0f) == 0x7BFF);
static_assert(float_to_half(std::numeric_limits<float>::quiet_NaN()) == 0x7E00);
static_assert(bfloat16_to_float(0x3F80) == 1.0f && float_to_bfloat16(-2.0f) == 0xC000);

/// Value of a finite binary float of 16 bits, from the definition of IEEE 754.
double value_of(std::uint32_t bits, int mantissa_bits, int bias) {
    const auto mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
    const auto exponent = static_cast<int>((bits & 0x7FFFu) >> mantissa_bits);
    const double magnitude = exponent == 0
                                 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                 : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000u ? -magnitude : magnitude;
}

/// Both signs of every finite number below the infinity of the 16-bit format: the number itself, the midpoint to the
/// next one, and the floats on both sides of the midpoint.
template <class Round>
void check_rounding(Round round, std::uint32_t infinity_bits, int mantissa_bits, int bias) {
    std::size_t wrong = 0;
    for (std::uint32_t low = 0; low < infinity_bits; ++low) {
        const std::uint32_t high = low + 1;
        // The formula continues to infinity's bits as if they were the next power of two, as rounding has to.
        const double tie = (value_of(low, mantissa_bits, bias) + value_of(high, mantissa_bits, bias)) / 2;
        const auto middle = static_cast<float>(tie);
        REQUIRE(static_cast<double>(middle) == tie);
        const auto exact = static_cast<float>(value_of(low, mantissa_bits, bias));
        for (const std::uint32_t sign : {0x0000u, 0x8000u}) {
            const float s = sign == 0 ? 1.0f : -1.0f;
            wrong += round(s * exact) != (sign | low);
            wrong += round(s * middle) != (sign | (low % 2 == 0 ? low : high));
            wrong += round(s * std::nextafter(middle, 0.0f)) != (sign | low);
            wrong += round(s * std::nextafter(middle, infinity)) != (sign | high);
        }
    }
    CHECK(wrong == 0);
}

/// Rounding keeps the order of a dense sample of all floats: many between any two ties, whose neighbourhoods are
/// checked above.
template <class Round>
void check_monotonic(Round round, std::uint32_t infinity_bits) {
    std::uint32_t previous = 0;
    std::size_t wrong = 0;
    for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += 251) {
        const std::uint32_t rounded = round(std::bit_cast<float>(bits));
        wrong += rounded < previous || rounded > infinity_bits;
        wrong += round(std::bit_cast<float>(bits | 0x80000000u)) != (rounded | 0x8000u);
        previous = rounded;
    }
    CHECK(wrong == 0);
    CHECK(round(infinity) == infinity_bits);
    CHECK(round(-infinity) == (infinity_bits | 0x8000u));
    CHECK(round(std::numeric_limits<float>::max()) == infinity_bits);
    CHECK(round(-std::numeric_limits<float>::denorm_min()) == 0x8000u);
}

/// Every bit pattern to float and back; NaNs stay NaNs with their sign and payload, and come back quiet.
template <class Widen, class Round>
void check_all(Widen widen, Round round, std::uint32_t infinity_bits, int mantissa_bits, int bias) {
    const std::uint32_t quiet_bit = 1u << (mantissa_bits - 1);
    std::size_t wrong = 0;
    for (std::uint32_t bits = 0; bits <= 0xFFFFu; ++bits) {
        const float value = widen(static_cast<std::uint16_t>(bits));
        const std::uint32_t magnitude = bits & 0x7FFFu;
        const bool negative = (bits & 0x8000u) != 0;
        wrong += std::signbit(value) != negative;
        if (magnitude < infinity_bits)
            wrong += static_cast<double>(value) != value_of(bits, mantissa_bits, bias);
        else if (magnitude == infinity_bits)
            wrong += value != (negative ? -infinity : infinity);
        else
            wrong += !std::isnan(value);
        wrong += round(value) != (magnitude > infinity_bits ? bits | quiet_bit : bits);
    }
    CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("float16: every half has the value that IEEE 754 defines, and comes back") {
    check_all(half_to_float, float_to_half, 0x7C00, 10, 15);
}

TEST_CASE("float16: rounding to half is to nearest, ties to even") {
    check_rounding(float_to_half, 0x7C00, 10, 15);
    check_monotonic(float_to_half, 0x7C00);
}

TEST_CASE("float16: every bfloat16 has its value, and comes back") {
    check_all(bfloat16_to_float, float_to_bfloat16, 0x7F80, 7, 127);
}

TEST_CASE("float16: rounding to bfloat16 is to nearest, ties to even") {
    check_rounding(float_to_bfloat16, 0x7F80, 7, 127);
    check_monotonic(float_to_bfloat16, 0x7F80);
}

TEST_CASE("float16: a NaN whose payload does not fit stays a NaN") {
    for (const std::uint32_t bits : {0x7F800001u, 0xFF800001u, 0x7FBFFFFFu, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
        const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
        const std::uint16_t half = float_to_half(std::bit_cast<float>(bits));
        const std::uint16_t bfloat16 = float_to_bfloat16(std::bit_cast<float>(bits));
        CHECK((half & 0xFE00) == (sign | 0x7E00));
        CHECK((bfloat16 & 0xFFC0) == (sign | 0x7FC0));
    }
}

#if defined(__SSE2__)
TEST_CASE("float16: conversions of halfs do not care whether the host flushes subnormal numbers") {
    const unsigned int before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u);  // flush to zero, subnormals are zero
    std::size_t wrong = 0;
    for (std::uint32_t bits = 0; bits < 0x7C00u; ++bits) {
        const volatile auto half = static_cast<std::uint16_t>(bits);  // keeps the work between the two settings
        const float value = half_to_float(half);
        wrong += static_cast<double>(value) != value_of(bits, 10, 15) || float_to_half(value) != bits;
    }
    _mm_setcsr(before);
    CHECK(wrong == 0);
}
#endif

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The two passes over a row of logits that everything else is made of: the highest of each block, and exponentials, in
/// blocks of fixed size and in one fixed order of summation.

#include <decant/core/config.hpp>
#include <decant/core/target.hpp>
#include <decant/sample/row_avx2.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace decant::inline DECANT_ABI {
namespace detail {

inline constexpr std::size_t row_block = 64;  ///< logits per block
using RowBlock = std::array<float, row_block>;

inline constexpr float least_exponent = -88.0f;  ///< exp of it counts as 0

/// exp(x) for least_exponent <= x <= 0: within 3e-7 of the value, 0 below -87.7.
/// exp(x) = 2^n exp(r) with |r| <= ln(2)/2, and the Taylor polynomial of degree 7 for exp(r).
[[nodiscard]] inline float exp_nonpositive(float x) noexcept {
    const auto n = static_cast<std::int32_t>(x * 1.44269504f - 0.5f);
    const float whole = static_cast<float>(n);
    const float r = x - whole * 0.693359375f + whole * 2.12194440e-4f;  // ln(2) in two parts
    float sum = 1.0f / 5040.0f;
    sum = sum * r + 1.0f / 720.0f;
    sum = sum * r + 1.0f / 120.0f;
    sum = sum * r + 1.0f / 24.0f;
    sum = sum * r + 1.0f / 6.0f;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    return sum * std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);  // 2^-127 becomes 0
}

[[nodiscard]] inline double sum_block(const float* x) noexcept {
    constexpr std::size_t lanes = 8;
    std::array<float, lanes> sums{};
    for (std::size_t i = 0; i < row_block; i += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += x[i + lane];
    double total = 0.0;
    for (const float sum : sums) total += static_cast<double>(sum);
    return total;
}

inline bool survey_portable(const float* x, std::size_t blocks, std::size_t block, float* maxima) noexcept {
    constexpr std::size_t lanes = 8;
    std::uint32_t nan = 0;
    for (std::size_t b = 0; b < blocks; ++b, x += block) {
        std::array<float, lanes> high;
        for (std::size_t lane = 0; lane < lanes; ++lane) high[lane] = x[lane];
        for (std::size_t start = 0; start < block; start += row_block) {
            const float* const part = x + start;
            // By signed numbers, which more processors compare: compilers vectorize this.
            for (std::size_t i = 0; i < row_block; ++i) {
                const auto magnitude = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(part[i]) & 0x7fffffffu);
                nan |= magnitude > 0x7f800000 ? 1u : 0u;
            }
            for (std::size_t i = 0; i < row_block; i += lanes)
                for (std::size_t lane = 0; lane < lanes; ++lane)
                    high[lane] = part[i + lane] > high[lane] ? part[i + lane] : high[lane];
        }
        maxima[b] = high[0];
        for (const float value : high) maxima[b] = value > maxima[b] ? value : maxima[b];
    }
    return nan == 0;
}

inline double weigh_portable(const float* x, float highest, float inverse, float* exponents, float* weights) noexcept {
    RowBlock out;  // known not to overlap x; the loops below are two, as compilers vectorize them only so
    for (std::size_t i = 0; i < row_block; ++i) {
        const float exponent = (x[i] - highest) * inverse;
        out[i] = exponent > least_exponent ? exponent : least_exponent;
    }
    for (std::size_t i = 0; i < row_block; ++i) exponents[i] = out[i];
    for (std::size_t i = 0; i < row_block; ++i) out[i] = exp_nonpositive(out[i]);
    for (std::size_t i = 0; i < row_block; ++i) weights[i] = out[i];
    return sum_block(out.data());
}

/// One set of passes. All sets give the same bits.
struct RowKernels {
    /// maxima[b] = the highest of block b of `block` logits (a multiple of `row_block`); whether none of all is NaN.
    /// With a NaN the maxima mean nothing.
    bool (*survey)(const float* x, std::size_t blocks, std::size_t block, float* maxima) noexcept;
    /// For `row_block` logits of at most `highest`: exponents (x - highest) * inverse, but not less than
    /// `least_exponent`; weights exp(exponent); the sum of the weights.
    double (*weigh)(const float* x, float highest, float inverse, float* exponents, float* weights) noexcept;
};

inline constexpr RowKernels portable_row_kernels{survey_portable, weigh_portable};
#if DECANT_X86
inline constexpr RowKernels avx2_row_kernels{survey_avx2, weigh_avx2};
#endif

/// The best set of this machine.
[[nodiscard]] inline const RowKernels& row_kernels() noexcept {
#if DECANT_X86
    if (__builtin_cpu_supports("avx2")) return avx2_row_kernels;
#endif
    return portable_row_kernels;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

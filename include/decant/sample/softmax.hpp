// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Exponentials over a whole row of logits, in blocks of fixed size and in one fixed order of summation.

#include <decant/core/config.hpp>
#include <decant/core/math_guard.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

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

/// (x - highest) * inverse for a block, but not less than `least_exponent`; x at most `highest`.
inline void exponents_block(const float* x, float highest, float inverse, RowBlock& exponents) noexcept {
    RowBlock out;  // known not to overlap x; the loops below are two, as compilers vectorize them only so
    for (std::size_t i = 0; i < row_block; ++i) {
        const float exponent = (x[i] - highest) * inverse;
        out[i] = exponent > least_exponent ? exponent : least_exponent;
    }
    exponents = out;
}
/// exp((x - highest) * inverse) for a block.
inline void weigh_block(const float* x, float highest, float inverse, RowBlock& weights) noexcept {
    RowBlock out;
    exponents_block(x, highest, inverse, out);
    for (std::size_t i = 0; i < row_block; ++i) out[i] = exp_nonpositive(out[i]);
    weights = out;
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

}  // namespace detail

/// log(sum(exp(logits))): what to subtract from a logit to get the token's log-probability. -inf for an empty row or
/// one of -inf alone. `logits` must hold neither NaN nor +inf.
[[nodiscard]] inline float log_sum_exp(std::span<const float> logits) noexcept {
    const detail::MathGuard guard;
    using detail::row_block;
    float highest = -std::numeric_limits<float>::infinity();
    for (const float logit : logits) highest = logit > highest ? logit : highest;
    if (!std::isfinite(highest)) return highest;
    double total = 0.0;
    detail::RowBlock weights;
    for (; logits.size() >= row_block; logits = logits.subspan(row_block)) {
        detail::weigh_block(logits.data(), highest, 1.0f, weights);
        total += detail::sum_block(weights.data());
    }
    detail::RowBlock rest;
    rest.fill(-std::numeric_limits<float>::infinity());
    std::copy(logits.begin(), logits.end(), rest.begin());
    detail::weigh_block(rest.data(), highest, 1.0f, weights);
    total += detail::sum_block(weights.data());
    return static_cast<float>(static_cast<double>(highest) + std::log(total));
}

}  // namespace decant::inline DECANT_ABI

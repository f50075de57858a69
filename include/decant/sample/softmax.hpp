// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `log_sum_exp`, and the weights of a block.

#include <decant/core/config.hpp>
#include <decant/core/math_guard.hpp>
#include <decant/sample/row_kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

namespace decant::inline DECANT_ABI {
namespace detail {

/// exp((x - highest) * inverse) for a block; x at most `highest`. Returns the sum.
inline double weigh_block(const float* x, float highest, float inverse, RowBlock& weights) noexcept {
    RowBlock exponents;
    return row_kernels().weigh(x, highest, inverse, exponents.data(), weights.data());
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
    for (; logits.size() >= row_block; logits = logits.subspan(row_block))
        total += detail::weigh_block(logits.data(), highest, 1.0f, weights);
    detail::RowBlock rest;
    rest.fill(-std::numeric_limits<float>::infinity());
    std::copy(logits.begin(), logits.end(), rest.begin());
    total += detail::weigh_block(rest.data(), highest, 1.0f, weights);
    return static_cast<float>(static_cast<double>(highest) + std::log(total));
}

}  // namespace decant::inline DECANT_ABI

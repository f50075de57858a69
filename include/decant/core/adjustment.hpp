// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What a sampler and the memory that holds the logits agree on: how single logits are adjusted before the best are
/// chosen, and which of two candidates is the better.

#include <decant/core/config.hpp>
#include <decant/core/float_bits.hpp>
#include <decant/core/token.hpp>

#include <limits>

namespace decant::inline DECANT_ABI {

/// A change of one token's logit: x becomes (x > 0 ? x / repetition : x * repetition) + bias.
struct LogitAdjustment {
    Token token{};
    float repetition = 1.0f;  ///< positive, finite
    float bias = 0.0f;        ///< -inf forbids the token; never +inf or NaN
    friend bool operator==(const LogitAdjustment&, const LogitAdjustment&) = default;
};

/// The adjusted logit. Overflow saturates at the largest finite number of its sign: only a bias of -inf forbids.
[[nodiscard]] constexpr float apply(const LogitAdjustment& adjustment, float logit) noexcept {
    constexpr float largest = (std::numeric_limits<float>::max)();
    const float scaled = logit > 0.0f ? logit / adjustment.repetition : logit * adjustment.repetition;
    const float result = (scaled < largest ? scaled : largest) + adjustment.bias;
    if (detail::is_minus_infinity(adjustment.bias) || detail::is_minus_infinity(logit))
        return -std::numeric_limits<float>::infinity();
    return result < largest ? (result > -largest ? result : -largest) : largest;
}

namespace detail {

/// Narrowed; beyond the range of `float`, its largest or lowest finite number.
[[nodiscard]] constexpr float saturated(double x) noexcept {
    constexpr double largest = (std::numeric_limits<float>::max)();
    return static_cast<float>(x > largest ? largest : x < -largest ? -largest : x);
}

}  // namespace detail

/// A token that may be picked.
struct Candidate {
    Token token{};
    float logit = 0.0f;        ///< after adjustments, before any temperature that follows
    float probability = 0.0f;  ///< among the candidates that are left; meaningful only where a sampler filled it in
    friend bool operator==(const Candidate&, const Candidate&) = default;
};

/// The order of candidates: by descending logit, equal logits by ascending id. Total, as long as no logit is NaN.
[[nodiscard]] constexpr bool likelier(const Candidate& a, const Candidate& b) noexcept {
    return a.logit > b.logit || (a.logit == b.logit && id(a.token) < id(b.token));
}

}  // namespace decant::inline DECANT_ABI

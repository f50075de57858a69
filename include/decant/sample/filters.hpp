// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What filters and temperatures do to a candidate set.

#include <decant/core/adjustment.hpp>
#include <decant/core/config.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/candidates.hpp>
#include <decant/sample/steps.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace decant::inline DECANT_ABI {
namespace detail {

inline void filter(const TopK& step, CandidateSet& set) { set.keep_best(static_cast<std::size_t>(step.k)); }

inline void filter(const TopP& step, CandidateSet& set) {
    set.weigh();
    set.keep_nearest(0.0, static_cast<double>(step.p));
}

inline void filter(const MinP& step, CandidateSet& set) {
    set.keep_from(set.logit_at(std::log(static_cast<double>((std::min)(step.p, 1.0f)))));
}

inline void filter(const Typical& step, CandidateSet& set) {
    const double entropy = set.weigh_entropy();
    // The exponent of a token as surprising as the average.
    set.keep_nearest(std::log(set.total()) - entropy, static_cast<double>(step.p));
}

inline void filter(const TopNSigma& step, CandidateSet& set) {
    const auto [count, sum, squares] = set.moments();
    const double variance = squares / count - sum / count * (sum / count);
    const double deviation = std::sqrt((std::max)(variance, 0.0));
    set.keep_from(saturated(static_cast<double>(set.highest()) - static_cast<double>(step.n) * deviation));
}

inline void filter(const Temperature& step, CandidateSet& set) {
    if (step.t == 0.0f) {
        set.keep_best(1);
    } else {
        set.divide_by(static_cast<double>(step.t));
    }
}

inline void filter(const DynamicTemperature& step, CandidateSet& set) {
    const auto count = static_cast<double>(set.count());
    if (count == 1.0) return;
    const double share = (std::clamp)(set.weigh_entropy() / std::log(count), 0.0, 1.0);
    const double range = static_cast<double>(step.max) - static_cast<double>(step.min);
    const double t = static_cast<double>(step.min) + range * std::pow(share, static_cast<double>(step.exponent));
    if (t == 0.0) {
        set.keep_best(1);
    } else {
        set.divide_by(t);
    }
}

/// `number`: uniform in [0, 1).
inline void filter(const Xtc& step, CandidateSet& set, double number) {
    if (number >= static_cast<double>(step.probability)) return;
    set.weigh();
    set.exclude_top(static_cast<double>(step.threshold) * set.total());
}

/// Keeps surprises -log2(p) <= mu, or the likeliest token if there are none.
inline void filter(const Mirostat&, CandidateSet& set, double mu) {
    constexpr double ln2 = 0.693147180559945309;
    set.weigh();
    const double least = std::log(set.total()) - mu * ln2;  // the exponent of a surprise of mu
    if (least > 0.0) {
        set.keep_best(1);
    } else {
        set.forbid_below(set.logit_at(least));
    }
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

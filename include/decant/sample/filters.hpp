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
#include <limits>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Orders the list by `before`, only as far as needed, and keeps as few of the first as have the weight `goal`.
template <class Before>
void keep_weight(std::vector<Candidate>& kept, double goal, Before before) {
    const auto at = [&](std::size_t i) { return kept.begin() + static_cast<std::ptrdiff_t>(i); };
    std::size_t count = 0;
    double sum = 0.0;
    for (std::size_t step = 256; count < kept.size(); step *= 4) {
        const std::size_t end = (std::min)(count + step, kept.size());
        if (end < kept.size()) std::nth_element(at(count), at(end), kept.end(), before);
        std::sort(at(count), at(end), before);
        while (count < end) {
            sum += static_cast<double>(kept[count++].probability);
            if (sum >= goal) {
                kept.resize(count);
                return;
            }
        }
    }
}

inline void filter(const TopK& step, CandidateSet& set) { set.keep_best(static_cast<std::size_t>(step.k)); }

inline void filter(const TopP& step, CandidateSet& set) {
    set.weigh();
    const double total = set.total();
    if (set.whole()) {
        // Tokens of less than (1 - p) / count have less than 1 - p together: the rest suffices, with room for rounding.
        double count = 0.0;
        set.for_each([&](float) { count += 1.0; });
        const double least = 0.99 * (1.0 - static_cast<double>(step.p)) * total / count;
        set.gather((std::min)(set.logit_at(std::log(least)), set.highest()));
        set.use_list();
        set.weigh();
    }
    keep_weight(set.kept, static_cast<double>(step.p) * total, likelier);
}

inline void filter(const MinP& step, CandidateSet& set) {
    set.keep_from(set.logit_at(std::log(static_cast<double>((std::min)(step.p, 1.0f)))));
}

inline void filter(const Typical& step, CandidateSet& set) {
    set.weigh();
    const double total = set.total();
    const double typical = std::log(total) - set.entropy();  // the exponent of a token as surprising as the average
    if (set.whole()) {
        set.gather(-(std::numeric_limits<float>::max)());
        set.use_list();
        set.weigh();
    }
    const auto distance = [&](const Candidate& candidate) {
        return std::fabs(set.exponent(candidate.logit) - typical);
    };
    keep_weight(set.kept, static_cast<double>(step.p) * total, [&](const Candidate& a, const Candidate& b) {
        const double first = distance(a);
        const double second = distance(b);
        return first != second ? first < second : likelier(a, b);
    });
    set.order();
}

inline void filter(const TopNSigma& step, CandidateSet& set) {
    double count = 0.0;
    double sum = 0.0;
    double squares = 0.0;
    const auto highest = static_cast<double>(set.highest());
    set.for_each([&](float logit) {
        const double below = highest - static_cast<double>(logit);
        count += 1.0;
        sum += below;
        squares += below * below;
    });
    const double variance = squares / count - sum / count * (sum / count);
    const double deviation = std::sqrt((std::max)(variance, 0.0));
    set.keep_from(saturated(highest - static_cast<double>(step.n) * deviation));
}

inline void filter(const Temperature& step, CandidateSet& set) {
    if (step.t == 0.0f) {
        set.keep_best(1);
    } else {
        set.divide_by(static_cast<double>(step.t));
    }
}

inline void filter(const DynamicTemperature& step, CandidateSet& set) {
    double count = 0.0;
    set.for_each([&](float) { count += 1.0; });
    if (count == 1.0) return;
    set.weigh();
    const double share = (std::clamp)(set.entropy() / std::log(count), 0.0, 1.0);
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

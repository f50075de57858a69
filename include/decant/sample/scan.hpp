// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// One pass over a row of logits that validates it and finds the k best, adjustments applied.

#include <decant/core/adjustment.hpp>
#include <decant/core/config.hpp>
#include <decant/core/float_bits.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/softmax.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Whether a block holds a number above `limit`, or NaN. Free of branches, so that it vectorizes.
[[nodiscard]] inline bool any_above(const float* x, float limit) noexcept {
    std::uint32_t any = 0;
    for (std::size_t i = 0; i < row_block; ++i) any |= x[i] <= limit ? 0u : 1u;
    if constexpr (finite_math)
        for (std::size_t i = 0; i < row_block; ++i) any |= is_nan_or_infinity(x[i]) ? 1u : 0u;
    return any != 0;
}

/// Calls `found(index, x)` for every number above `limit` and every NaN, in order, until it returns false. `found` may
/// raise the limit.
template <class Found>
void scan_above(std::span<const float> row, const float& limit, Found&& found) {
    for (std::size_t start = 0; start < row.size(); start += row_block) {
        const std::size_t end = (std::min)(start + row_block, row.size());
        if (end - start == row_block && !any_above(&row[start], limit)) continue;
        for (std::size_t i = start; i < end; ++i)
            if ((!(row[i] <= limit) || (finite_math && is_nan_or_infinity(row[i]))) && !found(i, row[i])) return;
    }
}

inline Error no_candidate(std::size_t count) {
    return Error{ErrorCode::invalid_argument, text("no token can be picked from ", count, " logits"), "Sampler",
                 "at least one logit must be above -inf, masks, penalties and biases applied"};
}
inline Error bad_logit(std::int64_t token) {
    return Error{ErrorCode::invalid_argument, text("the logit of token ", token, " is NaN or +inf"), "Sampler",
                 "the model's weights are damaged or its numbers overflowed"};
}

/// The k best of a row after the adjustments (sorted by token), sorted by `likelier`; fewer if fewer are above -inf.
/// `best` is kept from call to call. Errors: `invalid_argument` for NaN or +inf, naming the first, and when no logit is
/// above -inf.
[[nodiscard]] inline Result<void> best_of(std::span<const float> row, std::span<const LogitAdjustment> adjustments,
                                          std::size_t k, std::vector<Candidate>& best) {
    const std::size_t count = (std::min)(k, row.size());
    float limit = -std::numeric_limits<float>::infinity();
    best.clear();
    best.reserve((std::min)(2 * count, row.size()));
    const auto cut = [&] {
        std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(count - 1), best.end(), likelier);
        best.resize(count);
        limit = best.back().logit;
    };
    // At twice the number wanted, the worse half is dropped and the limit rises: a constant cost per candidate.
    const auto offer = [&](std::size_t token, float logit) {
        best.push_back({Token{static_cast<std::int32_t>(token)}, logit, 0.0f});
        if (best.size() == 2 * count) cut();
    };

    std::size_t bad = row.size();
    auto adjusted = adjustments.begin();
    scan_above(row, limit, [&](std::size_t token, float logit) {
        if (is_nan_or_infinity(logit)) {
            bad = token;
            return false;
        }
        const auto wanted = static_cast<std::int32_t>(token);
        while (adjusted != adjustments.end() && id(adjusted->token) < wanted) ++adjusted;
        // Ids ascend, so that a tie with the limit is lost; adjusted tokens come later and are compared in full.
        if (adjusted == adjustments.end() || id(adjusted->token) != wanted) offer(token, logit);
        return true;
    });
    if (bad != row.size()) return bad_logit(static_cast<std::int64_t>(bad));
    for (const LogitAdjustment& adjustment : adjustments) {
        const auto token = static_cast<std::size_t>(id(adjustment.token));
        if (token >= row.size()) break;
        const float logit = apply(adjustment, row[token]);
        if (logit >= limit && logit > -std::numeric_limits<float>::infinity()) offer(token, logit);
    }
    if (best.empty()) return no_candidate(row.size());
    if (best.size() > count) cut();
    std::sort(best.begin(), best.end(), likelier);
    return {};
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The k best of a row of logits, adjustments applied, and the validation of the row.

#include <decant/core/adjustment.hpp>
#include <decant/core/config.hpp>
#include <decant/core/float_bits.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/row_kernels.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

inline Error no_candidate(std::size_t count) {
    return Error{ErrorCode::invalid_argument, text("no token can be picked from ", count, " logits"), "Sampler",
                 "at least one logit must be above -inf, masks, penalties and biases applied"};
}
inline Error bad_logit(std::int64_t token) {
    return Error{ErrorCode::invalid_argument, text("the logit of token ", token, " is NaN or +inf"), "Sampler",
                 "the model's weights are damaged or its numbers overflowed"};
}

/// `likelier` as an object: sorting inlines it.
struct Likelier {
    constexpr bool operator()(const Candidate& a, const Candidate& b) const noexcept { return likelier(a, b); }
};

[[nodiscard]] inline float highest_of(std::span<const float> x) noexcept {
    float highest = -std::numeric_limits<float>::infinity();
    for (const float value : x) highest = value > highest ? value : highest;
    return highest;
}

/// maxima[b] = the highest of block b of `block` logits (a multiple of `row_block`), the last one perhaps short.
/// Errors: `invalid_argument` for NaN or +inf, naming the first.
[[nodiscard]] inline Result<void> survey(std::span<const float> row, std::size_t block, float* maxima) {
    const std::size_t whole = row.size() / block;
    bool good = row_kernels().survey(row.data(), whole, block, maxima);
    const std::span<const float> rest = row.subspan(whole * block);
    if (!rest.empty()) maxima[whole] = highest_of(rest);
    for (const float x : rest) good = good && !is_nan_or_infinity(x);
    for (std::size_t b = 0; b < whole; ++b) good = good && !is_nan_or_infinity(maxima[b]);
    if (good) return {};
    return bad_logit(std::find_if(row.begin(), row.end(), is_nan_or_infinity) - row.begin());
}

/// The numbers of a row from `start`, adjusted: `row_block` of them, after the row's end -inf. They lie in the row
/// where that is possible, else in `room`. `next` is moved to the first adjustment that is not before the block.
[[nodiscard]] inline const float* adjusted_block(std::span<const float> row, std::size_t start,
                                                 std::span<const LogitAdjustment>& next, RowBlock& room) noexcept {
    const std::size_t end = (std::min)(start + row_block, row.size());
    const auto place = [&](std::size_t i) { return static_cast<std::size_t>(id(next[i].token)); };
    std::size_t i = 0;
    while (i < next.size() && place(i) < start) ++i;
    next = next.subspan(i);
    if (end == start + row_block && (next.empty() || place(0) >= end)) return &row[start];
    room.fill(-std::numeric_limits<float>::infinity());
    std::copy(&row[start], &row[start] + (end - start), room.begin());
    for (i = 0; i < next.size() && place(i) < end; ++i) room[place(i) - start] = apply(next[i], row[place(i)]);
    return room.data();
}

/// Brings the maxima of a row's blocks to what they are after adjustments.
inline void adjust_maxima(std::span<const float> row, std::span<const LogitAdjustment> adjustments, std::size_t block,
                          std::span<float> maxima) noexcept {
    while (!adjustments.empty()) {
        const std::size_t b = static_cast<std::size_t>(id(adjustments[0].token)) / block;
        if (b >= maxima.size()) return;
        const std::span<const LogitAdjustment> here = adjustments;
        bool lowered = false;
        float raised = maxima[b];
        while (!adjustments.empty() && static_cast<std::size_t>(id(adjustments[0].token)) / block == b) {
            const auto token = static_cast<std::size_t>(id(adjustments[0].token));
            if (token >= row.size()) break;
            const float logit = apply(adjustments[0], row[token]);
            lowered = lowered || (row[token] == maxima[b] && logit < row[token]);
            raised = logit > raised ? logit : raised;
            adjustments = adjustments.subspan(1);
        }
        if (!lowered) {
            maxima[b] = raised;
        } else {
            maxima[b] = -std::numeric_limits<float>::infinity();
            std::span<const LogitAdjustment> next = here;
            RowBlock room;
            for (std::size_t start = b * block; start < (std::min)((b + 1) * block, row.size()); start += row_block)
                maxima[b] = (std::max)(maxima[b], highest_of({adjusted_block(row, start, next, room), row_block}));
        }
        if (!adjustments.empty() && static_cast<std::size_t>(id(adjustments[0].token)) >= row.size()) return;
    }
}

/// Calls `found(index, x)` for every number above `limit`, in order. `found` may raise the limit.
template <class Found>
void find_above(const float* x, const float& limit, Found&& found) {
    std::uint32_t any = 0;  // free of branches, so that it vectorizes: most blocks hold none
    for (std::size_t i = 0; i < row_block; ++i) any |= x[i] > limit ? 1u : 0u;
    if (any == 0) return;
    for (std::size_t i = 0; i < row_block; ++i)
        if (x[i] > limit) found(i, x[i]);
}

/// The k best of a row after the adjustments (sorted by token), sorted by `likelier`; fewer if fewer are above -inf.
/// `best` is kept from call to call. Errors: `invalid_argument` for NaN or +inf, naming the first, and when no logit is
/// above -inf.
///
/// The k-th best of the blocks' maxima is a lower bound of the k-th best logit: after one pass for the maxima, only
/// blocks that reach it are looked into, whatever the order of the logits.
[[nodiscard]] inline Result<void> best_of(std::span<const float> row, std::span<const LogitAdjustment> adjustments,
                                          std::size_t k, std::vector<Candidate>& best) {
    constexpr std::size_t most_blocks = 2048;
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    const std::size_t count = (std::min)(k, row.size());
    const std::size_t block =
        row_block * (std::max)(std::size_t{1}, (row.size() + most_blocks * row_block - 1) / (most_blocks * row_block));
    std::array<float, most_blocks> room;
    const std::span<float> maxima = std::span(room).first((row.size() + block - 1) / block);
    best.clear();
    best.reserve((std::min)(2 * count, row.size()));
    DECANT_CHECK(survey(row, block, maxima.data()));
    adjust_maxima(row, adjustments, block, maxima);

    float limit = lowest;  // what is not above it is not wanted
    if (count == 1) {
        limit = std::nextafter(highest_of(maxima), lowest);
    } else if (count > 0 && count <= maxima.size()) {
        std::array<float, most_blocks> sorted;
        std::copy(maxima.begin(), maxima.end(), sorted.begin());
        const auto bound = sorted.begin() + static_cast<std::ptrdiff_t>(count - 1);
        std::nth_element(sorted.begin(), bound, sorted.begin() + static_cast<std::ptrdiff_t>(maxima.size()),
                         std::greater<float>());
        limit = std::nextafter(*bound, lowest);
    }
    // At twice the number wanted, the worse half is dropped and the limit rises: a constant cost per candidate. Ids
    // ascend, so that a later tie with the limit is lost.
    const auto cut = [&] {
        std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(count - 1), best.end(), Likelier{});
        best.resize(count);
        limit = best.back().logit;
    };
    RowBlock adjusted;
    for (std::size_t b = 0; b < maxima.size(); ++b) {
        for (std::size_t start = b * block; maxima[b] > limit && start < (std::min)((b + 1) * block, row.size());
             start += row_block) {
            find_above(adjusted_block(row, start, adjustments, adjusted), limit, [&](std::size_t i, float logit) {
                best.push_back({Token{static_cast<std::int32_t>(start + i)}, logit, 0.0f});
                if (best.size() == 2 * count) cut();
            });
        }
    }
    if (best.empty()) return no_candidate(row.size());
    if (best.size() > count) cut();
    std::sort(best.begin(), best.end(), Likelier{});
    return {};
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

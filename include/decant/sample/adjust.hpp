// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The adjusting steps: from a history to a sorted list of `LogitAdjustment`, in time linear in the window.

#include <decant/core/adjustment.hpp>
#include <decant/core/config.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/steps.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <variant>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

struct DryMatch {
    std::uint32_t token = 0;
    std::uint32_t length = 0;
};

/// Memory of the adjusting steps; kept from token to token.
struct AdjustScratch {
    std::vector<LogitAdjustment> step;
    std::vector<LogitAdjustment> merged;
    std::vector<std::uint32_t> ids;
    std::vector<std::uint32_t> spare;
    std::vector<DryMatch> matches;
};

inline std::span<const Token> window(std::span<const Token> history, int last_n) noexcept {
    if (last_n < 0 || static_cast<std::size_t>(last_n) >= history.size()) return history;
    return history.last(static_cast<std::size_t>(last_n));
}
/// Room to reserve for a window: open-ended ones grow by doubling, so that a growing history seldom allocates.
inline std::size_t window_room(int last_n, std::size_t history) noexcept {
    const std::size_t room = std::bit_ceil((std::max)(history, std::size_t{4096}));
    return last_n < 0 ? room : (std::min)(static_cast<std::size_t>(last_n), room);
}

/// Ascending; by digits of 8 bits when there are many.
inline void sort_ids(std::vector<std::uint32_t>& ids, std::vector<std::uint32_t>& spare) {
    if (ids.size() <= 256) {
        std::sort(ids.begin(), ids.end());
        return;
    }
    const std::uint32_t largest = *std::max_element(ids.begin(), ids.end());
    spare.resize(ids.size());
    for (int shift = 0; shift < 32 && largest >> shift != 0; shift += 8) {
        std::array<std::size_t, 257> starts{};
        for (const std::uint32_t value : ids) ++starts[(value >> shift & 255) + 1];
        for (std::size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
        for (const std::uint32_t value : ids) spare[starts[value >> shift & 255]++] = value;
        ids.swap(spare);
    }
}

inline void adjust(const Penalties& penalties, std::span<const Token> history, AdjustScratch& scratch) {
    scratch.ids.clear();
    for (const Token token : window(history, penalties.last_n))
        if (id(token) >= 0) scratch.ids.push_back(static_cast<std::uint32_t>(id(token)));
    sort_ids(scratch.ids, scratch.spare);
    const auto& ids = scratch.ids;
    for (std::size_t begin = 0, end = 0; begin < ids.size(); begin = end) {
        while (end < ids.size() && ids[end] == ids[begin]) ++end;
        const double subtracted = static_cast<double>(end - begin) * penalties.frequency + penalties.presence;
        scratch.step.push_back(
            {Token{static_cast<std::int32_t>(ids[begin])}, penalties.repetition, saturated(-subtracted)});
    }
}

inline void adjust(const LogitBias& bias, std::span<const Token>, AdjustScratch& scratch) {
    for (const auto& [token, value] : bias.biases) scratch.step.push_back({token, 1.0f, value});
}

/// The matches are the Z-function (Main and Lorentz 1984) of the reversed window: z[i] is how far the history's end and
/// the end i tokens earlier agree, going backwards.
inline void adjust(const Dry& dry, std::span<const Token> history, AdjustScratch& scratch) {
    const std::span<const Token> tokens = window(history, dry.last_n);
    const std::size_t size = tokens.size();
    const auto back = [&](std::size_t i) { return tokens[size - 1 - i]; };
    const auto breaks = [&](Token token) {
        return std::binary_search(dry.breakers.begin(), dry.breakers.end(), token);
    };
    std::size_t reach = 0;  // tokens since the last breaker
    while (reach < size && !breaks(back(reach))) ++reach;
    const auto allowed = static_cast<std::size_t>(dry.allowed_length);
    if (reach < allowed) return;

    auto& z = scratch.ids;
    z.assign(size, 0);
    scratch.matches.clear();
    for (std::size_t i = 1, left = 0, right = 0; i < size; ++i) {
        std::size_t length = i < right ? (std::min)(right - i, std::size_t{z[i - left]}) : 0;
        while (i + length < size && back(length) == back(i + length)) ++length;
        z[i] = static_cast<std::uint32_t>(length);
        if (i + length > right) {
            left = i;
            right = i + length;
        }
        const std::size_t repeated = (std::min)(length, reach);
        const Token next = back(i - 1);
        if (repeated >= allowed && id(next) >= 0 && !breaks(next))
            scratch.matches.push_back({static_cast<std::uint32_t>(id(next)), static_cast<std::uint32_t>(repeated)});
    }
    std::sort(scratch.matches.begin(), scratch.matches.end(), [](const DryMatch& a, const DryMatch& b) {
        return a.token != b.token ? a.token < b.token : a.length > b.length;
    });
    const std::vector<DryMatch>& matches = scratch.matches;
    for (std::size_t i = 0; i < matches.size(); ++i) {
        if (i > 0 && matches[i].token == matches[i - 1].token) continue;
        const double penalty =
            dry.multiplier * std::pow(static_cast<double>(dry.base), static_cast<double>(matches[i].length - allowed));
        scratch.step.push_back({Token{static_cast<std::int32_t>(matches[i].token)}, 1.0f, saturated(-penalty)});
    }
}

/// Fills `scratch.step` with the adjustments of one step, sorted by token.
inline void adjust_step(const SamplerStep& step, std::span<const Token> history, AdjustScratch& scratch) {
    scratch.step.clear();
    if (const auto* penalties = std::get_if<Penalties>(&step)) adjust(*penalties, history, scratch);
    if (const auto* bias = std::get_if<LogitBias>(&step)) adjust(*bias, history, scratch);
    if (const auto* dry = std::get_if<Dry>(&step)) adjust(*dry, history, scratch);
}

/// `earlier` followed by `later`, for steps that `combinable` allows.
inline LogitAdjustment then(const LogitAdjustment& earlier, const LogitAdjustment& later) noexcept {
    constexpr float least = (std::numeric_limits<float>::min)();
    constexpr float largest = (std::numeric_limits<float>::max)();
    return {earlier.token, (std::clamp)(earlier.repetition * later.repetition, least, largest),
            (std::min)(earlier.bias + later.bias, largest)};
}

/// Merges `scratch.step` into the sorted list `all`.
inline void merge_step(AdjustScratch& scratch, std::vector<LogitAdjustment>& all) {
    if (scratch.step.empty()) return;
    auto& merged = scratch.merged;
    merged.clear();
    auto a = all.begin();
    for (const LogitAdjustment& later : scratch.step) {
        while (a != all.end() && id(a->token) < id(later.token)) merged.push_back(*a++);
        merged.push_back(a != all.end() && a->token == later.token ? then(*a++, later) : later);
    }
    merged.insert(merged.end(), a, all.end());
    all.assign(merged.begin(), merged.end());
}

/// Reserves what the adjusting steps need for a history of up to `history` tokens; returns the most adjustments.
inline std::size_t reserve_adjustments(std::span<const SamplerStep> steps, std::size_t history,
                                       AdjustScratch& scratch) {
    std::size_t windows = 0;
    std::size_t matches = 0;
    std::size_t total = 0;
    std::size_t largest = 0;
    for (const SamplerStep& step : steps) {
        std::size_t room = 0;
        if (const auto* penalties = std::get_if<Penalties>(&step))
            windows = (std::max)(windows, room = window_room(penalties->last_n, history));
        if (const auto* bias = std::get_if<LogitBias>(&step)) room = bias->biases.size();
        if (const auto* dry = std::get_if<Dry>(&step))
            matches = (std::max)(matches, room = window_room(dry->last_n, history));
        total += room;
        largest = (std::max)(largest, room);
    }
    scratch.step.reserve(largest);
    scratch.merged.reserve(total);
    scratch.ids.reserve((std::max)(windows, matches));
    scratch.spare.reserve((std::max)(windows, matches));
    scratch.matches.reserve(matches);
    return total;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

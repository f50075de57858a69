// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Which layers of a cache give up together what their windows have passed, and what a sequence then takes.

#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Tokens before a window that stay nevertheless, so that a few can be taken back: wrong drafts, a token that could not
/// be picked.
inline constexpr std::size_t window_spare = 32;

/// `CacheShape::groups`: layers of one window each, of about as many bytes, because all blocks are equally large. Of
/// all ways to cut the layers into few groups the one that wastes the least; if that is much, one group. Empty where no
/// layer has a window.
[[nodiscard]] inline std::vector<std::uint32_t> group_by_window(const std::vector<CacheLayer>& layers) {
    constexpr std::size_t most_groups = 16;  // tables and slots are per group
    struct Kind {
        std::uint32_t window;
        std::vector<std::size_t> layers;
    };
    std::vector<Kind> kinds;  // those that see everything first, if there are such
    std::size_t elements = 0;
    for (std::size_t l = 0; l < layers.size(); ++l) {
        if (layers[l].kv_heads == 0) continue;
        elements += layers[l].elements();
        auto kind =
            std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) { return k.window == layers[l].window; });
        if (kind == kinds.end())
            kind = kinds.insert(layers[l].window == 0 ? kinds.begin() : kinds.end(), {layers[l].window, {}});
        kind->layers.push_back(l);
    }
    if (kinds.empty() || (kinds.size() == 1 && kinds.front().window == 0)) return {};

    std::vector<std::uint32_t> best(layers.size(), 0), groups = best;
    std::size_t least = kinds.size() == 1 ? 0 : elements / 8, fewest = kinds.size() == 1 ? 1 : most_groups + 1;
    for (std::size_t each = layers.size(); each > 0; --each) {
        std::vector<std::size_t> sizes;
        for (const Kind& kind : kinds) {
            const std::size_t first = sizes.size(), count = (kind.layers.size() + each - 1) / each;
            sizes.resize(first + count);
            for (std::size_t i = 0; i < kind.layers.size(); ++i) {
                const std::size_t group = first + i * count / kind.layers.size();
                groups[kind.layers[i]] = static_cast<std::uint32_t>(group);
                sizes[group] += layers[kind.layers[i]].elements();
            }
        }
        if (sizes.size() > most_groups) break;
        const std::size_t waste = *std::max_element(sizes.begin(), sizes.end()) * sizes.size() - elements;
        if (waste > least || (waste == least && sizes.size() >= fewest)) continue;
        best = groups;
        least = waste;
        fewest = sizes.size();
    }
    return best;
}

/// Blocks that a sequence takes at most while it grows to `tokens`, so many of them at a time.
[[nodiscard]] inline std::size_t blocks_needed(const CacheShape& shape, std::size_t tokens, std::size_t at_once) {
    const auto blocks = [&](std::size_t count) {
        return count / shape.block_tokens + (count % shape.block_tokens > 0 ? 1 : 0);
    };
    std::size_t needed = 0;
    for (std::uint32_t group = shape.group_count(); group-- > 0;) {
        const std::size_t window = shape.window(group);
        const std::size_t seen = window + window_spare + (std::min)(at_once, tokens) - 1;  // by all rows of a pass
        needed += window == 0 ? blocks(tokens) : (std::min)(blocks(tokens), blocks(seen - 1) + 1);
    }
    return needed;
}

/// Blocks that the table of the longest sequence has, in a pool of so many, where it grows by `at_once` tokens at a
/// time. It may be longer than if all layers kept everything, but not by any factor: what is kept per token outside of
/// the pool grows, too.
[[nodiscard]] inline std::size_t longest_table(const CacheShape& shape, std::size_t blocks, std::size_t at_once = 1) {
    if (shape.groups.empty()) return blocks;
    constexpr std::size_t most_times = 8;
    const std::size_t token_slots = (std::numeric_limits<std::int32_t>::max)() / std::size_t{shape.block_tokens};
    std::size_t fits = blocks / shape.group_count();
    std::size_t exceeds = (std::min)(fits * most_times, token_slots) + 1;
    while (exceeds - fits > 1) {
        const std::size_t middle = fits + (exceeds - fits) / 2;
        (blocks_needed(shape, middle * shape.block_tokens, at_once) <= blocks ? fits : exceeds) = middle;
    }
    return fits;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

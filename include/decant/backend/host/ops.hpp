// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The operations of a host backend as data: one struct per operation, stored in a pass and run tile by tile. The
/// formula of each stands here, attention's in attend.hpp; the Eigen backend states it in code.

#include <decant/backend/host/attend.hpp>
#include <decant/backend/host/frame.hpp>
#include <decant/core/best.hpp>
#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/float_bits.hpp>
#include <decant/core/specs.hpp>
#include <decant/quant/formats.hpp>
#include <decant/quant/hadamard.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace decant::inline DECANT_ABI {

namespace host {

// An operation that is `row_wise` has a tile for each row, which reads and writes that row alone (of its views, of the
// cache), and whatever was done before the run of such operations that it stands in: a row goes through all of them at
// once.

// Output columns of a `linear` that one tile computes (with few rows more: a thread reads weights on end). They count
// from absolute zero, so that a result does not depend on what else is in the pass.
inline constexpr std::uint32_t linear_tile = 32;
inline constexpr std::uint32_t few_rows = 16;
inline constexpr std::uint32_t widest_tile = 4 * linear_tile;

/// Output columns of a tile where `rows` rows are multiplied by a weight of `columns` rows.
[[nodiscard]] constexpr std::uint32_t tile_columns(std::uint32_t rows, std::uint32_t columns) noexcept {
    if (rows > few_rows) return linear_tile;
    return columns < 8 * widest_tile ? widest_tile / 2 : widest_tile;  // a small one is for several threads, too
}
[[nodiscard]] constexpr std::uint32_t tile_count(std::uint32_t rows, std::uint32_t columns) noexcept {
    return (columns + tile_columns(rows, columns) - 1) / tile_columns(rows, columns);
}

/// x[t, :] = scale dequantize(table[tokens[t], :])
struct Embed {
    static constexpr bool row_wise = true;
    const Weight* table = nullptr;
    View x;
    float scale = 1.0f;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// y[t, g, i] (+)= norm(x[t, g, :])[i] as `NormSpec` says, where rows are cut into groups: one for a norm of the
/// residual stream, one per head for a norm of q or k. The weight is as long as a group, or as the row.
struct Norm {
    static constexpr bool row_wise = true;
    View x;
    const Weight* weight = nullptr;  ///< [columns of a group] or [x.columns] of F32, F16 or BF16
    NormSpec spec;
    View y;
    bool accumulate = false;
    const Weight* bias = nullptr;  ///< as the weight, or null
    std::uint32_t groups = 1;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }

    /// The weight of group g as floats: where they lie, or in `room`.
    const float* weights(std::uint32_t g, float* room) const {
        if (weight->dtype == DType::f32 && spec.offset == 0.0f) {
            const std::byte* const data =
                weight->data + (weight->columns < x.columns ? 0 : g * (x.columns / groups)) * sizeof(float);
            if (reinterpret_cast<std::uintptr_t>(data) % alignof(float) == 0)
                return reinterpret_cast<const float*>(data);
        }
        load(*weight, g, room, spec.offset);
        return room;
    }
    /// The weight and bias of group g as floats; `values` is room for as many.
    void load(const Weight& from, std::uint32_t g, float* values, float offset) const {
        const std::uint32_t n = x.columns / groups;
        const std::byte* data = from.data + (from.columns > n ? row_bytes(from.dtype, g * std::size_t{n}) : 0);
        dequantize_row(from.dtype, data, n, values);
        if (offset != 0.0f)
            for (std::uint32_t i = 0; i < n; ++i) values[i] += offset;
    }
};

/// Turns x into the form that the products after it read: a quantized copy in the backend's own workspace, which has
/// room for two (`slot`), so that a product can write one while it reads the other.
struct Prepare {
    static constexpr bool row_wise = true;
    View x;
    std::uint32_t slot = 0;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// One product of a `linear`: out = x weight^T (+ bias), or out += ... with `accumulate` (the residual stream). Where x
/// is wider than the weight, it is cut into groups as wide, and each gives an equal part of out: a product per head.
struct LinearTarget {
    const Weight* weight = nullptr;  ///< [out.columns, x.columns / groups]
    const Weight* bias = nullptr;    ///< [out.columns] or null
    View out;
    bool accumulate = false;
};

/// targets[n].out[t, o] (+)= sum over i of x[t, i] weight[o, i] (+ bias[o]). With a gate there are two targets, which
/// are not kept: y[t, o] = gate of their results. A tile is `tile_columns` of a target and a block of rows.
struct Linear {
    static constexpr std::size_t max_targets = 4;
    View x;
    std::array<LinearTarget, max_targets> targets;
    std::uint32_t count = 0;
    std::uint32_t reads = 0;  ///< the slot of `Prepare` that holds x
    bool gated = false;
    bool prepares = false;  ///< y goes to the other slot, and nowhere else
    GateSpec gate = {};
    View y = {};

    [[nodiscard]] std::uint32_t tiles(const Frame& f) const {
        std::uint32_t sum = 0;
        for (std::uint32_t n = 0; n < (gated ? 1 : count); ++n) sum += tiles_of(targets[n], f);
        return sum * row_blocks(f);
    }
    /// With few rows a tile takes little time.
    [[nodiscard]] std::uint32_t tiles_at_once(const Frame& f) const { return f.rows(x.rows) <= few_rows ? 2 : 1; }

    /// The target that tile `tile` belongs to, its first output column, the first column of x that it reads, and its
    /// rows.
    struct Place {
        const LinearTarget* target;
        std::uint32_t column;
        std::uint32_t columns;
        std::uint32_t from;
        std::uint32_t row;
        std::uint32_t rows;
    };
    /// Tiles with the same rows follow one another.
    [[nodiscard]] Place place(std::uint32_t tile, const Frame& f) const {
        const std::uint32_t rows = f.rows(x.rows);
        const std::uint32_t blocks = row_blocks(f);
        const std::uint32_t each = (rows + blocks - 1) / blocks;
        const std::uint32_t row = tile / (tiles(f) / blocks) * each;
        tile %= tiles(f) / blocks;
        std::uint32_t n = 0;
        while (tile >= tiles_of(targets[n], f)) tile -= tiles_of(targets[n++], f);
        const std::uint32_t width = group_width(targets[n]);
        const std::uint32_t columns = tile_columns(rows, width), in_group = tile_count(rows, width);
        const std::uint32_t group = tile / in_group;
        const std::uint32_t within = tile % in_group * columns;
        return {&targets[n],
                group * width + within,
                (std::min)(columns, width - within),
                group * targets[n].weight->columns,
                row,
                (std::min)(each, rows - (std::min)(row, rows))};
    }

 private:
    /// As many rows as stay in a second-level cache while tile after tile of the weights passes by, but so many that
    /// unpacking these costs little.
    [[nodiscard]] std::uint32_t row_blocks(const Frame& f) const {
        constexpr std::uint32_t cached_bytes = 3u << 19, least = 96, most = 258;
        const bool quantized = traits(targets[0].weight->dtype).block_elements > 1;
        const std::uint32_t row_bytes = quantized ? x.columns + x.columns / 2 : 4 * x.columns;
        std::uint32_t rows = std::clamp(cached_bytes / row_bytes, least, most);
        if (f.most_work > 0) {
            const std::uint64_t each = std::uint64_t{linear_tile} * targets[0].weight->columns * (gated ? 2 : 1);
            rows = static_cast<std::uint32_t>(
                std::clamp(f.most_work / each, std::uint64_t{linear_tile}, std::uint64_t{rows}));
        }
        return (f.rows(x.rows) + rows - 1) / rows;
    }
    [[nodiscard]] std::uint32_t groups(const LinearTarget& target) const { return x.columns / target.weight->columns; }
    [[nodiscard]] std::uint32_t group_width(const LinearTarget& target) const {
        return target.out.columns / groups(target);
    }
    [[nodiscard]] std::uint32_t tiles_of(const LinearTarget& target, const Frame& f) const {
        return groups(target) * tile_count(f.rows(x.rows), group_width(target));
    }
};

/// y[t, i] = magnitude cos(a), y[t, dim/2 + i] = magnitude sin(a) with a = positions[t] * frequencies[i]
struct Angles {
    static constexpr bool row_wise = true;
    const Weight* frequencies = nullptr;  ///< [dim / 2] F32
    float magnitude = 1.0f;
    View y;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(y.rows); }

    /// Row t, for every backend: the angle in F32, as the models were trained, and the system's cos and sin.
    void compute(const Frame& f, std::uint32_t t) const {
        const auto position = static_cast<float>(f.inputs.positions[t]);
        const std::uint32_t half = y.columns / 2;
        float* out = y.row(t);
        for (std::uint32_t i = 0; i < half; ++i) {
            float frequency;
            std::memcpy(&frequency, frequencies->data + i * sizeof frequency, sizeof frequency);
            out[i] = magnitude * std::cos(position * frequency);
            out[half + i] = magnitude * std::sin(position * frequency);
        }
    }
};

/// Turns pairs (a, b) of every head of x by the row's angles: a' = a cos - b sin, b' = b cos + a sin.
struct Rope {
    static constexpr bool row_wise = true;
    View x;
    View angles;
    RopeSpec spec;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// Writes row t of k and v (unless it is latent) to cache_slots[t] of the cache, rotated if its entries are, and
/// rounded to its dtype.
struct Store {
    static constexpr bool row_wise = true;
    View k;
    View v;
    std::uint32_t layer = 0;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(k.rows); }

    /// Row t, for every backend: `write(numbers, count, dtype, to)` rounds into the cache. `head` is room for one.
    template <class Write>
    void compute(const Frame& f, std::uint32_t t, float* head, Write write) const {
        std::byte* const key = f.cache.key(layer, static_cast<std::size_t>(f.slot(f.inputs.cache_slots, layer, t)));
        put(*f.cache.shape, k.row(t), key, head, write);
        if (!f.cache.shape->layers[layer].latent())
            put(*f.cache.shape, v.row(t), key + f.cache.to_value(layer), head, write);
    }

 private:
    template <class Write>
    void put(const CacheShape& shape, const float* row, std::byte* to, float* head, Write write) const {
        const std::size_t rotation = shape.rotation(layer), dim = shape.layers[layer].head_dim;
        if (rotation == 0) return write(row, k.columns, shape.dtype, to);
        for (std::size_t i = 0; i < k.columns; i += dim, to += shape.head_bytes(layer)) {
            std::copy_n(row + i, dim, head);
            hadamard(head, dim, rotation);
            write(head, dim, shape.dtype, to);
        }
    }
};

/// y[t, i] = f(gate[t, i]) up[t, i], or what else `GateSpec` says; without `up` y[t, i] = f(gate[t, i])
struct Gate {
    static constexpr bool row_wise = true;
    View gate;
    View up;  ///< data is null if there is none
    GateSpec spec;
    View y;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(gate.rows); }
};

/// x[t, i] = cap tanh(x[t, i] / cap)
struct Softcap {
    static constexpr bool row_wise = true;
    View x;
    float cap = 1.0f;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// Copies part of every head, as `CopySpec` says.
struct Copy {
    static constexpr bool row_wise = true;
    View x;
    View y;
    CopySpec spec;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }

    void compute(std::uint32_t t) const {
        const float* from = x.row(t) + spec.x_first;
        float* to = y.row(t) + spec.y_first;
        for (std::uint32_t h = 0; h < spec.heads; ++h, from += spec.x_head, to += spec.y_head)
            std::copy_n(from, spec.count, to);
    }
};

/// y[i, :] = x[wanted[i], :]
struct Gather {
    static constexpr bool row_wise = true;
    View x;
    View y;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(y.rows); }
};

/// y[i, :] = the `k` largest of a[i, :], their ids and log(sum(exp(a[i, :]))), laid out as `BestTokens` reads it, where
/// a[i, v] = adjusted x[i, v] if v is allowed, else -inf.
struct Pick {
    View x;
    std::uint32_t k = 0;
    View y;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.inputs.picks ? f.rows(x.rows) : 0; }

    static constexpr std::size_t piece = 1024;  // logits at a time, a multiple of a mask's words

    /// Row i, for every backend: `exp_sum(values, n, shift)` is the sum of exp(values[j] + shift) in its own fixed
    /// order. `values` is room for a piece.
    template <class ExpSum>
    void compute(const Frame& f, std::uint32_t i, float* values, ExpSum exp_sum) const {
        constexpr float lowest = -std::numeric_limits<float>::infinity();
        float* const best = y.row(i);
        float* const ids = best + k;
        std::fill_n(best, k, lowest);
        std::fill_n(ids, k, std::bit_cast<float>(std::int32_t{-1}));

        const PickInputs& pick = f.inputs.pick;
        std::span<const LogitAdjustment> adjustments =
            pick.adjustments.subspan(i == 0 ? 0 : pick.ends[i - 1], pick.ends[i] - (i == 0 ? 0 : pick.ends[i - 1]));
        const std::uint32_t words = (x.columns + 31) / 32;
        const std::uint32_t* const mask =
            pick.masks[i] < 0 ? nullptr : pick.allowed.data() + static_cast<std::size_t>(pick.masks[i]) * words;

        std::int32_t bad = -1;
        float peak = lowest;
        double sum = 0.0;
        for (std::size_t first = 0; first < x.columns; first += piece) {
            const std::size_t n = (std::min)(piece, x.columns - first);
            std::copy_n(x.row(i) + first, n, values);
            for (std::size_t j = 0; bad < 0 && j < n; ++j)
                if (detail::is_nan_or_infinity(values[j])) bad = static_cast<std::int32_t>(first + j);
            for (; !adjustments.empty(); adjustments = adjustments.subspan(1)) {
                const auto token = static_cast<std::size_t>(id(adjustments[0].token));
                if (token >= first + n) break;
                values[token - first] = apply(adjustments[0], values[token - first]);
            }
            if (mask != nullptr) {
                for (std::size_t j = 0; j < n; ++j)
                    if ((mask[(first + j) / 32] >> (first + j) % 32 & 1) == 0) values[j] = lowest;
            }
            float highest = lowest;
            for (std::size_t j = 0; j < n; ++j) highest = values[j] > highest ? values[j] : highest;
            if (highest > peak) {
                sum *= std::exp(static_cast<double>(peak) - highest);  // by 0 at first
                peak = highest;
            }
            if (peak > lowest) sum += exp_sum(values, n, -peak);
            if (k == 0 || highest <= best[k - 1]) continue;
            for (std::size_t j = 0; j < n; ++j) {
                if (!(values[j] > best[k - 1])) continue;
                std::size_t at = k - 1;
                for (; at > 0 && values[j] > best[at - 1]; --at) {
                    best[at] = best[at - 1];
                    ids[at] = ids[at - 1];
                }
                best[at] = values[j];
                ids[at] = std::bit_cast<float>(static_cast<std::int32_t>(first + j));
            }
        }
        best[2 * k] = sum > 0.0 ? static_cast<float>(peak + std::log(sum)) : lowest;
        best[2 * k + 1] = std::bit_cast<float>(bad);
    }
};

/// y[t] = the experts of row t as `RouteSpec` says, [chosen] ids (the bits of int32), then their weights. Ids ascend in
/// no order but that of the scores; of equal ones the lower id wins.
struct Route {
    static constexpr bool row_wise = true;
    View scores;                   ///< [rows, experts]
    const Weight* bias = nullptr;  ///< [experts] of F32, F16 or BF16: counts for the choice alone; or null
    RouteSpec spec;
    View y;  ///< [rows, 2 chosen]
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(scores.rows); }

    /// The expert of a row's choice c, and its weight.
    static std::uint32_t expert(const View& routes, std::size_t t, std::size_t c) {
        return static_cast<std::uint32_t>(std::bit_cast<std::int32_t>(routes.row(t)[c]));
    }
    static float weight(const View& routes, std::size_t t, std::size_t c) {
        return routes.row(t)[routes.columns / 2 + c];
    }

    /// Row t, for every backend; a column of scores is overwritten with what the choice goes by.
    void compute(std::uint32_t t) const {
        constexpr float lowest = -std::numeric_limits<float>::infinity();
        const std::uint32_t n = spec.experts;
        float* const s = scores.row(t);
        float* const ids = y.row(t);
        float* const weights = ids + spec.chosen;
        double sum = 0.0;
        const float peak = *std::max_element(s, s + n);
        for (std::uint32_t e = 0; e < n; ++e) {
            s[e] =
                spec.scoring == RouteSpec::Scoring::sigmoid ? 1.0f / (1.0f + std::exp(-s[e])) : std::exp(s[e] - peak);
            sum += static_cast<double>(s[e]);
        }
        if (spec.scoring == RouteSpec::Scoring::softmax)
            for (std::uint32_t e = 0; e < n; ++e) s[e] = static_cast<float>(static_cast<double>(s[e]) / sum);

        const auto choice = [&](std::uint32_t e) {
            float offset = 0.0f;
            if (bias != nullptr) dequantize_row(bias->dtype, bias->data + row_bytes(bias->dtype, e), 1, &offset);
            // What is no number wins, so that it cannot pass unseen.
            return detail::is_nan_or_infinity(s[e] + offset) ? -lowest : s[e] + offset;
        };
        const std::uint32_t size = n / spec.groups;
        float group_scores[RouteSpec::most] = {};
        for (std::uint32_t g = 0; g < spec.groups && spec.groups_kept < spec.groups; ++g) {
            float best = lowest, second = lowest;
            for (std::uint32_t e = g * size; e < (g + 1) * size; ++e) {
                const float value = choice(e);
                second = (std::max)(second, (std::min)(best, value));
                best = (std::max)(best, value);
            }
            group_scores[g] = size > 1 ? best + second : best;
        }
        const auto wins = [&](std::uint32_t g) {
            if (spec.groups_kept >= spec.groups) return true;
            std::uint32_t rank = 0;
            for (std::uint32_t other = 0; other < spec.groups; ++other) {
                const float own = group_scores[g], score = group_scores[other];
                rank += score > own || (score == own && other < g) ? 1 : 0;
            }
            return rank < spec.groups_kept;
        };
        std::uint32_t found = 0;
        const auto place = [&](std::uint32_t e) {
            const float value = choice(e);
            std::uint32_t at = found;
            while (at > 0 && value > weights[at - 1]) --at;
            if (at == spec.chosen) return;
            found = (std::min)(found + 1, spec.chosen);
            for (std::uint32_t c = found - 1; c > at; --c) {
                weights[c] = weights[c - 1];
                ids[c] = ids[c - 1];
            }
            weights[at] = value;
            ids[at] = std::bit_cast<float>(static_cast<std::int32_t>(e));
        };
        for (std::uint32_t g = 0; g < spec.groups; ++g) {
            if (!wins(g)) continue;
            for (std::uint32_t e = g * size; e < (g + 1) * size; ++e) place(e);
        }
        float total = 0.0f;
        for (std::uint32_t c = 0; c < spec.chosen; ++c) total += weights[c] = s[expert(y, t, c)];
        const float factor = spec.normalize ? spec.scale / (total + 1e-20f) : spec.scale;
        for (std::uint32_t c = 0; c < spec.chosen; ++c) weights[c] *= factor;
    }
};

/// out[t, c] = x[t(, c)] weights[e]^T (+ biases[e]), e the expert of row t's choice c: x is one row for all choices, or
/// has one for each. A tile is `tile_columns` of one expert, whose weights are read once for every row that chose it.
struct Experts {
    View x;                           ///< [rows, in] or [rows, chosen * in]
    std::span<const Weight> weights;  ///< [experts] of [out.columns / chosen, in]
    std::span<const Weight> biases;   ///< [experts] of [out.columns / chosen], or none
    View routes;                      ///< what `Route` wrote
    View out;                         ///< [rows, chosen * columns]

    [[nodiscard]] std::uint32_t chosen() const { return routes.columns / 2; }
    [[nodiscard]] std::uint32_t columns() const { return out.columns / chosen(); }
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const {
        return f.rows(x.rows) == 0 ? 0 : static_cast<std::uint32_t>(weights.size()) * tiles_each(f);
    }
    struct Place {
        std::uint32_t expert;
        std::uint32_t column;
        std::uint32_t columns;
    };
    [[nodiscard]] Place place(std::uint32_t tile, const Frame& f) const {
        const std::uint32_t column = tile % tiles_each(f) * width(f);
        return {tile / tiles_each(f), column, (std::min)(width(f), columns() - column)};
    }
    /// Calls `visit(row, choice, first column of x)` for every row that chose the expert.
    template <class Visit>
    void rows(const Frame& f, std::uint32_t expert, Visit visit) const {
        const std::uint32_t in = weights[expert].columns;
        const std::uint32_t own = x.columns == in ? 0 : in;
        for (std::uint32_t t = 0; t < f.rows(x.rows); ++t)
            for (std::uint32_t c = 0; c < chosen(); ++c)
                if (Route::expert(routes, t, c) == expert) visit(t, c, c * own);
    }
    /// The biases of a tile's columns, zeros without them.
    void load_bias(const Place& place, float* values) const {
        std::fill_n(values, place.columns, 0.0f);
        if (biases.empty()) return;
        const Weight& b = biases[place.expert];
        dequantize_row(b.dtype, b.data + row_bytes(b.dtype, place.column), place.columns, values);
    }

 private:
    [[nodiscard]] std::uint32_t width(const Frame& f) const { return tile_columns(f.rows(x.rows), columns()); }
    [[nodiscard]] std::uint32_t tiles_each(const Frame& f) const { return tile_count(f.rows(x.rows), columns()); }
};

/// y[t, :] (+)= sum over choices c, in order, of weight[t, c] x[t, c, :]
struct Mix {
    static constexpr bool row_wise = true;
    View x;       ///< [rows, chosen * y.columns]
    View routes;  ///< what `Route` wrote
    View y;
    bool accumulate = false;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(y.rows); }

    void compute(std::uint32_t t) const {
        float* const to = y.row(t);
        for (std::uint32_t c = 0; c < routes.columns / 2; ++c) {
            const float* from = x.row(t) + std::size_t{c} * y.columns;
            const float weight = Route::weight(routes, t, c);
            for (std::uint32_t i = 0; i < y.columns; ++i)
                to[i] = (c > 0 || accumulate ? to[i] : 0.0f) + weight * from[i];
        }
    }
};

/// y[t, i] = silu(bias[i] + sum over j < kernel of weight[i, j] x[t - kernel + 1 + j, i]): a causal convolution of
/// every column with itself. What lies before the pass is in the state, and its last rows are left there.
struct Convolve {
    View x;                          ///< [rows, columns]
    const Weight* weight = nullptr;  ///< [columns, kernel] of F32, F16 or BF16
    const Weight* bias = nullptr;    ///< [columns] or null
    std::uint32_t layer = 0;
    View y;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }

    /// Row t, for every backend. `kernel` is room for a row of the weight.
    void compute(const Frame& f, std::uint32_t t, float* kernel) const {
        const std::uint32_t taps = weight->columns;
        const std::uint32_t back = taps - 1;
        const std::int32_t sequence = f.inputs.sequences[t];
        std::uint32_t before = 0;  // rows of the sequence in front of this one, as far as they matter
        while (before < back && before < t && f.inputs.sequences[t - before - 1] == sequence) ++before;
        const std::int32_t from = f.inputs.states_from[static_cast<std::size_t>(sequence)];
        const float* past = from < 0 ? nullptr : f.cache.state(layer, from);
        // Input `age` rows ago.
        const auto input = [&](std::uint32_t age, std::uint32_t i) {
            if (age <= before) return x.row(t - age)[i];
            return past == nullptr ? 0.0f : past[std::size_t{back - (age - before)} * x.columns + i];
        };
        for (std::uint32_t i = 0; i < x.columns; ++i) {
            dequantize_row(weight->dtype, weight->row(i), taps, kernel);
            float sum = 0.0f;
            if (bias != nullptr) dequantize_row(bias->dtype, bias->data + row_bytes(bias->dtype, i), 1, &sum);
            for (std::uint32_t j = 0; j < taps; ++j) sum += kernel[j] * input(back - j, i);
            y.row(t)[i] = sum / (1.0f + std::exp(-sum));
        }
        if (t + 1 < f.inputs.rows && f.inputs.sequences[t + 1] == sequence) return;
        float* kept = f.cache.state(layer, f.inputs.states_to[static_cast<std::size_t>(sequence)]);
        for (std::uint32_t j = 0; j < back; ++j)
            for (std::uint32_t i = 0; i < x.columns; ++i) kept[std::size_t{j} * x.columns + i] = input(back - 1 - j, i);
    }
};

/// A selective state space. For row t and head h with step d = clamp(log(1 + exp(steps[t, h]))), over its state S
/// [head_dim, size]: S = exp(d a[h]) S + d x B^T, y = S C + skip[h] x. Rows of a sequence in order. A tile is a head of
/// a sequence.
struct Scan {
    View x;                        ///< [rows, mixed]: x, B, C, as `StateSpec` says
    View steps;                    ///< [rows, heads]
    const Weight* a = nullptr;     ///< [heads] of F32
    const Weight* skip = nullptr;  ///< [heads] of F32, F16 or BF16
    StateSpec spec;
    std::uint32_t layer = 0;
    View y;  ///< [rows, channels]
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.sequences() * spec.heads; }

    /// For every backend: `advance(decay, input, b, c, state)` does decay S + input B^T for one channel's state and
    /// returns its product with C.
    template <class Advance>
    void compute(const Frame& f, std::uint32_t tile, Advance advance) const {
        const std::uint32_t head = tile % spec.heads;
        const auto sequence = static_cast<std::int32_t>(tile / spec.heads);
        const auto part = [&](std::int32_t slot) {
            return f.cache.state(layer, slot) + spec.history() + std::size_t{head} * spec.head_dim * spec.size;
        };
        const std::int32_t from = f.inputs.states_from[static_cast<std::size_t>(sequence)];
        float* const state = part(f.inputs.states_to[static_cast<std::size_t>(sequence)]);
        const std::size_t floats = std::size_t{spec.head_dim} * spec.size;
        if (from < 0) {
            std::fill_n(state, floats, 0.0f);
        } else {
            std::copy_n(part(from), floats, state);
        }
        float rate = 0.0f, through = 0.0f;
        dequantize_row(a->dtype, a->data + row_bytes(a->dtype, head), 1, &rate);
        dequantize_row(skip->dtype, skip->data + row_bytes(skip->dtype, head), 1, &through);
        const std::uint32_t group = head / (spec.heads / spec.groups);
        for (std::uint32_t t = 0; t < f.inputs.rows; ++t) {
            if (f.inputs.sequences[t] != sequence) continue;
            const float raw = steps.row(t)[head];
            const float step = std::clamp(raw > 20.0f ? raw : std::log1p(std::exp(raw)), spec.step_min, spec.step_max);
            const float decay = std::exp(step * rate);
            const float* b = x.row(t) + spec.channels() + std::size_t{group} * spec.size;
            const float* c = b + std::size_t{spec.groups} * spec.size;
            for (std::uint32_t p = 0; p < spec.head_dim; ++p) {
                const float value = x.row(t)[head * spec.head_dim + p];
                y.row(t)[head * spec.head_dim + p] =
                    advance(decay, step * value, b, c, state + std::size_t{p} * spec.size) + through * value;
            }
        }
    }
};

/// Moves row t of the cache's K and V from slot `sources[t]` to slot `cache_slots[t]`, row after row, and turns K's
/// heads by the row's angles, rounded again to the cache's dtype; a row that is not there (-1) stays away. A tile is a
/// key head.
struct Move {
    std::uint32_t layer = 0;
    View angles;
    RopeSpec spec;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const {
        return f.inputs.rows == 0 ? 0 : f.cache.shape->layers[layer].kv_heads;
    }

    /// For every backend: `rope(head, angles)` turns one head in place; `write(numbers, count, dtype, to)` rounds it
    /// into the cache. `head` is room for one.
    template <class Rope, class Write>
    void compute(const Frame& f, std::uint32_t tile, float* head, Rope rope, Write write) const {
        const DType dtype = f.cache.shape->dtype;
        const std::size_t bytes = f.cache.shape->head_bytes(layer), rotation = f.cache.shape->rotation(layer);
        for (std::uint32_t t = 0; t < f.inputs.rows; ++t) {
            const std::int32_t source = f.slot(f.inputs.sources, layer, t);
            if (source < 0) continue;
            const std::byte* from = f.cache.key(layer, static_cast<std::size_t>(source)) + tile * bytes;
            std::byte* to =
                f.cache.key(layer, static_cast<std::size_t>(f.slot(f.inputs.cache_slots, layer, t))) + tile * bytes;
            dequantize_row(dtype, from, spec.head_dim, head);
            hadamard(head, spec.head_dim, rotation);  // its own inverse
            rope(head, angles.row(t));
            hadamard(head, spec.head_dim, rotation);
            write(head, spec.head_dim, dtype, to);
            if (from != to && !f.cache.shape->layers[layer].latent())
                std::memcpy(to + f.cache.to_value(layer), from + f.cache.to_value(layer), bytes);
        }
    }
};

}  // namespace host
}  // namespace decant::inline DECANT_ABI

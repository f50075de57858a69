// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The operations of a host backend as data: one struct per operation, stored in a pass and run tile by tile. The
/// formula of each stands here; the Eigen backend states it in code.

#include <decant/core/best.hpp>
#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/float_bits.hpp>
#include <decant/core/specs.hpp>
#include <decant/quant/formats.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {

namespace host {

/// Row-major activations in the workspace: [rows of the row set, columns] floats.
struct View {
    float* data = nullptr;
    std::uint32_t columns = 0;
    RowSet rows = RowSet::tokens;

    [[nodiscard]] float* row(std::size_t r) const noexcept { return data + r * columns; }
};

/// A tensor where it lies: the file's bytes (unaligned), or floats that the model derived and `owned` keeps.
struct Weight {
    DType dtype = DType::f32;
    std::uint32_t rows = 0;
    std::uint32_t columns = 0;
    const std::byte* data = nullptr;
    std::size_t row_bytes = 0;
    std::shared_ptr<const std::vector<float>> owned;

    [[nodiscard]] const std::byte* row(std::size_t r) const noexcept { return data + r * row_bytes; }
};

/// One product of a `linear`: out = x weight^T (+ bias), or out += ... with `accumulate` (the residual stream).
struct LinearTarget {
    const Weight* weight = nullptr;  ///< [out.columns, x.columns]
    const Weight* bias = nullptr;    ///< [out.columns] or null
    View out;
    bool accumulate = false;
};

/// A KV pool as the operations see it.
struct Cache {
    std::byte* data = nullptr;
    const CacheShape* shape = nullptr;

    std::size_t block_bytes = 0;

    /// Address of the K row of a slot; its V row lies `to_value(layer)` bytes further.
    [[nodiscard]] std::byte* key(std::uint32_t layer, std::size_t slot) const {
        return data + slot / shape->block_tokens * block_bytes + shape->layer_offset(layer) +
               slot % shape->block_tokens * shape->row_bytes(layer);
    }
    [[nodiscard]] std::size_t to_value(std::uint32_t layer) const {
        return shape->block_tokens * shape->row_bytes(layer);
    }
};

/// What a tile may read besides its operation.
struct Frame {
    PassShape shape;
    PassInputs inputs;
    Cache cache;

    [[nodiscard]] std::uint32_t rows(RowSet set) const noexcept {
        return set == RowSet::tokens ? inputs.rows : inputs.wanted_rows;
    }
};

// Output columns of a `linear` that one tile computes, and cache positions that attention takes at a time. Both count
// from absolute zero, so that a result does not depend on what else is in the pass.
inline constexpr std::uint32_t linear_tile = 16;
inline constexpr std::uint32_t attention_tile = 64;

/// x[t, :] = scale dequantize(table[tokens[t], :])
struct Embed {
    const Weight* table = nullptr;
    View x;
    float scale = 1.0f;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// y[t, g, i] (+)= x[t, g, i] / sqrt(mean(x[t, g, :]^2) + epsilon) * weight[i], where rows are cut into groups as long
/// as the weight: one group for a norm of the residual stream, one per head for a norm of q or k.
struct Norm {
    View x;
    const Weight* weight = nullptr;  ///< [columns of a group] of F32, F16 or BF16
    NormSpec spec;
    View y;
    bool accumulate = false;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// Turns x into the form that the products after it read (a quantized copy in the backend's own workspace).
struct Prepare {
    View x;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// targets[n].out[t, o] (+)= sum over i of x[t, i] weight[o, i] (+ bias[o])
struct Linear {
    static constexpr std::size_t max_targets = 4;
    View x;
    std::array<LinearTarget, max_targets> targets;
    std::uint32_t count = 0;

    [[nodiscard]] std::uint32_t tiles(const Frame& f) const {
        std::uint32_t sum = 0;
        if (f.rows(x.rows) == 0) return 0;
        for (std::uint32_t n = 0; n < count; ++n) sum += tiles_of(targets[n]);
        return sum;
    }
    /// The target that tile `tile` belongs to and its first output column.
    struct Place {
        const LinearTarget* target;
        std::uint32_t column;
        std::uint32_t columns;
    };
    [[nodiscard]] Place place(std::uint32_t tile) const {
        std::uint32_t n = 0;
        while (tile >= tiles_of(targets[n])) tile -= tiles_of(targets[n++]);
        const std::uint32_t column = tile * linear_tile;
        return {&targets[n], column, (std::min)(linear_tile, targets[n].out.columns - column)};
    }

 private:
    static std::uint32_t tiles_of(const LinearTarget& target) {
        return (target.out.columns + linear_tile - 1) / linear_tile;
    }
};

/// y[t, i] = magnitude cos(a), y[t, dim/2 + i] = magnitude sin(a) with a = positions[t] * frequencies[i]
struct Angles {
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
    View x;
    View angles;
    RopeSpec spec;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// Writes row t of k and v to cache_slots[t] of the cache, rounded to its dtype.
struct Store {
    View k;
    View v;
    std::uint32_t layer = 0;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(k.rows); }
};

/// y[t, h] = softmax over positions p <= positions[t] of (scale q[t, h] . K[p, g]) times V[p, g], g the key head of h;
/// with a window only p > positions[t] - window. Online softmax (Milakov and Gimelshein 2018) over tiles of
/// `attention_tile` positions.
struct Attend {
    View q;
    std::uint32_t layer = 0;
    AttentionSpec spec;
    View y;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(q.rows) * spec.kv_heads; }
};

/// What one tile of an `Attend` works on: the query heads of one row that share a key head.
struct AttentionTile {
    AttentionTile(const Attend& op, const Frame& f, std::uint32_t tile)
        : row(tile / op.spec.kv_heads),
          heads(op.spec.heads / op.spec.kv_heads),
          first_head(tile % op.spec.kv_heads * heads),
          length(static_cast<std::size_t>(f.inputs.positions[row]) + 1),
          begin(op.spec.window == 0 ? 0 : length - (std::min)(length, std::size_t{op.spec.window})),
          to_value(f.cache.to_value(op.layer)),
          cache_(&f.cache),
          table_(f.inputs.tables.data() + static_cast<std::size_t>(f.inputs.sequences[row]) * f.shape.table),
          offset_(f.cache.shape->layer_offset(op.layer) +
                  tile % op.spec.kv_heads * op.spec.head_dim * traits(f.cache.shape->dtype).block_bytes),
          row_bytes_(f.cache.shape->row_bytes(op.layer)) {}

    /// Positions from `first` to the end of its tile, or to the last one that the row sees.
    [[nodiscard]] std::size_t count(std::size_t first) const noexcept {
        return (std::min)(std::size_t{attention_tile} - first % attention_tile, length - first);
    }
    /// Addresses of the keys of positions [first, first + count), through the block table.
    void keys(std::size_t first, std::size_t count, const std::byte* (&out)[attention_tile]) const {
        const std::size_t block_tokens = cache_->shape->block_tokens;
        std::size_t block = first / block_tokens;
        std::size_t within = first % block_tokens;
        for (std::size_t j = 0; j < count; ++block, within = 0) {
            const auto physical = static_cast<std::size_t>(table_[block]);
            const std::byte* from = cache_->data + physical * cache_->block_bytes + offset_ + within * row_bytes_;
            for (; within < block_tokens && j < count; ++within, ++j, from += row_bytes_) out[j] = from;
        }
    }

    std::size_t row;
    std::size_t heads;
    std::size_t first_head;
    std::size_t length;    ///< positions up to the row's own, included
    std::size_t begin;     ///< the first position that it sees
    std::size_t to_value;  ///< bytes from the address of a key to that of its value

 private:
    const Cache* cache_;
    const std::int32_t* table_;
    std::size_t offset_;
    std::size_t row_bytes_;
};

/// y[t, i] = f(gate[t, i]) * up[t, i]
struct Gate {
    View gate;
    View up;
    Activation activation = Activation::silu;
    View y;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(gate.rows); }
};

/// y[i, :] = x[wanted[i], :]
struct Gather {
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

/// Moves row t of the cache's K and V from slot `sources[t]` to slot `cache_slots[t]`, row after row, and turns K's
/// heads by the row's angles, rounded again to the cache's dtype. A tile is a key head.
struct Move {
    std::uint32_t layer = 0;
    View angles;
    RopeSpec spec;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const {
        return f.inputs.rows == 0 ? 0 : f.cache.shape->layers[layer].kv_heads;
    }

    /// For every backend: `rope(head, angles)` turns one head in place; `write(head, dtype, to)` rounds it into the
    /// cache. `head` is room for spec.head_dim floats.
    template <class Rope, class Write>
    void compute(const Frame& f, std::uint32_t tile, float* head, Rope rope, Write write) const {
        const DType dtype = f.cache.shape->dtype;
        const std::size_t bytes = spec.head_dim * traits(dtype).block_bytes;
        for (std::uint32_t t = 0; t < f.inputs.rows; ++t) {
            const std::byte* from = f.cache.key(layer, static_cast<std::size_t>(f.inputs.sources[t])) + tile * bytes;
            std::byte* to = f.cache.key(layer, static_cast<std::size_t>(f.inputs.cache_slots[t])) + tile * bytes;
            dequantize_row(dtype, from, spec.head_dim, head);
            rope(head, angles.row(t));
            write(head, dtype, to);
            if (from != to) std::memcpy(to + f.cache.to_value(layer), from + f.cache.to_value(layer), bytes);
        }
    }
};

}  // namespace host
}  // namespace decant::inline DECANT_ABI

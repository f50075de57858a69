// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The operations of a host backend as data: one struct per operation, stored in a pass and run tile by tile. The
/// formula of each stands here; the Eigen backend states it in code.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/specs.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

/// x[t, :] = dequantize(table[tokens[t], :])
struct Embed {
    const Weight* table = nullptr;
    View x;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// y[t, i] = x[t, i] / sqrt(mean(x[t, :]^2) + epsilon) * weight[i]
struct Norm {
    View x;
    const Weight* weight = nullptr;  ///< [columns] of F32, F16 or BF16
    NormSpec spec;
    View y;
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

/// y[t, h] = softmax over positions p <= positions[t] of (scale q[t, h] . K[p, g]) times V[p, g], g the key head of h.
/// Online softmax (Milakov and Gimelshein 2018) over tiles of `attention_tile` positions.
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
          to_value(f.cache.to_value(op.layer)),
          cache_(&f.cache),
          table_(f.inputs.tables.data() + static_cast<std::size_t>(f.inputs.sequences[row]) * f.shape.table),
          offset_(f.cache.shape->layer_offset(op.layer) +
                  tile % op.spec.kv_heads * op.spec.head_dim * traits(f.cache.shape->dtype).block_bytes),
          row_bytes_(f.cache.shape->row_bytes(op.layer)) {}

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
    std::size_t length;    ///< positions that the row sees, itself included
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

}  // namespace host
}  // namespace decant::inline DECANT_ABI

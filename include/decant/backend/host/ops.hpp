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
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Which rows of a pass a view spans: one per token, or one per row that wants logits.
enum class RowSet : std::uint8_t { tokens, wanted };

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

    /// Address of the K row (`value` = 0) or V row (1) of a slot.
    [[nodiscard]] std::byte* row(std::size_t layer_offset, std::size_t row_bytes, std::size_t slot, int value) const {
        const std::size_t block = slot / shape->block_tokens;
        const std::size_t offset = slot % shape->block_tokens;
        return data + block * block_bytes + layer_offset +
               (static_cast<std::size_t>(value) * shape->block_tokens + offset) * row_bytes;
    }
    std::size_t block_bytes = 0;
};

/// What a tile may read besides its operation.
struct Frame {
    PassShape shape;
    PassInputs inputs;
    Cache cache;

    [[nodiscard]] std::uint32_t rows(RowSet set) const noexcept {
        return set == RowSet::tokens ? inputs.rows : inputs.wanted_rows;
    }
    /// Slot of a position of a sequence, through its block table.
    [[nodiscard]] std::size_t slot(std::size_t sequence, std::size_t position) const {
        const std::size_t block = position / cache.shape->block_tokens;
        return static_cast<std::size_t>(inputs.tables[sequence * shape.table + block]) * cache.shape->block_tokens +
               position % cache.shape->block_tokens;
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
};

/// Turns pairs (a, b) of every head of x by the row's angles: a' = a cos - b sin, b' = b cos + a sin.
struct Rope {
    View x;
    View angles;
    RopeSpec spec;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const { return f.rows(x.rows); }
};

/// Writes row t of k and v to slots[t] of the cache, rounded to its dtype.
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

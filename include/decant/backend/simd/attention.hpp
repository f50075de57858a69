// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Attention of the `Simd` backend: what `host::Attend` says, as pointers for the kernels of a set.

#include <decant/backend/host/attend.hpp>
#include <decant/backend/simd/attention_rows.hpp>
#include <decant/core/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace decant::inline DECANT_ABI {
namespace simd {

template <class Set>
struct Attention {
    /// Bytes of scratch where rows have at most `columns` columns.
    static constexpr std::size_t bytes(std::size_t columns) noexcept {
        return (attention_floats(columns) + sink_floats(columns)) * sizeof(float);
    }

    /// Rows to y; or, where the pass is cut into pieces, the partial results of one to `partials`.
    static void run(const host::Attend& op, const host::Frame& f, std::uint32_t tile, std::byte* memory,
                    float* partials) {
        auto* const sinks = reinterpret_cast<float*>(memory);
        float* const scratch = sinks + sink_floats(op.q.columns);
        const std::uint32_t count = op.pieces(f);
        if (count == 1) {
            op.runs(f, tile, [&](std::uint32_t first, std::uint32_t last, std::uint32_t kv_head) {
                Set::attend(rows(op, f, first, last, kv_head, sinks), scratch);
            });
            return;
        }
        op.runs(
            f, tile, count, [&](std::uint32_t first, std::uint32_t last, std::uint32_t kv_head, std::uint32_t piece) {
                const AttentionRows all = rows(op, f, first, last, kv_head, nullptr);
                const std::size_t floats = partial_floats(all.value_dim);
                float* const to = partials + ((first * op.spec.heads + kv_head * all.heads) * count + piece) * floats;
                Set::attend_piece(all, piece, to, op.spec.heads * count * floats, count * floats, scratch);
            });
    }

    static void run(const host::Combine& op, const host::Frame& f, std::uint32_t tile, std::byte* memory,
                    const float* partials) {
        const host::Attend& attend = op.attend;
        const std::uint32_t kv_heads = attend.spec.kv_heads, row = tile / kv_heads;
        auto* const sinks = reinterpret_cast<float*>(memory);
        float* const scratch = sinks + sink_floats(attend.q.columns);
        const AttentionRows all = rows(attend, f, row, row + 1, tile % kv_heads, sinks);
        const std::size_t floats = partial_floats(all.value_dim), count = attend.pieces(f);
        for (std::size_t h = 0; h < all.heads; ++h) {
            const std::size_t head = tile % kv_heads * all.heads + h;
            Set::combine_pieces(all, h, partials + (row * attend.spec.heads + head) * count * floats, floats, scratch);
        }
    }

 private:
    /// Room for a float of each head, in whole cache lines.
    static constexpr std::size_t sink_floats(std::size_t columns) noexcept { return (columns + 15) / 16 * 16; }

    static AttentionRows rows(const host::Attend& op, const host::Frame& f, std::uint32_t first, std::uint32_t last,
                              std::uint32_t kv_head, float* sinks) {
        const AttentionSpec& spec = op.spec;
        const host::Cache& cache = f.cache;
        AttentionRows rows;
        rows.rows = last - first;
        rows.heads = spec.heads / spec.kv_heads;
        rows.head_dim = spec.head_dim;
        rows.value_dim = spec.value_dim();
        rows.q = op.q.row(first) + kv_head * rows.heads * rows.head_dim;
        rows.q_stride = op.q.columns;
        rows.y = op.y.row(first) + kv_head * rows.heads * rows.value_dim;
        rows.y_stride = op.y.columns;
        rows.scale = spec.scale;
        rows.softcap = spec.softcap;
        if (op.sinks != nullptr && sinks != nullptr) {
            for (std::size_t h = 0; h < rows.heads; ++h) sinks[h] = op.start(kv_head * rows.heads + h).highest;
            rows.sinks = sinks;
        }
        rows.position = static_cast<std::size_t>(f.inputs.positions[first]);
        rows.window = spec.window;
        rows.dtype = cache.shape->dtype;
        rows.entries = traits(rows.dtype).block_elements;
        rows.entry_bytes = traits(rows.dtype).block_bytes;
        rows.rotation = cache.shape->rotation(op.layer);
        rows.cache = cache.key(op.layer, 0) + kv_head * rows.bytes(rows.head_dim);
        rows.table = f.table(op.layer, first);
        rows.block_tokens = cache.shape->block_tokens;
        rows.block_bytes = cache.block_bytes;
        rows.row_bytes = cache.shape->row_bytes(op.layer);
        rows.to_value = spec.key_skip > 0 ? rows.bytes(spec.key_skip) : cache.to_value(op.layer);
        return rows;
    }
};

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Attention as data: see ops.hpp.

#include <decant/backend/host/frame.hpp>
#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/specs.hpp>
#include <decant/quant/formats.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace decant::inline DECANT_ABI {
namespace host {

/// Cache positions that attention takes at a time. They count from absolute zero, so that a result does not depend on
/// what else is in the pass.
inline constexpr std::uint32_t attention_tile = 64;

/// y[t, h] = softmax over positions p <= positions[t] of (scale q[t, h] . K[p, g]) times V[p, g], g the key head of h;
/// with a window only p > positions[t] - window; with a softcap c the scores are c tanh(score / c); with sinks the
/// softmax has one more term, exp(sinks[h]), which weighs nothing. Online softmax (Milakov and Gimelshein 2018) over
/// tiles of positions. A tile of the operation is a key head of `rows_each` rows; or, where a pass has few rows and the
/// backend can compute parts of a row's sums apart, a key head of a piece of the positions, and `Combine` follows.
struct Attend {
    static constexpr std::uint32_t split_rows = 16;
    View q;
    std::uint32_t layer = 0;
    AttentionSpec spec;
    View y;
    const Weight* sinks = nullptr;  ///< [heads] of F32, F16 or BF16, or null
    std::uint32_t piece = 0;        ///< positions of a piece, counted from zero; 0: the backend computes rows whole
    std::size_t room = 0;           ///< partial results (of one row, head and piece) that it has room for

    /// Rows that share the work of reading keys: more where few heads do; one where each is of another sequence.
    [[nodiscard]] std::uint32_t rows_each(const Frame& f) const {
        if (f.rows(q.rows) == f.sequences()) return 1;
        const std::uint32_t heads = spec.heads / spec.kv_heads, rows = std::clamp(512 / heads, 8u, 128u);
        if (f.most_work == 0) return rows;
        const std::uint64_t seen = spec.window == 0 ? f.longest : (std::min)(f.longest, spec.window);
        const std::uint64_t each = heads * (std::max)(seen, std::uint64_t{1}) * (spec.head_dim + spec.value_dim());
        constexpr std::uint64_t slower = 2;  // than products, with an exp for each score
        return static_cast<std::uint32_t>(
            std::clamp(f.most_work / slower / each, std::uint64_t{2}, std::uint64_t{rows}));
    }
    /// Pieces that rows are cut into, which depends on nothing but the pass; results do not depend on it.
    [[nodiscard]] std::uint32_t pieces(const Frame& f) const {
        const std::uint32_t rows = f.rows(q.rows);
        if (piece == 0 || rows > split_rows) return 1;
        std::uint32_t last = 0;
        for (std::uint32_t t = 0; t < rows; ++t)
            last = (std::max)(last, static_cast<std::uint32_t>(f.inputs.positions[t]));
        const std::uint32_t count = last / piece + 1;
        return std::size_t{rows} * spec.heads * count <= room ? count : 1;
    }
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const {
        const std::uint32_t count = pieces(f), rows = f.rows(q.rows);
        return (count > 1 ? rows * count : (rows + rows_each(f) - 1) / rows_each(f)) * spec.kv_heads;
    }

    /// Calls `visit(first row, end, key head)` for every run of a tile's rows that are of one sequence, whose positions
    /// follow one another.
    template <class Visit>
    void runs(const Frame& f, std::uint32_t tile, Visit visit) const {
        const std::uint32_t begin = tile / spec.kv_heads * rows_each(f);
        const std::uint32_t end = (std::min)(begin + rows_each(f), f.rows(q.rows));
        for (std::uint32_t first = begin, last; first < end; first = last) {
            for (last = first + 1; last < end && follows(f, last);) ++last;
            visit(first, last, tile % spec.kv_heads);
        }
    }
    /// The same for a tile of a pass that is cut into `count` pieces: `visit(first row, end, key head, piece)`.
    template <class Visit>
    void runs(const Frame& f, std::uint32_t tile, std::uint32_t count, Visit visit) const {
        const std::uint32_t first = tile / spec.kv_heads / count;
        if (follows(f, first)) return;
        std::uint32_t last = first + 1;
        while (last < f.rows(q.rows) && follows(f, last)) ++last;
        visit(first, last, tile % spec.kv_heads, tile / spec.kv_heads % count);
    }

    /// Where the online softmax of a head begins: its largest score so far and the sum of exp(score - largest).
    struct Start {
        float highest = -std::numeric_limits<float>::infinity();
        float total = 0.0f;
    };
    [[nodiscard]] Start start(std::size_t head) const {
        if (sinks == nullptr) return {};
        Start start{0.0f, 1.0f};
        dequantize_row(sinks->dtype, sinks->data + row_bytes(sinks->dtype, head), 1, &start.highest);
        return start;
    }

 private:
    /// Whether a row goes on where the one before it ends.
    static bool follows(const Frame& f, std::uint32_t row) {
        return row > 0 && f.inputs.sequences[row] == f.inputs.sequences[row - 1] &&
               f.inputs.positions[row] == f.inputs.positions[row - 1] + 1;
    }
};

/// Adds the partial results of a cut `Attend` in the order of their pieces. A tile is a key head of a row.
struct Combine {
    Attend attend;
    [[nodiscard]] std::uint32_t tiles(const Frame& f) const {
        return attend.pieces(f) > 1 ? f.rows(attend.q.rows) * attend.spec.kv_heads : 0;
    }
};

/// Where the keys and values of one row and key head lie, and the query heads that share them.
struct AttentionTile {
    AttentionTile(const Attend& op, const Frame& f, std::uint32_t of_row, std::uint32_t kv_head)
        : row(of_row),
          heads(op.spec.heads / op.spec.kv_heads),
          first_head(kv_head * heads),
          length(static_cast<std::size_t>(f.inputs.positions[row]) + 1),
          begin(first_seen(op.spec.window, length - 1)),
          to_value(op.spec.key_skip > 0 ? row_bytes(f.cache.shape->dtype, op.spec.key_skip)
                                        : f.cache.to_value(op.layer)),
          cache_(&f.cache),
          table_(f.table(op.layer, of_row)),
          offset_(f.cache.shape->layer_offset(op.layer) + kv_head * f.cache.shape->head_bytes(op.layer)),
          row_bytes_(f.cache.shape->row_bytes(op.layer)) {}

    /// Positions from `first` to the end of its tile, or to the last one that the row sees.
    [[nodiscard]] std::size_t count(std::size_t first) const noexcept {
        return (std::min)(std::size_t{attention_tile} - first % attention_tile, length - first);
    }
    /// Addresses of the keys of positions [first, first + count), through the block table.
    void keys(std::size_t first, std::size_t count, const std::byte** out) const {
        const std::size_t block_tokens = cache_->shape->block_tokens;
        std::size_t block = first / block_tokens;
        std::size_t within = first % block_tokens;
        for (std::size_t j = 0; j < count; ++block, within = 0) {
            DECANT_ASSERT(table_[block] >= 0);  // what a window has passed is not there
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

}  // namespace host
}  // namespace decant::inline DECANT_ABI

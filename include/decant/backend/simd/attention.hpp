// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Attention of the `Simd` backend as tiles of small matrix products: the query heads that share a key head, of several
/// rows of a sequence, read each tile of keys and values once (flash attention: Dao et al. 2022).

#include <decant/backend/host/ops.hpp>
#include <decant/backend/simd/vector_math.hpp>
#include <decant/core/config.hpp>
#include <decant/quant/panel.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace decant::inline DECANT_ABI {
namespace simd {

/// A row's sums do not depend on which rows are computed with it: scores are products of one query with one key,
/// probabilities are summed position by position, and a tile that a row sees in part is multiplied for it alone.
template <class Set>
class Attention {
 public:
    static constexpr std::size_t span = host::attention_tile;
    static constexpr std::size_t groups = span / panel_rows;
    static constexpr std::size_t most_queries = 32;
    static constexpr std::size_t piece = 128;  // elements of a head at a time

    /// Bytes of scratch.
    static constexpr std::size_t bytes = (panel_rows * piece + most_queries * piece + 2 * most_queries * span +
                                          span * panel_rows + most_queries * panel_rows) *
                                         sizeof(float);

    Attention(const host::Attend& op, const host::Frame& f, float* memory)
        : op_(op),
          half_(f.cache.shape->dtype == DType::f16),
          entry_bytes_(traits(f.cache.shape->dtype).block_bytes),
          keys_(memory),
          queries_(keys_ + panel_rows * piece),
          scores_(queries_ + most_queries * piece),
          weights_(scores_ + most_queries * span),
          values_(weights_ + most_queries * span),
          sums_(values_ + span * panel_rows) {}

    /// Rows [first, last) of one sequence at positions that follow one another, and one key head.
    void run(const host::Frame& f, std::uint32_t first, std::uint32_t last, std::uint32_t kv_head) {
        const std::size_t shared = op_.spec.heads / op_.spec.kv_heads;
        const std::size_t most = (std::max)(std::size_t{1}, most_queries / (last - first));
        for (std::size_t h = 0; h < shared; h += most) {
            first_row_ = first;
            rows_ = last - first;
            first_head_ = kv_head * shared + h;
            heads_ = (std::min)(most, shared - h);
            block(f, kv_head);
        }
    }

 private:
    [[nodiscard]] std::size_t queries() const { return rows_ * heads_; }
    [[nodiscard]] const float* query(std::size_t q) const {
        return op_.q.row(first_row_ + q / heads_) + (first_head_ + q % heads_) * op_.spec.head_dim;
    }
    [[nodiscard]] float* result(std::size_t q) const {
        return op_.y.row(first_row_ + q / heads_) + (first_head_ + q % heads_) * op_.spec.value_dim();
    }

    void block(const host::Frame& f, std::uint32_t kv_head) {
        const std::size_t value_dim = op_.spec.value_dim();
        for (std::size_t q = 0; q < queries(); ++q) {
            const auto start = op_.start(first_head_ + q % heads_);
            highest_[q] = start.highest;
            total_[q] = start.total;
            std::fill_n(result(q), value_dim, 0.0f);
        }
        const host::AttentionTile front(op_, f, first_row_, kv_head);
        const host::AttentionTile back(op_, f, first_row_ + static_cast<std::uint32_t>(rows_) - 1, kv_head);
        for (std::size_t tile = front.begin / span * span; tile < back.length; tile += span) {
            // Of the tile's positions, those that some row sees: nothing else is read, it may never have been written.
            const std::size_t begin = (std::max)(tile, front.begin) - tile;
            const std::size_t end = (std::min)(tile + span, back.length) - tile;
            const std::byte* rows[span];
            back.keys(tile + begin, end - begin, rows + begin);
            score(rows, begin, end);
            for (std::size_t i = 0; i < rows_; ++i) {
                const std::size_t length = front.length + i;
                const std::size_t from =
                    op_.spec.window == 0 ? 0 : length - (std::min)(length, std::size_t{op_.spec.window});
                first_[i] = (std::max)(tile, from) - tile;
                last_[i] = (std::max)((std::min)(tile + span, length), tile) - tile;
                if (first_[i] >= last_[i]) first_[i] = last_[i] = 0;
            }
            soften(begin);
            gather(rows, begin, end, back.to_value);
        }
        for (std::size_t q = 0; q < queries(); ++q) scale(result(q), 1.0f / total_[q], result(q), value_dim);
    }

    /// scores_[group][query][16]: scaled products of the queries with the keys of positions [begin, end) of a tile.
    void score(const std::byte* const* rows, std::size_t begin, std::size_t end) {
        const std::size_t dim = op_.spec.head_dim;
        for (std::size_t d = 0; d < dim; d += piece) {
            const std::size_t n = (std::min)(piece, dim - d);
            for (std::size_t q = 0; q < queries(); ++q) scale(query(q) + d, op_.spec.scale, queries_ + q * n, n);
            for (std::size_t g = begin / panel_rows; g * panel_rows < end; ++g) {
                const FloatPanel panel{keys_};
                const std::byte* lanes[panel_rows];
                for (std::size_t r = 0; r < panel_rows; ++r) {
                    const std::size_t at = g * panel_rows + r;
                    lanes[r] = at >= begin && at < end ? rows[at] + d * entry_bytes_ : nullptr;
                }
                if (half_) {
                    Set::template transpose<true>(lanes, n, panel);
                } else {
                    Set::template transpose<false>(lanes, n, panel);
                }
                float* const to = scores_ + g * queries() * panel_rows;
                if (d == 0) std::fill_n(to, queries() * panel_rows, 0.0f);
                Set::multiply(panel, n, queries_, n, queries(), to);
            }
        }
    }

    /// One step of the online softmax: scores to weights_[query][64], and what was summed so far scaled to the new
    /// peak.
    void soften(std::size_t begin) {
        for (std::size_t q = 0; q < queries(); ++q) {
            const std::size_t first = first_[q / heads_], last = last_[q / heads_];
            if (first == last) continue;
            float* const w = weights_ + q * span;
            for (std::size_t g = begin / panel_rows; g * panel_rows < last; ++g)
                std::copy_n(scores_ + (g * queries() + q) * panel_rows, panel_rows, w + g * panel_rows);
            if (op_.spec.softcap > 0.0f) soft_cap(w + first, op_.spec.softcap, w + first, last - first);
            float peak = highest_[q];
            for (std::size_t j = first; j < last; ++j) peak = (std::max)(peak, w[j]);
            const float keep = std::exp(highest_[q] - peak);  // 0 in the first tile
            highest_[q] = peak;
            exp_shifted(w + first, -peak, w + first, last - first);
            total_[q] *= keep;
            for (std::size_t j = first; j < last; ++j) total_[q] += w[j];
            scale(result(q), keep, result(q), op_.spec.value_dim());
        }
    }

    /// Adds the values of positions [begin, end) of a tile, 16 elements at a time.
    void gather(const std::byte* const* rows, std::size_t begin, std::size_t end, std::size_t to_value) {
        const std::size_t value_dim = op_.spec.value_dim();
        for (std::size_t d = 0; d < value_dim; d += panel_rows) {
            const std::size_t n = (std::min)(panel_rows, value_dim - d);
            for (std::size_t j = begin; j < end; ++j) {
                const std::byte* const from = rows[j] + to_value + d * entry_bytes_;
                float* const to = values_ + j * panel_rows;
                if (half_) {
                    Set::from_half(from, to, n);
                } else {
                    std::memcpy(to, from, n * sizeof(float));
                }
                std::fill(to + n, to + panel_rows, 0.0f);
            }
            std::fill_n(sums_, queries() * panel_rows, 0.0f);
            for (std::size_t i = 0, all; i < rows_; i += all) {
                // Rows that see the same positions go together.
                for (all = 1; i + all < rows_ && first_[i + all] == first_[i] && last_[i + all] == last_[i];) ++all;
                if (first_[i] == last_[i]) continue;
                const std::size_t q = i * heads_;
                Set::multiply(FloatPanel{values_ + first_[i] * panel_rows}, last_[i] - first_[i],
                              weights_ + q * span + first_[i], span, all * heads_, sums_ + q * panel_rows);
            }
            for (std::size_t q = 0; q < queries(); ++q) {
                if (first_[q / heads_] == last_[q / heads_]) continue;
                float* const y = result(q) + d;
                for (std::size_t i = 0; i < n; ++i) y[i] += sums_[q * panel_rows + i];
            }
        }
    }

    const host::Attend& op_;
    bool half_;
    std::size_t entry_bytes_;
    float* keys_;     // [piece][16]: a group of keys
    float* queries_;  // [queries][piece]
    float* scores_;   // [groups][queries][16]
    float* weights_;  // [queries][64]
    float* values_;   // [64][16]
    float* sums_;     // [queries][16]
    std::uint32_t first_row_ = 0;
    std::size_t rows_ = 0;
    std::size_t first_head_ = 0;
    std::size_t heads_ = 0;
    float highest_[most_queries];
    float total_[most_queries];
    std::size_t first_[host::Attend::rows_each];  // positions of the tile at hand that a row sees
    std::size_t last_[host::Attend::rows_each];
};

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Attention in terms of `Lanes`; part of kernels.inl. The query heads that share a key head, of several rows, are the
// rows of small matrix products with tiles of keys and of values (flash attention: Dao et al. 2022): in floats, or of
// pairs of 16-bit integers where the set has such products and the cache is F16.
//
// The order of a row's sums does not depend on what is computed with it: tile by tile, and all sums begin anew after
// `attention_piece` positions, whose partial results are added in order. Weights are powers of two: log2(e) is part of
// the factor that the queries are multiplied by.

#include <decant/backend/simd/attention_tile.inl>

#include <decant/backend/simd/attention_floats.inl>
#include <decant/backend/simd/attention_pairs.inl>

/// Partial results of attention, see `partial_floats`.
struct Partial {
    static float* result(const AttentionRows& rows, std::size_t r, std::size_t h) noexcept {
        return rows.y + r * rows.y_stride + h * rows.value_dim;
    }

    /// Adds the partial result of a piece to those before it, or to the sink. Returns where the sum is.
    static const float* join(const AttentionRows& rows, std::size_t r, std::size_t head, std::size_t piece,
                             const float* part, float* sum) noexcept {
        const std::size_t padded = partial_floats(rows.value_dim) - panel_rows;
        const bool first = piece == rows.begin(r) / attention_piece;
        if (first && rows.sinks != nullptr) {
            clear_floats(sum, padded + panel_rows);
            sum[padded] = rows.sinks[head] * math::log2_e;
            sum[padded + 1] = 1.0f;
        }
        if (!first || rows.sinks != nullptr) {
            fold(sum, part, padded);
            return sum;
        }
        if (rows.end(r) <= (piece + 1) * attention_piece) return part;
        copy_floats(part, sum, padded + panel_rows);
        return sum;
    }

    static void fold(float* sum, const float* part, std::size_t padded) noexcept {
        const Lanes::Floats before = Lanes::floats(sum[padded]), here = Lanes::floats(part[padded]);
        const Lanes::Floats top = Lanes::larger(before, here);
        const Lanes::Floats a = math::exp2(Lanes::subtract(before, top));
        const Lanes::Floats b = math::exp2(Lanes::subtract(here, top));
        for (std::size_t i = 0; i <= padded; i += panel_rows)
            Lanes::store_floats(sum + i, Lanes::multiply_add(Lanes::load_floats(part + i), b,
                                                             Lanes::times(Lanes::load_floats(sum + i), a)));
        Lanes::store_some(sum + padded, top, 1);
    }

    /// The result of head h of row r, from its sum.
    static void finish(const AttentionRows& rows, std::size_t r, std::size_t h, const float* sum) noexcept {
        float* const y = result(rows, r, h);
        const std::size_t value_dim = rows.value_dim, padded = partial_floats(value_dim) - panel_rows;
        const Lanes::Floats factor = Lanes::over(Lanes::floats(1.0f), Lanes::floats(sum[padded + 1]));
        std::size_t i = 0;
        for (; i + panel_rows <= value_dim; i += panel_rows)
            Lanes::store_floats(y + i, Lanes::times(Lanes::load_floats(sum + i), factor));
        if (i < value_dim) Lanes::store_some(y + i, Lanes::times(Lanes::load_floats(sum + i), factor), value_dim - i);
        hadamard(y, value_dim, rows.rotation);
    }

    /// The sum of a head's partial results, `stride` apart from piece to piece, of the first row to y.
    static void combine(const AttentionRows& rows, std::size_t h, const float* from, std::size_t stride,
                        float* sum) noexcept {
        constexpr std::size_t r = 0;
        const float* all = nullptr;
        for (std::size_t piece = rows.begin(r) / attention_piece; piece * attention_piece < rows.end(r); ++piece)
            all = join(rows, r, h, piece, from + piece * stride, sum);
        finish(rows, r, h, all);
    }
};

/// Attention of up to `most_queries` queries: rows x heads.
template <class Tile>
class AttentionPart : Tile {
 public:
    AttentionPart(const AttentionRows& rows, float* scratch) noexcept : Tile(rows, scratch), sums_(scratch) {}

    /// Results to y.
    void run() noexcept {
        this->load_queries();
        const std::size_t last = rows_.end(rows_.rows - 1);
        for (std::size_t piece = rows_.begin(0) / attention_piece; piece * attention_piece < last; ++piece) {
            sum_piece(piece);
            for (std::size_t q = 0; q < queries_; ++q) {
                const std::size_t r = row_of_[q], h = q - r * rows_.heads;
                if (!sees(r, piece)) continue;
                const float* const sum = Partial::join(rows_, r, h, piece, parts_ + q * stride_, sums_ + q * stride_);
                if (rows_.end(r) <= (piece + 1) * attention_piece) Partial::finish(rows_, r, h, sum);
            }
        }
    }

    /// The partial result of one piece: head h of row r to `to + r * row_stride + h * head_stride`.
    void run_piece(std::size_t piece, float* to, std::size_t row_stride, std::size_t head_stride) noexcept {
        this->load_queries();
        sum_piece(piece);
        for (std::size_t q = 0; q < queries_; ++q) {
            const std::size_t r = row_of_[q], h = q - r * rows_.heads;
            if (sees(r, piece)) copy_floats(parts_ + q * stride_, to + r * row_stride + h * head_stride, stride_);
        }
    }

 private:
    using Tile::begin_, Tile::end_, Tile::limit_, Tile::parts_, Tile::queries_, Tile::row_of_;
    using Tile::rows_, Tile::stride_, Tile::tile_, Tile::totals_, Tile::highest_, Tile::padded_;

    [[nodiscard]] bool sees(std::size_t r, std::size_t piece) const noexcept {
        return rows_.begin(r) < (piece + 1) * attention_piece && rows_.end(r) > piece * attention_piece;
    }

    /// parts_ of all queries that see something of the piece.
    void sum_piece(std::size_t piece) noexcept {
        clear_floats(totals_, queries_ * panel_rows);
        clear_floats(parts_, queries_ * stride_);
        for (std::size_t q = 0; q < queries_; q += panel_rows)
            Lanes::store_floats(highest_ + q, Lanes::floats(-__builtin_inff()));
        std::size_t begin = rows_.begin(0), end = rows_.end(rows_.rows - 1);
        if (begin < piece * attention_piece) begin = piece * attention_piece;
        if (end > (piece + 1) * attention_piece) end = (piece + 1) * attention_piece;
        limit_ = end;
        for (std::size_t tile = begin / attention_span * attention_span; tile < end; tile += attention_span) {
            tile_ = tile;
            // Of the tile's positions, those that some row sees: nothing else is read, it may never have been written.
            begin_ = begin < tile_ ? 0 : begin - tile_;
            end_ = end - tile_ < attention_span ? end - tile_ : attention_span;
            std::size_t first_row = 0, last_row = rows_.rows;  // those that see some of them
            while (rows_.end(first_row) <= tile_) ++first_row;
            while (rows_.begin(last_row - 1) >= tile_ + attention_span) --last_row;
            this->add_tile(first_row * rows_.heads, last_row * rows_.heads);
        }
        for (std::size_t q = 0; q < queries_; ++q) {
            float* const state = parts_ + q * stride_ + padded_;
            state[0] = highest_[q];
            state[1] = Lanes::sum(Lanes::load_floats(totals_ + q * panel_rows));
        }
    }

    float* sums_;  // [queries][stride]: of the pieces before the one at hand
};

/// How many of `rows` rows go together.
inline std::size_t attention_rows_at_once(const AttentionRows& rows) noexcept {
    const std::size_t by_room = most_queries * 128 / (rows.heads * rows.head_dim);
    const std::size_t by_count = most_queries / rows.heads;
    const std::size_t most = by_room < by_count ? by_room : by_count;
    return most == 0 ? 1 : most;
}

/// Calls `use(part, first row, first head)` for the rows and heads that go together.
template <class Use>
void each_part(const AttentionRows& all, Use use) noexcept {
    for (std::size_t h = 0; h < all.heads; h += most_queries) {
        AttentionRows part = all;
        part.heads = all.heads - h < most_queries ? all.heads - h : most_queries;
        part.sinks = all.sinks == nullptr ? nullptr : all.sinks + h;
        const std::size_t most = attention_rows_at_once(part);
        for (std::size_t r = 0; r < all.rows; r += most) {
            part.rows = all.rows - r < most ? all.rows - r : most;
            part.position = all.position + r;
            part.q = all.q + r * all.q_stride + h * all.head_dim;
            part.y = all.y + r * all.y_stride + h * all.value_dim;
            use(part, r, h);
        }
    }
}

/// `Pairs`: the set's products of pairs, or void.
template <class Pairs>
struct WholeRows {
    float* scratch;  // attention_floats
    void operator()(const AttentionRows& part, std::size_t, std::size_t) const noexcept {
        if constexpr (!std::is_void_v<Pairs>)
            if (part.dtype == DType::f16) return AttentionPart<PairTile<Pairs>>(part, scratch).run();
        AttentionPart<FloatTile>(part, scratch).run();
    }
};

/// The partial results of one piece: head h of row r to `to + r * row_stride + h * head_stride`.
template <class Pairs>
struct OnePiece {
    std::size_t piece;
    float* to;
    std::size_t row_stride;
    std::size_t head_stride;
    float* scratch;
    void operator()(const AttentionRows& part, std::size_t r, std::size_t h) const noexcept {
        float* const first = to + r * row_stride + h * head_stride;
        if constexpr (!std::is_void_v<Pairs>) {
            if (part.dtype == DType::f16)
                return AttentionPart<PairTile<Pairs>>(part, scratch).run_piece(piece, first, row_stride, head_stride);
        }
        AttentionPart<FloatTile>(part, scratch).run_piece(piece, first, row_stride, head_stride);
    }
};

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Attention in terms of `Lanes`; part of kernels.inl. The query heads that share a key head, of several rows, are the
// rows of small matrix products with tiles of keys and of values (flash attention: Dao et al. 2022).
//
// The order of a row's sums does not depend on what is computed with it: scores are summed element by element,
// weighted values position by position, weights in 16 sums (position modulo 16); and all begin anew after
// `attention_piece` positions, whose partial results are added in order. Weights are powers of two: log2(e) is part of
// the factor that the queries are multiplied by.

/// Attention of up to `most_queries` queries: rows x heads.
class AttentionPart {
 public:
    static constexpr std::size_t queries_each = 48;  // whose scores stay in the first-level cache

    AttentionPart(const AttentionRows& rows, float* scratch) noexcept
        : rows_(rows),
          queries_(rows.rows * rows.heads),
          entry_(rows.half ? 2 : 4),
          padded_((rows.value_dim + panel_rows - 1) / panel_rows * panel_rows),
          stride_(partial_floats(rows.value_dim)),
          direct_(rows.half && queries_ <= 2 * SmallProduct::most_rows && rows.value_dim % panel_rows == 0),
          slab_(direct_ ? direct_slab : attention_slab) {
        keys_ = take(scratch, attention_slab * attention_span);
        values_ = take(scratch, attention_slab * attention_span);
        copy_ = take(scratch, panel_rows * attention_slab);
        scores_ = take(scratch, most_queries * attention_span);
        totals_ = take(scratch, most_queries * panel_rows);
        highest_ = take(scratch, most_queries + panel_rows);
        keep_ = take(scratch, most_queries + panel_rows);
        parts_ = take(scratch, queries_ * stride_);
        sums_ = take(scratch, queries_ * stride_);
        row_of_ = reinterpret_cast<std::uint32_t*>(take(scratch, most_queries));
        q_ = scratch;
        for (std::size_t r = 0, q = 0; r < rows.rows; ++r)
            for (std::size_t h = 0; h < rows.heads; ++h) row_of_[q++] = static_cast<std::uint32_t>(r);
    }

    /// How many of `rows` rows go together.
    static std::size_t rows_at_once(const AttentionRows& rows) noexcept {
        const std::size_t by_room = most_queries * 128 / (rows.heads * rows.head_dim);
        const std::size_t by_count = most_queries / rows.heads;
        const std::size_t most = by_room < by_count ? by_room : by_count;
        return most == 0 ? 1 : most;
    }

    /// Results to y.
    void run() noexcept {
        load_queries();
        const std::size_t last = rows_.end(rows_.rows - 1);
        for (std::size_t piece = rows_.begin(0) / attention_piece; piece * attention_piece < last; ++piece) {
            sum_piece(piece);
            for (std::size_t q = 0; q < queries_; ++q) {
                const std::size_t r = row_of_[q], h = q - r * rows_.heads;
                if (!sees(r, piece)) continue;
                const float* const sum = join(rows_, r, h, piece, parts_ + q * stride_, sums_ + q * stride_);
                if (rows_.end(r) <= (piece + 1) * attention_piece) finish(sum, result(rows_, r, h), rows_.value_dim);
            }
        }
    }

    /// The partial result of one piece: head h of row r to `to + r * row_stride + h * head_stride`.
    void run_piece(std::size_t piece, float* to, std::size_t row_stride, std::size_t head_stride) noexcept {
        load_queries();
        sum_piece(piece);
        for (std::size_t q = 0; q < queries_; ++q) {
            const std::size_t r = row_of_[q], h = q - r * rows_.heads;
            if (sees(r, piece)) copy(parts_ + q * stride_, to + r * row_stride + h * head_stride, stride_);
        }
    }

    /// The sum of a head's partial results, `stride` apart from piece to piece, of the first row to y.
    static void combine(const AttentionRows& rows, std::size_t h, const float* from, std::size_t stride,
                        float* sum) noexcept {
        constexpr std::size_t r = 0;
        const float* all = nullptr;
        for (std::size_t piece = rows.begin(r) / attention_piece; piece * attention_piece < rows.end(r); ++piece)
            all = join(rows, r, h, piece, from + piece * stride, sum);
        finish(all, result(rows, r, h), rows.value_dim);
    }

 private:
    static float* take(float*& from, std::size_t floats) noexcept {
        float* const taken = from;
        from += floats;
        return taken;
    }
    static float* result(const AttentionRows& rows, std::size_t r, std::size_t h) noexcept {
        return rows.y + r * rows.y_stride + h * rows.value_dim;
    }
    [[nodiscard]] bool sees(std::size_t r, std::size_t piece) const noexcept {
        return rows_.begin(r) < (piece + 1) * attention_piece && rows_.end(r) > piece * attention_piece;
    }

    static void clear(float* to, std::size_t n) noexcept {
        for (std::size_t i = 0; i < n; i += panel_rows) Lanes::store_floats(to + i, Lanes::floats(0.0f));
    }

    static void copy(const float* from, float* to, std::size_t n) noexcept {
        for (std::size_t i = 0; i < n; i += panel_rows) Lanes::store_floats(to + i, Lanes::load_floats(from + i));
    }

    /// Adds the partial result of a piece to those before it, or to the sink. Returns where the sum is.
    static const float* join(const AttentionRows& rows, std::size_t r, std::size_t head, std::size_t piece,
                             const float* part, float* sum) noexcept {
        const std::size_t padded = partial_floats(rows.value_dim) - panel_rows;
        const bool first = piece == rows.begin(r) / attention_piece;
        if (first && rows.sinks != nullptr) {
            clear(sum, padded + panel_rows);
            sum[padded] = rows.sinks[head] * math::log2_e;
            sum[padded + 1] = 1.0f;
        }
        if (!first || rows.sinks != nullptr) {
            fold(sum, part, padded);
            return sum;
        }
        if (rows.end(r) <= (piece + 1) * attention_piece) return part;
        copy(part, sum, padded + panel_rows);
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

    static void finish(const float* sum, float* y, std::size_t value_dim) noexcept {
        const std::size_t padded = (value_dim + panel_rows - 1) / panel_rows * panel_rows;
        const Lanes::Floats factor = Lanes::over(Lanes::floats(1.0f), Lanes::floats(sum[padded + 1]));
        std::size_t i = 0;
        for (; i + panel_rows <= value_dim; i += panel_rows)
            Lanes::store_floats(y + i, Lanes::times(Lanes::load_floats(sum + i), factor));
        if (i < value_dim) Lanes::store_some(y + i, Lanes::times(Lanes::load_floats(sum + i), factor), value_dim - i);
    }

    void load_queries() noexcept {
        const float to_tanh = rows_.softcap > 0.0f ? rows_.scale / rows_.softcap : rows_.scale * math::log2_e;
        const Lanes::Floats factor = Lanes::floats(to_tanh);
        const std::size_t dim = rows_.head_dim;
        for (std::size_t q = 0; q < queries_; ++q) {
            const std::size_t r = row_of_[q];
            const float* const from = rows_.q + r * rows_.q_stride + (q - r * rows_.heads) * dim;
            float* const to = q_ + q * dim;
            std::size_t i = 0;
            for (; i + panel_rows <= dim; i += panel_rows)
                Lanes::store_floats(to + i, Lanes::times(Lanes::load_floats(from + i), factor));
            if (i < dim) Lanes::store_some(to + i, Lanes::times(Lanes::load_some(from + i, dim - i), factor), dim - i);
        }
    }

    [[nodiscard]] const std::byte* key(std::size_t position) const noexcept {
        const std::size_t block = position / rows_.block_tokens;
        return rows_.cache + static_cast<std::size_t>(rows_.table[block]) * rows_.block_bytes +
               (position - block * rows_.block_tokens) * rows_.row_bytes;
    }
    /// Positions of [first, end) whose rows lie at equal distances.
    [[nodiscard]] std::size_t even(std::size_t first, std::size_t end) const noexcept {
        const std::size_t left = rows_.block_tokens - first % rows_.block_tokens;
        return left < end - first ? left : end - first;
    }

    /// parts_ of all queries that see something of the piece.
    void sum_piece(std::size_t piece) noexcept {
        piece_begin_ = piece * attention_piece;
        clear(totals_, queries_ * panel_rows);
        for (std::size_t q = 0; q < queries_; q += panel_rows)
            Lanes::store_floats(highest_ + q, Lanes::floats(-__builtin_inff()));
        std::size_t begin = rows_.begin(0), end = rows_.end(rows_.rows - 1);
        if (begin < piece * attention_piece) begin = piece * attention_piece;
        if (end > (piece + 1) * attention_piece) end = (piece + 1) * attention_piece;
        for (tile_ = begin / attention_span * attention_span; tile_ < end; tile_ += attention_span) {
            // Of the tile's positions, those that some row sees: nothing else is read, it may never have been written.
            begin_ = begin < tile_ ? 0 : begin - tile_;
            end_ = end - tile_ < attention_span ? end - tile_ : attention_span;
            for (first_row_ = 0; rows_.end(first_row_) <= tile_;) ++first_row_;
            for (last_row_ = rows_.rows; rows_.begin(last_row_ - 1) >= tile_ + attention_span;) --last_row_;
            limit_ = end;
            const std::size_t first = first_row_ * rows_.heads, last = last_row_ * rows_.heads;
            if (rows_.head_dim > slab_) {
                by_slabs(first, last);
                continue;
            }
            // Few queries at a time: their scores stay in the first-level cache.
            transpose(0, rows_.head_dim);
            if (!direct_) unpack_values(0, padded_);
            for (std::size_t q = first; q < last; q += queries_each) {
                const std::size_t end_q = last - q < queries_each ? last : q + queries_each;
                score(q, end_q, 0, rows_.head_dim);
                soften(q, end_q);
                gather(q, end_q, 0, padded_);
            }
        }
        for (std::size_t q = 0; q < queries_; ++q) {
            float* const state = parts_ + q * stride_ + padded_;
            state[0] = highest_[q];
            state[1] = Lanes::sum(Lanes::load_floats(totals_ + q * panel_rows));
        }
    }

    /// Positions of the tile that row r sees.
    [[nodiscard]] std::size_t from(std::size_t r) const noexcept {
        return rows_.begin(r) < tile_ ? 0 : rows_.begin(r) - tile_;
    }
    [[nodiscard]] std::size_t to(std::size_t r) const noexcept {
        return rows_.end(r) - tile_ < attention_span ? rows_.end(r) - tile_ : attention_span;
    }

    /// Whether the tile is the first of the piece that row r sees.
    [[nodiscard]] bool opens(std::size_t r) const noexcept { return tile_ <= piece_begin_ || tile_ <= rows_.begin(r); }

    /// The same for heads that are too long to be taken at once.
    void by_slabs(std::size_t first, std::size_t last) noexcept {
        for (std::size_t d = 0; d < rows_.head_dim; d += slab_) {
            const std::size_t n = rows_.head_dim - d < slab_ ? rows_.head_dim - d : slab_;
            transpose(d, n);
            score(first, last, d, n);
        }
        soften(first, last);
        if (direct_) return gather(first, last, 0, padded_);
        for (std::size_t d = 0; d < padded_; d += slab_) {
            const std::size_t n = padded_ - d < slab_ ? padded_ - d : slab_;
            unpack_values(d, n);
            gather(first, last, d, n);
        }
    }

    /// scores_[query][position] of queries [first, last) (+)= products of elements [d, d + n).
    void score(std::size_t first, std::size_t last, std::size_t d, std::size_t n) noexcept {
        const std::size_t dim = rows_.head_dim;
        for (std::size_t q = first, rows; q < last; q += rows) {
            rows = last - q < SmallProduct::most_rows ? last - q : SmallProduct::most_rows;
            const std::size_t p = from(row_of_[q]) / panel_rows;
            const std::size_t end = (to(row_of_[q + rows - 1]) + panel_rows - 1) / panel_rows;
            const auto* const b = reinterpret_cast<const std::byte*>(keys_ + p * panel_rows);
            float* const c = scores_ + q * attention_span + p * panel_rows;
            const SmallProduct x{
                b, attention_span * sizeof(float), n, q_ + q * dim + d, dim, c, attention_span, d == 0, nullptr};
            SmallProduct::multiply<false>(x, end - p, rows);
        }
    }

    /// keys_[element][position] of elements [d, d + n).
    void transpose(std::size_t d, std::size_t n) noexcept {
        const std::size_t wide = (n + panel_rows - 1) / panel_rows * panel_rows;
        for (std::size_t p = begin_ / panel_rows; p * panel_rows < end_; ++p) {
            const std::size_t begin = begin_ > p * panel_rows ? begin_ : p * panel_rows;
            const std::size_t end = end_ < (p + 1) * panel_rows ? end_ : (p + 1) * panel_rows;
            if (end - begin < panel_rows) clear(copy_, panel_rows * wide);
            unpack(begin, end, d * entry_, n, copy_ + (begin - p * panel_rows) * wide);
            float* out = keys_ + p * panel_rows;
            for (std::size_t i = 0; i < n; i += 4) {
                Lanes::Words w[4];
                Lanes::columns(reinterpret_cast<const std::byte*>(copy_ + i), wide * sizeof(float), w);
                DECANT_UNROLL
                for (std::size_t c = 0; c < 4; ++c, out += attention_span)
                    Lanes::store_floats(out, Lanes::as_floats(w[c]));
            }
        }
    }

    /// values_[position][n]: elements [d, d + n), those beyond the last one 0.
    void unpack_values(std::size_t d, std::size_t n) noexcept {
        const std::size_t there = rows_.value_dim - d < n ? rows_.value_dim - d : n;
        unpack(begin_, end_, rows_.to_value + d * entry_, there, values_ + begin_ * n);
    }

    /// Lanes [begin, end) of panel p keep their scores, the others get the lowest.
    static Lanes::Floats visible(Lanes::Floats scores, std::size_t p, std::size_t begin, std::size_t end) noexcept {
        alignas(64) static constexpr std::uint32_t ones[48] = {
            0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,    //
            ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u,  //
            0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0};
        const std::size_t at = p * panel_rows;
        const std::size_t from = begin > at ? begin - at : 0;
        const std::size_t to = end - at < panel_rows ? end - at : panel_rows;
        const Lanes::Words mask = Lanes::bit_and(Lanes::load(ones + 16 - from), Lanes::load(ones + 32 - to));
        const Lanes::Words hidden = Lanes::bit_and(Lanes::bit_xor(mask, Lanes::words(~0u)), Lanes::words(0xff800000u));
        return Lanes::as_floats(Lanes::bit_or(Lanes::bit_and(Lanes::as_words(scores), mask), hidden));
    }

    /// One step of the online softmax of queries [first, last): scores become weights, and keep_ is what earlier sums
    /// are to be scaled by.
    void soften(std::size_t first, std::size_t last) noexcept {
        for (std::size_t q = first; q < last; q += panel_rows)
            soften_few(q, last - q < panel_rows ? last - q : panel_rows);
    }
    void soften_few(std::size_t first, std::size_t n) noexcept {
        alignas(64) float tops[panel_rows * panel_rows];
        for (std::size_t i = 0; i < n; ++i) Lanes::store_floats(tops + i * panel_rows, cap(first + i));
        const Lanes::Floats before = Lanes::load_floats(highest_ + first);
        Lanes::Floats now = before;
        for (std::size_t c = 0; c < panel_rows; c += 4) {
            Lanes::Words w[4];
            Lanes::columns(reinterpret_cast<const std::byte*>(tops + c), panel_rows * sizeof(float), w);
            for (std::size_t i = 0; i < 4; ++i) now = Lanes::larger(Lanes::as_floats(w[i]), now);
        }
        Lanes::store_some(keep_ + first, math::exp2(Lanes::subtract(before, now)), n);
        Lanes::store_some(highest_ + first, now, n);
        for (std::size_t q = first; q < first + n; ++q) {
            const std::size_t r = row_of_[q];
            const std::size_t end = (to(r) + panel_rows - 1) / panel_rows;
            const Lanes::Floats peak = Lanes::floats(highest_[q]);
            float* const total = totals_ + q * panel_rows;
            Lanes::Floats sum = Lanes::times(Lanes::load_floats(total), Lanes::floats(keep_[q]));
            for (std::size_t p = from(r) / panel_rows; p < end; ++p) {
                float* const w = scores_ + q * attention_span + p * panel_rows;
                const Lanes::Floats weight = math::exp2(Lanes::subtract(Lanes::load_floats(w), peak));
                Lanes::store_floats(w, weight);
                sum = Lanes::add(sum, weight);
            }
            Lanes::store_floats(total, sum);
        }
    }

    /// Applies the cap and the mask to a query's scores. The largest is among those returned.
    Lanes::Floats cap(std::size_t q) noexcept {
        float* const scores = scores_ + q * attention_span;
        const std::size_t begin = from(row_of_[q]), end = to(row_of_[q]);
        const bool whole = begin == 0 && end == attention_span;
        Lanes::Floats most = Lanes::floats(-__builtin_inff());
        for (std::size_t p = begin / panel_rows; p * panel_rows < end; ++p) {
            Lanes::Floats s = Lanes::load_floats(scores + p * panel_rows);
            if (rows_.softcap > 0.0f) s = Lanes::times(math::tanh(s), Lanes::floats(rows_.softcap * math::log2_e));
            if (!whole) s = visible(s, p, begin, end);
            if (!whole || rows_.softcap > 0.0f) Lanes::store_floats(scores + p * panel_rows, s);
            most = Lanes::larger(s, most);
        }
        return most;
    }

    /// Adds elements [d, d + n) of the weighted values to parts_ of queries [first, last).
    void gather(std::size_t first, std::size_t last, std::size_t d, std::size_t n) noexcept {
        for (std::size_t q = first, rows; q < last; q += rows) {
            rows = last - q < SmallProduct::most_rows ? last - q : SmallProduct::most_rows;
            const std::size_t a = row_of_[q], z = row_of_[q + rows - 1];
            if (from(a) == from(z) && to(a) == to(z) && opens(a) == opens(z)) {
                add(q, rows, from(a), to(a), d, n, opens(a), keep_ + q);
            } else {
                add_ragged(q, rows, d, n);
            }
        }
    }

    /// Rows that do not see the same positions: apart, and together what all see.
    void add_ragged(std::size_t q, std::size_t rows, std::size_t d, std::size_t n) noexcept {
        for (std::size_t i = q; i < q + rows; ++i) {
            float* const part = parts_ + i * stride_ + d;
            if (opens(row_of_[i])) {
                clear(part, n);
                continue;
            }
            const Lanes::Floats keep = Lanes::floats(keep_[i]);
            for (std::size_t e = 0; e < n; e += panel_rows)
                Lanes::store_floats(part + e, Lanes::times(Lanes::load_floats(part + e), keep));
        }
        const std::size_t end = to(row_of_[q]);
        const std::size_t begin = from(row_of_[q + rows - 1]) < end ? from(row_of_[q + rows - 1]) : end;
        add_apart(q, rows, 0, begin, d, n);
        if (begin < end) add(q, rows, begin, end, d, n, false, nullptr);
        add_apart(q, rows, end, attention_span, d, n);
    }
    /// Of positions [begin, end) those that each row sees.
    void add_apart(std::size_t q, std::size_t rows, std::size_t begin, std::size_t end, std::size_t d,
                   std::size_t n) noexcept {
        for (std::size_t i = q, many; i < q + rows; i += many) {
            const std::size_t r = row_of_[i];
            many = (r + 1) * rows_.heads < q + rows ? (r + 1) * rows_.heads - i : q + rows - i;
            const std::size_t a = from(r) > begin ? from(r) : begin, z = to(r) < end ? to(r) : end;
            if (a < z) add(i, many, a, z, d, n, false, nullptr);
        }
    }

    /// Of positions [a, z) of the tile, elements [d, d + n), for `rows` queries.
    void add(std::size_t q, std::size_t rows, std::size_t a, std::size_t z, std::size_t d, std::size_t n, bool fresh,
             const float* keep) noexcept {
        const float* const weights = scores_ + q * attention_span;
        float* const to = parts_ + q * stride_ + d;
        if (!direct_) {
            const auto* const b = reinterpret_cast<const std::byte*>(values_ + a * n);
            return SmallProduct::multiply<false>(
                {b, n * sizeof(float), z - a, weights + a, attention_span, to, stride_, fresh, keep}, n / panel_rows,
                rows);
        }
        for (std::size_t many; a < z; a += many, fresh = false, keep = nullptr) {
            many = even(tile_ + a, tile_ + z);
            const std::byte* const b = key(tile_ + a) + rows_.to_value + d * entry_;
            const std::size_t next = tile_ + a + attention_span;
            const bool there = attention_span % rows_.block_tokens == 0 && next + many <= limit_;
            SmallProduct::multiply<true>({b, rows_.row_bytes, many, weights + a, attention_span, to, stride_, fresh,
                                          keep, there ? key(next) + d * entry_ : b},
                                         n / panel_rows, rows);
        }
    }

    /// Of positions [first, end) of the tile the n elements that lie `offset` bytes after the key, as rows of whole
    /// registers. What is multiplied from where it lies (values) is brought near meanwhile.
    void unpack(std::size_t first, std::size_t end, std::size_t offset, std::size_t n, float* out) noexcept {
        rows_.half ? unpack<true>(first, end, offset, n, out) : unpack<false>(first, end, offset, n, out);
    }
    template <bool Half>
    void unpack(std::size_t first, std::size_t end, std::size_t offset, std::size_t n, float* out) noexcept {
        const std::size_t whole = n / panel_rows * panel_rows;
        for (std::size_t j = first, many; j < end; j += many) {
            many = even(tile_ + j, tile_ + end);
            const std::byte* at = key(tile_ + j) + offset;
            for (std::size_t i = 0; i < many; ++i, at += rows_.row_bytes) {
                for (std::size_t line = 0; direct_ && line < n * entry_; line += 64)
                    __builtin_prefetch(at + rows_.to_value + line, 0, 2);
                for (std::size_t e = 0; e < whole; e += panel_rows, out += panel_rows)
                    Lanes::store_floats(out, load<Half>(at + e * entry_));
                if (whole == n) continue;
                alignas(64) float rest[panel_rows] = {};
                __builtin_memcpy(rest, at + whole * entry_, (n - whole) * entry_);
                Lanes::store_floats(out, load<Half>(reinterpret_cast<const std::byte*>(rest)));
                out += panel_rows;
            }
        }
    }

    template <bool Half>
    static Lanes::Floats load(const std::byte* from) noexcept {
        if constexpr (Half) {
            return Lanes::halves(from);
        } else {
            return Lanes::load_floats(reinterpret_cast<const float*>(from));
        }
    }

    const AttentionRows& rows_;
    std::size_t queries_;
    std::size_t entry_;      // bytes of an element in the cache
    std::size_t padded_;     // value_dim in whole registers
    std::size_t stride_;     // floats of a partial result
    bool direct_;            // values are multiplied from where they lie
    std::size_t slab_;       // elements of a head at a time
    float* keys_;            // [elements][64]
    float* values_;          // [64][elements]
    float* copy_;            // [16][elements]
    float* scores_;          // [queries][64]
    float* totals_;          // [queries][16]
    float* highest_;         // [queries]
    float* keep_;            // [queries]
    float* parts_;           // [queries][stride]: of the piece at hand
    float* sums_;            // [queries][stride]: of the pieces before it
    float* q_;               // [queries][head_dim], scaled
    std::uint32_t* row_of_;  // [queries]

    std::size_t piece_begin_ = 0;
    std::size_t tile_ = 0;   // first position of the tile at hand
    std::size_t begin_ = 0;  // its positions that some row sees
    std::size_t end_ = 0;
    std::size_t limit_ = 0;      // the end of what is to be read
    std::size_t first_row_ = 0;  // the rows that see some of them
    std::size_t last_row_ = 0;
};

/// Calls `use(part, first row, first head)` for the rows and heads that go together.
template <class Use>
void each_part(const AttentionRows& all, Use use) noexcept {
    for (std::size_t h = 0; h < all.heads; h += most_queries) {
        AttentionRows part = all;
        part.heads = all.heads - h < most_queries ? all.heads - h : most_queries;
        part.sinks = all.sinks == nullptr ? nullptr : all.sinks + h;
        const std::size_t most = AttentionPart::rows_at_once(part);
        for (std::size_t r = 0; r < all.rows; r += most) {
            part.rows = all.rows - r < most ? all.rows - r : most;
            part.position = all.position + r;
            part.q = all.q + r * all.q_stride + h * all.head_dim;
            part.y = all.y + r * all.y_stride + h * all.value_dim;
            use(part, r, h);
        }
    }
}

/// Attention of rows; `scratch` holds attention_floats.
struct WholeRows {
    float* scratch;
    void operator()(const AttentionRows& part, std::size_t, std::size_t) const noexcept {
        AttentionPart(part, scratch).run();
    }
};

/// The partial results of one piece: head h of row r to `to + r * row_stride + h * head_stride`.
struct OnePiece {
    std::size_t piece;
    float* to;
    std::size_t row_stride;
    std::size_t head_stride;
    float* scratch;
    void operator()(const AttentionRows& part, std::size_t r, std::size_t h) const noexcept {
        AttentionPart(part, scratch).run_piece(piece, to + r * row_stride + h * head_stride, row_stride, head_stride);
    }
};

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Attention in floats, in terms of `Lanes`; part of kernels.inl.
//
// Keys and values become floats, whatever they are in the cache. Scores are summed element by element, weighted values
// position by position, weights in 16 sums (position modulo 16).

class FloatTile : protected AttentionTile {
 protected:
    FloatTile(const AttentionRows& rows, float*& scratch) noexcept
        : AttentionTile(rows, scratch),
          direct_(rows.dtype == DType::f16 && queries_ <= 2 * SmallProduct::most_rows &&
                  rows.value_dim % panel_rows == 0),
          slab_(direct_ ? direct_slab : attention_slab) {
        keys_ = take(scratch, attention_slab * attention_span);
        values_ = take(scratch, attention_slab * attention_span);
        copy_ = take(scratch, panel_rows * attention_slab);
        q_ = take(scratch, queries_ * rows.head_dim);
    }

    void load_queries() noexcept {
        const Lanes::Floats factor = Lanes::floats(query_factor());
        const std::size_t dim = rows_.head_dim;
        for (std::size_t q = 0; q < queries_; ++q) {
            const float* const from = query(q);
            float* const to = q_ + q * dim;
            std::size_t i = 0;
            for (; i + panel_rows <= dim; i += panel_rows)
                Lanes::store_floats(to + i, Lanes::times(Lanes::load_floats(from + i), factor));
            if (i < dim) Lanes::store_some(to + i, Lanes::times(Lanes::load_some(from + i, dim - i), factor), dim - i);
            hadamard(to, dim, rows_.rotation);
        }
    }

    /// Adds the tile to the state of queries [first, last).
    void add_tile(std::size_t first, std::size_t last) noexcept {
        if (rows_.head_dim > slab_) return by_slabs(first, last);
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

 private:
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
            if (end - begin < panel_rows) clear_floats(copy_, panel_rows * wide);
            unpack(begin, end, rows_.bytes(d), n, copy_ + (begin - p * panel_rows) * wide);
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
        unpack(begin_, end_, rows_.to_value + rows_.bytes(d), there, values_ + begin_ * n);
    }

    /// One step of the online softmax of queries [first, last): scores become weights, and keep_ is what earlier sums
    /// are to be scaled by.
    void soften(std::size_t first, std::size_t last) noexcept {
        for (std::size_t q = first; q < last; q += panel_rows)
            soften_few(q, last - q < panel_rows ? last - q : panel_rows);
    }
    void soften_few(std::size_t first, std::size_t n) noexcept {
        const Lanes::Floats before = Lanes::load_floats(highest_ + first);
        const Lanes::Floats now = Lanes::larger(highest_of(first, n, nullptr), before);
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

    /// Adds elements [d, d + n) of the weighted values to parts_ of queries [first, last).
    void gather(std::size_t first, std::size_t last, std::size_t d, std::size_t n) noexcept {
        for (std::size_t q = first, rows; q < last; q += rows) {
            rows = last - q < SmallProduct::most_rows ? last - q : SmallProduct::most_rows;
            const std::size_t a = row_of_[q], z = row_of_[q + rows - 1];
            if (from(a) == from(z) && to(a) == to(z)) {
                add(q, rows, from(a), to(a), d, n, keep_ + q);
            } else {
                add_ragged(q, rows, d, n);
            }
        }
    }

    /// Rows that do not see the same positions: apart, and together what all see.
    void add_ragged(std::size_t q, std::size_t rows, std::size_t d, std::size_t n) noexcept {
        for (std::size_t i = q; i < q + rows; ++i) {
            float* const part = parts_ + i * stride_ + d;
            const Lanes::Floats keep = Lanes::floats(keep_[i]);
            for (std::size_t e = 0; e < n; e += panel_rows)
                Lanes::store_floats(part + e, Lanes::times(Lanes::load_floats(part + e), keep));
        }
        const std::size_t end = to(row_of_[q]);
        const std::size_t begin = from(row_of_[q + rows - 1]) < end ? from(row_of_[q + rows - 1]) : end;
        add_apart(q, rows, 0, begin, d, n);
        if (begin < end) add(q, rows, begin, end, d, n, nullptr);
        add_apart(q, rows, end, attention_span, d, n);
    }
    /// Of positions [begin, end) those that each row sees.
    void add_apart(std::size_t q, std::size_t rows, std::size_t begin, std::size_t end, std::size_t d,
                   std::size_t n) noexcept {
        for (std::size_t i = q, many; i < q + rows; i += many) {
            const std::size_t r = row_of_[i];
            many = (r + 1) * rows_.heads < q + rows ? (r + 1) * rows_.heads - i : q + rows - i;
            const std::size_t a = from(r) > begin ? from(r) : begin, z = to(r) < end ? to(r) : end;
            if (a < z) add(i, many, a, z, d, n, nullptr);
        }
    }

    /// Of positions [a, z) of the tile, elements [d, d + n), for `rows` queries.
    void add(std::size_t q, std::size_t rows, std::size_t a, std::size_t z, std::size_t d, std::size_t n,
             const float* keep) noexcept {
        const float* const weights = scores_ + q * attention_span;
        float* const to = parts_ + q * stride_ + d;
        if (!direct_) {
            const auto* const b = reinterpret_cast<const std::byte*>(values_ + a * n);
            return SmallProduct::multiply<false>(
                {b, n * sizeof(float), z - a, weights + a, attention_span, to, stride_, false, keep}, n / panel_rows,
                rows);
        }
        for (std::size_t many; a < z; a += many, keep = nullptr) {
            many = even(tile_ + a, tile_ + z);
            const std::byte* const b = key(tile_ + a) + rows_.to_value + d * half_bytes;
            const std::size_t next = tile_ + a + attention_span;
            const bool there = attention_span % rows_.block_tokens == 0 && next + many <= limit_;
            SmallProduct::multiply<true>({b, rows_.row_bytes, many, weights + a, attention_span, to, stride_, false,
                                          keep, there ? key(next) + d * half_bytes : b},
                                         n / panel_rows, rows);
        }
    }

    /// Of positions [first, end) of the tile the n elements that lie `offset` bytes after the key, as rows of whole
    /// registers. What is multiplied from where it lies (values) is brought near meanwhile.
    void unpack(std::size_t first, std::size_t end, std::size_t offset, std::size_t n, float* out) noexcept {
        switch (rows_.dtype) {
            case DType::f16: return unpack<F16>(first, end, offset, n, out);
            case DType::bf16: return unpack<BF16>(first, end, offset, n, out);
            case DType::q8_0: return unpack<Q8_0>(first, end, offset, n, out);
            case DType::q4_0: return unpack<Q4_0>(first, end, offset, n, out);
            default: return unpack<F32>(first, end, offset, n, out);
        }
    }
    template <class Format>
    void unpack(std::size_t first, std::size_t end, std::size_t offset, std::size_t n, float* out) noexcept {
        constexpr std::size_t elements = traits(Format::dtype).block_elements;
        constexpr std::size_t bytes = traits(Format::dtype).block_bytes;
        const std::size_t whole = n / panel_rows * panel_rows;
        for (std::size_t j = first, many; j < end; j += many) {
            many = even(tile_ + j, tile_ + end);
            const std::byte* at = key(tile_ + j) + offset;
            for (std::size_t i = 0; i < many; ++i, at += rows_.row_bytes) {
                if constexpr (elements > 1) {  // heads are whole blocks
                    for (std::size_t e = 0; e < n; e += elements, out += elements)
                        Format::dequantize(at + e / elements * bytes, out);
                } else {
                    for (std::size_t line = 0; direct_ && line < n * bytes; line += 64)
                        __builtin_prefetch(at + rows_.to_value + line, 0, 2);
                    for (std::size_t e = 0; e < whole; e += panel_rows, out += panel_rows)
                        Lanes::store_floats(out, load<Format>(at + e * bytes));
                    if (whole == n) continue;
                    alignas(64) float rest[panel_rows] = {};
                    __builtin_memcpy(rest, at + whole * bytes, (n - whole) * bytes);
                    Lanes::store_floats(out, load<Format>(reinterpret_cast<const std::byte*>(rest)));
                    out += panel_rows;
                }
            }
        }
    }

    /// 16 numbers.
    template <class Format>
    static Lanes::Floats load(const std::byte* from) noexcept {
        if constexpr (Format::dtype == DType::f16) {
            return Lanes::halves(from);
        } else if constexpr (Format::dtype == DType::bf16) {
            alignas(64) float numbers[panel_rows];
            for (std::size_t i = 0; i < panel_rows; ++i) BF16::dequantize(from + i * 2, numbers + i);
            return Lanes::load_floats(numbers);
        } else {
            return Lanes::load_floats(reinterpret_cast<const float*>(from));
        }
    }

    static constexpr std::size_t half_bytes = 2;

    bool direct_;       // values (halves) are multiplied from where they lie
    std::size_t slab_;  // elements of a head at a time
    float* keys_;       // [elements][attention_span]
    float* values_;     // [attention_span][elements]
    float* copy_;       // [16][elements]
    float* q_;          // [queries][head_dim], scaled
};

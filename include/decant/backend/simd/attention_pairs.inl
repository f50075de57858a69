// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Attention over F16 caches in products of pairs of 16-bit integers, in terms of `Lanes`; part of kernels.inl.
//
// What becomes an integer is scaled by something of its own, so that it does not depend on what is computed with it:
// - Keys and values: a row's scale is a power of two, by the exponent of its largest magnitude. Keys have 13 bits
//   besides the sign, values 12, so that an F16 loses nothing down to a quarter (a half) of the largest magnitude.
// - A query has what is left of 31 bits: its largest magnitude is at most 2^15, the sum of its magnitudes 2^18, and no
//   sum of products with keys can overflow.
// - Weights: a value's scale 2^e is a factor of its weight, that is, e is added to the score s. For a tile and a query
//   with h = the largest s + e that it sees, weights are 2^(12 + s + e - h), at most 2^12: with values of 12 bits, 128
//   positions cannot overflow. What is not seen has weight 0. The divisor is the sum of the weights 2^s in floats.
// Sums of integers are exact. A tile's sums are then added to the floats of the tiles before it.
//
// A row with something that is not finite gets NaN for its scale, and so makes all results NaN that depend on it.

/// `Pairs`: the set's products of pairs.
template <class Pairs>
class PairTile : protected AttentionTile {
 protected:
    PairTile(const AttentionRows& rows, float*& scratch) noexcept
        : AttentionTile(rows, scratch),
          slabs_((rows.head_dim + attention_slab - 1) / attention_slab),
          q_stride_((rows.head_dim + 2 * panel_rows - 1) / (2 * panel_rows) * (2 * panel_rows)) {
        keys_ = words(take(scratch, attention_slab / 2 * attention_span));
        values_ = words(take(scratch, attention_span / 2 * attention_slab));
        copy_ = reinterpret_cast<std::byte*>(take(scratch, panel_rows * attention_slab / 2));
        zeros_ = take(scratch, attention_span);
        key_scales_ = take(scratch, attention_span);
        value_scales_ = take(scratch, attention_span);
        exponents_ = take(scratch, attention_span);
        shares_ = take(scratch, attention_span);
        factors_ = take(scratch, most_queries + panel_rows);
        query_scales_ = take(scratch, (slabs_ * queries_ + panel_rows - 1) / panel_rows * panel_rows);
        q_ = reinterpret_cast<std::int16_t*>(take(scratch, queries_ * q_stride_ / 2));
        clear_floats(zeros_, attention_span);
        clear_floats(shares_, attention_span);  // what is never seen, too, is multiplied by a weight of 0
    }

    void load_queries() noexcept {
        for (std::size_t q = 0; q < queries_; ++q)
            for (std::size_t slab = 0; slab < slabs_; ++slab) load_query(q, slab);
    }

    /// Adds the tile to the state of queries [first, last).
    void add_tile(std::size_t first, std::size_t last) noexcept {
        locate(tile_, begin_, end_, at_);
        const std::size_t next = tile_ + attention_span;
        locate(next, 0, limit_ > next ? limit_ - next : 0, at_ + attention_span);
        if (rows_.head_dim > attention_slab) return by_slabs(first, last);
        const std::size_t begin = begin_ / panel_rows * panel_rows;
        for (std::size_t j = begin; j < end_; j += panel_rows) {
            scale_values(j);
            load_values(j, 0, padded_);
        }
        for (std::size_t j = begin; j < end_; j += panel_rows) load_keys(j, 0, rows_.head_dim);
        // Few queries at a time: their scores stay in the first-level cache.
        for (std::size_t q = first; q < last; q += queries_each) {
            const std::size_t end_q = last - q < queries_each ? last : q + queries_each;
            score(q, end_q, 0, rows_.head_dim);
            soften(q, end_q);
            gather(q, end_q, 0, padded_);
        }
    }

 private:
    using Scores = PairProduct<Pairs, true>;
    using Sums = PairProduct<Pairs, false>;

    static constexpr std::uint32_t key_bits = 13;
    static constexpr std::uint32_t value_bits = 12;
    static constexpr std::uint32_t weight_bits = 12;
    static_assert(attention_span << (value_bits + weight_bits) <= std::size_t{1} << 31);
    // Rounding may add a half to each magnitude of a query.
    static constexpr std::size_t query_sum = (std::size_t{1} << (31 - key_bits)) - attention_slab;

    static std::uint32_t* words(float* room) noexcept { return reinterpret_cast<std::uint32_t*>(room); }

    // ---- scales

    /// The scale of 16 rows by the magnitudes of their largest halves, as halves without sign. A row of zeros and
    /// subnormals has that of the smallest normal numbers.
    struct RowScale {
        Lanes::Words exponent;  // the largest magnitude is below 2^(exponent - 14)
        Lanes::Words faults;    // all ones where something is not finite
        explicit RowScale(Lanes::Words largest) noexcept
            : exponent(Lanes::larger(Lanes::template right<10>(largest), Lanes::words(1))),
              faults(Lanes::template right_signed<31>(
                  Lanes::template left<16>(Lanes::add(largest, Lanes::words(0x0400))))) {}
        /// 2^(exponent + plus)
        [[nodiscard]] Lanes::Floats power(std::uint32_t plus) const noexcept {
            return Lanes::as_floats(Lanes::template left<23>(Lanes::add(exponent, Lanes::words(127 + plus))));
        }
        /// 2^(less - exponent): what makes integers of `less - 14 bits`.
        [[nodiscard]] Lanes::Floats inverse(std::uint32_t less) const noexcept {
            const Lanes::Words minus = Lanes::bit_xor(exponent, Lanes::words(~0u));  // -exponent - 1
            return Lanes::as_floats(Lanes::template left<23>(Lanes::add(minus, Lanes::words(128 + less))));
        }
        [[nodiscard]] Lanes::Floats or_fault(Lanes::Floats x) const noexcept {
            return Lanes::as_floats(Lanes::bit_or(Lanes::as_words(x), faults));
        }
    };

    /// The larger half of each word.
    static Lanes::Words larger_half(Lanes::Words pairs) noexcept {
        return Lanes::larger(Lanes::bit_and(pairs, Lanes::words(0xFFFF)), Lanes::template right<16>(pairs));
    }
    static Lanes::Words magnitudes(Lanes::Words pairs) noexcept {
        return Lanes::bit_and(pairs, Lanes::words(0x7FFF7FFF));
    }
    /// round(a), round(b) as a pair. The sum with the rounder holds the integer in its lowest bits.
    static Lanes::Words pair_of(Lanes::Floats a, Lanes::Floats a_scale, Lanes::Floats b,
                                Lanes::Floats b_scale) noexcept {
        const Lanes::Floats rounder = Lanes::floats(math::rounder);
        const Lanes::Words low = Lanes::as_words(Lanes::multiply_add(a, a_scale, rounder));
        const Lanes::Words high = Lanes::as_words(Lanes::multiply_add(b, b_scale, rounder));
        return Lanes::bit_or(Lanes::bit_and(low, Lanes::words(0xFFFF)), Lanes::template left<16>(high));
    }

    // ---- queries

    void load_query(std::size_t q, std::size_t slab) noexcept {
        const std::size_t d = slab * attention_slab;
        const std::size_t n = rows_.head_dim - d < attention_slab ? rows_.head_dim - d : attention_slab;
        const float* const from = query(q) + d;
        const Lanes::Floats factor = Lanes::floats(query_factor());
        Lanes::Floats sum = Lanes::floats(0.0f), most = Lanes::floats(0.0f);
        for (std::size_t i = 0; i < n; i += panel_rows) {
            const Lanes::Floats size = Lanes::magnitude(Lanes::times(some(from + i, n - i), factor));
            sum = Lanes::add(sum, size);
            most = Lanes::larger(size, most);
        }
        // A sum that is no number goes on; one that is all but 0 would have no reciprocal.
        const float by_sum = Lanes::sum(sum) / static_cast<float>(query_sum);
        const float by_most = Lanes::largest(most) / 32767.0f;
        const float scale = by_most > by_sum ? by_most : by_sum;
        query_scales_[slab * queries_ + q] = scale < smallest_magnitude ? 0.0f : scale;
        const Lanes::Floats inverse = Lanes::floats(scale < smallest_magnitude ? 0.0f : 1.0f / scale);
        std::int16_t* const to = q_ + q * q_stride_ + d;
        for (std::size_t i = 0; i < n; i += 2 * panel_rows) {
            Lanes::Words halves[2] = {Lanes::words(0), Lanes::words(0)};
            for (std::size_t half = 0, e = i; half < 2 && e < n; ++half, e += panel_rows)
                halves[half] = Lanes::nearest(Lanes::times(Lanes::times(some(from + e, n - e), factor), inverse));
            Lanes::store(to + i, Pairs::pack(halves[0], halves[1]));
        }
    }
    static Lanes::Floats some(const float* from, std::size_t n) noexcept {
        return n >= panel_rows ? Lanes::load_floats(from) : Lanes::load_some(from, n);
    }

    // ---- keys and values

    /// Where the keys of positions [begin, end) of a tile lie; null for the others.
    void locate(std::size_t tile, std::size_t begin, std::size_t end, const std::byte** at) const noexcept {
        if (end > attention_span) end = attention_span;
        for (std::size_t j = 0; j < begin; ++j) at[j] = nullptr;
        std::size_t j = begin;
        while (j < end) {
            const std::byte* from = key(tile + j);
            for (const std::size_t stop = j + even(tile + j, tile + end); j < stop; from += rows_.row_bytes)
                at[j++] = from;
        }
        for (; j < attention_span; ++j) at[j] = nullptr;
    }

    /// What is loaded after values (keys) from position j on is brought near meanwhile, a line at a time: the next 16
    /// positions, or the keys (the next tile's values).
    [[nodiscard]] const std::byte* after_value(std::size_t j) const noexcept {
        j += panel_rows;
        if (j >= attention_span) return at_[j - attention_span];
        return at_[j] == nullptr ? nullptr : at_[j] + rows_.to_value;
    }
    [[nodiscard]] const std::byte* after_key(std::size_t j) const noexcept {
        j += panel_rows;
        return j < attention_span || at_[j] == nullptr ? at_[j] : at_[j] + rows_.to_value;
    }
    static void prefetch(const std::byte* row, std::size_t offset) noexcept {
        if (row != nullptr) __builtin_prefetch(row + offset, 0, 3);
    }

    /// The exponents of the values of 16 positions from j on, and what follows from them.
    void scale_values(std::size_t j) noexcept {
        const std::size_t bytes = rows_.value_dim * 2, whole = bytes / 64 * 64;
        alignas(64) std::uint32_t tops[panel_rows * panel_rows];
        for (std::size_t i = 0; i < panel_rows; ++i) {
            Lanes::Words top = Lanes::words(0);
            if (at_[j + i] != nullptr) {
                const std::byte* const row = at_[j + i] + rows_.to_value;
                for (std::size_t b = 0; b < whole; b += 64) top = Pairs::larger(top, magnitudes(Lanes::load(row + b)));
                if (whole < bytes) {
                    alignas(64) std::byte rest[64] = {};
                    __builtin_memcpy(rest, row + whole, bytes - whole);
                    top = Pairs::larger(top, magnitudes(Lanes::load(rest)));
                }
            }
            Lanes::store(tops + i * panel_rows, top);
        }
        Lanes::Words largest = Lanes::words(0);
        for (std::size_t c = 0; c < panel_rows; c += 4) {
            Lanes::Words w[4];
            Lanes::columns(reinterpret_cast<const std::byte*>(tops + c), panel_rows * sizeof(std::uint32_t), w);
            for (std::size_t i = 0; i < 4; ++i) largest = Pairs::larger(largest, w[i]);
        }
        // A value v is 2^e (v 2^-e) with e = exponent - 15.
        const RowScale scale(larger_half(largest));
        const Lanes::Floats e = Lanes::to_floats(Lanes::add(scale.exponent, Lanes::words(0u - 15u)));
        Lanes::store_floats(exponents_ + j, scale.or_fault(e));
        Lanes::store_floats(shares_ + j, scale.inverse(15));
        Lanes::store_floats(value_scales_ + j, scale.inverse(14 + value_bits));
    }

    /// keys_[pair of elements][position] of 16 positions from j on, elements [d, d + n), and their scales.
    void load_keys(std::size_t j, std::size_t d, std::size_t n) noexcept {
        const std::size_t wide = (n + 7) / 8 * 8;
        const std::byte* first = copy_;
        std::size_t stride = wide * 2;
        if (wide != n || j < begin_ || end_ - j < panel_rows || even(tile_ + j, tile_ + j + panel_rows) < panel_rows) {
            copy_rows(j, d, n, wide);
        } else {
            first = at_[j] + d * 2;
            stride = rows_.row_bytes;
        }
        std::uint32_t* const to = keys_ + j;
        Lanes::Words most = Lanes::words(0);
        for (std::size_t i = 0; i < wide; i += 8) {
            Lanes::Words w[4];
            Lanes::columns(first + i * 2, stride, w);
            DECANT_UNROLL
            for (std::size_t c = 0; c < 4; ++c) {
                Lanes::store(to + (i / 2 + c) * attention_span, w[c]);
                most = Pairs::larger(most, magnitudes(w[c]));
            }
        }
        const RowScale scale(larger_half(most));
        Lanes::store_floats(key_scales_ + j, scale.or_fault(scale.power(0u - 14u - key_bits)));
        // Each position's scale for both halves of its words: 2^(16 - exponent) as a half, and what is missing.
        most = Pairs::larger(most, Lanes::bit_or(Lanes::template left<16>(most), Lanes::template right<16>(most)));
        const Lanes::Words ones = Lanes::words(0x7C007C00);
        most = Lanes::bit_and(Pairs::larger(most, Lanes::words(0x04000400)), ones);
        alignas(64) std::uint32_t twice[panel_rows];
        Lanes::store(twice, Lanes::bit_xor(most, ones));
        const Lanes::Floats missing = Lanes::floats(1u << (key_bits - 2));
        const Lanes::Floats low = Lanes::times(Lanes::halves(twice), missing);
        const Lanes::Floats high = Lanes::times(Lanes::halves(twice + panel_rows / 2), missing);
        for (std::size_t k = 0; k < wide / 2; ++k) {
            prefetch(after_key(j + k % panel_rows), k / panel_rows * 64);
            std::uint32_t* const w = to + k * attention_span;
            Lanes::store(w, Pairs::pack(Lanes::nearest(Lanes::times(Lanes::halves(w), low)),
                                        Lanes::nearest(Lanes::times(Lanes::halves(w + panel_rows / 2), high))));
        }
    }
    /// Elements [d, d + n) of the keys from position j on, followed by zeros; zeros where there is no key.
    void copy_rows(std::size_t j, std::size_t d, std::size_t n, std::size_t wide) noexcept {
        for (std::size_t i = 0; i < panel_rows; ++i) {
            std::byte* const to = copy_ + i * wide * 2;
            __builtin_memset(to, 0, wide * 2);
            if (at_[j + i] != nullptr) __builtin_memcpy(to, at_[j + i] + d * 2, n * 2);
        }
    }

    /// values_[pair of positions][n] of 16 positions from j on: elements [d, d + n), those beyond the last one 0.
    void load_values(std::size_t j, std::size_t d, std::size_t n) noexcept {
        const std::size_t there = rows_.value_dim - d < n ? rows_.value_dim - d : n;
        const std::size_t offset = rows_.to_value + d * 2;
        for (const std::size_t end = j + panel_rows; j < end; j += 2) {
            std::uint32_t* const to = values_ + j / 2 * n;
            const std::byte* const a = at_[j];
            const std::byte* const b = at_[j + 1];
            const Lanes::Floats a_scale = Lanes::floats(value_scales_[j]);
            const Lanes::Floats b_scale = Lanes::floats(value_scales_[j + 1]);
            if (a != nullptr && b != nullptr && there == n) {
                const std::byte* const after[2] = {after_value(j), after_value(j + 1)};
                for (std::size_t i = 0; i < n; i += panel_rows) {
                    prefetch(after[i / panel_rows % 2], i / (2 * panel_rows) * 64);
                    Lanes::store(to + i, pair_of(Lanes::halves(a + offset + i * 2), a_scale,
                                                 Lanes::halves(b + offset + i * 2), b_scale));
                }
                continue;
            }
            for (std::size_t i = 0; i < n; i += panel_rows)
                Lanes::store(to + i,
                             pair_of(halves(a, offset, i, there), a_scale, halves(b, offset, i, there), b_scale));
        }
    }
    static Lanes::Floats halves(const std::byte* row, std::size_t offset, std::size_t i, std::size_t there) noexcept {
        if (row == nullptr) return Lanes::floats(0.0f);
        if (i + panel_rows <= there) return Lanes::halves(row + offset + i * 2);
        alignas(64) std::byte rest[2 * panel_rows] = {};
        __builtin_memcpy(rest, row + offset + i * 2, (there - i) * 2);
        return Lanes::halves(rest);
    }

    // ---- a tile

    /// The same for heads that are too long to be taken at once.
    void by_slabs(std::size_t first, std::size_t last) noexcept {
        const std::size_t begin = begin_ / panel_rows * panel_rows;
        for (std::size_t j = begin; j < end_; j += panel_rows) scale_values(j);
        for (std::size_t d = 0; d < rows_.head_dim; d += attention_slab) {
            const std::size_t n = rows_.head_dim - d < attention_slab ? rows_.head_dim - d : attention_slab;
            for (std::size_t j = begin; j < end_; j += panel_rows) load_keys(j, d, n);
            score(first, last, d, n);
        }
        soften(first, last);
        for (std::size_t d = 0; d < padded_; d += attention_slab) {
            const std::size_t n = padded_ - d < attention_slab ? padded_ - d : attention_slab;
            for (std::size_t j = begin; j < end_; j += panel_rows) load_values(j, d, n);
            gather(first, last, d, n);
        }
    }

    /// scores_[query][position] of queries [first, last): s + e, or what the cap is to be applied to, the first time;
    /// later slabs add to it.
    void score(std::size_t first, std::size_t last, std::size_t d, std::size_t n) noexcept {
        plain_ = n == rows_.head_dim && plain(first, last);
        for (std::size_t q = first, rows; q < last; q += rows) {
            rows = last - q < Scores::most_rows ? last - q : Scores::most_rows;
            const std::size_t j = from(row_of_[q]) / panel_rows * panel_rows;
            const std::size_t panels = (to(row_of_[q + rows - 1]) - j + panel_rows - 1) / panel_rows;
            Scores x{};
            x.b = keys_ + j;
            x.b_stride = attention_span;
            x.count = (n + 1) / 2;
            x.a = q_ + q * q_stride_ + d;
            x.a_stride = q_stride_;
            x.c = scores_ + q * attention_span + j;
            x.c_stride = attention_span;
            x.row_scale = query_scales_ + d / attention_slab * queries_ + q;
            x.column_scale = key_scales_ + j;
            x.bias = d > 0 ? x.c : (rows_.softcap > 0.0f ? zeros_ : exponents_) + j;
            x.bias_stride = d > 0 ? attention_span : 0;
            x.tops = plain_ ? tops_ + q * panel_rows : nullptr;
            x.multiply(panels, rows);
        }
    }

    /// One step of the online softmax of queries [first, last): scores become weights in 16 bits, factors_ is what a
    /// sum of them is to be scaled by, and keep_ what earlier sums are.
    void soften(std::size_t first, std::size_t last) noexcept {
        for (std::size_t q = first; q < last; q += panel_rows)
            soften_few(q, last - q < panel_rows ? last - q : panel_rows);
    }
    void soften_few(std::size_t first, std::size_t n) noexcept {
        constexpr float of_weights = 1.0f / (1u << weight_bits), of_values = 1.0f / (1u << (value_bits - 1));
        alignas(64) float peaks[panel_rows], shares[panel_rows];
        for (std::size_t q = first; q < first + n; ++q) hide(q);
        const Lanes::Floats here = highest_of(first, n, exponents_);
        const Lanes::Floats before = Lanes::load_floats(highest_ + first);
        const Lanes::Floats now = Lanes::larger(here, before);
        const Lanes::Floats share = Lanes::times(math::exp2(Lanes::subtract(here, now)), Lanes::floats(of_weights));
        Lanes::store_floats(peaks, here);
        Lanes::store_floats(shares, share);
        Lanes::store_some(factors_ + first, Lanes::times(share, Lanes::floats(of_values)), n);
        Lanes::store_some(keep_ + first, math::exp2(Lanes::subtract(before, now)), n);
        Lanes::store_some(highest_ + first, now, n);
        for (std::size_t i = 0; i < n; ++i) {
            const std::size_t q = first + i;
            const Lanes::Floats sum = weigh(scores_ + q * attention_span, Lanes::floats(peaks[i]));
            float* const total = totals_ + q * panel_rows;
            const Lanes::Floats kept = Lanes::times(Lanes::load_floats(total), Lanes::floats(keep_[q]));
            Lanes::store_floats(total, Lanes::multiply_add(sum, Lanes::floats(shares[i]), kept));
        }
    }

    /// Panels of which a query sees nothing get the lowest scores.
    void hide(std::size_t q) noexcept {
        float* const scores = scores_ + q * attention_span;
        const Lanes::Floats lowest = Lanes::floats(-__builtin_inff());
        const std::size_t begin = from(row_of_[q]) / panel_rows * panel_rows, end = to(row_of_[q]);
        for (std::size_t j = 0; j < begin; j += panel_rows) Lanes::store_floats(scores + j, lowest);
        for (std::size_t j = attention_span; j >= end + panel_rows; j -= panel_rows)
            Lanes::store_floats(scores + j - panel_rows, lowest);
    }

    /// Scores of a query become weights, 16 bits each from the first byte on. Returns sums of 2^(weight_bits + s -
    /// peak).
    Lanes::Floats weigh(float* scores, Lanes::Floats peak) noexcept {
        auto* const weights = reinterpret_cast<std::int16_t*>(scores);
        const float* const shares = shares_;
        Lanes::Floats sum = Lanes::floats(0.0f);
        for (std::size_t j = 0; j < attention_span; j += 2 * panel_rows) {
            Lanes::Words w[2];
            DECANT_UNROLL
            for (std::size_t half = 0; half < 2; ++half) {
                const std::size_t at = j + half * panel_rows;
                const Lanes::Floats weight = power(Lanes::subtract(Lanes::load_floats(scores + at), peak));
                sum = Lanes::multiply_add(weight, Lanes::load_floats(shares + at), sum);
                w[half] = Lanes::nearest(weight);
            }
            Lanes::store(weights + j, Pairs::pack(w[0], w[1]));
        }
        return sum;
    }

    /// 2^(weight_bits + x) for x <= 0, within 3e-6 of itself and exact for integers: a minimax fit.
    static DECANT_ALWAYS_INLINE Lanes::Floats power(Lanes::Floats x) noexcept {
        constexpr float one = 1u << weight_bits;
        const Lanes::Floats r = Pairs::fraction(x);
        Lanes::Floats p = Lanes::floats(one * 0x1.b7f754p-7f);
        p = Lanes::multiply_add(p, r, Lanes::floats(one * 0x1.abf85ap-5f));
        p = Lanes::multiply_add(p, r, Lanes::floats(one * 0x1.ee2452p-3f));
        p = Lanes::multiply_add(p, r, Lanes::floats(one * 0x1.62d6c6p-1f));
        p = Lanes::multiply_add(p, r, Lanes::floats(one));
        return Pairs::raise(p, x);
    }

    /// Adds elements [d, d + n) of the weighted values to parts_ of queries [first, last).
    void gather(std::size_t first, std::size_t last, std::size_t d, std::size_t n) noexcept {
        for (std::size_t q = first, rows; q < last; q += rows) {
            rows = last - q < Sums::most_rows ? last - q : Sums::most_rows;
            const std::size_t begin = from(row_of_[q]) / 2, end = (to(row_of_[q + rows - 1]) + 1) / 2;
            Sums x{};
            x.b = values_ + begin * n;
            x.b_stride = n;
            x.count = end - begin;
            x.a = reinterpret_cast<const std::int16_t*>(scores_ + q * attention_span) + begin * 2;
            x.a_stride = attention_span * 2;
            x.c = parts_ + q * stride_ + d;
            x.c_stride = stride_;
            x.row_scale = factors_ + q;
            x.keep = keep_ + q;
            x.multiply(n / panel_rows, rows);
        }
    }

    std::size_t slabs_;
    std::size_t q_stride_;                     // of q_
    std::uint32_t* keys_;                      // [pairs of elements][attention_span]
    std::uint32_t* values_;                    // [attention_span / 2][elements]
    std::byte* copy_;                          // [16][elements]: halves
    float* zeros_;                             // [attention_span]
    float* key_scales_;                        // [attention_span]
    float* value_scales_;                      // [attention_span]: what values are multiplied by
    float* exponents_;                         // [attention_span]: e of the values
    float* shares_;                            // [attention_span]: 2^-e
    float* factors_;                           // [queries]: what the sums of a tile are multiplied by
    float* query_scales_;                      // [slabs][queries]
    std::int16_t* q_;                          // [queries][head_dim]
    const std::byte* at_[2 * attention_span];  // the tile's keys and the next one's; null: not to be read
};

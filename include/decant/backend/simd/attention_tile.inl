// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// What all ways to compute attention's tiles share; part of kernels.inl.

/// Positions [tile, tile + attention_span) and the state of up to `most_queries` queries, rows x heads.
class AttentionTile {
 protected:
    static constexpr std::size_t queries_each = 48;  // whose scores stay in the first-level cache

    AttentionTile(const AttentionRows& rows, float*& scratch) noexcept
        : rows_(rows),
          queries_(rows.rows * rows.heads),
          padded_((rows.value_dim + panel_rows - 1) / panel_rows * panel_rows),
          stride_(partial_floats(rows.value_dim)) {
        scores_ = take(scratch, most_queries * attention_span);
        tops_ = take(scratch, (most_queries + panel_rows) * panel_rows);
        totals_ = take(scratch, most_queries * panel_rows);
        highest_ = take(scratch, most_queries + panel_rows);
        keep_ = take(scratch, most_queries + panel_rows);
        parts_ = take(scratch, queries_ * stride_);
        row_of_ = reinterpret_cast<std::uint32_t*>(take(scratch, most_queries));
        for (std::size_t r = 0, q = 0; r < rows.rows; ++r)
            for (std::size_t h = 0; h < rows.heads; ++h) row_of_[q++] = static_cast<std::uint32_t>(r);
    }

    static float* take(float*& from, std::size_t floats) noexcept {
        float* const taken = from;
        from += floats;
        return taken;
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

    /// What makes scores of products of keys and queries: log2(e) is part of it, or the cap.
    [[nodiscard]] float query_factor() const noexcept {
        return rows_.softcap > 0.0f ? rows_.scale / rows_.softcap : rows_.scale * math::log2_e;
    }
    [[nodiscard]] const float* query(std::size_t q) const noexcept {
        const std::size_t r = row_of_[q];
        return rows_.q + r * rows_.q_stride + (q - r * rows_.heads) * rows_.head_dim;
    }

    /// Positions of the tile that row r sees.
    [[nodiscard]] std::size_t from(std::size_t r) const noexcept {
        return rows_.begin(r) < tile_ ? 0 : rows_.begin(r) - tile_;
    }
    [[nodiscard]] std::size_t to(std::size_t r) const noexcept {
        return rows_.end(r) - tile_ < attention_span ? rows_.end(r) - tile_ : attention_span;
    }

    /// Whether the scores of queries [first, last) stay as they are: no cap, and all see the whole tile.
    [[nodiscard]] bool plain(std::size_t first, std::size_t last) const noexcept {
        return rows_.softcap <= 0.0f && from(row_of_[last - 1]) == 0 && to(row_of_[first]) == attention_span;
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

    /// Applies cap and mask to the scores of queries [first, first + n), at most 16. Returns each one's largest.
    Lanes::Floats highest_of(std::size_t first, std::size_t n, const float* offsets) noexcept {
        float* const tops = tops_ + first * panel_rows;
        for (std::size_t i = 0; i < n && !plain_; ++i)
            Lanes::store_floats(tops + i * panel_rows, cap(first + i, offsets));
        Lanes::Floats highest = Lanes::floats(-__builtin_inff());
        for (std::size_t c = 0; c < panel_rows; c += 4) {
            Lanes::Words w[4];
            Lanes::columns(reinterpret_cast<const std::byte*>(tops + c), panel_rows * sizeof(float), w);
            for (std::size_t i = 0; i < 4; ++i) highest = Lanes::larger(Lanes::as_floats(w[i]), highest);
        }
        return highest;
    }

    /// Applies the cap (and then adds `offsets` of the positions, or null) and the mask to a query's scores. The
    /// largest is among those returned.
    Lanes::Floats cap(std::size_t q, const float* offsets) noexcept {
        float* const scores = scores_ + q * attention_span;
        const std::size_t begin = from(row_of_[q]), end = to(row_of_[q]);
        const bool whole = begin == 0 && end == attention_span;
        Lanes::Floats most = Lanes::floats(-__builtin_inff());
        for (std::size_t p = begin / panel_rows; p * panel_rows < end; ++p) {
            Lanes::Floats s = Lanes::load_floats(scores + p * panel_rows);
            if (rows_.softcap > 0.0f) {
                s = Lanes::times(math::tanh(s), Lanes::floats(rows_.softcap * math::log2_e));
                if (offsets != nullptr) s = Lanes::add(s, Lanes::load_floats(offsets + p * panel_rows));
            }
            if (!whole) s = visible(s, p, begin, end);
            if (!whole || rows_.softcap > 0.0f) Lanes::store_floats(scores + p * panel_rows, s);
            most = Lanes::larger(s, most);
        }
        return most;
    }

    const AttentionRows& rows_;
    std::size_t queries_;
    std::size_t padded_;     // value_dim in whole registers
    std::size_t stride_;     // floats of a partial result
    float* scores_;          // [queries][attention_span]
    float* tops_;            // [queries][16]: the largest scores
    float* totals_;          // [queries][16]
    float* highest_;         // [queries]
    float* keep_;            // [queries]
    float* parts_;           // [queries][stride]: of the piece at hand
    std::uint32_t* row_of_;  // [queries]

    std::size_t tile_ = 0;   // first position of the tile at hand
    std::size_t begin_ = 0;  // its positions that some row sees
    std::size_t end_ = 0;
    std::size_t limit_ = 0;  // the end of what is to be read
    bool plain_ = false;     // tops_ are there, and scores stay as they are
};

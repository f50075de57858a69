// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The matrix product of pairs of 16-bit integers that attention_pairs.inl is made of; part of kernels.inl.

/// c[r][16 p + i] = row_scale[r] * (column_scale[16 p + i] * sum) + before, where sum is the exact sum over pairs
/// k < count of a[r][k] b[k][16 p + i], and before is `bias` (Scores), or c[r][16 p + i] * keep[r].
template <class Pairs, bool Scores>
struct PairProduct {
    const std::uint32_t* b;
    std::size_t b_stride;  // words
    std::size_t count;
    const std::int16_t* a;
    std::size_t a_stride;
    float* c;
    std::size_t c_stride;
    const float* row_scale;
    const float* column_scale;  // Scores
    const float* bias;          // Scores
    std::size_t bias_stride;    // from row to row
    const float* keep;          // not Scores
    float* tops;                // Scores: [rows][16], the largest of each lane over all panels; or null
    bool more;                  // panels came before: tops count

    static constexpr std::size_t most_rows = 6;

    /// At most `most_rows` rows. Leaves behind where it ended: a copy would wait for what has just been written.
    void multiply(std::size_t panels, std::size_t rows) noexcept {
        if constexpr (Lanes::tile_panels > 1) {
            for (; panels >= 4; panels -= 4, advance(4)) pick<4>(*this, rows);
            for (; panels >= 2; panels -= 2, advance(2)) pick<2>(*this, rows);
        }
        for (; panels >= 1; panels -= 1, advance(1)) pick<1>(*this, rows);
    }

 private:
    void advance(std::size_t panels) noexcept {
        b += panels * panel_rows;
        c += panels * panel_rows;
        if constexpr (Scores) {
            column_scale += panels * panel_rows;
            bias += panels * panel_rows;
            more = true;
        }
    }

    template <std::size_t Panels>
    static void pick(const PairProduct& x, std::size_t rows) noexcept {
        switch (rows) {
            case 1: return run<Panels, 1>(x);
            case 2: return run<Panels, 2>(x);
            case 3: return run<Panels, 3>(x);
            case 4: return run<Panels, 4>(x);
            case 5: return run<Panels, 5>(x);
            default: return run<Panels, 6>(x);
        }
    }

    template <std::size_t Panels, std::size_t Rows>
    static void run(const PairProduct& x) noexcept {
        const std::int16_t* a[Rows];
        Lanes::Words sums[Rows][Panels];
        DECANT_UNROLL
        for (std::size_t r = 0; r < Rows; ++r) {
            a[r] = x.a + r * x.a_stride;
            DECANT_UNROLL
            for (std::size_t p = 0; p < Panels; ++p) sums[r][p] = Lanes::words(0);
        }
        const std::uint32_t* b = x.b;
        for (std::size_t k = 0; k < x.count; ++k, b += x.b_stride) {
            Lanes::Words v[Panels];
            DECANT_UNROLL
            for (std::size_t p = 0; p < Panels; ++p) v[p] = Lanes::load(b + p * panel_rows);
            DECANT_UNROLL
            for (std::size_t r = 0; r < Rows; ++r) {
                const Lanes::Words pair = Lanes::broadcast(a[r] + 2 * k);
                DECANT_UNROLL
                for (std::size_t p = 0; p < Panels; ++p) sums[r][p] = Pairs::dot(sums[r][p], v[p], pair);
            }
        }
        DECANT_UNROLL
        for (std::size_t r = 0; r < Rows; ++r) {
            float* const to = x.c + r * x.c_stride;
            const Lanes::Floats scale = Lanes::floats(x.row_scale[r]);
            [[maybe_unused]] Lanes::Floats top = Lanes::floats(-__builtin_inff());
            if constexpr (Scores)
                if (x.more && x.tops != nullptr) top = Lanes::load_floats(x.tops + r * panel_rows);
            DECANT_UNROLL
            for (std::size_t p = 0; p < Panels; ++p) {
                const Lanes::Floats sum = Lanes::to_floats(sums[r][p]);
                Lanes::Floats y;
                if constexpr (Scores) {
                    const Lanes::Floats scaled = Lanes::times(sum, Lanes::load_floats(x.column_scale + p * panel_rows));
                    y = Lanes::multiply_add(scaled, scale,
                                            Lanes::load_floats(x.bias + r * x.bias_stride + p * panel_rows));
                    top = Lanes::larger(y, top);
                } else {
                    const Lanes::Floats keep = Lanes::floats(x.keep[r]);
                    y = Lanes::multiply_add(sum, scale, Lanes::times(Lanes::load_floats(to + p * panel_rows), keep));
                }
                Lanes::store_floats(to + p * panel_rows, y);
            }
            if constexpr (Scores)
                if (x.tops != nullptr) Lanes::store_floats(x.tops + r * panel_rows, top);
        }
    }
};

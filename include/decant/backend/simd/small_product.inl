// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The matrix product that attention.inl is made of, in terms of `Lanes`; part of kernels.inl.

/// c[r][16 p + i] (+)= sum over k < count of a[r][k] b[k][16 p + i], in the order of k. B lies in floats or in halves.
struct SmallProduct {
    const std::byte* b;
    std::size_t b_stride;  // bytes
    std::size_t count;
    const float* a;
    std::size_t a_stride;
    float* c;
    std::size_t c_stride;
    bool fresh;                        // starts at 0, not at what is there
    const float* keep;                 // [rows]: first scales what is there; or null
    const std::byte* ahead = nullptr;  // halves: of what is as far apart as the rows of B, is brought near meanwhile

    template <std::size_t Panels, std::size_t Rows, bool Half>
    static void run(const SmallProduct& x) noexcept {
        const float* a[Rows];
        Lanes::Floats c[Rows][Panels];
        DECANT_UNROLL
        for (std::size_t r = 0; r < Rows; ++r) a[r] = x.a + r * x.a_stride;
        if (x.fresh) {
            DECANT_UNROLL
            for (std::size_t r = 0; r < Rows; ++r) DECANT_UNROLL
            for (std::size_t p = 0; p < Panels; ++p) c[r][p] = Lanes::floats(0.0f);
        } else {
            DECANT_UNROLL
            for (std::size_t r = 0; r < Rows; ++r) {
                const Lanes::Floats keep = Lanes::floats(x.keep == nullptr ? 1.0f : x.keep[r]);
                DECANT_UNROLL
                for (std::size_t p = 0; p < Panels; ++p)
                    c[r][p] = Lanes::times(Lanes::load_floats(x.c + r * x.c_stride + p * panel_rows), keep);
            }
        }
        constexpr std::size_t bytes = panel_rows * (Half ? 2 : 4);
        const std::byte* b = x.b;
        [[maybe_unused]] const std::byte* ahead = x.ahead;
        for (std::size_t k = 0; k < x.count; ++k, b += x.b_stride) {
            if constexpr (Half) {
                DECANT_UNROLL
                for (std::size_t line = 0; line < Panels * bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
                ahead += x.b_stride;
            }
            Lanes::Floats v[Panels];
            DECANT_UNROLL
            for (std::size_t p = 0; p < Panels; ++p) {
                if constexpr (Half) {
                    v[p] = Lanes::halves(b + p * bytes);
                } else {
                    v[p] = Lanes::load_floats(reinterpret_cast<const float*>(b + p * bytes));
                }
            }
            DECANT_UNROLL
            for (std::size_t r = 0; r < Rows; ++r) {
                const Lanes::Floats factor = Lanes::floats(a[r][k]);
                DECANT_UNROLL
                for (std::size_t p = 0; p < Panels; ++p) c[r][p] = Lanes::multiply_add(v[p], factor, c[r][p]);
            }
        }
        DECANT_UNROLL
        for (std::size_t r = 0; r < Rows; ++r) {
            float* const to = x.c + r * x.c_stride;
            DECANT_UNROLL
            for (std::size_t p = 0; p < Panels; ++p) Lanes::store_floats(to + p * panel_rows, c[r][p]);
        }
    }

    template <std::size_t Panels, bool Half>
    static void pick(const SmallProduct& x, std::size_t rows) noexcept {
        switch (rows) {
            case 1: return run<Panels, 1, Half>(x);
            case 2: return run<Panels, 2, Half>(x);
            case 3: return run<Panels, 3, Half>(x);
            case 4: return run<Panels, 4, Half>(x);
            case 5: return run<Panels, 5, Half>(x);
            default: return run<Panels, 6, Half>(x);
        }
    }

    static constexpr std::size_t most_rows = 6;

    /// At most `most_rows` rows.
    template <bool Half>
    static void multiply(SmallProduct x, std::size_t panels, std::size_t rows) noexcept {
        if constexpr (Lanes::tile_panels > 1) {
            for (; panels >= 4; panels -= 4, x.advance<Half>(4)) pick<4, Half>(x, rows);
            for (; panels >= 2; panels -= 2, x.advance<Half>(2)) pick<2, Half>(x, rows);
        }
        for (; panels >= 1; panels -= 1, x.advance<Half>(1)) pick<1, Half>(x, rows);
    }
    template <bool Half>
    void advance(std::size_t panels) noexcept {
        b += panels * panel_rows * (Half ? 2 : 4);
        if constexpr (Half) ahead += panels * panel_rows * 2;
        c += panels * panel_rows;
    }
};

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Work on rows of floats; see kernels.inl. Sums are taken in an order that depends on the length alone.

struct Rows {
    static Lanes::Floats load_lanes(const float* from, std::size_t n) noexcept {
        return n == panel_rows ? Lanes::load_floats(from) : Lanes::load_some(from, n);
    }
    static void store_lanes(float* to, Lanes::Floats v, std::size_t n) noexcept {
        n == panel_rows ? Lanes::store_floats(to, v) : Lanes::store_some(to, v, n);
    }

    /// y[i] = f(x[i]...). Functions are structs here: g++ 12 does not compile a lambda for the region that it stands
    /// in.
    template <class F, class... Inputs>
    DECANT_ALWAYS_INLINE static void map_row(float* y, std::size_t n, F f, const Inputs*... inputs) noexcept {
        std::size_t i = 0;
        for (; i + panel_rows <= n; i += panel_rows) Lanes::store_floats(y + i, f(Lanes::load_floats(inputs + i)...));
        if (i < n) Lanes::store_some(y + i, f(Lanes::load_some(inputs + i, n - i)...), n - i);
    }

    static float dot(const float* a, const float* b, std::size_t n) noexcept {
        Lanes::Floats sum = Lanes::floats(0.0f);
        std::size_t i = 0;
        for (; i + panel_rows <= n; i += panel_rows)
            sum = Lanes::multiply_add(Lanes::load_floats(a + i), Lanes::load_floats(b + i), sum);
        if (i < n) sum = Lanes::multiply_add(Lanes::load_some(a + i, n - i), Lanes::load_some(b + i, n - i), sum);
        return Lanes::sum(sum);
    }

    static float sum(const float* a, std::size_t n) noexcept {
        Lanes::Floats sum = Lanes::floats(0.0f);
        std::size_t i = 0;
        for (; i + panel_rows <= n; i += panel_rows) sum = Lanes::add(sum, Lanes::load_floats(a + i));
        if (i < n) sum = Lanes::add(sum, Lanes::load_some(a + i, n - i));
        return Lanes::sum(sum);
    }

    struct Times {
        Lanes::Floats factor;
        DECANT_ALWAYS_INLINE Lanes::Floats operator()(Lanes::Floats v) const noexcept {
            return Lanes::times(v, factor);
        }
    };
    /// y[i] = x[i] factor
    static void scale(const float* x, float factor, float* y, std::size_t n) noexcept {
        map_row(y, n, Times{Lanes::floats(factor)}, x);
    }

    struct Minus {
        Lanes::Floats a;
        DECANT_ALWAYS_INLINE Lanes::Floats operator()(Lanes::Floats v) const noexcept { return Lanes::subtract(v, a); }
    };
    /// y[i] = x[i] - a
    static void subtract(const float* x, float a, float* y, std::size_t n) noexcept {
        map_row(y, n, Minus{Lanes::floats(a)}, x);
    }

    struct Plus {
        DECANT_ALWAYS_INLINE Lanes::Floats operator()(Lanes::Floats v, Lanes::Floats w) const noexcept {
            return Lanes::add(v, w);
        }
    };
    /// y[i] = a[i] + b[i]
    static void add(const float* a, const float* b, float* y, std::size_t n) noexcept { map_row(y, n, Plus{}, a, b); }

    struct Weigh {
        Lanes::Floats factor;
        DECANT_ALWAYS_INLINE Lanes::Floats operator()(Lanes::Floats v, Lanes::Floats weight) const noexcept {
            return Lanes::times(Lanes::times(v, factor), weight);
        }
        DECANT_ALWAYS_INLINE Lanes::Floats operator()(Lanes::Floats v, Lanes::Floats weight,
                                                      Lanes::Floats sum) const noexcept {
            return Lanes::add(sum, (*this)(v, weight));
        }
    };
    /// y[i] (+)= x[i] factor w[i]
    static void weigh(const float* x, float factor, const float* w, float* y, std::size_t n, bool accumulate) noexcept {
        const Weigh f{Lanes::floats(factor)};
        if (!accumulate) return map_row(y, n, f, x, w);
        map_row(y, n, f, x, w, static_cast<const float*>(y));
    }

    /// state[i] = decay state[i] + input b[i]; returns the sum of state[i] c[i].
    static float advance_state(float decay, float input, const float* b, const float* c, float* state,
                               std::size_t n) noexcept {
        Lanes::Floats sum = Lanes::floats(0.0f);
        for (std::size_t i = 0; i < n; i += panel_rows) {
            const std::size_t some = n - i < panel_rows ? n - i : panel_rows;
            const Lanes::Floats kept = Lanes::times(load_lanes(state + i, some), Lanes::floats(decay));
            const Lanes::Floats now = Lanes::multiply_add(load_lanes(b + i, some), Lanes::floats(input), kept);
            store_lanes(state + i, now, some);
            sum = Lanes::multiply_add(now, load_lanes(c + i, some), sum);
        }
        return Lanes::sum(sum);
    }

    struct SoftCap {
        Lanes::Floats cap;
        DECANT_ALWAYS_INLINE Lanes::Floats operator()(Lanes::Floats v) const noexcept {
            return Lanes::times(cap, math::tanh(Lanes::over(v, cap)));
        }
    };
    /// y[i] = cap tanh(x[i] / cap)
    static void soft_cap(const float* x, float cap, float* y, std::size_t n) noexcept {
        map_row(y, n, SoftCap{Lanes::floats(cap)}, x);
    }

    /// Sum over i of exp(x[i] + shift).
    static double exp_sum(const float* x, std::size_t n, float shift) noexcept {
        double total = 0.0;
        for (std::size_t i = 0; i < n; i += panel_rows) {
            const std::size_t some = n - i < panel_rows ? n - i : panel_rows;
            float e[panel_rows];
            Lanes::store_floats(e, math::exp(Lanes::add(load_lanes(x + i, some), Lanes::floats(shift))));
            for (std::size_t j = 0; j < some; ++j) total += static_cast<double>(e[j]);
        }
        return total;
    }

    /// f(g) u as `GateSpec` says.
    template <Activation Which>
    struct Gated {
        const GateSpec& spec;
        DECANT_ALWAYS_INLINE static Lanes::Floats activated(Lanes::Floats x) noexcept {
            if constexpr (Which == Activation::silu) return math::silu(x);
            if constexpr (Which == Activation::gelu_tanh) return math::gelu_tanh(x);
            if constexpr (Which == Activation::gelu) return math::gelu(x);
        }
        DECANT_ALWAYS_INLINE Lanes::Floats operator()(Lanes::Floats g) const noexcept {
            if (spec.alpha == 1.0f) return activated(g);
            const Lanes::Floats alpha = Lanes::floats(spec.alpha);
            return Lanes::over(activated(Lanes::times(g, alpha)), alpha);
        }
        DECANT_ALWAYS_INLINE Lanes::Floats operator()(Lanes::Floats g, Lanes::Floats u) const noexcept {
            if (spec.limit > 0.0f) {
                // The second operand is the one that comes out where the two cannot be compared.
                const Lanes::Floats limit = Lanes::floats(spec.limit);
                g = Lanes::smaller(limit, g);
                u = Lanes::larger(Lanes::floats(-spec.limit), Lanes::smaller(limit, u));
                u = Lanes::add(u, Lanes::floats(1.0f));
            }
            return Lanes::times((*this)(g), u);
        }
    };
    template <Activation Which>
    static void gate_as(const GateSpec& spec, const float* g, const float* u, float* y, std::size_t n) noexcept {
        const Gated<Which> f{spec};
        if (u == nullptr) return map_row(y, n, f, g);
        map_row(y, n, f, g, u);
    }
    /// y[i] = f(g[i]) u[i]; u may be null.
    static void gate(const GateSpec& spec, const float* g, const float* u, float* y, std::size_t n) noexcept {
        switch (spec.activation) {
            case Activation::silu: return gate_as<Activation::silu>(spec, g, u, y, n);
            case Activation::gelu_tanh: return gate_as<Activation::gelu_tanh>(spec, g, u, y, n);
            case Activation::gelu: return gate_as<Activation::gelu>(spec, g, u, y, n);
        }
    }

    /// Quantizes 32 floats: to nearest, ties to even. A block with a NaN or an infinity gets a NaN scale, so that it
    /// cannot
    /// pass unseen.
    DECANT_ALWAYS_INLINE static void quantize_block(Lanes::Floats low, Lanes::Floats high,
                                                    ActivationBlock& to) noexcept {
        // Magnitudes are in the order of their bits, those that are no numbers last.
        const Lanes::Words bits =
            Lanes::larger(Lanes::as_words(Lanes::magnitude(low)), Lanes::as_words(Lanes::magnitude(high)));
        const std::uint32_t peak_bits = Lanes::largest(bits);
        const float peak = std::bit_cast<float>(peak_bits);
        Lanes::Words a = Lanes::words(0), b = a;
        if (peak_bits >= 0x7F800000u) {
            to.scale = std::bit_cast<float>(0x7FC00000u);
        } else if (peak < smallest_magnitude) {
            to.scale = 0.0f;
        } else {
            to.scale = peak / 127.0f;
            const Lanes::Floats inverse = Lanes::floats(127.0f / peak);
            a = Lanes::nearest(Lanes::times(low, inverse));
            b = Lanes::nearest(Lanes::times(high, inverse));
        }
        Lanes::store_bytes(to.codes, a);
        Lanes::store_bytes(to.codes + activation_half, b);
        // Two sums at once, of at most 16 * 127 each.
        const std::int32_t both = Lanes::sum(Lanes::add(a, Lanes::left<16>(b)));
        const auto first = static_cast<std::int16_t>(both);
        const auto second = static_cast<std::int16_t>((both - first) >> 16);
        to.negative_half_sums[0] = static_cast<std::int16_t>(-first);
        to.negative_half_sums[1] = static_cast<std::int16_t>(-second);
        to.negative_sum = -(first + second);
        to.weighted_sum = to.scale * static_cast<float>(first + second);
    }

    static void quantize(const float* x, std::size_t columns, ActivationBlock* to) noexcept {
        for (std::size_t i = 0; i < columns; i += activation_block, ++to)
            quantize_block(Lanes::load_floats(x + i), Lanes::load_floats(x + i + panel_rows), *to);
    }

    /// y[t][i] (+)= sums[t][i] + bias[i] for a tile's results; `bias` may be null.
    static void finish(const float* sums, std::size_t sums_stride, std::size_t tokens, std::size_t columns,
                       const float* bias, bool accumulate, float* y, std::size_t stride) noexcept {
        for (std::size_t i = 0; i < columns; i += panel_rows) {
            const std::size_t some = columns - i < panel_rows ? columns - i : panel_rows;
            const Lanes::Floats b = bias == nullptr ? Lanes::floats(0.0f) : load_lanes(bias + i, some);
            for (std::size_t t = 0; t < tokens; ++t) {
                Lanes::Floats v = Lanes::load_floats(sums + t * sums_stride + i);
                if (bias != nullptr) v = Lanes::add(v, b);
                if (accumulate) v = Lanes::add(load_lanes(y + t * stride + i, some), v);
                store_lanes(y + t * stride + i, v, some);
            }
        }
    }

    /// F16 to floats and back, to nearest, ties to even.
    static void from_half(const std::byte* half, float* to, std::size_t n) noexcept {
        std::size_t i = 0;
        for (; i + panel_rows <= n; i += panel_rows) Lanes::store_floats(to + i, Lanes::halves(half + 2 * i));
        if (i == n) return;
        std::uint16_t rest[panel_rows] = {};
        __builtin_memcpy(rest, half + 2 * i, 2 * (n - i));
        Lanes::store_some(to + i, Lanes::halves(rest), n - i);
    }
    static void to_half(const float* from, std::byte* half, std::size_t n) noexcept {
        std::size_t i = 0;
        for (; i + panel_rows <= n; i += panel_rows) Lanes::store_halves(half + 2 * i, Lanes::load_floats(from + i));
        if (i == n) return;
        std::uint16_t rest[panel_rows];
        Lanes::store_halves(rest, Lanes::load_some(from + i, n - i));
        __builtin_memcpy(half + 2 * i, rest, 2 * (n - i));
    }

    /// Turns the pairs of a head by its row's angles: cosines, then sines.
    static void turn_halves(float* x, const float* angles, std::size_t half) noexcept {
        for (std::size_t i = 0; i < half; i += panel_rows) {
            const std::size_t some = half - i < panel_rows ? half - i : panel_rows;
            const Lanes::Floats a = load_lanes(x + i, some), b = load_lanes(x + half + i, some);
            const Lanes::Floats c = load_lanes(angles + i, some), s = load_lanes(angles + half + i, some);
            store_lanes(x + i, Lanes::subtract(Lanes::times(a, c), Lanes::times(b, s)), some);
            store_lanes(x + half + i, Lanes::add(Lanes::times(b, c), Lanes::times(a, s)), some);
        }
    }
    /// The same for pairs that lie side by side, with angles as `spread_angles` lays them out.
    static void turn_pairs(float* x, const float* spread, std::size_t dim) noexcept {
        for (std::size_t i = 0; i < dim; i += panel_rows) {
            const std::size_t some = dim - i < panel_rows ? dim - i : panel_rows;
            const Lanes::Floats v = load_lanes(x + i, some);
            const Lanes::Floats c = load_lanes(spread + i, some), s = load_lanes(spread + dim + i, some);
            store_lanes(x + i, Lanes::add(Lanes::times(v, c), Lanes::times(Lanes::swapped_pairs(v), s)), some);
        }
    }
    /// spread[2 i] = spread[2 i + 1] = cos; spread[dim + 2 i] = -sin, spread[dim + 2 i + 1] = sin.
    static void spread_angles(const float* angles, std::size_t dim, float* spread) noexcept {
        for (std::size_t i = 0; i < dim / 2; ++i) {
            spread[2 * i] = spread[2 * i + 1] = angles[i];
            spread[dim + 2 * i] = -angles[dim / 2 + i];
            spread[dim + 2 * i + 1] = angles[dim / 2 + i];
        }
    }
};

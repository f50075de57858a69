// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Unpackers of k_quants.hpp; see kernels.inl.

template <>
struct Unpacker<Q4_K> {
    template <class Sink>
    DECANT_ALWAYS_INLINE static void run(const std::byte* first, std::size_t stride, std::size_t columns,
                                         Sink& to) noexcept {
        constexpr std::size_t size = sizeof(Q4_K::Block);
        static_assert(offsetof(Q4_K::Block, minimum) == 2 && offsetof(Q4_K::Block, packed_multipliers) == 4);
        const Lanes::Words low = Lanes::words(0x0F0F0F0Fu);
        for (std::size_t super = 0; super < columns / 256; ++super, first += size) {
            to.approach(first, stride);
            Lanes::Words head[4];
            Lanes::columns(first, stride, head);
            const Lanes::Floats scale = Lanes::low_halves(head[0]);
            const Lanes::Floats minimum = Lanes::low_halves(Lanes::right<16>(head[0]));
            // Six bits each: scales and minimums of sub-blocks 0..3, then of 4..7; see Q4_K::multipliers.
            const Lanes::Words six = Lanes::words(0x3F3F3F3Fu), two = Lanes::words(0x30303030u);
            const Lanes::Words scales[2] = {
                Lanes::bit_and(head[1], six),
                Lanes::bit_or(Lanes::bit_and(head[3], low), Lanes::bit_and(Lanes::right<2>(head[1]), two))};
            const Lanes::Words minimums[2] = {Lanes::bit_and(head[2], six),
                                              Lanes::bit_or(Lanes::bit_and(Lanes::right<4>(head[3]), low),
                                                            Lanes::bit_and(Lanes::right<2>(head[2]), two))};
            for (std::size_t half = 0; half < 2; ++half) {
                const std::byte* const codes = first + offsetof(Q4_K::Block, codes) + half * 64;
                chunk<0>(codes, stride, scale, minimum, scales[half], minimums[half], to);
                to.approach(first + (half + 1) * 64, stride);  // not all of a block's lines at once
                chunk<2>(codes + 32, stride, scale, minimum, scales[half], minimums[half], to);
            }
        }
    }

 private:
    /// Sub-blocks Sub (low halves) and Sub + 1 (high halves) of four.
    template <int Sub, class Sink>
    DECANT_ALWAYS_INLINE static void chunk(const std::byte* codes, std::size_t stride, Lanes::Floats scale,
                                           Lanes::Floats minimum, Lanes::Words scales, Lanes::Words minimums,
                                           Sink& to) noexcept {
        const Lanes::Words low = Lanes::words(0x0F0F0F0Fu);
        Lanes::Words w[8];
        Lanes::columns(codes, stride, w);
        Lanes::columns(codes + 16, stride, w + 4);
        constexpr std::size_t size = sizeof(Q4_K::Block) * 16 / 8;
        to.template begin<size>();
        DECANT_UNROLL
        for (std::size_t g = 0; g < 8; ++g) to.codes(g, Lanes::bit_and(w[g], low));
        to.end(product(scale, byte<Sub>(scales)), negative_product(minimum, byte<Sub>(minimums)));
        to.template begin<size>();
        DECANT_UNROLL
        for (std::size_t g = 0; g < 8; ++g) to.codes(g, Lanes::bit_and(Lanes::right<4>(w[g]), low));
        to.end(product(scale, byte<Sub + 1>(scales)), negative_product(minimum, byte<Sub + 1>(minimums)));
    }
    template <int Which>
    static Lanes::Words byte(Lanes::Words v) noexcept {
        return Lanes::bit_and(Lanes::right<8 * Which>(v), Lanes::words(0xFFu));
    }
    static Lanes::Floats product(Lanes::Floats factor, Lanes::Words integer) noexcept {
        return Lanes::times(factor, Lanes::to_floats(integer));
    }
    static Lanes::Floats negative_product(Lanes::Floats factor, Lanes::Words integer) noexcept {
        return Lanes::subtract(Lanes::floats(0.0f), product(factor, integer));
    }
};

template <>
struct Unpacker<Q6_K> {
    template <class Sink>
    DECANT_ALWAYS_INLINE static void run(const std::byte* first, std::size_t stride, std::size_t columns,
                                         Sink& to) noexcept {
        constexpr std::size_t size = sizeof(Q6_K::Block);
        for (std::size_t super = 0; super < columns / 256; ++super, first += size) {
            const Lanes::Floats scale = gathered(first + offsetof(Q6_K::Block, scale), stride);
            Lanes::Words multipliers[4];
            Lanes::columns(first + offsetof(Q6_K::Block, multipliers), stride, multipliers);
            for (std::size_t half = 0; half < 2; ++half) {
                to.approach(first + half * 128, stride);
                unpack_half(first + offsetof(Q6_K::Block, low_halves) + half * 64,
                            first + offsetof(Q6_K::Block, high_pairs) + half * 32, stride, scale, multipliers[2 * half],
                            multipliers[2 * half + 1], first + half * 128 + 64, to);
            }
        }
    }

 private:
    /// The F16 of 16 rows.
    static Lanes::Floats gathered(const std::byte* from, std::size_t stride) noexcept {
        alignas(64) std::uint16_t halves[panel_rows];
        for (std::size_t r = 0; r < panel_rows; ++r) __builtin_memcpy(halves + r, from + r * stride, sizeof halves[r]);
        return Lanes::halves(halves);
    }
    /// 128 columns: eight sub-blocks of 16. In the middle a line is fetched: not all of a block's at once.
    template <class Sink>
    DECANT_ALWAYS_INLINE static void unpack_half(const std::byte* low, const std::byte* high, std::size_t stride,
                                                 Lanes::Floats scale, Lanes::Words low_multipliers,
                                                 Lanes::Words high_multipliers, const std::byte* line,
                                                 Sink& to) noexcept {
        Lanes::Words pairs[8];
        Lanes::columns(high, stride, pairs);
        Lanes::columns(high + 16, stride, pairs + 4);
        // Columns 0..63 are the low halves of 64 bytes, columns 64..127 the high halves.
        quarter<0, 0>(low, stride, pairs, scale, low_multipliers, to);
        quarter<2, 0>(low + 32, stride, pairs, scale, low_multipliers, to);
        to.approach(line, stride);
        quarter<0, 4>(low, stride, pairs, scale, high_multipliers, to);
        quarter<2, 4>(low + 32, stride, pairs, scale, high_multipliers, to);
    }
    /// 32 columns: sub-blocks Sub and Sub + 1 of four whose low bits are shifted by Shift.
    template <int Sub, int Shift, class Sink>
    DECANT_ALWAYS_INLINE static void quarter(const std::byte* low, std::size_t stride, const Lanes::Words* pairs,
                                             Lanes::Floats scale, Lanes::Words multipliers, Sink& to) noexcept {
        sixteen<Sub, Shift>(low, stride, pairs, scale, multipliers, to);
        sixteen<Sub + 1, Shift>(low + 16, stride, pairs + 4, scale, multipliers, to);
    }
    template <int Sub, int Shift, class Sink>
    DECANT_ALWAYS_INLINE static void sixteen(const std::byte* low, std::size_t stride, const Lanes::Words* pairs,
                                             Lanes::Floats scale, Lanes::Words multipliers, Sink& to) noexcept {
        // The two high bits of a code lie at 2 * quarter of a byte; they go to 4.
        constexpr int from = Shift + Sub / 2 * 2;
        Lanes::Words w[4];
        Lanes::columns(low, stride, w);
        to.template begin<sizeof(Q6_K::Block)>();
        DECANT_UNROLL
        for (std::size_t g = 0; g < 4; ++g) {
            const Lanes::Words four = Lanes::bit_and(Lanes::right<Shift>(w[g]), Lanes::words(0x0F0F0F0Fu));
            const Lanes::Words two = Lanes::bit_and(moved<from - 4>(pairs[g]), Lanes::words(0x30303030u));
            to.codes(g, Lanes::bit_or(four, two));
        }
        const Lanes::Words multiplier = Lanes::right_signed<24>(Lanes::left<24 - 8 * Sub>(multipliers));
        to.end(Lanes::times(scale, Lanes::to_floats(multiplier)));
    }
    /// Shifted right by Bits, or left.
    template <int Bits>
    static Lanes::Words moved(Lanes::Words v) noexcept {
        if constexpr (Bits >= 0)
            return Lanes::right<Bits>(v);
        else
            return Lanes::left<-Bits>(v);
    }
};

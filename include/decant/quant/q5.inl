// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Unpacker of q5.hpp; see kernels.inl.

template <>
struct Unpacker<Q5_0> : ByBlocks<Q5_0> {
    template <std::size_t At, class Sink>
    DECANT_ALWAYS_INLINE static void block(const Span<size>& from, Sink& to) noexcept {
        constexpr std::size_t codes = At + offsetof(Q5_0::Block, low_halves);
        const Lanes::Words low = Lanes::words(0x0F0F0F0Fu);
        const Lanes::Words high = from.template word<At + offsetof(Q5_0::Block, high_bits)>();
        Lanes::Words w[4] = {from.template word<codes>(), from.template word<codes + 4>(),
                             from.template word<codes + 8>(), from.template word<codes + 12>()};
        to.codes(0, Lanes::bit_or(Lanes::bit_and(w[0], low), spread(high)));
        to.codes(1, Lanes::bit_or(Lanes::bit_and(w[1], low), spread(Lanes::right<4>(high))));
        to.codes(2, Lanes::bit_or(Lanes::bit_and(w[2], low), spread(Lanes::right<8>(high))));
        to.codes(3, Lanes::bit_or(Lanes::bit_and(w[3], low), spread(Lanes::right<12>(high))));
        DECANT_UNROLL
        for (std::size_t g = 0; g < 4; ++g) w[g] = Lanes::bit_and(Lanes::right<4>(w[g]), low);
        to.codes(4, Lanes::bit_or(w[0], spread(Lanes::right<16>(high))));
        to.codes(5, Lanes::bit_or(w[1], spread(Lanes::right<20>(high))));
        to.codes(6, Lanes::bit_or(w[2], spread(Lanes::right<24>(high))));
        to.codes(7, Lanes::bit_or(w[3], spread(Lanes::right<28>(high))));
        to.end(from.template half<At + offsetof(Q5_0::Block, scale)>());
    }

 private:
    /// Bits 0..3 to bit 4 of bytes 0..3: the factor puts bit i at 8i (among others), and no two terms meet.
    static Lanes::Words spread(Lanes::Words bits) noexcept {
        const Lanes::Words four = Lanes::bit_and(bits, Lanes::words(0x0Fu));
        const Lanes::Words spaced =
            Lanes::bit_and(Lanes::times(four, Lanes::words(0x00204081u)), Lanes::words(0x01010101u));
        return Lanes::left<4>(spaced);
    }
};

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Unpacker of q8.hpp; see kernels.inl.

template <>
struct Unpacker<Q8_0> {
    template <class Sink>
    DECANT_ALWAYS_INLINE static void run(const std::byte* first, std::size_t stride, std::size_t columns,
                                         Sink& to) noexcept {
        constexpr std::size_t size = sizeof(Q8_0::Block);
        const Lanes::Words top = Lanes::words(0x80808080u);  // a signed byte + 128
        const Gathered<std::uint16_t, size> scales(first + offsetof(Q8_0::Block, scale), stride, columns / 32);
        for (std::size_t b = 0; b < columns / 32; ++b, first += size) {
            to.begin(16 * size);
            DECANT_UNROLL
            for (std::size_t half = 0; half < 2; ++half) {
                Lanes::Words w[4];
                Lanes::columns(first + offsetof(Q8_0::Block, values) + 16 * half, stride, w);
                DECANT_UNROLL
                for (std::size_t g = 0; g < 4; ++g) to.codes(4 * half + g, Lanes::bit_xor(w[g], top));
            }
            to.end(scales.halves(b));
        }
    }
};

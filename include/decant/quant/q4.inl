// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Unpackers of q4.hpp; see kernels.inl.

namespace detail {

/// A block of 16 bytes with two codes each: low halves are groups 0..3, high halves groups 4..7.
template <class Sink>
DECANT_ALWAYS_INLINE void unpack_nibbles(const std::byte* codes, std::size_t stride, Sink& to) noexcept {
    const Lanes::Words low = Lanes::words(0x0F0F0F0Fu);
    Lanes::Words w[4];
    Lanes::columns(codes, stride, w);
    DECANT_UNROLL
    for (std::size_t g = 0; g < 4; ++g) to.codes(g, Lanes::bit_and(w[g], low));
    DECANT_UNROLL
    for (std::size_t g = 0; g < 4; ++g) to.codes(g + 4, Lanes::bit_and(Lanes::right<4>(w[g]), low));
}

}  // namespace detail

template <>
struct Unpacker<Q4_0> {
    template <class Sink>
    DECANT_ALWAYS_INLINE static void run(const std::byte* first, std::size_t stride, std::size_t columns,
                                         Sink& to) noexcept {
        constexpr std::size_t size = sizeof(Q4_0::Block);
        const Gathered<std::uint16_t, size> scales(first + offsetof(Q4_0::Block, scale), stride, columns / 32);
        for (std::size_t b = 0; b < columns / 32; ++b, first += size) {
            to.begin(16 * size);
            detail::unpack_nibbles(first + offsetof(Q4_0::Block, codes), stride, to);
            to.end(scales.halves(b));
        }
    }
};

template <>
struct Unpacker<Q4_1> {
    template <class Sink>
    DECANT_ALWAYS_INLINE static void run(const std::byte* first, std::size_t stride, std::size_t columns,
                                         Sink& to) noexcept {
        constexpr std::size_t size = sizeof(Q4_1::Block);
        static_assert(offsetof(Q4_1::Block, scale) == 0 && offsetof(Q4_1::Block, offset) == 2);
        const Gathered<std::uint32_t, size> heads(first, stride, columns / 32);
        for (std::size_t b = 0; b < columns / 32; ++b, first += size) {
            to.begin(16 * size);
            detail::unpack_nibbles(first + offsetof(Q4_1::Block, codes), stride, to);
            const Lanes::Words head = heads.words(b);
            to.end(Lanes::low_halves(head), Lanes::low_halves(Lanes::right<16>(head)));
        }
    }
};

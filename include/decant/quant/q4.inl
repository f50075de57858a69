// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Unpackers of q4.hpp; see kernels.inl.

namespace detail {

/// 16 bytes with two codes each: low halves are groups 0..3, high halves groups 4..7.
template <std::size_t At, class Blocks, class Sink>
DECANT_ALWAYS_INLINE void unpack_nibbles(const Blocks& from, Sink& to) noexcept {
    const Lanes::Words low = Lanes::words(0x0F0F0F0Fu);
    const Lanes::Words w[4] = {from.template word<At>(), from.template word<At + 4>(), from.template word<At + 8>(),
                               from.template word<At + 12>()};
    DECANT_UNROLL
    for (std::size_t g = 0; g < 4; ++g) to.codes(g, Lanes::bit_and(w[g], low));
    DECANT_UNROLL
    for (std::size_t g = 0; g < 4; ++g) to.codes(g + 4, Lanes::bit_and(Lanes::right<4>(w[g]), low));
}

}  // namespace detail

template <>
struct Unpacker<Q4_0> : ByBlocks<Q4_0> {
    template <std::size_t At, class Sink>
    DECANT_ALWAYS_INLINE static void block(const Span<size>& from, Sink& to) noexcept {
        detail::unpack_nibbles<At + offsetof(Q4_0::Block, codes)>(from, to);
        to.end(from.template half<At + offsetof(Q4_0::Block, scale)>());
    }
};

template <>
struct Unpacker<Q4_1> : ByBlocks<Q4_1> {
    template <std::size_t At, class Sink>
    DECANT_ALWAYS_INLINE static void block(const Span<size>& from, Sink& to) noexcept {
        detail::unpack_nibbles<At + offsetof(Q4_1::Block, codes)>(from, to);
        to.end(from.template half<At + offsetof(Q4_1::Block, scale)>(),
               from.template half<At + offsetof(Q4_1::Block, offset)>());
    }
};

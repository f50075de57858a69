// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Unpacker of q8.hpp; see kernels.inl.

template <>
struct Unpacker<Q8_0> : ByBlocks<Q8_0> {
    template <std::size_t At, class Sink>
    DECANT_ALWAYS_INLINE static void block(const Span<size>& from, Sink& to) noexcept {
        codes<At + offsetof(Q8_0::Block, values), 0>(from, to);
        to.end(from.template half<At + offsetof(Q8_0::Block, scale)>());
    }

 private:
    template <std::size_t At, std::size_t G, class Sink>
    DECANT_ALWAYS_INLINE static void codes(const Span<size>& from, Sink& to) noexcept {
        if constexpr (G < 8) {
            const Lanes::Words top = Lanes::words(0x80808080u);  // a signed byte + 128
            to.codes(G, Lanes::bit_xor(from.template word<At + 4 * G>(), top));
            codes<At, G + 1>(from, to);
        }
    }
};

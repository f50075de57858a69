// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Unpackers of floats.hpp; see kernels.inl.

template <>
struct Unpacker<F32> {
    static constexpr std::size_t each = 4;  // columns in 16 bytes
    /// Column i of those.
    DECANT_ALWAYS_INLINE static Lanes::Floats column(const Lanes::Words* w, std::size_t i) noexcept {
        return Lanes::as_floats(w[i]);
    }
};

template <>
struct Unpacker<F16> {
    static constexpr std::size_t each = 8;
    DECANT_ALWAYS_INLINE static Lanes::Floats column(const Lanes::Words* w, std::size_t i) noexcept {
        return Lanes::low_halves(i % 2 == 0 ? w[i / 2] : Lanes::right<16>(w[i / 2]));
    }
};

template <>
struct Unpacker<BF16> {
    static constexpr std::size_t each = 8;
    DECANT_ALWAYS_INLINE static Lanes::Floats column(const Lanes::Words* w, std::size_t i) noexcept {
        return Lanes::as_floats(i % 2 == 0 ? Lanes::left<16>(w[i / 2])
                                           : Lanes::bit_and(w[i / 2], Lanes::words(0xFFFF0000u)));
    }
};

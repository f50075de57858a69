// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Functions of 16 floats, in terms of `Lanes`; part of kernels.inl. Errors are at most 2 units in the last place unless
// something else is said, and what is no number stays none. The coefficients are minimax fits.

// In all of them x = n ln(2) + r (or n + r) with |r| at most half of that: adding 1.5 * 2^23 rounds to an integer,
// whose bits are then the lowest of the sum. Together with a bias they are moved into the exponent of 2^n; a power
// whose exponent becomes 0 is 0, so that results below the normal numbers are 0 without a comparison.

namespace math {

inline constexpr float rounder = 0x1.8p23f;
inline constexpr float log2_e = 0x1.715476p0f;
// ln(2) in two parts, the first of which has few digits: its product with n is exact.
inline constexpr float ln2_high = 0x1.63p-1f;
inline constexpr float ln2_low = -0x1.bd0106p-13f;

/// (e^r - 1 - r) / r^2 * Factor
template <int Factor>
DECANT_ALWAYS_INLINE Lanes::Floats exp_tail(Lanes::Floats r) noexcept {
    constexpr float factor = Factor;
    Lanes::Floats p = Lanes::floats(factor * 0x1.6a234ep-10f);
    p = Lanes::multiply_add(p, r, Lanes::floats(factor * 0x1.123a6cp-7f));
    p = Lanes::multiply_add(p, r, Lanes::floats(factor * 0x1.5558f4p-5f));
    p = Lanes::multiply_add(p, r, Lanes::floats(factor * 0x1.55549p-3f));
    return Lanes::multiply_add(p, r, Lanes::floats(factor * 0x1.fffffcp-2f));
}

DECANT_ALWAYS_INLINE Lanes::Floats without(Lanes::Floats x, Lanes::Floats n) noexcept {
    const Lanes::Floats r = Lanes::multiply_add(n, Lanes::floats(-ln2_high), x);
    return Lanes::multiply_add(n, Lanes::floats(-ln2_low), r);
}

DECANT_ALWAYS_INLINE Lanes::Floats negative(Lanes::Floats x) noexcept {
    return Lanes::as_floats(Lanes::bit_xor(Lanes::as_words(x), Lanes::words(0x80000000u)));
}

/// A magnitude with the sign of x.
DECANT_ALWAYS_INLINE Lanes::Floats with_sign(Lanes::Floats magnitude, Lanes::Floats x) noexcept {
    return Lanes::as_floats(
        Lanes::bit_or(Lanes::as_words(magnitude), Lanes::bit_and(Lanes::as_words(x), Lanes::words(0x80000000u))));
}

/// 2^x for x below 128; 0 below -126.5.
DECANT_ALWAYS_INLINE Lanes::Floats exp2(Lanes::Floats x) noexcept {
    x = Lanes::larger(Lanes::floats(-127.0f), x);
    const Lanes::Floats shift = Lanes::floats(rounder + 127.0f);
    const Lanes::Floats sum = Lanes::add(x, shift);
    const Lanes::Floats r = Lanes::subtract(x, Lanes::subtract(sum, shift));
    Lanes::Floats p = Lanes::floats(0x1.41fbbap-13f);
    p = Lanes::multiply_add(p, r, Lanes::floats(0x1.5f3e54p-10f));
    p = Lanes::multiply_add(p, r, Lanes::floats(0x1.3b2d4cp-7f));
    p = Lanes::multiply_add(p, r, Lanes::floats(0x1.c6aee8p-5f));
    p = Lanes::multiply_add(p, r, Lanes::floats(0x1.ebfbdcp-3f));
    p = Lanes::multiply_add(p, r, Lanes::floats(0x1.62e43p-1f));
    p = Lanes::multiply_add(p, r, Lanes::floats(1.0f));
    return Lanes::times(p, Lanes::as_floats(Lanes::template left<23>(Lanes::as_words(sum))));
}

/// e^x; 0 below -86.99, infinite above 88.73.
DECANT_ALWAYS_INLINE Lanes::Floats exp(Lanes::Floats x) noexcept {
    x = Lanes::smaller(Lanes::floats(89.0f), Lanes::larger(Lanes::floats(-87.3f), x));
    // 2 e^r 2^(n - 1): 2^128 is no float.
    const Lanes::Floats shift = Lanes::floats(rounder + 126.0f);
    const Lanes::Floats sum = Lanes::multiply_add(x, Lanes::floats(log2_e), shift);
    const Lanes::Floats r = without(x, Lanes::subtract(sum, shift));
    const Lanes::Floats tail = Lanes::multiply_add(exp_tail<2>(r), Lanes::times(r, r), Lanes::add(r, r));
    return Lanes::times(Lanes::add(tail, Lanes::floats(2.0f)),
                        Lanes::as_floats(Lanes::template left<23>(Lanes::as_words(sum))));
}

/// e^x - 1 for x in [-87, 87], and the value at the nearer end outside.
DECANT_ALWAYS_INLINE Lanes::Floats expm1(Lanes::Floats x) noexcept {
    x = Lanes::smaller(Lanes::floats(87.0f), Lanes::larger(Lanes::floats(-87.0f), x));
    const Lanes::Floats shift = Lanes::floats(rounder + 127.0f);
    const Lanes::Floats sum = Lanes::multiply_add(x, Lanes::floats(log2_e), shift);
    const Lanes::Floats r = without(x, Lanes::subtract(sum, shift));
    const Lanes::Floats power = Lanes::as_floats(Lanes::template left<23>(Lanes::as_words(sum)));
    const Lanes::Floats close = Lanes::multiply_add(exp_tail<1>(r), Lanes::times(r, r), r);
    return Lanes::multiply_add(power, close, Lanes::subtract(power, Lanes::floats(1.0f)));
}

/// tanh(x), within 4 units in the last place: with e = exp(2 |x|) - 1 it is e / (e + 2).
DECANT_ALWAYS_INLINE Lanes::Floats tanh(Lanes::Floats x) noexcept {
    const Lanes::Floats size = Lanes::magnitude(x);
    const Lanes::Floats e = expm1(Lanes::smaller(Lanes::floats(20.0f), Lanes::add(size, size)));
    return with_sign(Lanes::over(e, Lanes::add(e, Lanes::floats(2.0f))), x);
}

/// -log(1 - erf(x)) for x in [0, 6].
DECANT_ALWAYS_INLINE Lanes::Floats minus_log_erfc(Lanes::Floats x) noexcept {
    Lanes::Floats p = Lanes::floats(0x1.609692p-21f);
    p = Lanes::multiply_add(p, x, Lanes::floats(-0x1.e76582p-17f));
    p = Lanes::multiply_add(p, x, Lanes::floats(0x1.178088p-13f));
    p = Lanes::multiply_add(p, x, Lanes::floats(-0x1.5650d6p-11f));
    p = Lanes::multiply_add(p, x, Lanes::floats(0x1.b6ddf6p-10f));
    p = Lanes::multiply_add(p, x, Lanes::floats(-0x1.403fd4p-13f));
    p = Lanes::multiply_add(p, x, Lanes::floats(-0x1.39ef0cp-6f));
    p = Lanes::multiply_add(p, x, Lanes::floats(0x1.a4fcecp-4f));
    p = Lanes::multiply_add(p, x, Lanes::floats(0x1.45f2f2p-1f));
    p = Lanes::multiply_add(p, x, Lanes::floats(0x1.20dd76p0f));
    return Lanes::times(p, x);
}

/// erf(x), within 4 units in the last place.
DECANT_ALWAYS_INLINE Lanes::Floats erf(Lanes::Floats x) noexcept {
    const Lanes::Floats size = Lanes::smaller(Lanes::floats(6.0f), Lanes::magnitude(x));
    return with_sign(Lanes::magnitude(expm1(negative(minus_log_erfc(size)))), x);
}

/// x / (1 + exp(-x))
DECANT_ALWAYS_INLINE Lanes::Floats silu(Lanes::Floats x) noexcept {
    return Lanes::over(x, Lanes::add(Lanes::floats(1.0f), exp(negative(x))));
}

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): with a = 2 sqrt(2/pi) (x + 0.044715 x^3) it is x / (1 + exp(-a)).
DECANT_ALWAYS_INLINE Lanes::Floats gelu_tanh(Lanes::Floats x) noexcept {
    const Lanes::Floats square = Lanes::times(x, x);
    const Lanes::Floats inner = Lanes::multiply_add(Lanes::times(square, Lanes::floats(0.044715f)), x, x);
    return Lanes::over(x, Lanes::add(Lanes::floats(1.0f), exp(Lanes::times(inner, Lanes::floats(-0x1.988454p0f)))));
}

/// x/2 (1 + erf(x / sqrt(2))) = max(x, 0) - |x|/2 (1 - erf(|x| / sqrt(2))), which is near 0 to 1e-8 where x is
/// negative.
DECANT_ALWAYS_INLINE Lanes::Floats gelu(Lanes::Floats x) noexcept {
    const Lanes::Floats root = Lanes::floats(0x1.6a09e6p-1f);
    const Lanes::Floats size = Lanes::smaller(Lanes::floats(6.0f), Lanes::times(Lanes::magnitude(x), root));
    const Lanes::Floats tail = Lanes::times(Lanes::times(size, root), exp(negative(minus_log_erfc(size))));
    return Lanes::subtract(Lanes::larger(Lanes::floats(0.0f), x), tail);
}

}  // namespace math

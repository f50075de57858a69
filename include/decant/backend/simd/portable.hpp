// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Lanes for a machine about which nothing is known: integers in plain loops, floats in the batches of xsimd for
/// whatever the host compiles for.

#include <decant/backend/simd/lanes.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>
#include <decant/quant/float16.hpp>

#include <xsimd/xsimd.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

// The AVX-512 headers of g++ 12 pass on a register that they leave undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace decant::inline DECANT_ABI {
namespace simd {
namespace portable {

struct Lanes {
    static constexpr Isa isa = Isa::portable;
    static constexpr std::size_t tile_panels = 1;
    static constexpr std::size_t tile_tokens = 4;
    static constexpr std::size_t few_tokens = 1;
    static constexpr std::size_t float_tile_tokens = 4;
    static constexpr std::size_t fused_tokens = 0;
    static constexpr bool keeps_sums = false;
    using Pairs = void;

    using Batch = xsimd::batch<float>;
    static constexpr std::size_t batches = panel_rows / Batch::size;
    static_assert(panel_rows % Batch::size == 0);

    struct Words {
        std::uint32_t lane[panel_rows];
    };
    struct Floats {
        Batch batch[batches];
    };

    static Words load(const void* from) noexcept {
        Words v;
        std::memcpy(&v, from, sizeof v);
        return v;
    }
    static void store(void* to, Words v) noexcept { std::memcpy(to, &v, sizeof v); }
    static Words words(std::uint32_t x) noexcept {
        return map([x](std::size_t) { return x; });
    }
    static Words bit_and(Words a, Words b) noexcept {
        return map([&](std::size_t i) { return a.lane[i] & b.lane[i]; });
    }
    static Words bit_or(Words a, Words b) noexcept {
        return map([&](std::size_t i) { return a.lane[i] | b.lane[i]; });
    }
    static Words bit_xor(Words a, Words b) noexcept {
        return map([&](std::size_t i) { return a.lane[i] ^ b.lane[i]; });
    }
    template <int Bits>
    static Words left(Words v) noexcept {
        return map([&](std::size_t i) { return v.lane[i] << Bits; });
    }
    template <int Bits>
    static Words right(Words v) noexcept {
        return map([&](std::size_t i) { return v.lane[i] >> Bits; });
    }
    template <int Bits>
    static Words right_signed(Words v) noexcept {
        return map(
            [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<std::int32_t>(v.lane[i]) >> Bits); });
    }
    static Words add(Words a, Words b) noexcept {
        return map([&](std::size_t i) { return a.lane[i] + b.lane[i]; });
    }
    static Words times(Words a, Words b) noexcept {
        return map([&](std::size_t i) { return a.lane[i] * b.lane[i]; });
    }
    static Words larger(Words a, Words b) noexcept {
        return map([&](std::size_t i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static std::uint32_t largest(Words v) noexcept {
        std::uint32_t most = 0;
        for (const std::uint32_t x : v.lane) most = x > most ? x : most;
        return most;
    }
    static std::int32_t sum(Words v) noexcept {
        std::uint32_t total = 0;
        for (const std::uint32_t x : v.lane) total += x;
        return static_cast<std::int32_t>(total);
    }
    static Words broadcast(const void* word) noexcept {
        std::uint32_t x;
        std::memcpy(&x, word, sizeof x);
        return words(x);
    }
    static Words subtract_bytes(Words a, Words b) noexcept {
        std::uint8_t x[sizeof(Words)], y[sizeof(Words)];
        std::memcpy(x, &a, sizeof a);
        std::memcpy(y, &b, sizeof b);
        for (std::size_t i = 0; i < sizeof x; ++i) x[i] = static_cast<std::uint8_t>(x[i] - y[i]);
        return load(x);
    }
    static constexpr bool signed_codes(int) noexcept { return false; }
    template <int Bits>
    static Words dot(Words sum, Words codes, Words x) noexcept {
        std::uint8_t w[sizeof(Words)];
        std::int8_t v[sizeof(Words)];
        std::memcpy(w, &codes, sizeof w);
        std::memcpy(v, &x, sizeof v);
        for (std::size_t i = 0; i < panel_rows; ++i) {
            std::int32_t four = 0;
            for (std::size_t c = 4 * i; c < 4 * i + 4; ++c) four += w[c] * v[c];
            sum.lane[i] += static_cast<std::uint32_t>(four);
        }
        return sum;
    }
    static void columns(const std::byte* first, std::size_t stride, Words* out) noexcept {
        for (std::size_t r = 0; r < panel_rows; ++r, first += stride) {
            std::uint32_t four[4];
            std::memcpy(four, first, sizeof four);
            for (std::size_t c = 0; c < 4; ++c) out[c].lane[r] = four[c];
        }
    }

    static Floats floats(float x) noexcept {
        return map_floats([x](std::size_t) { return Batch(x); });
    }
    static Floats load_floats(const float* from) noexcept {
        return map_floats([from](std::size_t i) { return Batch::load_unaligned(from + i * Batch::size); });
    }
    static void store_floats(float* to, Floats v) noexcept {
        for (std::size_t i = 0; i < batches; ++i) v.batch[i].store_unaligned(to + i * Batch::size);
    }
    static Floats load_some(const float* from, std::size_t n) noexcept {
        float values[panel_rows] = {};
        std::memcpy(values, from, n * sizeof(float));
        return load_floats(values);
    }
    static void store_some(float* to, Floats v, std::size_t n) noexcept {
        float values[panel_rows];
        store_floats(values, v);
        std::memcpy(to, values, n * sizeof(float));
    }
    static Floats add(Floats a, Floats b) noexcept {
        return map_floats([&](std::size_t i) { return a.batch[i] + b.batch[i]; });
    }
    static Floats subtract(Floats a, Floats b) noexcept {
        return map_floats([&](std::size_t i) { return a.batch[i] - b.batch[i]; });
    }
    static Floats times(Floats a, Floats b) noexcept {
        return map_floats([&](std::size_t i) { return a.batch[i] * b.batch[i]; });
    }
    /// Not by batches: xsimd 8 has no exact division for NEON.
    static Floats over(Floats a, Floats b) noexcept {
        float x[panel_rows], y[panel_rows];
        store_floats(x, a);
        store_floats(y, b);
        for (std::size_t i = 0; i < panel_rows; ++i) x[i] /= y[i];
        return load_floats(x);
    }
    static Floats multiply_add(Floats a, Floats b, Floats c) noexcept {
        return map_floats([&](std::size_t i) { return xsimd::fma(a.batch[i], b.batch[i], c.batch[i]); });
    }
    /// b where a is no number, as the instructions of x86 have it.
    static Floats larger(Floats a, Floats b) noexcept {
        return map_floats(
            [&](std::size_t i) { return xsimd::select(a.batch[i] > b.batch[i], a.batch[i], b.batch[i]); });
    }
    static Floats smaller(Floats a, Floats b) noexcept {
        return map_floats(
            [&](std::size_t i) { return xsimd::select(a.batch[i] < b.batch[i], a.batch[i], b.batch[i]); });
    }
    static Floats magnitude(Floats v) noexcept {
        return map_floats([&](std::size_t i) { return xsimd::abs(v.batch[i]); });
    }
    static Floats swapped_pairs(Floats v) noexcept {
        float x[panel_rows];
        store_floats(x, v);
        for (std::size_t i = 0; i < panel_rows; i += 2) std::swap(x[i], x[i + 1]);
        return load_floats(x);
    }
    static void interleave(Floats a, Floats b, Floats* to) noexcept {
        float x[panel_rows], y[panel_rows], both[2 * panel_rows];
        store_floats(x, a);
        store_floats(y, b);
        for (std::size_t i = 0; i < panel_rows; ++i) {
            both[2 * i] = x[i];
            both[2 * i + 1] = y[i];
        }
        to[0] = load_floats(both);
        to[1] = load_floats(both + panel_rows);
    }
    static float sum(Floats v) noexcept {
        float x[panel_rows];
        store_floats(x, v);
        for (std::size_t n = panel_rows / 2; n > 0; n /= 2)
            for (std::size_t i = 0; i < n; ++i) x[i] += x[i + n];
        return x[0];
    }
    static float largest(Floats v) noexcept {
        float x[panel_rows];
        store_floats(x, v);
        for (std::size_t i = 1; i < panel_rows; ++i) x[0] = x[i] > x[0] ? x[i] : x[0];
        return x[0];
    }

    static Floats to_floats(Words v) noexcept {
        float x[panel_rows];
        for (std::size_t i = 0; i < panel_rows; ++i) x[i] = static_cast<float>(static_cast<std::int32_t>(v.lane[i]));
        return load_floats(x);
    }
    /// Ties to even, as the instructions have it: adding 1.5 * 2^23 leaves the integer in the low bits.
    static Words nearest(Floats v) noexcept {
        const Words shifted = as_words(add(v, floats(12582912.0f)));
        return map([&](std::size_t i) { return shifted.lane[i] - 0x4B400000u; });
    }
    static Floats as_floats(Words v) noexcept {
        float x[panel_rows];
        std::memcpy(x, &v, sizeof x);
        return load_floats(x);
    }
    static Words as_words(Floats v) noexcept {
        float x[panel_rows];
        store_floats(x, v);
        return load(x);
    }
    static Floats halves(const void* from) noexcept {
        std::uint16_t bits[panel_rows];
        std::memcpy(bits, from, sizeof bits);
        float x[panel_rows];
        for (std::size_t i = 0; i < panel_rows; ++i) x[i] = half_to_float(bits[i]);
        return load_floats(x);
    }
    static Floats low_halves(Words v) noexcept {
        float x[panel_rows];
        for (std::size_t i = 0; i < panel_rows; ++i) x[i] = half_to_float(static_cast<std::uint16_t>(v.lane[i]));
        return load_floats(x);
    }
    static void store_halves(void* to, Floats v) noexcept {
        float x[panel_rows];
        store_floats(x, v);
        std::uint16_t bits[panel_rows];
        for (std::size_t i = 0; i < panel_rows; ++i) bits[i] = float_to_half(x[i]);
        std::memcpy(to, bits, sizeof bits);
    }
    static void store_bytes(void* to, Words v) noexcept {
        std::uint8_t bytes[panel_rows];
        for (std::size_t i = 0; i < panel_rows; ++i) bytes[i] = static_cast<std::uint8_t>(v.lane[i]);
        std::memcpy(to, bytes, sizeof bytes);
    }

 private:
    template <class F>
    static Words map(F f) noexcept {
        Words result;
        for (std::size_t i = 0; i < panel_rows; ++i) result.lane[i] = f(i);
        return result;
    }
    template <class F>
    static Floats map_floats(F f) noexcept {
        Floats result;
        for (std::size_t i = 0; i < batches; ++i) result.batch[i] = f(i);
        return result;
    }
};

// Without registers to keep, inlining all of it costs time and code and gains nothing.
#pragma push_macro("DECANT_ALWAYS_INLINE")
#pragma push_macro("DECANT_UNROLL")
#undef DECANT_ALWAYS_INLINE
#undef DECANT_UNROLL
#define DECANT_ALWAYS_INLINE inline
#define DECANT_UNROLL
#include <decant/backend/simd/kernels.inl>
#pragma pop_macro("DECANT_UNROLL")
#pragma pop_macro("DECANT_ALWAYS_INLINE")

}  // namespace portable

using Portable = portable::Set;

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Lanes for AVX-512 with VNNI: a register holds one column group of a panel, 16 rows of 4 codes.

#include <decant/backend/simd/lanes.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>

#if DECANT_X86

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
// The headers of g++ 12 pass on registers that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace decant::inline DECANT_ABI {
namespace simd {
DECANT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")

namespace avx512_vnni {

struct Lanes {
    static constexpr Isa isa = Isa::avx512_vnni;
    static constexpr std::size_t tile_panels = 2;
    static constexpr std::size_t tile_tokens = 6;
    static constexpr std::size_t few_tokens = 4;
    static constexpr std::size_t float_tile_tokens = 6;
    static constexpr std::size_t fused_tokens = 16;
    static constexpr bool keeps_sums = true;

    using Words = __m512i;
    using Floats = __m512;

    static Words load(const void* from) noexcept { return _mm512_loadu_si512(from); }
    static void store(void* to, Words v) noexcept { _mm512_storeu_si512(to, v); }
    static Words words(std::uint32_t x) noexcept { return _mm512_set1_epi32(static_cast<int>(x)); }
    static Words bit_and(Words a, Words b) noexcept { return _mm512_and_si512(a, b); }
    static Words bit_or(Words a, Words b) noexcept { return _mm512_or_si512(a, b); }
    static Words bit_xor(Words a, Words b) noexcept { return _mm512_xor_si512(a, b); }
    template <int Bits>
    static Words left(Words v) noexcept {
        return _mm512_slli_epi32(v, Bits);
    }
    template <int Bits>
    static Words right(Words v) noexcept {
        return _mm512_srli_epi32(v, Bits);
    }
    template <int Bits>
    static Words right_signed(Words v) noexcept {
        return _mm512_srai_epi32(v, Bits);
    }
    static Words add(Words a, Words b) noexcept { return _mm512_add_epi32(a, b); }
    static Words times(Words a, Words b) noexcept { return _mm512_mullo_epi32(a, b); }

    static Words broadcast(const void* word) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, word, sizeof x);
        return _mm512_set1_epi32(x);
    }
    static Words subtract_bytes(Words a, Words b) noexcept { return _mm512_sub_epi8(a, b); }
    static constexpr bool signed_codes(int) noexcept { return false; }
    template <int Bits>
    static Words dot(Words sum, Words codes, Words x) noexcept {
        return _mm512_dpbusd_epi32(sum, codes, x);
    }

    /// Of the word at x. g++ 12 would broadcast it in an instruction of its own.
    static Words dot_word(Words sum, Words codes, const void* x) noexcept {
        using Word __attribute__((may_alias)) = std::int32_t;
        asm("{vpdpbusd %2%{1to16%}, %1, %0|vpdpbusd %0, %1, %2%{1to16%}}"
            : "+v"(sum)
            : "v"(codes), "m"(*static_cast<const Word*>(x)));
        return sum;
    }

    /// Each word is a pair of 16-bit integers (see pair_product.inl).
    struct Pairs {
        static Words dot(Words sum, Words a, Words b) noexcept {
            sum = _mm512_dpwssd_epi32(sum, a, b);
            asm("" : "+v"(sum));  // or g++ 12 keeps the sums in memory
            return sum;
        }
        /// Of numbers without a sign.
        static Words larger(Words a, Words b) noexcept { return _mm512_max_epu16(a, b); }
        /// 32 integers of two registers in order, those beyond 16 bits as the nearest that there is.
        static Words pack(Words a, Words b) noexcept {
            const Words order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
            return _mm512_permutexvar_epi64(order, _mm512_packs_epi32(a, b));
        }
        /// x - floor(x), and y 2^floor(x).
        static Floats fraction(Floats x) noexcept { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF); }
        static Floats raise(Floats y, Floats x) noexcept { return _mm512_scalef_ps(y, x); }
    };

    static void columns(const std::byte* first, std::size_t stride, Words* out) noexcept {
        DECANT_OPAQUE(first);
        const Words a = rows_of(first, stride);
        const Words b = rows_of(first + stride, stride);
        const Words c = rows_of(first + 2 * stride, stride);
        const Words d = rows_of(first + 3 * stride, stride);
        const Words ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
        const Words ab2 = _mm512_unpackhi_epi32(a, b), cd2 = _mm512_unpackhi_epi32(c, d);
        out[0] = _mm512_unpacklo_epi64(ab, cd);
        out[1] = _mm512_unpackhi_epi64(ab, cd);
        out[2] = _mm512_unpacklo_epi64(ab2, cd2);
        out[3] = _mm512_unpackhi_epi64(ab2, cd2);
    }

    static Floats floats(float x) noexcept { return _mm512_set1_ps(x); }
    static Floats load_floats(const float* from) noexcept { return _mm512_loadu_ps(from); }
    static void store_floats(float* to, Floats v) noexcept { _mm512_storeu_ps(to, v); }
    static Floats load_some(const float* from, std::size_t n) noexcept {
        return _mm512_maskz_loadu_ps(first_lanes(n), from);
    }
    static void store_some(float* to, Floats v, std::size_t n) noexcept {
        _mm512_mask_storeu_ps(to, first_lanes(n), v);
    }
    static Floats add(Floats a, Floats b) noexcept { return _mm512_add_ps(a, b); }
    static Floats subtract(Floats a, Floats b) noexcept { return _mm512_sub_ps(a, b); }
    static Floats times(Floats a, Floats b) noexcept { return _mm512_mul_ps(a, b); }
    static Floats over(Floats a, Floats b) noexcept { return _mm512_div_ps(a, b); }
    static Floats multiply_add(Floats a, Floats b, Floats c) noexcept { return _mm512_fmadd_ps(a, b, c); }
    static Floats larger(Floats a, Floats b) noexcept { return _mm512_max_ps(a, b); }
    static Floats smaller(Floats a, Floats b) noexcept { return _mm512_min_ps(a, b); }
    static Floats magnitude(Floats v) noexcept { return _mm512_abs_ps(v); }
    static Floats swapped_pairs(Floats v) noexcept { return _mm512_permute_ps(v, 0xB1); }
    /// a0 b0 a1 b1 and so on, in two registers.
    static void interleave(Floats a, Floats b, Floats* to) noexcept {
        const Words low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        to[0] = _mm512_permutex2var_ps(a, low, b);
        to[1] = _mm512_permutex2var_ps(a, _mm512_add_epi32(low, words(8)), b);
    }
    static float sum(Floats v) noexcept { return _mm512_reduce_add_ps(v); }
    static float largest(Floats v) noexcept { return _mm512_reduce_max_ps(v); }

    static Floats to_floats(Words v) noexcept { return _mm512_cvtepi32_ps(v); }
    static Words nearest(Floats v) noexcept { return _mm512_cvtps_epi32(v); }
    static Floats as_floats(Words v) noexcept { return _mm512_castsi512_ps(v); }
    static Words as_words(Floats v) noexcept { return _mm512_castps_si512(v); }
    static Floats halves(const void* from) noexcept {
        return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
    }
    static Floats low_halves(Words v) noexcept { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
    static void store_halves(void* to, Floats v) noexcept {
        _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    static void store_bytes(void* to, Words v) noexcept {
        _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_cvtepi32_epi8(v));
    }
    static Words larger(Words a, Words b) noexcept { return _mm512_max_epu32(a, b); }
    static std::uint32_t largest(Words v) noexcept { return _mm512_reduce_max_epu32(v); }
    static std::int32_t sum(Words v) noexcept { return _mm512_reduce_add_epi32(v); }

 private:
    static __mmask16 first_lanes(std::size_t n) noexcept { return static_cast<__mmask16>((1u << n) - 1u); }
    /// 16 bytes of rows 0, 4, 8 and 12.
    static Words rows_of(const std::byte* first, std::size_t stride) noexcept {
        Words v = _mm512_castsi128_si512(four_words(first));
        v = _mm512_mask_broadcast_i32x4(v, 0x00F0, four_words(first + 4 * stride));
        v = _mm512_mask_broadcast_i32x4(v, 0x0F00, four_words(first + 8 * stride));
        return _mm512_mask_broadcast_i32x4(v, 0xF000, four_words(first + 12 * stride));
    }
    static __m128i four_words(const std::byte* from) noexcept {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }
};

#include <decant/backend/simd/kernels.inl>

}  // namespace avx512_vnni

DECANT_TARGET_END

using Avx512Vnni = avx512_vnni::Set;

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif  // DECANT_X86

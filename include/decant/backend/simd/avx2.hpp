// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Lanes for AVX2 with FMA and F16C, and for its later addition of VNNI: rows 0..7 of a panel in one register, 8..15 in
/// another.

#include <decant/backend/simd/lanes.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>

#if DECANT_X86

namespace decant::inline DECANT_ABI {
namespace simd {

DECANT_TARGET_BEGIN("avx2,fma,f16c")

/// What does not depend on VNNI.
struct Avx2BaseLanes {
    static constexpr std::size_t tile_panels = 1;
    static constexpr std::size_t tile_tokens = 4;
    static constexpr std::size_t few_tokens = 2;
    static constexpr std::size_t float_tile_tokens = 6;
    static constexpr std::size_t fused_tokens = 4;
    static constexpr bool keeps_sums = false;

    struct Words {
        __m256i low, high;
    };
    struct Floats {
        __m256 low, high;
    };

    static Words load(const void* from) noexcept {
        const auto* const v = static_cast<const __m256i*>(from);
        return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
    }
    static void store(void* to, Words v) noexcept {
        auto* const out = static_cast<__m256i*>(to);
        _mm256_storeu_si256(out, v.low);
        _mm256_storeu_si256(out + 1, v.high);
    }
    static Words words(std::uint32_t x) noexcept { return both(_mm256_set1_epi32(static_cast<int>(x))); }
    static Words bit_and(Words a, Words b) noexcept {
        return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
    }
    static Words bit_or(Words a, Words b) noexcept {
        return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
    }
    static Words bit_xor(Words a, Words b) noexcept {
        return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
    }
    template <int Bits>
    static Words left(Words v) noexcept {
        return {_mm256_slli_epi32(v.low, Bits), _mm256_slli_epi32(v.high, Bits)};
    }
    template <int Bits>
    static Words right(Words v) noexcept {
        return {_mm256_srli_epi32(v.low, Bits), _mm256_srli_epi32(v.high, Bits)};
    }
    template <int Bits>
    static Words right_signed(Words v) noexcept {
        return {_mm256_srai_epi32(v.low, Bits), _mm256_srai_epi32(v.high, Bits)};
    }
    static Words add(Words a, Words b) noexcept {
        return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
    }
    static Words times(Words a, Words b) noexcept {
        return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
    }
    static Words broadcast(const void* word) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, word, sizeof x);
        return both(_mm256_set1_epi32(x));
    }
    static Words subtract_bytes(Words a, Words b) noexcept {
        return {_mm256_sub_epi8(a.low, b.low), _mm256_sub_epi8(a.high, b.high)};
    }

    static void columns(const std::byte* first, std::size_t stride, Words* out) noexcept {
        __m256i low[4], high[4];
        columns_of_8(first, stride, low);
        columns_of_8(first + 8 * stride, stride, high);
        DECANT_UNROLL
        for (int i = 0; i < 4; ++i) out[i] = {low[i], high[i]};
    }

    static Floats floats(float x) noexcept { return both(_mm256_set1_ps(x)); }
    static Floats load_floats(const float* from) noexcept { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
    static void store_floats(float* to, Floats v) noexcept {
        _mm256_storeu_ps(to, v.low);
        _mm256_storeu_ps(to + 8, v.high);
    }
    static Floats load_some(const float* from, std::size_t n) noexcept {
        const Words mask = first_lanes(n);
        return {_mm256_maskload_ps(from, mask.low), _mm256_maskload_ps(from + 8, mask.high)};
    }
    static void store_some(float* to, Floats v, std::size_t n) noexcept {
        const Words mask = first_lanes(n);
        _mm256_maskstore_ps(to, mask.low, v.low);
        _mm256_maskstore_ps(to + 8, mask.high, v.high);
    }
    static Floats add(Floats a, Floats b) noexcept {
        return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
    }
    static Floats subtract(Floats a, Floats b) noexcept {
        return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
    }
    static Floats times(Floats a, Floats b) noexcept {
        return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
    }
    static Floats over(Floats a, Floats b) noexcept {
        return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
    }
    static Floats multiply_add(Floats a, Floats b, Floats c) noexcept {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
    static Floats larger(Floats a, Floats b) noexcept {
        return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
    }
    static Floats smaller(Floats a, Floats b) noexcept {
        return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
    }
    static Floats magnitude(Floats v) noexcept {
        const __m256 sign = _mm256_set1_ps(-0.0f);
        return {_mm256_andnot_ps(sign, v.low), _mm256_andnot_ps(sign, v.high)};
    }
    static Floats swapped_pairs(Floats v) noexcept {
        return {_mm256_permute_ps(v.low, 0xB1), _mm256_permute_ps(v.high, 0xB1)};
    }
    static void interleave(Floats a, Floats b, Floats* to) noexcept {
        to[0] = interleaved(a.low, b.low);
        to[1] = interleaved(a.high, b.high);
    }
    static float sum(Floats v) noexcept {
        const __m256 eight = _mm256_add_ps(v.low, v.high);
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        four = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
    }
    static float largest(Floats v) noexcept {
        const __m256 eight = _mm256_max_ps(v.low, v.high);
        __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        four = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
    }
    static Words larger(Words a, Words b) noexcept {
        return {_mm256_max_epu32(a.low, b.low), _mm256_max_epu32(a.high, b.high)};
    }
    static std::uint32_t largest(Words v) noexcept {
        const __m256i eight = _mm256_max_epu32(v.low, v.high);
        __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4E));
        return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xB1))));
    }
    static std::int32_t sum(Words v) noexcept {
        const __m256i eight = _mm256_add_epi32(v.low, v.high);
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
        return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
    }

    static Floats to_floats(Words v) noexcept { return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)}; }
    static Words nearest(Floats v) noexcept { return {_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)}; }
    static Floats as_floats(Words v) noexcept { return {_mm256_castsi256_ps(v.low), _mm256_castsi256_ps(v.high)}; }
    static Words as_words(Floats v) noexcept { return {_mm256_castps_si256(v.low), _mm256_castps_si256(v.high)}; }
    static Floats halves(const void* from) noexcept {
        const auto* const v = static_cast<const __m128i*>(from);
        return {_mm256_cvtph_ps(_mm_loadu_si128(v)), _mm256_cvtph_ps(_mm_loadu_si128(v + 1))};
    }
    static Floats low_halves(Words v) noexcept {
        const Words low = bit_and(v, words(0xFFFFu));
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low.low, low.high), 0xD8);
        return {_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))};
    }
    static void store_halves(void* to, Floats v) noexcept {
        auto* const out = static_cast<__m128i*>(to);
        _mm_storeu_si128(out, _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128(out + 1, _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT));
    }
    static void store_bytes(void* to, Words v) noexcept {
        const __m256i words16 = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.low, v.high), 0xD8);
        const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words16), _mm256_extracti128_si256(words16, 1));
        _mm_storeu_si128(static_cast<__m128i*>(to), bytes);
    }

 protected:
    static Words both(__m256i v) noexcept { return {v, v}; }
    static Floats both(__m256 v) noexcept { return {v, v}; }

 private:
    static Floats interleaved(__m256 a, __m256 b) noexcept {
        const __m256 even = _mm256_unpacklo_ps(a, b), odd = _mm256_unpackhi_ps(a, b);  // of each half
        return {_mm256_permute2f128_ps(even, odd, 0x20), _mm256_permute2f128_ps(even, odd, 0x31)};
    }
    static Words first_lanes(std::size_t n) noexcept {
        const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
        return {_mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                _mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
    }
    static void columns_of_8(const std::byte* first, std::size_t stride, __m256i* out) noexcept {
        const __m256i a = rows_of(first, stride), b = rows_of(first + stride, stride);
        const __m256i c = rows_of(first + 2 * stride, stride), d = rows_of(first + 3 * stride, stride);
        const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
        const __m256i ab2 = _mm256_unpackhi_epi32(a, b), cd2 = _mm256_unpackhi_epi32(c, d);
        out[0] = _mm256_unpacklo_epi64(ab, cd);
        out[1] = _mm256_unpackhi_epi64(ab, cd);
        out[2] = _mm256_unpacklo_epi64(ab2, cd2);
        out[3] = _mm256_unpackhi_epi64(ab2, cd2);
    }
    /// 16 bytes of rows 0 and 4.
    static __m256i rows_of(const std::byte* first, std::size_t stride) noexcept {
        const auto four_words = [](const std::byte* from) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        };
        return _mm256_inserti128_si256(_mm256_castsi128_si256(four_words(first)), four_words(first + 4 * stride), 1);
    }
};

namespace avx2 {

struct Lanes : Avx2BaseLanes {
    static constexpr Isa isa = Isa::avx2;

    using Pairs = void;

    /// The pairwise product takes unsigned by signed bytes and saturates at 16 bits, which codes of seven bits cannot
    /// reach: 2 * 127 * 127 = 32258. Codes of eight bits are made signed, and give their sign to x: 2 * 128 * 127.
    static constexpr bool signed_codes(int bits) noexcept { return bits > 7; }
    template <int Bits>
    static Words dot(Words sum, Words codes, Words x) noexcept {
        return {dot_of_8<Bits>(sum.low, codes.low, x.low), dot_of_8<Bits>(sum.high, codes.high, x.high)};
    }

 private:
    template <int Bits>
    static __m256i dot_of_8(__m256i sum, __m256i codes, __m256i x) noexcept {
        __m256i pairs;
        if constexpr (signed_codes(Bits)) {
            pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
        } else {
            pairs = _mm256_maddubs_epi16(codes, x);
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        asm("" : "+x"(sum));  // or g++ adds the products in another order, for which it has no registers
        return sum;
    }
};

#include <decant/backend/simd/kernels.inl>

}  // namespace avx2

DECANT_TARGET_END

DECANT_TARGET_BEGIN("avx2,fma,f16c,avxvnni")

namespace avx_vnni {

struct Lanes : Avx2BaseLanes {
    static constexpr Isa isa = Isa::avx_vnni;

    struct Pairs {
        static Words dot(Words sum, Words a, Words b) noexcept {
            sum = {_mm256_dpwssd_avx_epi32(sum.low, a.low, b.low), _mm256_dpwssd_avx_epi32(sum.high, a.high, b.high)};
            asm("" : "+x"(sum.low), "+x"(sum.high));  // or g++ 12 keeps the sums in memory
            return sum;
        }
        static Words larger(Words a, Words b) noexcept {
            return {_mm256_max_epu16(a.low, b.low), _mm256_max_epu16(a.high, b.high)};
        }
        static Words pack(Words a, Words b) noexcept {
            return {_mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xD8),
                    _mm256_permute4x64_epi64(_mm256_packs_epi32(b.low, b.high), 0xD8)};
        }
        static Floats fraction(Floats x) noexcept {
            x = Avx2BaseLanes::larger(floats(lowest), x);
            return subtract(x, {_mm256_floor_ps(x.low), _mm256_floor_ps(x.high)});
        }
        static Floats raise(Floats y, Floats x) noexcept {
            x = Avx2BaseLanes::larger(floats(lowest), x);
            const Words n = nearest({_mm256_floor_ps(x.low), _mm256_floor_ps(x.high)});
            return Avx2BaseLanes::times(y, as_floats(left<23>(Avx2BaseLanes::add(n, words(127)))));
        }

     private:
        static constexpr float lowest = -127.0f;  // 2^-127 is taken for 0
    };

    static constexpr bool signed_codes(int) noexcept { return false; }
    template <int Bits>
    static Words dot(Words sum, Words codes, Words x) noexcept {
        return {_mm256_dpbusd_avx_epi32(sum.low, codes.low, x.low),
                _mm256_dpbusd_avx_epi32(sum.high, codes.high, x.high)};
    }
};

#include <decant/backend/simd/kernels.inl>

}  // namespace avx_vnni

DECANT_TARGET_END

using Avx2 = avx2::Set;
using AvxVnni = avx_vnni::Set;

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

#endif  // DECANT_X86

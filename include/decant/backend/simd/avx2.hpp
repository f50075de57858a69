// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Kernels for AVX2 with FMA and F16C. The contracts stand in portable.hpp.

#include <decant/backend/simd/portable.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>

#if DECANT_X86

namespace decant::inline DECANT_ABI {
namespace simd {

DECANT_TARGET_BEGIN("avx2,fma,f16c")

struct Avx2 : Portable {
    static constexpr Isa isa = Isa::avx2;

    static void quantize(const float* x, std::size_t columns, Activations row) noexcept {
        const __m256 sign = _mm256_set1_ps(-0.0f);
        for (std::size_t b = 0; b < columns / activation_block; ++b, x += activation_block) {
            __m256 v[4];
            __m256 peaks = _mm256_setzero_ps();
            __m256 nothing = _mm256_setzero_ps();
            DECANT_UNROLL
            for (int i = 0; i < 4; ++i) {
                v[i] = _mm256_loadu_ps(x + 8 * i);
                peaks = _mm256_max_ps(peaks, _mm256_andnot_ps(sign, v[i]));
                nothing = _mm256_fmadd_ps(v[i], _mm256_setzero_ps(), nothing);
            }
            const float peak = reduce_max(peaks);
            const float none = reduce_add(nothing);
            const bool usable = none == 0.0f && peak >= smallest_magnitude;
            row.scales[b] = usable ? peak / 127.0f : none;
            __m256i codes[4];
            DECANT_UNROLL
            for (int i = 0; i < 4; ++i) {
                codes[i] = usable ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(127.0f / peak)))
                                  : _mm256_setzero_si256();
            }
            row.sums[2 * b] = reduce_add(_mm256_add_epi32(codes[0], codes[1]));
            row.sums[2 * b + 1] = reduce_add(_mm256_add_epi32(codes[2], codes[3]));
            // packs interleaves the 128-bit halves; the permutation puts the dwords back in order.
            const __m256i bytes =
                _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.codes + b * activation_block),
                                _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
        }
    }

    template <std::size_t Block, bool HasOffset, bool EightBits>
    static void multiply(CodePanel panel, int bias, std::size_t columns, Activations a, std::size_t tokens,
                         float* acc) noexcept {
        for (; tokens >= 4; tokens -= 4, a = a.from(4, 0), acc += 4 * panel_rows)
            multiply_tokens<4, Block, HasOffset, EightBits>(panel, bias, columns, a, acc);
        for (; tokens > 0; --tokens, a = a.from(1, 0), acc += panel_rows)
            multiply_tokens<1, Block, HasOffset, EightBits>(panel, bias, columns, a, acc);
    }

    static void multiply(FloatPanel panel, std::size_t columns, const float* x, std::size_t stride, std::size_t tokens,
                         float* acc) noexcept {
        for (; tokens > 0; --tokens, x += stride, acc += panel_rows) {
            __m256 low[4], high[4];
            DECANT_UNROLL
            for (int p = 0; p < 4; ++p) low[p] = high[p] = _mm256_setzero_ps();
            std::size_t c = 0;
            for (; c + 4 <= columns; c += 4) DECANT_UNROLL
            for (std::size_t p = 0; p < 4; ++p) multiply_column(panel, c + p, x, low[p], high[p]);
            for (std::size_t p = 0; c < columns; ++c, ++p) multiply_column(panel, c, x, low[p], high[p]);
            add_to(acc, _mm256_add_ps(_mm256_add_ps(low[0], low[1]), _mm256_add_ps(low[2], low[3])));
            add_to(acc + 8, _mm256_add_ps(_mm256_add_ps(high[0], high[1]), _mm256_add_ps(high[2], high[3])));
        }
    }

    static float dot(const float* a, const float* b, std::size_t n) noexcept {
        __m256 partial[4];
        DECANT_UNROLL
        for (int p = 0; p < 4; ++p) partial[p] = _mm256_setzero_ps();
        std::size_t i = 0;
        for (; i + 32 <= n; i += 32) DECANT_UNROLL
        for (std::size_t p = 0; p < 4; ++p)
            partial[p] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * p), _mm256_loadu_ps(b + i + 8 * p), partial[p]);
        for (; i + 8 <= n; i += 8)
            partial[0] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), partial[0]);
        float sum =
            reduce_add(_mm256_add_ps(_mm256_add_ps(partial[0], partial[1]), _mm256_add_ps(partial[2], partial[3])));
        for (; i < n; ++i) sum += a[i] * b[i];
        return sum;
    }

    static void axpy(float a, const float* x, float* y, std::size_t n) noexcept {
        std::size_t i = 0;
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(y + i, _mm256_fmadd_ps(_mm256_set1_ps(a), _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
        for (; i < n; ++i) y[i] += a * x[i];
    }

    static void from_half(const std::byte* half, float* to, std::size_t n) noexcept {
        std::size_t i = 0;
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half + 2 * i))));
        Portable::from_half(half + 2 * i, to + i, n - i);
    }
    static void to_half(const float* from, std::byte* half, std::size_t n) noexcept {
        std::size_t i = 0;
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(half + 2 * i),
                             _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
        Portable::to_half(from + i, half + 2 * i, n - i);
    }

    template <bool Half>
    static void transpose(const std::byte* const* rows, std::size_t n, FloatPanel out) noexcept {
        std::size_t c = 0;
        for (; c + 8 <= n; c += 8)
            for (std::size_t first = 0; first < panel_rows; first += 8) {
                __m256 v[8];
                DECANT_UNROLL
                for (std::size_t r = 0; r < 8; ++r) v[r] = load_entries<Half>(rows[first + r], c);
                transpose_8(v, out.values + c * panel_rows + first);
            }
        if (c < n) transpose_rest<Half>(rows, c, n, out);
    }

 private:
    /// Entries [c, c + 8) of a row of a cache; zeros if there is none.
    template <bool Half>
    static __m256 load_entries(const std::byte* row, std::size_t c) noexcept {
        if (row == nullptr) return _mm256_setzero_ps();
        row += c * sizeof(Entry<Half>);
        if constexpr (Half) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
        return _mm256_loadu_ps(reinterpret_cast<const float*>(row));
    }

    /// Stores the 8 columns of 8 rows, 16 floats apart: pairs of rows, fours, then 128-bit lanes.
    static void transpose_8(const __m256* v, float* to) noexcept {
        __m256 a[8], b[8];
        DECANT_UNROLL
        for (int i = 0; i < 8; i += 2) {
            a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
            a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
        }
        DECANT_UNROLL
        for (int i = 0; i < 8; i += 4) {
            b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
            b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xEE);
            b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
            b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
        }
        DECANT_UNROLL
        for (int j = 0; j < 4; ++j) {
            _mm256_storeu_ps(to + j * 16, _mm256_permute2f128_ps(b[j], b[4 + j], 0x20));
            _mm256_storeu_ps(to + (4 + j) * 16, _mm256_permute2f128_ps(b[j], b[4 + j], 0x31));
        }
    }

    static void add_to(float* acc, __m256 sum) noexcept {
        _mm256_storeu_ps(acc, _mm256_add_ps(_mm256_loadu_ps(acc), sum));
    }

    static void multiply_column(FloatPanel panel, std::size_t c, const float* x, __m256& low, __m256& high) noexcept {
        const __m256 v = _mm256_set1_ps(x[c]);
        low = _mm256_fmadd_ps(_mm256_loadu_ps(panel.values + c * panel_rows), v, low);
        high = _mm256_fmadd_ps(_mm256_loadu_ps(panel.values + c * panel_rows + 8), v, high);
    }

    /// sum += dot products of four unsigned and four signed bytes in every lane. The pairwise product saturates at 16
    /// bits, which codes below 128 cannot reach (2 * 127 * 127 = 32258); larger codes go in two parts.
    template <bool EightBits>
    static __m256i dot4(__m256i sum, __m256i w, __m256i x) noexcept {
        const __m256i ones = _mm256_set1_epi16(1);
        if constexpr (!EightBits) {
            return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones));
        } else {
            const __m256i low = _mm256_and_si256(w, _mm256_set1_epi8(0x7F));
            const __m256i top = _mm256_and_si256(_mm256_srli_epi16(w, 7), _mm256_set1_epi8(1));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(low, x), ones));
            return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(top, x), _mm256_set1_epi16(128)));
        }
    }

    template <std::size_t Tokens, std::size_t Block, bool HasOffset, bool EightBits>
    static void multiply_tokens(CodePanel panel, int bias, std::size_t columns, Activations a, float* acc) noexcept {
        const std::uint8_t* codes = panel.codes;
        for (std::size_t b = 0; b < columns / Block; ++b) {
            __m256i low[Tokens], high[Tokens];
            std::int32_t sums[Tokens];
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t) {
                sums[t] = block_sum<Block>(a.from(t, 0), b);
                low[t] = high[t] = _mm256_set1_epi32(-bias * sums[t]);
            }
            const std::int8_t* x = a.codes + b * Block;
            DECANT_UNROLL
            for (std::size_t g = 0; g < Block / panel_group; ++g, codes += 64, x += panel_group) {
                const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
                const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32));
                DECANT_UNROLL
                for (std::size_t t = 0; t < Tokens; ++t) {
                    const __m256i four = broadcast(x + t * a.stride);
                    low[t] = dot4<EightBits>(low[t], w0, four);
                    high[t] = dot4<EightBits>(high[t], w1, four);
                }
            }
            const __m256 scale0 = _mm256_loadu_ps(panel.scales + b * panel_rows);
            const __m256 scale1 = _mm256_loadu_ps(panel.scales + b * panel_rows + 8);
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t) {
                const float scale = a.scales[t * a.stride / activation_block + b * Block / activation_block];
                const __m256 s = _mm256_set1_ps(scale);
                float* const y = acc + t * panel_rows;
                __m256 y0 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low[t]), _mm256_mul_ps(scale0, s), _mm256_loadu_ps(y));
                __m256 y1 =
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(high[t]), _mm256_mul_ps(scale1, s), _mm256_loadu_ps(y + 8));
                if constexpr (HasOffset) {
                    const __m256 weighted = _mm256_set1_ps(scale * static_cast<float>(sums[t]));
                    y0 = _mm256_fmadd_ps(_mm256_loadu_ps(panel.offsets + b * panel_rows), weighted, y0);
                    y1 = _mm256_fmadd_ps(_mm256_loadu_ps(panel.offsets + b * panel_rows + 8), weighted, y1);
                }
                _mm256_storeu_ps(y, y0);
                _mm256_storeu_ps(y + 8, y1);
            }
        }
    }

    static __m256i broadcast(const std::int8_t* four) noexcept {
        std::int32_t word;
        __builtin_memcpy(&word, four, sizeof word);
        return _mm256_set1_epi32(word);
    }
    static float reduce_add(__m256 v) noexcept {
        __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
    }
    static float reduce_max(__m256 v) noexcept {
        __m128 peak = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        peak = _mm_max_ps(peak, _mm_movehl_ps(peak, peak));
        return _mm_cvtss_f32(_mm_max_ss(peak, _mm_movehdup_ps(peak)));
    }
    static std::int32_t reduce_add(__m256i v) noexcept {
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
        return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
    }
};

DECANT_TARGET_END

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

#endif  // DECANT_X86

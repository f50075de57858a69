// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Kernels for AVX-512 with VNNI. A register holds one column group of a panel: 16 rows of 4 codes. The contracts stand
/// in portable.hpp.

#include <decant/backend/simd/avx2.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>

#if DECANT_X86

namespace decant::inline DECANT_ABI {
namespace simd {

DECANT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")

struct Avx512Vnni : Avx2 {
    static constexpr Isa isa = Isa::avx512_vnni;

    template <std::size_t Block, bool HasOffset, bool EightBits>
    static void multiply(CodePanel panel, int bias, std::size_t columns, Activations a, std::size_t tokens,
                         float* acc) noexcept {
        for (; tokens >= 8; tokens -= 8, a = a.from(8, 0), acc += 8 * panel_rows)
            multiply_tokens<8, Block, HasOffset>(panel, bias, columns, a, acc);
        for (; tokens >= 4; tokens -= 4, a = a.from(4, 0), acc += 4 * panel_rows)
            multiply_tokens<4, Block, HasOffset>(panel, bias, columns, a, acc);
        for (; tokens > 0; --tokens, a = a.from(1, 0), acc += panel_rows)
            multiply_tokens<1, Block, HasOffset>(panel, bias, columns, a, acc);
    }

    static void multiply(FloatPanel panel, std::size_t columns, const float* x, std::size_t stride, std::size_t tokens,
                         float* acc) noexcept {
        for (; tokens >= 4; tokens -= 4, x += 4 * stride, acc += 4 * panel_rows)
            multiply_floats<4>(panel, columns, x, stride, acc);
        for (; tokens > 0; --tokens, x += stride, acc += panel_rows) multiply_floats<1>(panel, columns, x, stride, acc);
    }

    template <bool Half>
    static void transpose(const std::byte* const* rows, std::size_t n, FloatPanel out) noexcept {
        std::size_t c = 0;
        for (; c + 16 <= n; c += 16) {
            __m512 v[16];
            DECANT_UNROLL
            for (std::size_t r = 0; r < 16; ++r) v[r] = load_entries<Half>(rows[r], c);
            transpose_16(v, out.values + c * panel_rows);
        }
        if (c < n) transpose_rest<Half>(rows, c, n, out);
    }

 private:
    /// Entries [c, c + 16) of a row of a cache; zeros if there is none.
    template <bool Half>
    static __m512 load_entries(const std::byte* row, std::size_t c) noexcept {
        if (row == nullptr) return _mm512_setzero_ps();
        row += c * sizeof(Entry<Half>);
        if constexpr (Half)
            return _mm512_maskz_cvtph_ps(all, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
        return _mm512_loadu_ps(row);
    }

    /// Stores the 16 columns of 16 rows: pairs of rows, fours, then 128-bit lanes twice.
    static void transpose_16(const __m512* v, float* to) noexcept {
        __m512 a[16], b[16];
        DECANT_UNROLL
        for (int i = 0; i < 16; i += 2) {
            a[i] = _mm512_maskz_unpacklo_ps(all, v[i], v[i + 1]);
            a[i + 1] = _mm512_maskz_unpackhi_ps(all, v[i], v[i + 1]);
        }
        DECANT_UNROLL
        for (int i = 0; i < 16; i += 4) {
            b[i] = low_pairs(a[i], a[i + 2]);
            b[i + 1] = high_pairs(a[i], a[i + 2]);
            b[i + 2] = low_pairs(a[i + 1], a[i + 3]);
            b[i + 3] = high_pairs(a[i + 1], a[i + 3]);
        }
        DECANT_UNROLL
        for (int j = 0; j < 4; ++j) {
            const __m512 even0 = lanes<0x88>(b[j], b[4 + j]), odd0 = lanes<0xDD>(b[j], b[4 + j]);
            const __m512 even1 = lanes<0x88>(b[8 + j], b[12 + j]), odd1 = lanes<0xDD>(b[8 + j], b[12 + j]);
            _mm512_storeu_ps(to + j * 16, lanes<0x88>(even0, even1));
            _mm512_storeu_ps(to + (4 + j) * 16, lanes<0x88>(odd0, odd1));
            _mm512_storeu_ps(to + (8 + j) * 16, lanes<0xDD>(even0, even1));
            _mm512_storeu_ps(to + (12 + j) * 16, lanes<0xDD>(odd0, odd1));
        }
    }
    // For forms with a mask: g++ 12 warns of the register that those without leave undefined.
    static constexpr __mmask16 all = 0xFFFF;
    static __m512 low_pairs(__m512 a, __m512 b) noexcept {
        return _mm512_castpd_ps(
            _mm512_maskz_unpacklo_pd(static_cast<__mmask8>(0xFF), _mm512_castps_pd(a), _mm512_castps_pd(b)));
    }
    static __m512 high_pairs(__m512 a, __m512 b) noexcept {
        return _mm512_castpd_ps(
            _mm512_maskz_unpackhi_pd(static_cast<__mmask8>(0xFF), _mm512_castps_pd(a), _mm512_castps_pd(b)));
    }
    template <int Which>
    static __m512 lanes(__m512 a, __m512 b) noexcept {
        return _mm512_maskz_shuffle_f32x4(all, a, b, Which);
    }

    /// `_mm512_cvtepi32_ps`, whose g++ 12 header trips -Wmaybe-uninitialized.
    static __m512 to_float(__m512i v) noexcept { return _mm512_maskz_cvtepi32_ps(static_cast<__mmask16>(0xFFFF), v); }

    template <std::size_t Tokens, std::size_t Block, bool HasOffset>
    static void multiply_tokens(CodePanel panel, int bias, std::size_t columns, Activations a, float* acc) noexcept {
        __m512 y[Tokens];
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) y[t] = _mm512_loadu_ps(acc + t * panel_rows);
        const std::uint8_t* codes = panel.codes;
        for (std::size_t b = 0; b < columns / Block; ++b) {
            __m512i dots[Tokens];
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t)
                dots[t] = _mm512_set1_epi32(-bias * block_sum<Block>(a.from(t, 0), b));
            const std::int8_t* x = a.codes + b * Block;
            DECANT_UNROLL
            for (std::size_t g = 0; g < Block / panel_group; ++g, codes += 64, x += panel_group) {
                const __m512i w = _mm512_loadu_si512(codes);
                DECANT_UNROLL
                for (std::size_t t = 0; t < Tokens; ++t) {
                    std::int32_t four;
                    __builtin_memcpy(&four, x + t * a.stride, sizeof four);
                    dots[t] = _mm512_dpbusd_epi32(dots[t], w, _mm512_set1_epi32(four));
                }
            }
            const __m512 scales = _mm512_loadu_ps(panel.scales + b * panel_rows);
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t) {
                const float scale = a.scales[t * a.stride / activation_block + b * Block / activation_block];
                y[t] = _mm512_fmadd_ps(to_float(dots[t]), _mm512_mul_ps(scales, _mm512_set1_ps(scale)), y[t]);
                if constexpr (HasOffset) {
                    const float weighted = scale * static_cast<float>(block_sum<Block>(a.from(t, 0), b));
                    y[t] = _mm512_fmadd_ps(_mm512_loadu_ps(panel.offsets + b * panel_rows), _mm512_set1_ps(weighted),
                                           y[t]);
                }
            }
        }
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) _mm512_storeu_ps(acc + t * panel_rows, y[t]);
    }

    template <std::size_t Tokens>
    static void multiply_floats(FloatPanel panel, std::size_t columns, const float* x, std::size_t stride,
                                float* acc) noexcept {
        __m512 partial[Tokens][4];
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) DECANT_UNROLL
        for (int p = 0; p < 4; ++p) partial[t][p] = _mm512_setzero_ps();
        std::size_t c = 0;
        for (; c + 4 <= columns; c += 4) {
            DECANT_UNROLL
            for (std::size_t p = 0; p < 4; ++p) {
                const __m512 w = _mm512_loadu_ps(panel.values + (c + p) * panel_rows);
                DECANT_UNROLL
                for (std::size_t t = 0; t < Tokens; ++t)
                    partial[t][p] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[t * stride + c + p]), partial[t][p]);
            }
        }
        for (std::size_t p = 0; c < columns; ++c, ++p) {
            const __m512 w = _mm512_loadu_ps(panel.values + c * panel_rows);
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t)
                partial[t][p] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[t * stride + c]), partial[t][p]);
        }
        DECANT_UNROLL
        for (std::size_t t = 0; t < Tokens; ++t) {
            const __m512 sum =
                _mm512_add_ps(_mm512_add_ps(partial[t][0], partial[t][1]), _mm512_add_ps(partial[t][2], partial[t][3]));
            _mm512_storeu_ps(acc + t * panel_rows, _mm512_add_ps(_mm512_loadu_ps(acc + t * panel_rows), sum));
        }
    }
};

DECANT_TARGET_END

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

#endif  // DECANT_X86

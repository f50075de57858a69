// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The passes over a row of logits for x86 with AVX2, picked when the program runs. Same bits as the portable ones: the
/// region leaves fused multiply-add out on purpose.

#include <decant/core/config.hpp>
#include <decant/core/target.hpp>

#include <cstddef>
#include <cstdint>

#if DECANT_X86
namespace decant::inline DECANT_ABI {
namespace detail {

DECANT_TARGET_BEGIN("avx2")

/// `RowKernels::survey`
inline bool survey_avx2(const float* x, std::size_t blocks, std::size_t block, float* maxima) noexcept {
    __m256i largest = _mm256_setzero_si256();  // of the bits without the sign: NaN lies above infinity
    for (std::size_t b = 0; b < blocks; ++b, x += block) {
        __m256 high0 = _mm256_loadu_ps(x);
        __m256 high1 = high0;
        for (std::size_t i = 0; i < block; i += 16) {
            const __m256 first = _mm256_loadu_ps(x + i);
            const __m256 second = _mm256_loadu_ps(x + i + 8);
            high0 = _mm256_max_ps(high0, first);
            high1 = _mm256_max_ps(high1, second);
            largest = _mm256_max_epu32(largest, _mm256_slli_epi32(_mm256_castps_si256(first), 1));
            largest = _mm256_max_epu32(largest, _mm256_slli_epi32(_mm256_castps_si256(second), 1));
        }
        const __m256 both = _mm256_max_ps(high0, high1);
        __m128 high = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
        high = _mm_max_ps(high, _mm_movehl_ps(high, high));
        high = _mm_max_ss(high, _mm_shuffle_ps(high, high, 1));
        maxima[b] = _mm_cvtss_f32(high);
    }
    const __m256i infinity = _mm256_set1_epi32(static_cast<std::int32_t>(0xff000000u));
    const __m256i no_nan = _mm256_cmpeq_epi32(_mm256_max_epu32(largest, infinity), infinity);
    return _mm256_movemask_epi8(no_nan) == -1;
}

/// `RowKernels::weigh`, step by step `weigh_portable`.
inline double weigh_avx2(const float* x, float highest, float inverse, float* exponents, float* weights) noexcept {
    __m256 sums = _mm256_setzero_ps();
    for (std::size_t i = 0; i < 64; i += 8) {
        const __m256 scaled =
            _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(highest)), _mm256_set1_ps(inverse));
        const __m256 exponent = _mm256_max_ps(scaled, _mm256_set1_ps(-88.0f));
        _mm256_storeu_ps(exponents + i, exponent);
        const __m256i n = _mm256_cvttps_epi32(
            _mm256_sub_ps(_mm256_mul_ps(exponent, _mm256_set1_ps(1.44269504f)), _mm256_set1_ps(0.5f)));
        const __m256 whole = _mm256_cvtepi32_ps(n);
        const __m256 r = _mm256_add_ps(_mm256_sub_ps(exponent, _mm256_mul_ps(whole, _mm256_set1_ps(0.693359375f))),
                                       _mm256_mul_ps(whole, _mm256_set1_ps(2.12194440e-4f)));
        __m256 sum = _mm256_set1_ps(1.0f / 5040.0f);
        sum = _mm256_add_ps(_mm256_mul_ps(sum, r), _mm256_set1_ps(1.0f / 720.0f));
        sum = _mm256_add_ps(_mm256_mul_ps(sum, r), _mm256_set1_ps(1.0f / 120.0f));
        sum = _mm256_add_ps(_mm256_mul_ps(sum, r), _mm256_set1_ps(1.0f / 24.0f));
        sum = _mm256_add_ps(_mm256_mul_ps(sum, r), _mm256_set1_ps(1.0f / 6.0f));
        sum = _mm256_add_ps(_mm256_mul_ps(sum, r), _mm256_set1_ps(0.5f));
        sum = _mm256_add_ps(_mm256_mul_ps(sum, r), _mm256_set1_ps(1.0f));
        sum = _mm256_add_ps(_mm256_mul_ps(sum, r), _mm256_set1_ps(1.0f));
        const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23);
        const __m256 weight = _mm256_mul_ps(sum, _mm256_castsi256_ps(power));
        _mm256_storeu_ps(weights + i, weight);
        sums = _mm256_add_ps(sums, weight);
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, sums);
    double total = 0.0;
    for (const float lane : lanes) total += static_cast<double>(lane);
    return total;
}

DECANT_TARGET_END

}  // namespace detail
}  // namespace decant::inline DECANT_ABI
#endif

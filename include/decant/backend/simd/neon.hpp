// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Lanes for AArch64, where NEON is always there, and for its later addition of dot products: rows 0..3 of a panel in
/// one register, 4..7 in the next, and so on.

#include <decant/backend/simd/lanes.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>

#if DECANT_ARM64

#include <cstddef>
#include <cstdint>

#if defined(__clang__)
#define DECANT_DOTPROD "dotprod"
#elif defined(__ARM_FEATURE_DOTPROD)
#define DECANT_DOTPROD "+dotprod"
#else
#define DECANT_DOTPROD "arch=armv8.2-a+dotprod"
#endif

// Before version 16, clang declares the intrinsic only where the host's flags ask for dot products.
#if defined(__clang__) && __clang_major__ < 16 && !defined(__ARM_FEATURE_DOTPROD)
#define DECANT_DOTPROD_INTRINSIC 0
#else
#define DECANT_DOTPROD_INTRINSIC 1
#endif

// The scheduler that g++ runs before it assigns registers has all operands of a block loaded first, and spills them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("no-schedule-insns")
#endif

namespace decant::inline DECANT_ABI {
namespace simd {

namespace neon {

#include <decant/backend/simd/neon_lanes.inl>

struct Lanes : BaseLanes {
    static constexpr Isa isa = Isa::neon;

    template <int Bits>
    DECANT_ALWAYS_INLINE static Words dot(Words sum, Words codes, Words x) noexcept {
        return {dot_of_4(sum.q0, codes.q0, x.q0), dot_of_4(sum.q1, codes.q1, x.q1), dot_of_4(sum.q2, codes.q2, x.q2),
                dot_of_4(sum.q3, codes.q3, x.q3)};
    }

 private:
    /// Two products fit 16 bits: 2 * 128 * 127 = 32512.
    DECANT_ALWAYS_INLINE static uint32x4_t dot_of_4(uint32x4_t sum, uint32x4_t codes, uint32x4_t x) noexcept {
        const int8x16_t a = vreinterpretq_s8_u32(codes), b = vreinterpretq_s8_u32(x);
        const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
        return vreinterpretq_u32_s32(vpadalq_s16(vreinterpretq_s32_u32(sum), pairs));
    }
};

#include <decant/backend/simd/kernels.inl>

}  // namespace neon

DECANT_TARGET_BEGIN(DECANT_DOTPROD)

namespace neon_dotprod {

#include <decant/backend/simd/neon_lanes.inl>

struct Lanes : BaseLanes {
    static constexpr Isa isa = Isa::neon_dotprod;

    template <int Bits>
    DECANT_ALWAYS_INLINE static Words dot(Words sum, Words codes, Words x) noexcept {
        return {dot_of_4(sum.q0, codes.q0, x.q0), dot_of_4(sum.q1, codes.q1, x.q1), dot_of_4(sum.q2, codes.q2, x.q2),
                dot_of_4(sum.q3, codes.q3, x.q3)};
    }

 private:
    DECANT_ALWAYS_INLINE static uint32x4_t dot_of_4(uint32x4_t sum, uint32x4_t codes, uint32x4_t x) noexcept {
#if DECANT_DOTPROD_INTRINSIC
        return vreinterpretq_u32_s32(
            vdotq_s32(vreinterpretq_s32_u32(sum), vreinterpretq_s8_u32(codes), vreinterpretq_s8_u32(x)));
#else
        asm("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(codes), "w"(x));
        return sum;
#endif
    }
};

#include <decant/backend/simd/kernels.inl>

}  // namespace neon_dotprod

DECANT_TARGET_END

using Neon = neon::Set;
using NeonDotprod = neon_dotprod::Set;

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

#undef DECANT_DOTPROD
#undef DECANT_DOTPROD_INTRINSIC

#endif  // DECANT_ARM64

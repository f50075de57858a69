// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Target regions: functions between `DECANT_TARGET_BEGIN(set)` and `DECANT_TARGET_END` may use an instruction set that
/// the host's flags do not ask for. A region holds raw-pointer code only: a std template that it instantiated would be
/// emitted with its instructions, under a symbol that every other translation unit shares.

#include <decant/core/config.hpp>

#include <cstdint>
#include <string_view>

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define DECANT_X86 1
#include <immintrin.h>
#else
#define DECANT_X86 0
#endif

#define DECANT_DETAIL_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define DECANT_TARGET_BEGIN(set) \
    DECANT_DETAIL_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define DECANT_TARGET_END DECANT_DETAIL_PRAGMA(clang attribute pop)
#else
#define DECANT_TARGET_BEGIN(set) DECANT_DETAIL_PRAGMA(GCC push_options) DECANT_DETAIL_PRAGMA(GCC target(set))
#define DECANT_TARGET_END DECANT_DETAIL_PRAGMA(GCC pop_options)
#endif

// Complete unrolling of the next loop, so that an array of registers stays in registers also at -O2.
#if defined(__clang__)
#define DECANT_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define DECANT_UNROLL _Pragma("GCC unroll 16")
#else
#define DECANT_UNROLL
#endif

// Of kernels that are written in pieces: the registers of one piece go on to the next.
#if defined(__GNUC__)
#define DECANT_ALWAYS_INLINE __attribute__((always_inline)) inline
#else
#define DECANT_ALWAYS_INLINE inline
#endif

namespace decant::inline DECANT_ABI {

/// The instruction sets that kernels are written for, worst first.
enum class Isa : std::uint8_t { portable, avx2, avx_vnni, avx512_vnni };

[[nodiscard]] constexpr std::string_view name(Isa isa) noexcept {
    switch (isa) {
        case Isa::portable: return "portable";
        case Isa::avx2: return "AVX2";
        case Isa::avx_vnni: return "AVX-VNNI";
        case Isa::avx512_vnni: return "AVX-512 VNNI";
    }
    return "unknown";
}

#if DECANT_X86
namespace detail {

struct CpuId {
    std::uint32_t a, b, c, d;
};
[[nodiscard]] inline CpuId cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) noexcept {
    CpuId id{leaf, 0, subleaf, 0};
    asm volatile("cpuid" : "+a"(id.a), "=b"(id.b), "+c"(id.c), "=d"(id.d));
    return id;
}

// Features for which clang 14 has no name in __builtin_cpu_supports (Intel SDM, volume 2, CPUID).
[[nodiscard]] inline bool has_f16c() noexcept { return (cpuid(1).c >> 29 & 1) != 0; }
[[nodiscard]] inline bool has_avx_vnni() noexcept {
    return cpuid(0).a >= 7 && cpuid(7).a >= 1 && (cpuid(7, 1).a >> 4 & 1) != 0;
}

}  // namespace detail
#endif

/// Whether this machine (processor and system) runs the set.
[[nodiscard]] inline bool supported(Isa isa) noexcept {
#if DECANT_X86
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && detail::has_f16c();
    switch (isa) {
        case Isa::portable: return true;
        case Isa::avx2: return avx2;
        case Isa::avx_vnni: return avx2 && detail::has_avx_vnni();
        case Isa::avx512_vnni:
            return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vnni");
    }
    return false;
#else
    return isa == Isa::portable;
#endif
}

}  // namespace decant::inline DECANT_ABI

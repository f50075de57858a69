// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Build configuration: the one injectable header, the version, the assertion macro, and the inline namespace.
///
/// A host that wants other settings defines `DECANT_CONFIG_HEADER` to the name of its own header (with quotes or angle
/// brackets); it is included first and may define `DECANT_ASSERT`.

#if defined(DECANT_CONFIG_HEADER)
#include DECANT_CONFIG_HEADER
#endif

#define DECANT_VERSION_MAJOR 0
#define DECANT_VERSION_MINOR 1
#define DECANT_VERSION_PATCH 0

/// Exceptions: `Result::value()` and `decant::Exception` exist only where they are on.
#if !defined(DECANT_EXCEPTIONS)
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define DECANT_EXCEPTIONS 1
#else
#define DECANT_EXCEPTIONS 0
#endif
#endif

/// Programmer errors (never bad input) are assertions. Replaceable; compiled out with NDEBUG.
#if !defined(DECANT_ASSERT)
#include <cassert>
#define DECANT_ASSERT(condition) assert(condition)
#endif

// The inline namespace names the version and every build option that changes the code or the layout of inline entities.
// Two translation units built with different options then use different symbols: the linker cannot hand the AVX-512
// copy of a function to a unit that must run on an old CPU, and mixing their objects in one interface fails at link
// time. One digit per option, in the order of the list below; hosts never spell the name.

#if defined(__SSE3__)
#define DECANT_ABI_SSE3 1
#else
#define DECANT_ABI_SSE3 0
#endif
#if defined(__SSSE3__)
#define DECANT_ABI_SSSE3 1
#else
#define DECANT_ABI_SSSE3 0
#endif
#if defined(__SSE4_1__)
#define DECANT_ABI_SSE41 1
#else
#define DECANT_ABI_SSE41 0
#endif
#if defined(__SSE4_2__)
#define DECANT_ABI_SSE42 1
#else
#define DECANT_ABI_SSE42 0
#endif
#if defined(__POPCNT__)
#define DECANT_ABI_POPCNT 1
#else
#define DECANT_ABI_POPCNT 0
#endif
#if defined(__AVX__)
#define DECANT_ABI_AVX 1
#else
#define DECANT_ABI_AVX 0
#endif
#if defined(__F16C__)
#define DECANT_ABI_F16C 1
#else
#define DECANT_ABI_F16C 0
#endif
#if defined(__FMA__)
#define DECANT_ABI_FMA 1
#else
#define DECANT_ABI_FMA 0
#endif
#if defined(__AVX2__)
#define DECANT_ABI_AVX2 1
#else
#define DECANT_ABI_AVX2 0
#endif
#if defined(__BMI__)
#define DECANT_ABI_BMI 1
#else
#define DECANT_ABI_BMI 0
#endif
#if defined(__BMI2__)
#define DECANT_ABI_BMI2 1
#else
#define DECANT_ABI_BMI2 0
#endif
#if defined(__LZCNT__)
#define DECANT_ABI_LZCNT 1
#else
#define DECANT_ABI_LZCNT 0
#endif
#if defined(__AVX512F__)
#define DECANT_ABI_AVX512F 1
#else
#define DECANT_ABI_AVX512F 0
#endif
#if defined(__AVX512BW__)
#define DECANT_ABI_AVX512BW 1
#else
#define DECANT_ABI_AVX512BW 0
#endif
#if defined(__AVX512VL__)
#define DECANT_ABI_AVX512VL 1
#else
#define DECANT_ABI_AVX512VL 0
#endif
#if defined(__AVX512VNNI__)
#define DECANT_ABI_AVX512VNNI 1
#else
#define DECANT_ABI_AVX512VNNI 0
#endif
#if defined(__AVX512BF16__)
#define DECANT_ABI_AVX512BF16 1
#else
#define DECANT_ABI_AVX512BF16 0
#endif
#if defined(__AVX512FP16__)
#define DECANT_ABI_AVX512FP16 1
#else
#define DECANT_ABI_AVX512FP16 0
#endif
#if defined(__AVX512DQ__)
#define DECANT_ABI_AVX512DQ 1
#else
#define DECANT_ABI_AVX512DQ 0
#endif
#if defined(__AVX512CD__)
#define DECANT_ABI_AVX512CD 1
#else
#define DECANT_ABI_AVX512CD 0
#endif
#if defined(__AVX512VBMI__)
#define DECANT_ABI_AVX512VBMI 1
#else
#define DECANT_ABI_AVX512VBMI 0
#endif
#if defined(__AVX512VBMI2__)
#define DECANT_ABI_AVX512VBMI2 1
#else
#define DECANT_ABI_AVX512VBMI2 0
#endif
#if defined(__AVX512VPOPCNTDQ__)
#define DECANT_ABI_AVX512VPOPCNTDQ 1
#else
#define DECANT_ABI_AVX512VPOPCNTDQ 0
#endif
#if defined(__AVXVNNI__)
#define DECANT_ABI_AVXVNNI 1
#else
#define DECANT_ABI_AVXVNNI 0
#endif
#if defined(__XOP__)
#define DECANT_ABI_XOP 1
#else
#define DECANT_ABI_XOP 0
#endif
#if defined(__FMA4__)
#define DECANT_ABI_FMA4 1
#else
#define DECANT_ABI_FMA4 0
#endif
#if defined(__FAST_MATH__)
#define DECANT_ABI_FAST_MATH 1
#else
#define DECANT_ABI_FAST_MATH 0
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#define DECANT_ABI_FINITE_MATH 1
#else
#define DECANT_ABI_FINITE_MATH 0
#endif
#if defined(NDEBUG)
#define DECANT_ABI_NDEBUG 1
#else
#define DECANT_ABI_NDEBUG 0
#endif
#if defined(__GXX_RTTI) || defined(_CPPRTTI) || defined(__cpp_rtti)
#define DECANT_ABI_RTTI 1
#else
#define DECANT_ABI_RTTI 0
#endif

#define DECANT_ABI_JOIN_(major, minor, p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16, p17, \
                         p18, p19, p20, p21, p22, p23, p24, p25, p26, p27, p28, p29, p30)                              \
    abi##major##_##minor##_##p0##p1##p2##p3##p4##_##p5##p6##p7##p8##p9##p10##p11##_##p12##p13##p14##p15##p16##p17##p18##p19##p20##p21##p22##_##p23##p24##p25##_##p26##p27##p28##p29##p30
#define DECANT_ABI_JOIN(...) DECANT_ABI_JOIN_(__VA_ARGS__)
#define DECANT_ABI_EXPAND(...) DECANT_ABI_JOIN(__VA_ARGS__)

/// Name of the inline namespace: `abi<major>_<minor>_<SSE3 SSSE3 SSE4.1 SSE4.2 POPCNT>_<AVX F16C FMA AVX2 BMI BMI2
/// LZCNT>_<AVX512 F BW VL VNNI BF16 FP16 DQ CD VBMI VBMI2 VPOPCNTDQ>_<AVX-VNNI XOP FMA4>_<fast-math finite-math NDEBUG
/// RTTI exceptions>`, a digit each.
#define DECANT_ABI                                                                                                     \
    DECANT_ABI_EXPAND(DECANT_VERSION_MAJOR, DECANT_VERSION_MINOR, DECANT_ABI_SSE3, DECANT_ABI_SSSE3, DECANT_ABI_SSE41, \
                      DECANT_ABI_SSE42, DECANT_ABI_POPCNT, DECANT_ABI_AVX, DECANT_ABI_F16C, DECANT_ABI_FMA,            \
                      DECANT_ABI_AVX2, DECANT_ABI_BMI, DECANT_ABI_BMI2, DECANT_ABI_LZCNT, DECANT_ABI_AVX512F,          \
                      DECANT_ABI_AVX512BW, DECANT_ABI_AVX512VL, DECANT_ABI_AVX512VNNI, DECANT_ABI_AVX512BF16,          \
                      DECANT_ABI_AVX512FP16, DECANT_ABI_AVX512DQ, DECANT_ABI_AVX512CD, DECANT_ABI_AVX512VBMI,          \
                      DECANT_ABI_AVX512VBMI2, DECANT_ABI_AVX512VPOPCNTDQ, DECANT_ABI_AVXVNNI, DECANT_ABI_XOP,          \
                      DECANT_ABI_FMA4, DECANT_ABI_FAST_MATH, DECANT_ABI_FINITE_MATH, DECANT_ABI_NDEBUG,                \
                      DECANT_ABI_RTTI, DECANT_EXCEPTIONS)

namespace decant {
inline namespace DECANT_ABI {

struct Version {
    int major = 0;
    int minor = 0;
    int patch = 0;
    friend constexpr bool operator==(Version, Version) = default;
};

/// Version of the headers in use.
inline constexpr Version version{DECANT_VERSION_MAJOR, DECANT_VERSION_MINOR, DECANT_VERSION_PATCH};

}  // namespace DECANT_ABI
}  // namespace decant

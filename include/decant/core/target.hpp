// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Target regions: functions between `DECANT_TARGET_BEGIN(set)` and `DECANT_TARGET_END` may use an instruction set that
/// the host's flags do not ask for. A region holds raw-pointer code only: a std template that it instantiated would be
/// emitted with its instructions, under a symbol that every other translation unit shares.

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

// Sanitizers watch every access: kernels that are unrolled and inlined would take them many minutes to compile.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DECANT_DETAIL_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define DECANT_DETAIL_SANITIZED 1
#endif
#endif
#if !defined(DECANT_DETAIL_SANITIZED)
#define DECANT_DETAIL_SANITIZED 0
#endif

// Complete unrolling of the next loop, so that an array of registers stays in registers also at -O2.
#if DECANT_DETAIL_SANITIZED || !defined(__GNUC__)
#define DECANT_UNROLL
#elif defined(__clang__)
#define DECANT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DECANT_UNROLL _Pragma("GCC unroll 16")
#endif

// Makes the compiler forget where a pointer comes from: it would else keep a sum of pointer and stride in a register
// of its own for each of many rows, and has not that many.
#if defined(__GNUC__)
#define DECANT_OPAQUE(pointer) __asm__("" : "+r"(pointer))
#else
#define DECANT_OPAQUE(pointer)
#endif

// Of kernels that are written in pieces: the registers of one piece go on to the next.
#if DECANT_DETAIL_SANITIZED || !defined(__GNUC__)
#define DECANT_ALWAYS_INLINE inline
#else
#define DECANT_ALWAYS_INLINE __attribute__((always_inline)) inline
#endif

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `detail::MathGuard`: arithmetic in the processor's default mode, whatever the host has set, and the host's mode and
/// `errno` (which exp and its kin set) again at the end. So a game that flushes subnormal numbers or rounds another way
/// gets the same bits, on each of its threads.

#include <decant/core/config.hpp>
#include <decant/core/errno.hpp>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace decant::inline DECANT_ABI {
namespace detail {

class MathGuard {
 public:
    MathGuard() noexcept : saved_(read()) {
        if ((saved_ & modes) != normal) write((saved_ & ~modes) | normal);
    }
    MathGuard(const MathGuard&) = delete;
    MathGuard& operator=(const MathGuard&) = delete;
    ~MathGuard() {
        const Word now = read();
        if ((now & modes) != (saved_ & modes)) write((now & ~modes) | (saved_ & modes));
    }

 private:
#if defined(__x86_64__) || defined(_M_X64)
    using Word = unsigned;
    static constexpr Word modes = 0xffc0u;   // flush to zero, rounding, masks of exceptions, subnormals are zeros
    static constexpr Word normal = 0x1f80u;  // round to nearest, no exception traps
    static Word read() noexcept { return _mm_getcsr(); }
    static void write(Word word) noexcept { _mm_setcsr(word); }
#elif defined(__aarch64__)
    using Word = std::uint64_t;
    static constexpr Word modes = 0x07f79f00u;  // AHP, DN, FZ, RMode, FZ16 and the trap enables
    static constexpr Word normal = 0;
    static Word read() noexcept {
        Word word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static void write(Word word) noexcept { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
    using Word = unsigned;
    static constexpr Word modes = 0;
    static constexpr Word normal = 0;
    static Word read() noexcept { return 0; }
    static void write(Word) noexcept {}
#endif

    ErrnoGuard errno_;
    Word saved_;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

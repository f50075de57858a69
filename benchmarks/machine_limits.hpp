// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What this machine can do at best on all threads of a pool, measured now: bytes read per second, and
/// multiply-accumulates per second. A virtual machine's speed drifts, so limits are measured beside what is held
/// against them. Known on x86 with AVX2 or better.

#include <decant/backend/simd/target.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/thread_pool.hpp>

#include "../examples/support/progress.hpp"
#include "../examples/support/random.hpp"
#include "../examples/support/timing.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string_view>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace bench {

/// Kinds of multiply-accumulates, each with a peak of its own.
enum class Arithmetic : std::uint8_t { int8, bf16, f32 };
inline constexpr std::size_t arithmetics = 3;

[[nodiscard]] constexpr std::string_view name(Arithmetic kind) noexcept {
    constexpr std::array<std::string_view, arithmetics> names{"int8", "bf16", "f32"};
    return names[static_cast<std::size_t>(kind)];
}

#if DECANT_X86
DECANT_TARGET_BEGIN("avx2,fma")

struct Avx2Loops {
    static constexpr std::size_t int8_macs = 8 * 32, f32_macs = 8 * 8;  // per round

    /// Reads n bytes as so many streams side by side, prefetching `Ahead` bytes ahead of each unless that is 0 (the
    /// caller's memory goes on for so many), with the locality that __builtin_prefetch knows. The result depends on
    /// every byte.
    template <int Streams, int Ahead, int Locality>
    static std::uint64_t read(const std::byte* p, std::size_t n) noexcept {
        constexpr std::size_t lines = 128;  // bytes of two of them, taken per stream and turn
        const std::size_t part = n / Streams / lines * lines;
        __m256i sums[4] = {};
        for (std::size_t i = 0; i < part; i += lines) {
            DECANT_UNROLL
            for (std::size_t s = 0; s < Streams; ++s) {
                const std::byte* at = p + s * part + i;
                if constexpr (Ahead > 0) {
                    __builtin_prefetch(at + Ahead, 0, Locality);
                    __builtin_prefetch(at + Ahead + 64, 0, Locality);
                }
                DECANT_UNROLL
                for (std::size_t j = 0; j < 4; ++j) {
                    const auto* from = reinterpret_cast<const __m256i*>(at + j * sizeof(__m256i));
                    sums[j] = _mm256_add_epi64(sums[j], _mm256_loadu_si256(from));
                }
            }
        }
        std::uint64_t total[4];
        const __m256i sum = _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
        std::memcpy(total, &sum, sizeof total);
        return total[0] + total[1] + total[2] + total[3];
    }

    // Assembly, since the compiler would see that all rounds do the same.
    static void int8(std::size_t rounds) noexcept {
        const __m256i a = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
        __m256i sums[8] = {}, pairs;
        for (std::size_t i = 0; i < rounds; ++i) {
            DECANT_UNROLL
            for (int j = 0; j < 8; ++j) {
                asm volatile("vpmaddubsw %2, %2, %1\n\tvpmaddwd %3, %1, %1\n\tvpaddd %1, %0, %0"
                             : "+x"(sums[j]), "=&x"(pairs)
                             : "x"(a), "x"(ones));
            }
        }
    }
    static void f32(std::size_t rounds) noexcept {
        const __m256 a = _mm256_set1_ps(0.5f);
        __m256 sums[8] = {};
        for (std::size_t i = 0; i < rounds; ++i) {
            DECANT_UNROLL
            for (int j = 0; j < 8; ++j) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sums[j]) : "x"(a));
        }
    }
};

DECANT_TARGET_END
DECANT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")

struct Avx512Loops {
    static constexpr std::size_t int8_macs = 16 * 64, bf16_macs = 16 * 32, f32_macs = 16 * 16;

    static void int8(std::size_t rounds) noexcept {
        const __m512i a = _mm512_set1_epi32(0x01010101);
        __m512i sums[16] = {};
        for (std::size_t i = 0; i < rounds; ++i) {
            DECANT_UNROLL
            for (int j = 0; j < 16; ++j) asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums[j]) : "v"(a));
        }
    }
    /// For processors with AVX-512 BF16.
    static void bf16(std::size_t rounds) noexcept {
        const __m512i a = _mm512_set1_epi32(0x3F003F00);
        __m512 sums[16] = {};
        for (std::size_t i = 0; i < rounds; ++i) {
            DECANT_UNROLL
            for (int j = 0; j < 16; ++j) asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sums[j]) : "v"(a));
        }
    }
    static void f32(std::size_t rounds) noexcept {
        const __m512 a = _mm512_set1_ps(0.5f);
        __m512 sums[16] = {};
        for (std::size_t i = 0; i < rounds; ++i) {
            DECANT_UNROLL
            for (int j = 0; j < 16; ++j) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sums[j]) : "v"(a));
        }
    }
};

DECANT_TARGET_END
#endif

class MachineLimits {
 public:
    /// \param most_bytes the largest range that `read_speed` will be asked for; memory of that size is taken, up to
    /// `most_memory`.
    MachineLimits(decant::ThreadPool& pool, std::size_t most_bytes) : pool_(&pool), threads_(pool.concurrency()) {
        size_ = (std::min)(most_bytes, most_memory);
        const std::size_t whole = (size_ + slack + huge_page) / huge_page * huge_page;
        memory_.reset(static_cast<std::byte*>(::operator new (whole, std::align_val_t{huge_page})));
#if defined(__linux__)
        ::madvise(memory_.get(), whole, MADV_HUGEPAGE);
#endif
        on_all_threads([&](std::size_t thread) {  // random, so that the system does not merge pages
            examples::Random random(thread);
            const std::size_t part = whole / threads_ / 8 * 8;
            const std::size_t end = thread + 1 == threads_ ? whole : (thread + 1) * part;
            for (std::size_t i = thread * part; i < end; i += 8) {
                const std::uint64_t value = random.next();
                std::memcpy(memory_.get() + i, &value, sizeof value);
            }
        });
    }

    /// Bytes per second at which all threads together read a range of so many bytes (at most `most_memory`) again and
    /// again: the best of several patterns. The range that a decode step reads has the same share of hits in the last
    /// cache.
    [[nodiscard]] std::optional<double> read_speed([[maybe_unused]] std::size_t bytes) {
#if DECANT_X86
        if (!decant::supported(decant::Isa::avx2)) return std::nullopt;
        using Read = std::uint64_t (*)(const std::byte*, std::size_t) noexcept;
        constexpr std::array<Read, 7> patterns{
            &Avx2Loops::read<1, 0, 0>,    &Avx2Loops::read<1, 1024, 3>, &Avx2Loops::read<1, 4096, 3>,
            &Avx2Loops::read<1, 4096, 0>, &Avx2Loops::read<2, 0, 0>,    &Avx2Loops::read<4, 0, 0>,
            &Avx2Loops::read<8, 0, 0>,
        };
        const std::size_t part = (std::max)((std::min)(bytes, size_) / threads_ / 1024, std::size_t{1}) * 1024;
        if (part * threads_ > size_ + slack) return std::nullopt;
        const std::size_t passes = (std::size_t{64} << 20) / (part * threads_) + 1;
        examples::Progress line("reading memory");
        double best = 0.0;
        for (std::size_t repeat = 0; repeat < 2; ++repeat) {
            for (std::size_t p = 0; p < patterns.size(); ++p) {
                line.show(repeat * patterns.size() + p, 2 * patterns.size());
                const Read read = patterns[p];
                const double seconds = on_all_threads([&](std::size_t thread) {
                    std::uint64_t sum = 0;
                    for (std::size_t i = 0; i < passes; ++i) sum += read(memory_.get() + thread * part, part);
                    sink_.fetch_xor(sum, std::memory_order_relaxed);
                });
                best = (std::max)(best, static_cast<double>(passes * part * threads_) / seconds);
            }
        }
        return best;
#else
        return std::nullopt;
#endif
    }

    /// Multiply-accumulates per second of all threads together, with the best instruction set that the library knows.
    /// What is stored in 16 bits may as well be computed in f32, and is where that is faster.
    [[nodiscard]] std::optional<double> mac_speed([[maybe_unused]] Arithmetic kind) {
#if DECANT_X86
        if (!decant::supported(decant::Isa::avx2)) return std::nullopt;
        const bool avx512 = decant::supported(decant::Isa::avx512_vnni);
        if (kind == Arithmetic::int8) {
            return avx512 ? peak(Avx512Loops::int8, Avx512Loops::int8_macs)
                          : peak(Avx2Loops::int8, Avx2Loops::int8_macs);
        }
        const double in_f32 =
            avx512 ? peak(Avx512Loops::f32, Avx512Loops::f32_macs) : peak(Avx2Loops::f32, Avx2Loops::f32_macs);
        const bool bf16 = kind == Arithmetic::bf16 && avx512 && __builtin_cpu_supports("avx512bf16");
        return bf16 ? (std::max)(in_f32, peak(Avx512Loops::bf16, Avx512Loops::bf16_macs)) : in_f32;
#else
        return std::nullopt;
#endif
    }

    static constexpr std::size_t most_memory = std::size_t{1} << 30;

 private:
    static constexpr std::size_t huge_page = std::size_t{2} << 20;
    static constexpr std::size_t slack = std::size_t{2} << 20;  // behind the range: for prefetches, and small ranges

    struct Free {
        void operator()(std::byte* memory) const noexcept { ::operator delete (memory, std::align_val_t{huge_page}); }
    };

    /// Seconds until all threads have done `work(thread)`.
    template <class Work>
    double on_all_threads(Work work) {
        return examples::seconds_of([&] {
            pool_->parallel_for(threads_, decant::TaskRef{&work, [](void* object, std::size_t thread) {
                                                              (*static_cast<Work*>(object))(thread);
                                                          }});
        });
    }

    double peak(void (*loop)(std::size_t) noexcept, std::size_t macs) {
        constexpr std::size_t rounds = 1'000'000;
        double best = 0.0;
        for (int repeat = 0; repeat < 5; ++repeat) {
            const double seconds = on_all_threads([&](std::size_t) { loop(rounds); });
            best = (std::max)(best, static_cast<double>(rounds * macs * threads_) / seconds);
        }
        return best;
    }

    decant::ThreadPool* pool_;
    std::size_t threads_;
    std::size_t size_ = 0;
    std::unique_ptr<std::byte, Free> memory_;
    std::atomic<std::uint64_t> sink_{0};
};

}  // namespace bench

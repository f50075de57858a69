// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What this machine can do at best on all threads of a pool with one instruction set, measured now: bytes read per
/// second, and multiply-accumulates per second. A virtual machine's speed drifts, so limits are measured beside what is
/// held against them, and the better of several measurements counts: a neighbour on the machine only makes one slower.

#include <decant/backend/simd/amx.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/thread_pool.hpp>

#include "progress.hpp"
#include "random.hpp"
#include "timing.hpp"

#include <xsimd/xsimd.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace examples {

/// Kinds of multiply-accumulates, each with a peak of its own.
enum class Arithmetic : std::uint8_t { int8, bf16, f32 };
inline constexpr std::size_t arithmetics = 3;

[[nodiscard]] constexpr std::string_view name(Arithmetic kind) noexcept {
    constexpr std::array<std::string_view, arithmetics> names{"int8", "bf16", "f32"};
    return names[static_cast<std::size_t>(kind)];
}

/// What the compiler makes of plain C++, where no instructions could be named.
struct PortableLoops {
    using Batch = xsimd::batch<float>;
    static constexpr std::size_t int8_macs = 1024, f32_macs = 12 * Batch::size;  // per round

    static void read(const std::byte* p, std::size_t n) noexcept {
        std::uint64_t sums[8] = {};
        for (std::size_t i = 0; i < n; i += sizeof sums) {
            std::uint64_t words[8];
            std::memcpy(words, p + i, sizeof words);
            for (std::size_t j = 0; j < 8; ++j) sums[j] ^= words[j];
        }
        std::uint64_t sum = 0;
        for (const std::uint64_t word : sums) sum ^= word;
        keep(sum);
    }
    static void int8(std::size_t rounds) noexcept {
        constexpr std::size_t shifts = 64;  // or all rounds would be one
        std::int8_t values[int8_macs + shifts];
        for (std::size_t i = 0; i < sizeof values; ++i) values[i] = static_cast<std::int8_t>((rounds + i) % 128);
        std::int64_t sum = 0;
        for (std::size_t i = 0; i < rounds; ++i) {
            const std::int8_t* shifted = values + i % shifts;
            std::int32_t dot = 0;
            for (std::size_t j = 0; j < int8_macs; ++j) dot += shifted[j] * values[j];
            sum += dot;
        }
        keep(sum);
    }
    static void f32(std::size_t rounds) noexcept {
        const Batch a(0.5f), b(1.0f);
        Batch sums[12];
        for (std::size_t j = 0; j < 12; ++j) sums[j] = Batch(static_cast<float>(rounds + j));
        for (std::size_t i = 0; i < rounds; ++i) {
            DECANT_UNROLL
            for (std::size_t j = 0; j < 12; ++j) sums[j] = xsimd::fma(sums[j], a, b);
        }
        for (std::size_t j = 1; j < 12; ++j) sums[0] += sums[j];
        float values[Batch::size], sum = 0.0f;
        sums[0].store_unaligned(values);
        for (const float value : values) sum += value;
        keep(sum);
    }

 private:
    /// Without a use of the result, there would be no loop.
    template <class T>
    static void keep(T result) noexcept {
        [[maybe_unused]] const volatile T kept = result;
    }
};

#if DECANT_X86
DECANT_TARGET_BEGIN("avx2,fma")

struct Avx2Loops {
    static constexpr std::size_t int8_macs = 8 * 32, f32_macs = 8 * 8;  // per round

    /// Reads n bytes as so many streams side by side, prefetching `Ahead` bytes ahead of each unless that is 0 (the
    /// caller's memory goes on for so many), with the locality that __builtin_prefetch knows.
    template <int Streams, int Ahead, int Locality>
    static void read(const std::byte* p, std::size_t n) noexcept {
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
        for (const __m256i sum : sums) asm volatile("" : : "x"(sum));
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
DECANT_TARGET_BEGIN("avx2,fma,avxvnni")

struct AvxVnniLoops {
    static constexpr std::size_t int8_macs = 8 * 32;

    static void int8(std::size_t rounds) noexcept {
        const __m256i a = _mm256_set1_epi8(1);
        __m256i sums[8] = {};
        for (std::size_t i = 0; i < rounds; ++i) {
            DECANT_UNROLL
            for (int j = 0; j < 8; ++j) {
                sums[j] = _mm256_dpbusd_avx_epi32(sums[j], a, a);
                asm volatile("" : "+x"(sums[j]));
            }
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

#if DECANT_AMX
struct AmxLoops {
    static constexpr std::size_t int8_macs = 4 * 16 * 16 * 64;

    static void int8(std::size_t rounds) noexcept {
        using Tiles = decant::simd::AmxTiles;
        Tiles::Shapes shapes;
        for (std::size_t tile = 0; tile < 8; ++tile) shapes.set(tile, 16, 64);
        Tiles::configure(shapes);
        for (std::size_t i = 0; i < rounds; ++i) {
            Tiles::add_products<0, 4, 6>();
            Tiles::add_products<1, 4, 7>();
            Tiles::add_products<2, 5, 6>();
            Tiles::add_products<3, 5, 7>();
        }
        Tiles::release();
    }
};
#endif

class MachineLimits {
 public:
    /// \param isa what the loops may use, and the machine must run.
    /// \param most_bytes the largest range that `read_speed` will be asked for; memory of that size is taken, up to
    /// `most_memory`.
    MachineLimits(decant::ThreadPool& pool, decant::Isa isa, std::size_t most_bytes)
        : pool_(&pool), threads_(pool.concurrency()), isa_(isa), size_((std::min)(most_bytes, most_memory)) {
        const std::size_t whole = (size_ + slack + huge_page) / huge_page * huge_page;
        memory_.reset(static_cast<std::byte*>(::operator new (whole, std::align_val_t{huge_page})));
#if defined(__linux__)
        ::madvise(memory_.get(), whole, MADV_HUGEPAGE);
#endif
        parallel(whole / huge_page, [&](std::size_t page) {  // random, so that the system does not merge pages
            Random random(page);
            for (std::size_t i = 0; i < huge_page; i += sizeof(std::uint64_t)) {
                const std::uint64_t value = random.next();
                std::memcpy(memory_.get() + page * huge_page + i, &value, sizeof value);
            }
        });
    }

    /// Bytes per second at which all threads together read a range of so many bytes (at most `most_memory`) again and
    /// again: the best of several patterns. The range that a decode step reads has the same share of hits in the last
    /// cache.
    [[nodiscard]] double read_speed(std::size_t bytes) {
        const std::size_t part = (std::max)((std::min)(bytes, size_) / threads_ / 1024, std::size_t{1}) * 1024;
        const std::size_t passes = (std::size_t{64} << 20) / (part * threads_) + 1;
        const std::span<const Read> reads = patterns();
        Progress line("reading memory");
        double best = 0.0;
        for (std::size_t repeat = 0; repeat < 2; ++repeat) {
            for (std::size_t r = 0; r < reads.size(); ++r) {
                line.show(repeat * reads.size() + r, 2 * reads.size());
                const double seconds = parallel(threads_, [&](std::size_t thread) {
                    for (std::size_t i = 0; i < passes; ++i) reads[r](memory_.get() + thread * part, part);
                });
                best = (std::max)(best, static_cast<double>(passes * part * threads_) / seconds);
            }
        }
        return best;
    }

    /// Multiply-accumulates per second of all threads together. What is stored in 16 bits may as well be computed in
    /// f32, and is where that is faster. With NEON it is the peak of plain C++, which kernels may pass.
    [[nodiscard]] double mac_speed(Arithmetic kind) {
#if DECANT_X86
        switch (isa_) {
            case decant::Isa::amx:
#if DECANT_AMX
                if (kind == Arithmetic::int8) return peak(AmxLoops::int8, AmxLoops::int8_macs);
#endif
                [[fallthrough]];
            case decant::Isa::avx512_bf16:
            case decant::Isa::avx512_vnni: {
                using Loops = Avx512Loops;
                if (kind == Arithmetic::int8) return peak(Loops::int8, Loops::int8_macs);
                const double in_f32 = peak(Loops::f32, Loops::f32_macs);
                if (kind == Arithmetic::f32 || !__builtin_cpu_supports("avx512bf16")) return in_f32;
                return (std::max)(in_f32, peak(Loops::bf16, Loops::bf16_macs));
            }
            case decant::Isa::avx_vnni:
                if (kind == Arithmetic::int8) return peak(AvxVnniLoops::int8, AvxVnniLoops::int8_macs);
                [[fallthrough]];
            case decant::Isa::avx2:
                return kind == Arithmetic::int8 ? peak(Avx2Loops::int8, Avx2Loops::int8_macs)
                                                : peak(Avx2Loops::f32, Avx2Loops::f32_macs);
            default: break;
        }
#endif
        return kind == Arithmetic::int8 ? peak(PortableLoops::int8, PortableLoops::int8_macs)
                                        : peak(PortableLoops::f32, PortableLoops::f32_macs);
    }

    static constexpr std::size_t most_memory = std::size_t{1} << 30;

 private:
    static constexpr std::size_t huge_page = std::size_t{2} << 20;
    static constexpr std::size_t slack = std::size_t{2} << 20;  // behind the range: for prefetches, and small ranges

    struct Free {
        void operator()(std::byte* memory) const noexcept { ::operator delete (memory, std::align_val_t{huge_page}); }
    };

    using Read = void (*)(const std::byte*, std::size_t) noexcept;

    [[nodiscard]] std::span<const Read> patterns() const noexcept {
#if DECANT_X86
        static constexpr std::array<Read, 7> avx2{
            &Avx2Loops::read<1, 0, 0>,    &Avx2Loops::read<1, 1024, 3>, &Avx2Loops::read<1, 4096, 3>,
            &Avx2Loops::read<1, 4096, 0>, &Avx2Loops::read<2, 0, 0>,    &Avx2Loops::read<4, 0, 0>,
            &Avx2Loops::read<8, 0, 0>,
        };
        if (isa_ != decant::Isa::portable) return avx2;
#endif
        static constexpr std::array<Read, 1> portable{&PortableLoops::read};
        return portable;
    }

    /// Seconds until all threads together have done `work(i)` for every i below n.
    template <class Work>
    double parallel(std::size_t n, Work work) {
        return seconds_of([&] {
            pool_->parallel_for(
                n, decant::TaskRef{&work, [](void* object, std::size_t i) { (*static_cast<Work*>(object))(i); }});
        });
    }

    double peak(void (*loop)(std::size_t) noexcept, std::size_t macs) {
        const std::size_t rounds = 10'000'000 / macs + 1;  // a task takes from 20 to 5000 microseconds
        const std::size_t tasks = 16 * threads_;
        double best = 0.0;
        for (const Stopwatch all; all.seconds() < 0.2;) {
            const double seconds = parallel(tasks, [&](std::size_t) { loop(rounds); });
            best = (std::max)(best, static_cast<double>(rounds * macs * tasks) / seconds);
        }
        return best;
    }

    decant::ThreadPool* pool_;
    std::size_t threads_;
    decant::Isa isa_;
    std::size_t size_;
    std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace examples

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "limits.hpp"

#include "../support/timing.hpp"

#include <decant/backend/simd/portable.hpp>
#include <decant/core/memory.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace experiment {
namespace {

// Every loop below runs `steps` times over 12 independent accumulators, more than latency times throughput asks for.
// The instructions are written out where the set has them, so that no compiler improves on the peak or spoils it.

#if DECANT_X86
#define EXPERIMENT_TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

DECANT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
namespace avx512 {

constexpr double integer_operations = 12 * 64 * 2;  // per step: 64 byte products and their sums
void integer_steps(std::size_t steps) {
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
#define X(i) __m512i sum##i = a;
    EXPERIMENT_TWELVE(X)
#undef X
    for (; steps > 0; --steps) {
#define X(i) asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum##i) : "v"(a), "v"(b));
        EXPERIMENT_TWELVE(X)
#undef X
    }
}

constexpr double float_operations = 12 * 16 * 2;
void float_steps(std::size_t steps) {
    const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
#define X(i) __m512 sum##i = a;
    EXPERIMENT_TWELVE(X)
#undef X
    for (; steps > 0; --steps) {
#define X(i) asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum##i) : "v"(a), "v"(b));
        EXPERIMENT_TWELVE(X)
#undef X
    }
}

void read(const std::byte* from, std::size_t bytes) {
    __m512i sum[8];
    DECANT_UNROLL
    for (int i = 0; i < 8; ++i) sum[i] = _mm512_setzero_si512();
    for (std::size_t at = 0; at + 512 <= bytes; at += 512) {
        DECANT_UNROLL
        for (int i = 0; i < 8; ++i) sum[i] = _mm512_xor_si512(sum[i], _mm512_loadu_si512(from + at + 64 * i));
    }
    DECANT_UNROLL
    for (int i = 0; i < 8; ++i) asm volatile("" : : "v"(sum[i]));
}

}  // namespace avx512
DECANT_TARGET_END

DECANT_TARGET_BEGIN("avx2,fma,f16c")
namespace avx2 {

constexpr double integer_operations = 4 * 32 * 2;  // three instructions for the products and sums of 32 bytes
void integer_steps(std::size_t steps) {
    const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1);
#define EXPERIMENT_FOUR(X) X(0) X(1) X(2) X(3)
#define X(i) __m256i sum##i = a, pairs##i = a;
    EXPERIMENT_FOUR(X)
#undef X
    for (; steps > 0; --steps) {
#define X(i)                                                                         \
    asm volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0" \
                 : "+x"(sum##i), "+x"(pairs##i)                                      \
                 : "x"(a), "x"(b), "x"(ones));
        EXPERIMENT_FOUR(X)
#undef X
    }
}

constexpr double float_operations = 12 * 8 * 2;
void float_steps(std::size_t steps) {
    const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
#define X(i) __m256 sum##i = a;
    EXPERIMENT_TWELVE(X)
#undef X
    for (; steps > 0; --steps) {
#define X(i) asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum##i) : "x"(a), "x"(b));
        EXPERIMENT_TWELVE(X)
#undef X
    }
}

void read(const std::byte* from, std::size_t bytes) {
    __m256i sum[8];
    DECANT_UNROLL
    for (int i = 0; i < 8; ++i) sum[i] = _mm256_setzero_si256();
    for (std::size_t at = 0; at + 256 <= bytes; at += 256) {
        DECANT_UNROLL
        for (int i = 0; i < 8; ++i)
            sum[i] = _mm256_xor_si256(sum[i], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32 * i)));
    }
    DECANT_UNROLL
    for (int i = 0; i < 8; ++i) asm volatile("" : : "x"(sum[i]));
}

}  // namespace avx2
DECANT_TARGET_END
#undef EXPERIMENT_FOUR
#undef EXPERIMENT_TWELVE
#endif

/// Without instructions that it could name, the best that this build can do is its own kernel on what lies in the
/// cache.
namespace portable {

constexpr std::size_t columns = 256, tokens = 4;
std::atomic<std::uint64_t> sink{0};

constexpr double integer_operations = columns * decant::panel_rows * tokens * 2;
void integer_steps(std::size_t steps) {
    std::uint8_t codes[columns * decant::panel_rows] = {};
    float scales[columns / 32 * decant::panel_rows] = {};
    std::int8_t inputs[tokens * columns] = {};
    float input_scales[tokens * columns / 32] = {};
    std::int32_t input_sums[tokens * columns / 16] = {};
    float sums[tokens * decant::panel_rows] = {};
    for (; steps > 0; --steps) {
        decant::simd::Portable::multiply<32, false, false>({codes, scales, nullptr}, 8, columns,
                                                           {inputs, input_scales, input_sums, columns}, tokens, sums);
    }
    sink.fetch_add(sums[0] > 0.0f ? 1 : 0, std::memory_order_relaxed);
}

constexpr double float_operations = integer_operations;
void float_steps(std::size_t steps) {
    float values[columns * decant::panel_rows] = {};
    float inputs[tokens * columns] = {};
    float sums[tokens * decant::panel_rows] = {};
    for (; steps > 0; --steps) decant::simd::Portable::multiply({values}, columns, inputs, columns, tokens, sums);
    sink.fetch_add(sums[0] > 0.0f ? 1 : 0, std::memory_order_relaxed);
}

void read(const std::byte* from, std::size_t bytes) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(from);
    std::uint64_t sum[8] = {};
    for (std::size_t at = 0; at + 8 <= bytes / sizeof(std::uint64_t); at += 8)
        for (std::size_t i = 0; i < 8; ++i) sum[i] ^= words[at + i];
    std::uint64_t total = 0;
    for (const std::uint64_t value : sum) total ^= value;
    sink.fetch_add(total & 1, std::memory_order_relaxed);
}

}  // namespace portable

struct Loops {
    void (*integer_steps)(std::size_t) = portable::integer_steps;
    double integer_operations = portable::integer_operations;
    void (*float_steps)(std::size_t) = portable::float_steps;
    double float_operations = portable::float_operations;
    void (*read)(const std::byte*, std::size_t) = portable::read;
};

Loops loops_of(decant::Isa isa) {
#if DECANT_X86
    switch (isa) {
        case decant::Isa::amx:
        case decant::Isa::avx512_vnni:
            return {avx512::integer_steps, avx512::integer_operations, avx512::float_steps, avx512::float_operations,
                    avx512::read};
        case decant::Isa::avx_vnni:
        case decant::Isa::avx2:
            return {avx2::integer_steps, avx2::integer_operations, avx2::float_steps, avx2::float_operations,
                    avx2::read};
        case decant::Isa::portable: break;
    }
#endif
    static_cast<void>(isa);
    return {};
}

template <class F>
void parallel(decant::ThreadPool& pool, std::size_t tasks, F task) {
    pool.parallel_for(tasks, {&task, [](void* object, std::size_t index) { (*static_cast<F*>(object))(index); }});
}

double peak(decant::ThreadPool& pool, void (*steps)(std::size_t), double operations, double seconds) {
    const auto batch = static_cast<std::size_t>(2e7 / operations) + 1;  // a task takes from 20 to 5000 microseconds
    const std::size_t tasks = 16 * pool.concurrency();
    double best = 0.0;
    for (const examples::Stopwatch all; all.seconds() < seconds;) {
        const double took = examples::seconds_of([&] { parallel(pool, tasks, [&](std::size_t) { steps(batch); }); });
        best = (std::max)(best, operations * static_cast<double>(batch * tasks) / took);
    }
    return best;
}

}  // namespace

void raise_arithmetic_limits(Limits& limits, decant::ThreadPool& pool, decant::Isa isa, double seconds) {
    const Loops loops = loops_of(isa);
    const auto raise = [&](double& limit, void (*steps)(std::size_t), double operations) {
        limit = (std::max)(limit, peak(pool, steps, operations, seconds / 2));
    };
    raise(limits.integer_operations_per_second, loops.integer_steps, loops.integer_operations);
    raise(limits.float_operations_per_second, loops.float_steps, loops.float_operations);
}

double read_speed(decant::ThreadPool& pool, decant::Isa isa, std::uint64_t bytes, double seconds) {
    constexpr std::size_t piece = std::size_t{2} << 20;
    const auto pieces = static_cast<std::size_t>((std::max)(bytes / piece, std::uint64_t{1}));
    auto memory = decant::Memory().allocate(pieces * piece);
    if (!memory) return 0.0;
#if defined(__linux__)
    madvise(memory->data(), pieces * piece, MADV_HUGEPAGE);
#endif
    // Pages that nobody wrote are one and the same page of zeros.
    parallel(pool, pieces, [&](std::size_t p) {
        auto* words = reinterpret_cast<std::uint64_t*>(memory->data() + p * piece);
        for (std::size_t i = 0; i < piece / sizeof *words; ++i) words[i] = (p * piece + i) * 0x9E3779B97F4A7C15u;
    });

    const auto read = loops_of(isa).read;
    double best = 0.0;
    const examples::Stopwatch all;
    do {
        const double took = examples::seconds_of(
            [&] { parallel(pool, pieces, [&](std::size_t p) { read(memory->data() + p * piece, piece); }); });
        best = (std::max)(best, static_cast<double>(pieces * piece) / took);
    } while (all.seconds() < seconds);
    return best;
}

}  // namespace experiment

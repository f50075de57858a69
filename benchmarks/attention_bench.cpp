// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Attention of the Simd backend over an F16 cache, on one thread: GMAC/s for rows of a prompt, GB/s of keys and values
// for single rows, by the number of positions in front of them.

#include <decant/decant.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace {

struct Heads {
    std::uint32_t heads, kv_heads, head_dim;
};

void attend(benchmark::State& state, Heads h) {
    using decant::Simd;
    const auto rows = static_cast<std::uint32_t>(state.range(0));
    const auto before = static_cast<std::uint32_t>(state.range(1));
    const std::uint32_t length = before + rows;

    decant::CacheShape shape;
    shape.layers = {{h.kv_heads, h.head_dim}};
    const std::uint32_t blocks = (length + shape.block_tokens - 1) / shape.block_tokens;
    const Simd backend;
    auto cache = backend.allocate(blocks * shape.block_bytes()).value();
    std::mt19937 random(1);
    for (std::size_t i = 0; i < cache.size(); i += 2) {  // halves around 1
        cache.data()[i] = static_cast<std::byte>(random());
        cache.data()[i + 1] = std::byte{0x3C};
    }

    const std::uint32_t columns = h.heads * h.head_dim;
    auto buffer = backend.allocate(2 * rows * columns * sizeof(float)).value();
    const auto q = backend.view(buffer, 0, columns, decant::RowSet::tokens);
    const auto y = backend.view(buffer, std::size_t{rows} * columns, columns, decant::RowSet::tokens);
    for (std::size_t i = 0; i < std::size_t{rows} * columns; ++i)
        q.data[i] = static_cast<float>(random() % 201) / 100 - 1;

    Simd::Pass pass = backend.pass(1);
    pass.reserve({rows, 1, 1, blocks}, columns).value();
    pass.attend(q, 0, {h.heads, h.kv_heads, h.head_dim, 0.125f}, y);

    std::vector<std::int32_t> positions(rows), sequences(rows, 0), table(blocks);
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(before));
    std::iota(table.begin(), table.end(), 0);
    decant::PassInputs inputs;
    inputs.rows = rows;
    inputs.positions = positions;
    inputs.sequences = sequences;
    inputs.tables = table;
    const decant::AnyExecutor executor;
    for (auto _ : state) {
        backend.upload(pass, inputs, cache, shape);
        benchmark::DoNotOptimize(pass.run(executor));
    }
    const auto runs = static_cast<double>(state.iterations());
    const double seen = 0.5 * (before + 1.0 + length);  // positions that a row sees, on average
    state.counters["GMAC/s"] = benchmark::Counter(runs * rows * seen * 2 * columns * 1e-9, benchmark::Counter::kIsRate);
    state.counters["GB/s"] =
        benchmark::Counter(runs * length * 2 * h.kv_heads * h.head_dim * 2e-9, benchmark::Counter::kIsRate);
}

void cases(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"rows", "before"})
        ->Args({512, 0})
        ->Args({128, 8192})
        ->Args({1, 1024})
        ->Args({1, 8192})
        ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(attend, smollm2_135m, Heads{9, 3, 64})->Apply(cases);
BENCHMARK_CAPTURE(attend, llama_1b, Heads{32, 8, 64})->Apply(cases);
BENCHMARK_CAPTURE(attend, gemma3_270m, Heads{4, 1, 256})->Apply(cases);

}  // namespace

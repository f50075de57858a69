// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The matrix product of the Simd backend, per weight format and number of tokens, on one thread: GMAC/s, and GB/s of
// weights. `linear/` reads a weight that caches hold, `memory/` one that they do not.

#include <decant/decant.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr std::uint32_t columns = 2048;

void linear(benchmark::State& state, decant::DType dtype, std::uint32_t rows) {
    using decant::Simd;
    const auto tokens = static_cast<std::uint32_t>(state.range(0));
    // The same byte everywhere: 0x2B2B is an ordinary F16 scale and value, and so are its twins in BF16 and F32.
    const std::vector<std::byte> bytes(rows * decant::row_bytes(dtype, columns), std::byte{0x2B});
    std::mt19937 random(1);

    const decant::Tensor tensor{"bench", decant::name(dtype), dtype, {{rows, columns}, 2}, bytes};
    const Simd backend;
    auto weight = backend.weight(tensor).value();
    auto buffer = backend.allocate(tokens * (rows + columns) * sizeof(float)).value();
    const auto x = backend.view(buffer, 0, columns, decant::RowSet::tokens);
    const auto y = backend.view(buffer, std::size_t{tokens} * columns, rows, decant::RowSet::tokens);
    for (std::size_t i = 0; i < std::size_t{tokens} * columns; ++i)
        x.data[i] = static_cast<float>(random() % 201) / 100 - 1;

    Simd::Pass pass = backend.pass(1);
    pass.reserve({tokens, 1, 1, 1}, columns).value();
    pass.linear(x, {{&weight, nullptr, y}});
    auto cache = backend.allocate(0).value();
    const decant::CacheShape shape;
    decant::PassInputs inputs;
    inputs.rows = tokens;
    const decant::AnyExecutor executor;
    for (auto _ : state) {
        backend.upload(pass, inputs, cache, shape);
        benchmark::DoNotOptimize(pass.run(executor));
    }
    const auto runs = static_cast<double>(state.iterations());
    state.counters["GMAC/s"] = benchmark::Counter(runs * tokens * rows * columns * 1e-9, benchmark::Counter::kIsRate);
    state.counters["GB/s"] =
        benchmark::Counter(runs * static_cast<double>(bytes.size()) * 1e-9, benchmark::Counter::kIsRate);
}

const int registered = [] {
    using enum decant::DType;
    for (const decant::DType dtype : {f32, f16, bf16, q4_0, q4_1, q5_0, q8_0, q4_k, q6_k}) {
        const std::string name(decant::name(dtype));
        benchmark::RegisterBenchmark(("linear/" + name).c_str(), linear, dtype, 2048)
            ->Arg(1)
            ->Arg(4)
            ->Arg(8)
            ->Arg(16)
            ->Arg(128)
            ->Arg(512)
            ->Unit(benchmark::kMillisecond);
        constexpr std::size_t beyond_caches = std::size_t{1} << 29;
        const auto rows = static_cast<std::uint32_t>(beyond_caches / decant::row_bytes(dtype, columns));
        benchmark::RegisterBenchmark(("memory/" + name).c_str(), linear, dtype, rows)
            ->Arg(1)
            ->Arg(4)
            ->Unit(benchmark::kMillisecond);
    }
    return 0;
}();

}  // namespace

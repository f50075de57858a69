// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// One pick out of a vocabulary of 152,064 logits, per chain, with a history of 2,000 tokens.

#include <decant/sample/sampler.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t vocabulary = 152'064;

/// Near to normal, as those of language models are, and a few that stand out.
std::vector<float> random_logits(std::uint32_t seed, float deviation) {
    std::mt19937 random(seed);
    std::vector<float> logits(vocabulary);
    for (float& x : logits) {
        x = -6.0f;
        for (int i = 0; i < 12; ++i) x += static_cast<float>(random() >> 8) * 0x1.0p-24f;
        x *= deviation;
    }
    if (deviation > 1.0f)
        for (int i = 0; i < 20; ++i) logits[random() % vocabulary] += 12.0f;
    return logits;
}

/// Rows in turn, so that no pick finds its branches predicted.
void pick(benchmark::State& state, std::vector<decant::SamplerStep> steps, float deviation) {
    std::vector<std::vector<float>> rows;
    for (std::uint32_t seed = 1; seed <= 8; ++seed) rows.push_back(random_logits(seed, deviation));
    std::mt19937 random(2);
    std::vector<decant::Token> history(2000);
    for (auto& token : history) token = decant::Token{static_cast<std::int32_t>(random() % 3000)};
    auto sampler = decant::Sampler::chain(std::move(steps), 1).value();
    std::size_t next = 0;
    for (auto _ : state) benchmark::DoNotOptimize(sampler.pick(rows[next++ % rows.size()], history).value());
}

const int registered = [] {
    using namespace decant;
    const Penalties penalties{.repetition = 1.1f, .presence = 0.2f};
    const auto add = [](const char* name, std::vector<SamplerStep> steps, float deviation = 2.0f) {
        benchmark::RegisterBenchmark(name, pick, std::move(steps), deviation)->Unit(benchmark::kMicrosecond);
    };
    add("greedy", {Temperature{0.0f}});
    add("penalties_top_k_top_p_temperature", {penalties, TopK{40}, TopP{0.95f}, Temperature{0.7f}});
    add("penalties_all_dry_top_k",
        {Penalties{.frequency = 0.2f, .last_n = -1}, Dry{.multiplier = 0.8f}, TopK{40}, Temperature{0.7f}});
    add("top_k_1000", {TopK{1000}, Temperature{0.7f}});
    add("min_p_temperature", {MinP{0.05f}, Temperature{0.7f}});
    add("temperature", {Temperature{0.7f}});
    add("top_p", {TopP{0.95f}});
    add("typical", {Typical{0.95f}});
    add("mirostat", {Mirostat{}});
    // Nearly any token is as likely as the next.
    add("min_p_flat", {MinP{0.05f}}, 1.0f);
    add("top_p_flat", {TopP{0.95f}}, 1.0f);
    add("typical_flat", {Typical{0.95f}}, 1.0f);
    return 0;
}();

}  // namespace

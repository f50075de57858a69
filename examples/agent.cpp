// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// An agent calls a tool again and again, and its context grows: what each call costs with the cache of prefixes, and
// without. The tool is played by a table; what counts is the work that a turn makes.
//
//     agent --model FILE.gguf [--turns 50] [--answer TOKENS] [--threads N]

#include <decant/decant.hpp>

#include "support/greenhouse.hpp"
#include "support/options.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

namespace {

using examples::Greenhouse;

constexpr std::uint32_t block_tokens = decant::EngineOptions{}.block_tokens;

Greenhouse::Run play(const decant::Model<decant::Simd>& model, const decant::Tokenizer& tokenizer,
                     const Greenhouse& agent, std::size_t threads, bool prefix_cache) {
    auto engine =
        decant::Engine<decant::Simd>::create(model, tokenizer, decant::ThreadPool(threads), agent.options(prefix_cache))
            .value();
    return agent.play(engine, prefix_cache ? "with the cache of prefixes" : "without");
}

std::string bar(double value, double most) {
    return std::string(static_cast<std::size_t>(most > 0.0 ? 40.0 * value / most + 0.5 : 0.0), '#');
}

void show(const Greenhouse::Run& with, const Greenhouse::Run& without) {
    double most = 0.0;
    for (const Greenhouse::Call& call : without.calls) most = (std::max)(most, call.first);
    std::printf("\n%5s %8s  %22s  %s\n", "call", "context", "tokens computed", "milliseconds to the first token");
    std::printf("%5s %8s  %10s  %10s\n", "", "", "without", "with");
    const std::size_t step = (std::max)(with.calls.size() / 10, std::size_t{1});
    for (std::size_t i = 0; i < with.calls.size(); ++i) {
        if ((i + 1) % step != 0 && i != 0) continue;
        const Greenhouse::Call &a = without.calls[i], &b = with.calls[i];
        std::printf("%5zu %8zu  %10llu  %10s  %7.0f %s\n", i + 1, a.context,
                    static_cast<unsigned long long>(a.computed), "", a.first * 1e3, bar(a.first, most).c_str());
        std::printf("%5s %8s  %10s  %10llu  %7.0f %s\n", "", "", "", static_cast<unsigned long long>(b.computed),
                    b.first * 1e3, bar(b.first, most).c_str());
    }
    std::printf(
        "\nIn all %llu prompt tokens without, %llu with: %.1f times fewer. %.1f s without, %.1f s with: %.1f times as "
        "fast.\n",
        static_cast<unsigned long long>(without.computed()), static_cast<unsigned long long>(with.computed()),
        static_cast<double>(without.computed()) / static_cast<double>((std::max)(with.computed(), std::uint64_t{1})),
        without.seconds, with.seconds, without.seconds / with.seconds);
    std::printf("The model wrote %s.\n",
                with.written == without.written ? "the same, token for token" : "something else");
    std::printf(
        "With the cache %zu calls may compute %llu tokens at most: what was new, and a block of %u for each. "
        "They did%s.\n",
        with.calls.size(), static_cast<unsigned long long>(with.most_with_cache(block_tokens)), block_tokens,
        with.computed() <= with.most_with_cache(block_tokens) ? "" : " not keep to that");
}

}  // namespace

int main(int argc, char** argv) try {
    const examples::Options options(argc, argv, {"--model", "--turns", "--answer", "--threads"});
    if (!options.given("--model")) throw examples::UsageError("give a file: --model FILE.gguf");
    auto weights = decant::Weights::open(options.text("--model", "")).value();
    auto tokenizer = decant::Tokenizer::from(weights).value();
    auto model = decant::Model<decant::Simd>::bind(weights).value();
    const Greenhouse agent(tokenizer, options.count("--turns", 50, 1, 1000), options.count("--answer", 16, 1, 256));
    const std::size_t threads = options.count("--threads", 0, 0, 1024);
    const Greenhouse::Run without = play(model, tokenizer, agent, threads, false);
    const Greenhouse::Run with = play(model, tokenizer, agent, threads, true);
    show(with, without);
    return with.written == without.written && with.computed() <= with.most_with_cache(block_tokens) ? 0 : 1;
} catch (const examples::UsageError& error) {
    std::cerr << "agent: " << error.what() << '\n';
    return 2;
} catch (const std::exception& error) {
    std::cerr << "agent: " << error.what() << '\n';
    return 1;
}

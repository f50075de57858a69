// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// A game that gives an engine a little of every frame: how punctual `Engine::step_for` is, and what it costs.
//
//     frames --model FILE.gguf [--budget 2000] [--period 16000] [--threads 2] [--prompt 1000] [--tokens 100] [--asks 4]
//
// Times are in microseconds. Prints the share of calls that came back within the larger of a tenth of the budget and
// 0.2 ms (calls in which the system interrupted a thread aside), the largest excess, and the throughput as a share of
// what the same work takes without a budget.

#include <decant/decant.hpp>

#include "../examples/support/options.hpp"
#include "../examples/support/progress.hpp"
#include "../examples/support/timing.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

/// Times that the system took a processor away from a thread of this process.
long interruptions() {
#if defined(__linux__)
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nivcsw;
#else
    return 0;
#endif
}

struct Work {
    decant::Tokenizer tokenizer;
    decant::Model<decant::Simd> model;
    std::size_t threads, prompt, tokens, asks;

    [[nodiscard]] decant::Engine<decant::Simd> engine(std::vector<decant::Token>& written) const {
        auto engine =
            decant::Engine<decant::Simd>::create(model, tokenizer, decant::ThreadPool(threads),
                                                 {.cache_tokens = asks * (prompt + tokens + 16), .prefix_cache = false})
                .value();
        for (std::size_t i = 0; i < asks; ++i) {
            decant::Ask ask;
            for (std::size_t t = 0; t < prompt; ++t)
                ask.prompt.push_back(decant::Token{static_cast<std::int32_t>((t * 7919 + i * 31) % 4000 + 100)});
            ask.max_tokens = tokens;
            ask.ignore_end = true;
            ask.listener = [&written](const decant::Delta& delta) {
                if (delta.token) written.push_back(*delta.token);
            };
            static_cast<void>(engine.ask(std::move(ask)).value());
        }
        return engine;
    }
};

}  // namespace

int main(int argc, char** argv) try {
    const examples::Options options(argc, argv,
                                    {"--model", "--budget", "--period", "--threads", "--prompt", "--tokens", "--asks"});
    if (!options.given("--model")) throw examples::UsageError("give a file: --model FILE.gguf");
    const auto weights = decant::Weights::open(options.text("--model", "")).value();
    weights.warm_up().value();
    const Work work{decant::Tokenizer::from(weights).value(), decant::Model<decant::Simd>::bind(weights).value(),
                    options.count("--threads", 2, 1, 1024),   options.count("--prompt", 1000, 1, 100000),
                    options.count("--tokens", 100, 1, 10000), options.count("--asks", 4, 1, 16)};
    const std::chrono::microseconds budget(options.count("--budget", 2000, 1, 1000000));
    const std::chrono::microseconds period(options.count("--period", 16000, 1, 10000000));

    std::vector<decant::Token> whole, framed;
    double seconds = 0.0;
    for (int round = 0; round < 2; ++round) {  // the first one brings the weights near
        whole.clear();
        auto engine = work.engine(whole);
        const examples::Stopwatch clock;
        while (engine.step().value()) {
        }
        seconds = clock.seconds();
    }

    examples::Progress progress("frames");
    auto engine = work.engine(framed);
    const double limit = std::max(0.1 * std::chrono::duration<double>(budget).count(), 0.2e-3);
    std::size_t calls = 0, aside = 0, punctual = 0;
    double most = 0.0, used = 0.0;
    bool more = true;
    for (auto frame = Clock::now(); more; frame += period) {
        std::this_thread::sleep_until(frame);
        const long before = interruptions();
        const auto start = Clock::now();
        more = engine.step_for(budget).value();
        const double taken = std::chrono::duration<double>(Clock::now() - start).count();
        used += taken;
        if (interruptions() != before) {
            ++aside;
            continue;
        }
        ++calls;
        const double excess = taken - std::chrono::duration<double>(budget).count();
        punctual += excess <= limit ? 1 : 0;
        most = std::max(most, excess);
        progress.show(framed.size(), whole.size());
    }
    std::printf("%zu calls, %.2f %% within %.1f ms of %.1f ms, at most %.2f ms more; %zu interrupted calls aside\n",
                calls, 100.0 * static_cast<double>(punctual) / static_cast<double>(std::max(calls, std::size_t{1})),
                limit * 1e3, std::chrono::duration<double>(budget).count() * 1e3, most * 1e3, aside);
    std::printf("work of %.3f s took %.3f s of frames: %.0f %% of the throughput; %s\n", seconds, used,
                100.0 * seconds / used, framed == whole ? "the same tokens" : "OTHER TOKENS");
    return framed == whole ? 0 : 1;
} catch (const examples::UsageError& error) {
    std::cerr << "frames: " << error.what() << '\n';
    return 2;
} catch (const std::exception& error) {
    std::cerr << "frames: " << error.what() << '\n';
    return 1;
}

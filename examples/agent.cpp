// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// An agent calls a tool again and again, and its context grows: what each call costs with the cache of prefixes, and
// without. The tool is played by a table; what counts is the work that a turn makes.
//
//     agent --model FILE.gguf [--turns 50] [--answer TOKENS] [--threads N]

#include <decant/decant.hpp>

#include "support/options.hpp"
#include "support/progress.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view system_prompt =
    "You look after a greenhouse. You have these tools:\n"
    "read_sensor(bed): temperature, moisture and light of a bed.\n"
    "water(bed, litres): opens the valve of a bed.\n"
    "open_roof(percent): lets warm air out.\n"
    "note(text): writes into the gardener's book.\n"
    "Answer with one call of a tool, in one line, and wait for its result.\n\n";

/// What the tool answers in a turn.
std::string tool_result(std::size_t turn) {
    constexpr std::string_view beds[] = {"tomatoes", "basil", "cucumbers", "orchids", "seedlings"};
    return "\nResult " + std::to_string(turn + 1) + ": bed of " + std::string(beds[turn % std::size(beds)]) +
           ", temperature " + std::to_string(17 + turn * 7 % 15) + " degrees, moisture " +
           std::to_string(20 + turn * 13 % 60) + " percent, light " + std::to_string(200 + turn * 37 % 700) +
           " lux. The next call:\n";
}

/// One call of the model.
struct Turn {
    std::size_t context = 0;     // tokens of the prompt
    std::uint64_t computed = 0;  // of them
    double first = 0.0;          // seconds to the first token
};

struct Run {
    std::vector<Turn> turns;
    std::vector<decant::Token> written;  // by the model, in all turns
    double seconds = 0.0;
};

Run play(const decant::Model<decant::Simd>& model, const decant::Tokenizer& tokenizer, const examples::Options& options,
         bool prefix_cache) {
    const std::size_t turns = options.count("--turns", 50, 1, 1000), answer = options.count("--answer", 16, 1, 256);
    auto engine = decant::Engine<decant::Simd>::create(
                      model, tokenizer, decant::ThreadPool(options.count("--threads", 0, 0, 1024)),
                      {.cache_tokens = 256 + turns * (answer + 64), .rows = 512, .prefix_cache = prefix_cache})
                      .value();
    examples::Progress progress(prefix_cache ? "with the cache of prefixes" : "without");
    Run run;
    std::vector<decant::Token> context = tokenizer.encode(system_prompt, {.bos = true});
    const auto start = Clock::now();
    std::uint64_t computed = 0;
    for (std::size_t turn = 0; turn < turns; ++turn) {
        progress.show(turn, turns);
        const std::vector<decant::Token> result = tokenizer.encode(tool_result(turn));
        context.insert(context.end(), result.begin(), result.end());
        Turn made;
        made.context = context.size();
        const auto asked = Clock::now();
        decant::Ask ask;
        ask.prompt = context;
        ask.max_tokens = answer;
        ask.ignore_end = true;
        ask.listener = [&](const decant::Delta& delta) {
            if (!delta.token) return;
            if (made.first == 0.0) made.first = std::chrono::duration<double>(Clock::now() - asked).count();
            context.push_back(*delta.token);
            run.written.push_back(*delta.token);
        };
        static_cast<void>(engine.ask(std::move(ask)).value());
        while (engine.step().value()) {
        }
        made.computed = engine.counts().prompt_tokens - computed;
        computed = engine.counts().prompt_tokens;
        run.turns.push_back(made);
    }
    run.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return run;
}

std::string bar(double value, double most) {
    return std::string(static_cast<std::size_t>(most > 0.0 ? 40.0 * value / most + 0.5 : 0.0), '#');
}

void show(const Run& with, const Run& without) {
    double most = 0.0;
    for (const Turn& turn : without.turns) most = (std::max)(most, turn.first);
    std::printf("\n%5s %8s  %22s  %s\n", "turn", "context", "tokens computed", "milliseconds to the first token");
    std::printf("%5s %8s  %10s  %10s\n", "", "", "without", "with");
    const std::size_t step = (std::max)(with.turns.size() / 10, std::size_t{1});
    std::uint64_t all_without = 0, all_with = 0;
    for (std::size_t i = 0; i < with.turns.size(); ++i) {
        const Turn &a = without.turns[i], &b = with.turns[i];
        all_without += a.computed;
        all_with += b.computed;
        if ((i + 1) % step != 0 && i != 0) continue;
        std::printf("%5zu %8zu  %10llu  %10s  %7.0f %s\n", i + 1, a.context,
                    static_cast<unsigned long long>(a.computed), "", a.first * 1e3, bar(a.first, most).c_str());
        std::printf("%5s %8s  %10s  %10llu  %7.0f %s\n", "", "", "", static_cast<unsigned long long>(b.computed),
                    b.first * 1e3, bar(b.first, most).c_str());
    }
    std::printf(
        "\nIn all %llu prompt tokens without, %llu with: %.1f times fewer. %.1f s without, %.1f s with: %.1f times as "
        "fast.\n",
        static_cast<unsigned long long>(all_without), static_cast<unsigned long long>(all_with),
        static_cast<double>(all_without) / static_cast<double>((std::max)(all_with, std::uint64_t{1})), without.seconds,
        with.seconds, without.seconds / with.seconds);
    std::printf("The model wrote %s.\n",
                with.written == without.written ? "the same, token for token" : "something else");
}

}  // namespace

int main(int argc, char** argv) try {
    const examples::Options options(argc, argv, {"--model", "--turns", "--answer", "--threads"});
    if (!options.given("--model")) throw examples::UsageError("give a file: --model FILE.gguf");
    auto weights = decant::Weights::open(options.text("--model", "")).value();
    auto tokenizer = decant::Tokenizer::from(weights).value();
    auto model = decant::Model<decant::Simd>::bind(weights).value();
    const Run without = play(model, tokenizer, options, false);
    const Run with = play(model, tokenizer, options, true);
    show(with, without);
    return with.written == without.written ? 0 : 1;
} catch (const examples::UsageError& error) {
    std::cerr << "agent: " << error.what() << '\n';
    return 2;
} catch (const std::exception& error) {
    std::cerr << "agent: " << error.what() << '\n';
    return 1;
}

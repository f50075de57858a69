// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Replays arrivals on an engine: how long each asker waits for the first token and from token to token, and how many
// tokens all get per second.
//
//     serving --model FILE.gguf --trace FILE.jsonl [--seats 8] [--threads 2] [--cache 16384] [--prompt-rows 128]
//             [--draft 0] [--draft-model FILE.gguf] [--contrary] [--no-prefix-cache] [--json]
//
// A line of the trace is a request: {"arrival": 0.5, "prompt": ..., "max_tokens": 64, "seed": 1}. `arrival` is in
// seconds from the start, or, with "after": N, from the end of the N-th request of the file (from 0). `prompt` is a
// text, a list of tokens, or a number: so many made-up tokens, which are others for another seed. Answers are greedy
// and go on behind the end of a turn. `--draft`: so many tokens may be drafted for each answer (with a draft model, if
// not said, 8). `--contrary`: the draft model proposes what it thinks least likely, to see what bad drafts cost. Times
// are in milliseconds; the first token counts from the arrival.

#include <decant/decant.hpp>

#include "../examples/support/contrary.hpp"
#include "../examples/support/options.hpp"
#include "../examples/support/progress.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Engine = decant::Engine<decant::Simd>;
using Clock = std::chrono::steady_clock;

/// What came is in seconds since the start.
struct Entry {
    double arrival = 0.0;  // after the end of `after`, if there is one
    std::optional<std::size_t> after;
    std::vector<decant::Token> prompt;
    std::size_t max_tokens = 0;
    bool asked = false;
    std::vector<double> tokens;
    std::optional<double> end;
    decant::FinishReason reason = decant::FinishReason::none;

    [[nodiscard]] double first_token() const { return tokens.empty() ? 0.0 : tokens.front() - arrival; }
};

std::vector<decant::Token> made_up(std::size_t count, std::uint64_t seed, std::size_t vocabulary) {
    std::vector<decant::Token> tokens;
    for (std::size_t i = 0; i < count; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        tokens.push_back(decant::Token{static_cast<std::int32_t>((seed >> 33) % vocabulary)});
    }
    return tokens;
}

Entry parse(const nlohmann::json& line, std::size_t number, const decant::Tokenizer& tokenizer,
            std::size_t vocabulary) {
    Entry entry;
    entry.arrival = line.at("arrival").get<double>();
    if (!(entry.arrival >= 0.0 && entry.arrival < 86400.0)) throw std::runtime_error("arrivals are from 0 to a day");
    if (line.contains("after")) {
        entry.after = line.at("after").get<std::size_t>();
        if (*entry.after >= number) throw std::runtime_error("\"after\" names an earlier request");
    }
    const nlohmann::json& prompt = line.at("prompt");
    if (prompt.is_string()) {
        entry.prompt = tokenizer.encode(prompt.get<std::string>(), {.bos = true});
    } else if (prompt.is_array()) {
        for (const nlohmann::json& token : prompt) entry.prompt.push_back(decant::Token{token.get<std::int32_t>()});
    } else {
        const auto count = prompt.get<std::size_t>();
        if (count > 1000000) throw std::runtime_error("a prompt is at most a million tokens");
        entry.prompt = made_up(count, line.value("seed", std::uint64_t{0}), vocabulary);
    }
    entry.max_tokens = line.at("max_tokens").get<std::size_t>();
    if (entry.max_tokens == 0 || entry.max_tokens > 1000000)
        throw std::runtime_error("an answer has from 1 to a million tokens");
    entry.tokens.reserve(entry.max_tokens);
    return entry;
}

std::vector<Entry> read_trace(const std::string& path, const decant::Tokenizer& tokenizer, std::size_t vocabulary) {
    std::ifstream in(path);
    if (!in) throw std::runtime_error(path + ": cannot be read");
    std::vector<Entry> entries;
    for (std::string line; std::getline(in, line);) {
        try {
            entries.push_back(parse(nlohmann::json::parse(line), entries.size(), tokenizer, vocabulary));
        } catch (const std::exception& error) {
            throw std::runtime_error(path + ", line " + std::to_string(entries.size() + 1) + ": " + error.what());
        }
    }
    if (entries.empty()) throw std::runtime_error(path + ": no requests");
    return entries;
}

decant::Ask greedy(std::vector<decant::Token> prompt, std::size_t max_tokens) {
    decant::Ask ask;
    ask.prompt = std::move(prompt);
    ask.sampler = decant::Sampler({.temperature = 0.0f});
    ask.max_tokens = max_tokens;
    ask.ignore_end = true;
    return ask;
}

/// Asks every entry when its time has come, until all are answered.
void replay(Engine& engine, std::vector<Entry>& entries, std::uint32_t draft_tokens) {
    examples::Progress progress("serving");
    const auto start = Clock::now();
    const auto now = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    const auto ask = [&](Entry& entry) {
        decant::Ask wanted = greedy(entry.prompt, entry.max_tokens);
        wanted.draft_tokens = draft_tokens;
        wanted.listener = [&entry, &now](const decant::Delta& delta) {
            const double time = now();
            if (delta.token) entry.tokens.push_back(time);
            if (delta.finish == decant::FinishReason::none) return;
            entry.end = time;
            entry.reason = delta.finish;
        };
        static_cast<void>(engine.ask(std::move(wanted)).value());
        entry.asked = true;
    };
    for (std::size_t ended = 0; ended < entries.size();) {
        double next = std::numeric_limits<double>::infinity();
        for (Entry& entry : entries) {
            if (entry.asked) continue;
            if (entry.after) {
                const std::optional<double>& end = entries[*entry.after].end;
                if (!end) continue;
                entry.arrival += *end;
                entry.after.reset();
            }
            if (entry.arrival <= now())
                ask(entry);
            else
                next = (std::min)(next, entry.arrival);
        }
        if (engine.idle())
            std::this_thread::sleep_until(
                start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(next)));
        else
            static_cast<void>(engine.step().value());
        ended = static_cast<std::size_t>(
            std::count_if(entries.begin(), entries.end(), [](const Entry& entry) { return entry.end.has_value(); }));
        progress.show(ended, entries.size());
    }
}

/// The smallest of the values that a share `q` of all does not exceed.
double quantile(std::vector<double> values, double q) {
    if (values.empty()) return 0.0;
    const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
    const auto at = values.begin() + static_cast<std::ptrdiff_t>((std::max)(rank, std::size_t{1}) - 1);
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

std::vector<double> gaps(const Entry& entry) {
    std::vector<double> out;
    for (std::size_t i = 1; i < entry.tokens.size(); ++i) out.push_back(entry.tokens[i] - entry.tokens[i - 1]);
    return out;
}

struct Totals {
    std::size_t tokens = 0;
    double seconds = 0.0;  // from the first arrival to the last token
    std::vector<double> first, between;

    [[nodiscard]] double per_second() const { return static_cast<double>(tokens) / (std::max)(seconds, 1e-9); }
};

Totals sum(const std::vector<Entry>& entries) {
    Totals totals;
    double begin = std::numeric_limits<double>::infinity(), end = 0.0;
    for (const Entry& entry : entries) {
        totals.tokens += entry.tokens.size();
        begin = (std::min)(begin, entry.arrival);
        end = (std::max)(end, *entry.end);
        if (!entry.tokens.empty()) totals.first.push_back(entry.first_token());
        for (const double gap : gaps(entry)) totals.between.push_back(gap);
    }
    totals.seconds = end - begin;
    return totals;
}

nlohmann::json quantiles(const std::vector<double>& seconds) {
    return {{"p50", quantile(seconds, 0.5)}, {"p95", quantile(seconds, 0.95)}, {"p99", quantile(seconds, 0.99)}};
}

void print_json(const std::vector<Entry>& entries, const Totals& totals, const Engine& engine) {
    nlohmann::json requests = nlohmann::json::array();
    for (const Entry& entry : entries) {
        requests.push_back({{"arrival", entry.arrival},
                            {"prompt_tokens", entry.prompt.size()},
                            {"tokens", entry.tokens.size()},
                            {"first_token", entry.first_token()},
                            {"between_tokens", gaps(entry)},
                            {"end", *entry.end}});
    }
    const nlohmann::json out{{"requests", requests},
                             {"tokens", totals.tokens},
                             {"seconds", totals.seconds},
                             {"tokens_per_second", totals.per_second()},
                             {"first_token", quantiles(totals.first)},
                             {"between_tokens", quantiles(totals.between)},
                             {"engine", nlohmann::json::parse(decant::to_json(engine.metrics()))}};
    std::printf("%s\n", out.dump().c_str());
}

void print_table(const std::vector<Entry>& entries, const Totals& totals, const Engine& engine) {
    std::printf("%9s %8s %8s %12s %12s %12s\n", "arrival", "prompt", "tokens", "first token", "p50 between",
                "max between");
    for (const Entry& entry : entries) {
        const std::vector<double> between = gaps(entry);
        std::printf("%7.2f s %8zu %8zu %9.1f ms %9.1f ms %9.1f ms\n", entry.arrival, entry.prompt.size(),
                    entry.tokens.size(), 1e3 * entry.first_token(), 1e3 * quantile(between, 0.5),
                    1e3 * quantile(between, 1.0));
    }
    std::printf("\n%zu tokens in %.2f s: %.1f tokens/s\n", totals.tokens, totals.seconds, totals.per_second());
    const auto row = [](const char* name, const std::vector<double>& seconds) {
        std::printf("%-15s p50 %8.1f ms   p95 %8.1f ms   p99 %8.1f ms\n", name, 1e3 * quantile(seconds, 0.5),
                    1e3 * quantile(seconds, 0.95), 1e3 * quantile(seconds, 0.99));
    };
    row("first token", totals.first);
    row("between tokens", totals.between);
    const decant::EngineMetrics metrics = engine.metrics();
    const auto share = [&](double part) { return 100.0 * part / metrics.seconds(); };
    std::printf("%.1f answers and %.1f tokens in a pass; %.2f GB/s and %.1f G multiply-adds/s\n",
                static_cast<double>(metrics.sequences) / static_cast<double>(metrics.steps),
                static_cast<double>(metrics.rows) / static_cast<double>(metrics.steps),
                1e-9 * metrics.bytes / metrics.pass_seconds, 1e-9 * metrics.operations / metrics.pass_seconds);
    std::printf(
        "of the time in steps: passes %.2f %%, drafts %.2f %%, sampling %.2f %%, listeners %.2f %%, "
        "the engine's own %.2f %%\n",
        share(metrics.pass_seconds), share(metrics.draft_seconds), share(metrics.sample_seconds),
        share(metrics.listener_seconds), share(metrics.own_seconds));
    if (metrics.counts.draft_tokens > 0) {
        std::printf("%llu of %llu drafted tokens were right\n",
                    static_cast<unsigned long long>(metrics.counts.accepted_tokens),
                    static_cast<unsigned long long>(metrics.counts.draft_tokens));
    }
    std::printf("%llu steps, %llu of %llu prompt tokens found in the cache, %llu answers gave their blocks away\n%s\n",
                static_cast<unsigned long long>(metrics.steps),
                static_cast<unsigned long long>(metrics.counts.cached_tokens),
                static_cast<unsigned long long>(metrics.counts.cached_tokens + metrics.counts.prompt_tokens),
                static_cast<unsigned long long>(metrics.counts.preemptions), metrics.diagnose().c_str());
}

}  // namespace

int main(int argc, char** argv) try {
    const examples::Options options(
        argc, argv,
        {"--model", "--trace", "--seats", "--threads", "--cache", "--prompt-rows", "--draft", "--draft-model"},
        {"--contrary", "--no-prefix-cache", "--json"});
    if (!options.given("--model") || !options.given("--trace"))
        throw examples::UsageError("give a file and what is asked of it: --model FILE.gguf --trace FILE.jsonl");
    if (options.given("--contrary") && !options.given("--draft-model"))
        throw examples::UsageError("--contrary is about a draft model: --draft-model FILE.gguf");
    const auto weights = decant::Weights::open(options.text("--model", "")).value();
    weights.warm_up().value();
    const auto tokenizer = decant::Tokenizer::from(weights).value();
    const auto model = decant::Model<decant::Simd>::bind(weights).value();
    const auto prompt_rows = static_cast<std::uint32_t>(options.count("--prompt-rows", 128, 1, 65536));
    std::optional<decant::Model<decant::Simd>> draft_model;
    if (options.given("--draft-model")) {
        auto smaller = decant::Weights::open(options.text("--draft-model", "")).value();
        smaller.warm_up().value();
        if (options.given("--contrary")) smaller = examples::contrary(smaller).value();
        draft_model = decant::Model<decant::Simd>::bind(smaller).value();
    }
    const auto draft = static_cast<std::uint32_t>(options.count("--draft", draft_model ? 8 : 0, 0, 64));
    const std::size_t cache = options.count("--cache", 16384, 1, 100000000);
    auto entries = read_trace(options.text("--trace", ""), tokenizer, model.spec().vocabulary);
    auto engine = Engine::create(model, tokenizer, decant::ThreadPool(options.count("--threads", 2, 1, 1024)),
                                 {.cache_tokens = cache,
                                  .sequences = static_cast<std::uint32_t>(options.count("--seats", 8, 1, 4096)),
                                  .rows = (std::max)(256u, prompt_rows),
                                  .prompt_rows = prompt_rows,
                                  .draft_cache_tokens = cache,
                                  .prefix_cache = !options.given("--no-prefix-cache")},
                                 draft_model)
                      .value();

    // What happens once in the life of a process is over before the clock starts.
    static_cast<void>(engine.ask(greedy(made_up(16, 1, model.spec().vocabulary), 8)).value());
    while (engine.step().value()) {
    }

    replay(engine, entries, draft);
    const Totals totals = sum(entries);
    if (options.given("--json"))
        print_json(entries, totals, engine);
    else
        print_table(entries, totals, engine);
    for (const Entry& entry : entries) {
        if (entry.reason == decant::FinishReason::length) continue;
        std::cerr << "serving: an answer ended early: give the cache more tokens\n";
        return 1;
    }
    return 0;
} catch (const examples::UsageError& error) {
    std::cerr << "serving: " << error.what() << '\n';
    return 2;
} catch (const std::exception& error) {
    std::cerr << "serving: " << error.what() << '\n';
    return 1;
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// A soak: thousands of short asks that come, are cancelled and push each other out of a cache that holds half of what
// they need. Nothing is lost, every block comes back, memory stays flat.
#include <decant/serve/engine.hpp>

#include "core/sanitizers.hpp"
#include "serve/support.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <unistd.h>
#endif

using decant::Ask;
using decant::AskId;
using decant::Delta;
using decant::EngineCounts;
using decant::EngineOptions;
using decant::FinishReason;
using decant::Sampler;
using decant::Simd;
using decant::Token;
using decant_test::between;
using decant_test::Random;
using decant_test::Scene;
using decant_test::taken;
using decant_test::Tokens;
using Engine = decant::Engine<Simd>;

namespace {

constexpr std::size_t most_answers = 3;

/// Bytes of this process in memory; 0 where that is not told or says nothing.
std::size_t resident() {
#if defined(__linux__) && !DECANT_TEST_SANITIZED
    std::ifstream statm("/proc/self/statm");
    std::size_t size = 0, pages = 0;
    statm >> size >> pages;
    return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
#else
    return 0;
#endif
}

/// What came for one ask. Its place stays, so that a listener needs no memory of its own.
struct Record {
    AskId id{};
    std::uint8_t answers = 0;
    bool cancelled = false;
    bool has_deadline = false;
    std::uint16_t most_tokens = 0;
    std::array<std::uint8_t, most_answers> last{};  // Deltas that ended it
    std::array<std::uint16_t, most_answers> tokens{};
    std::array<FinishReason, most_answers> end{};
    bool after_last = false;  // something came behind the last Delta
};

/// Asks and cancels at random.
class Crowd {
 public:
    Crowd(Engine& engine, std::uint64_t seed, std::size_t asks)
        : engine_(engine), random_{seed}, common_(decant_test::random_tokens(random_, 12)), records_(asks) {}

    [[nodiscard]] const std::vector<Record>& records() const { return records_; }
    [[nodiscard]] std::size_t asked() const { return asked_; }
    [[nodiscard]] std::uint64_t tokens() const { return tokens_; }

    /// Until `asks` have been asked and answered.
    void run_to(std::size_t asks) {
        bool more = true;
        while (asked_ < asks || more) {
            // Now and then there is nothing, or a rush.
            const std::size_t waiting = engine_.counts().waiting;
            if (waiting < 24)
                for (std::size_t n = between(random_, 0, 4); n > 0 && asked_ < asks; --n) ask();
            if (between(random_, 0, 3) == 0) cancel_any();
            more = taken(between(random_, 0, 7) != 0
                             ? engine_.step()
                             : engine_.step_for(std::chrono::microseconds(between(random_, 0, 100))));
            const EngineCounts counts = engine_.counts();
            if (counts.free_blocks + counts.remembered_blocks > counts.blocks) FAIL("a block is free and remembered");
            if (counts.running > 8) FAIL("more run than there are places");
        }
        CHECK(engine_.idle());
    }

 private:
    void ask() {
        Record& record = records_[asked_++];
        Ask ask;
        // Few different tokens, so that drafts are found everywhere, and hardly one of them is right.
        const auto beginning = static_cast<std::ptrdiff_t>(between(random_, 0, common_.size()));
        ask.prompt.assign(common_.begin(), common_.begin() + beginning);
        const Tokens own = decant_test::random_tokens(random_, between(random_, 1, 10), 4);
        ask.prompt.insert(ask.prompt.end(), own.begin(), own.end());
        ask.sampler = Sampler({.temperature = between(random_, 0, 2) == 0 ? 0.0f : 1.5f, .seed = random_.next()});
        ask.max_tokens = between(random_, 1, 12);
        ask.answers = static_cast<std::uint32_t>(between(random_, 0, 7) == 0 ? between(random_, 2, most_answers) : 1);
        ask.priority = static_cast<int>(between(random_, 0, 4)) - 2;
        ask.ignore_end = between(random_, 0, 1) == 1;
        ask.draft_tokens = static_cast<std::uint32_t>(between(random_, 0, 8));
        if (between(random_, 0, 7) == 0) ask.stop = {"a", "th"};
        if (between(random_, 0, 15) == 0) ask.cache_salt = "another";
        if (between(random_, 0, 9) == 0) {
            const auto time = std::chrono::microseconds(between(random_, 0, 4000));
            ask.deadline = Engine::Clock::now() + time - std::chrono::milliseconds(1);
            record.has_deadline = true;
        }
        record.answers = static_cast<std::uint8_t>(ask.answers);
        record.most_tokens = static_cast<std::uint16_t>(ask.max_tokens);
        ask.listener = [this, &record](const Delta& delta) { hear(record, delta); };
        record.id = taken(engine_.ask(std::move(ask)));
    }

    void hear(Record& record, const Delta& delta) {
        const std::size_t n = delta.answer;
        REQUIRE(n < record.answers);
        REQUIRE(delta.ask == record.id);
        record.after_last |= record.last[n] > 0;
        if (delta.token) {
            ++record.tokens[n];
            ++tokens_;
        }
        record.end[n] = delta.finish;
        if (delta.finish != FinishReason::none) ++record.last[n];
        if (between(random_, 0, 199) == 0) cancel(record);  // from within
        if (between(random_, 0, 199) == 0) cancel_any();
    }

    void cancel_any() {
        // The last ones wait, write, or have just ended.
        if (asked_ > 0) cancel(records_[asked_ - 1 - random_.below((std::min)(asked_, std::size_t{40}))]);
    }
    void cancel(Record& record) {
        if (record.id == AskId{}) return;
        engine_.cancel(record.id);
        record.cancelled = true;
    }

    Engine& engine_;
    Random random_;
    Tokens common_;
    std::vector<Record> records_;
    std::size_t asked_ = 0;
    std::uint64_t tokens_ = 0;
};

/// Every ask has its ends, for a reason that it gave, and the engine counts the same.
void check_complete(const Crowd& crowd, const EngineCounts& counts) {
    std::size_t answers = 0, wrong = 0;
    std::array<std::size_t, 7> ends{};
    for (const Record& record : crowd.records()) {
        answers += record.answers;
        wrong += record.after_last ? 1 : 0;
        for (std::size_t n = 0; n < record.answers; ++n) {
            const FinishReason end = record.end[n];
            ++ends[static_cast<std::size_t>(end)];
            const bool possible = record.last[n] == 1 && (end != FinishReason::cancelled || record.cancelled) &&
                                  (end != FinishReason::deadline || record.has_deadline) &&
                                  (end == FinishReason::length ? record.tokens[n] == record.most_tokens
                                                               : record.tokens[n] <= record.most_tokens);
            wrong += possible ? 0 : 1;
        }
    }
    CHECK(wrong == 0);
    CHECK(ends[static_cast<std::size_t>(FinishReason::none)] == 0);
    CHECK(ends[static_cast<std::size_t>(FinishReason::full)] == 0);
    CHECK(ends[static_cast<std::size_t>(FinishReason::failed)] == 0);
    for (const FinishReason each :
         {FinishReason::stop, FinishReason::length, FinishReason::cancelled, FinishReason::deadline})
        CHECK(ends[static_cast<std::size_t>(each)] > 0);
    CHECK(counts.finished == answers);
    CHECK(counts.answer_tokens == crowd.tokens());
    CHECK(counts.waiting == 0);
    CHECK(counts.running == 0);
}

/// One prompt that needs every block: what was remembered goes, and nobody else holds any.
void check_all_blocks(Engine& engine, std::size_t tokens) {
    FinishReason end = FinishReason::none;
    Ask ask;
    Random random{99};
    ask.prompt = decant_test::random_tokens(random, tokens);
    ask.max_tokens = 1;
    ask.cache_salt = "all";
    ask.listener = [&](const Delta& delta) { end = delta.finish; };
    const std::uint64_t before = engine.counts().preemptions;
    static_cast<void>(taken(engine.ask(std::move(ask))));
    while (taken(engine.step())) {
    }
    CHECK((end == FinishReason::length || end == FinishReason::stop));
    CHECK(engine.counts().preemptions == before);
    CHECK(engine.counts().remembered_blocks <= engine.counts().blocks);
    CHECK(engine.counts().free_blocks + engine.counts().remembered_blocks == engine.counts().blocks);
}

void soak(const std::string& model, EngineOptions options, std::uint64_t seed, std::size_t asks) {
    CAPTURE(model, options.prefix_cache, asks);
    const Scene scene(model);
    Engine engine = scene.engine(options);
    Crowd crowd(engine, seed, asks);
    crowd.run_to(asks / 5);
    const std::size_t early = resident();
    crowd.run_to(asks);
    const std::size_t late = resident();
    CAPTURE(early, late);
    CHECK(late <= early + (std::size_t{1} << 20));
    const EngineCounts counts = engine.counts();
    check_complete(crowd, counts);
    CHECK(counts.preemptions > asks / 100);  // the cache was too small
    if (options.prefix_cache) {
        CHECK(counts.free_blocks + counts.remembered_blocks == counts.blocks);
    } else {
        CHECK(counts.free_blocks == counts.blocks);
    }
    check_all_blocks(engine, options.cache_tokens);
}

/// Entries of a folder of /proc/self: threads or open files; 0 where there is none.
std::size_t entries(const char* name) {
    std::error_code none;
    const std::filesystem::directory_iterator folder(std::string("/proc/self/") + name, none), end;
    return none ? 0 : static_cast<std::size_t>(std::distance(folder, end));
}

}  // namespace

// Eight answers of some 20 tokens each, prompts included, and room for 80. Case BS-05 of the public bug cases: 10,000
// asks with random cancels keep no block.
TEST_CASE("soak: 10,000 short asks in a cache too small by half", "[serve][soak]") {
    const EngineOptions options{
        .cache_tokens = 80, .block_tokens = 4, .sequences = 8, .rows = 24, .prompt_rows = 12, .draft_rows = 8};
    soak("llama3", options, 1, DECANT_TEST_SANITIZED ? 2000 : 10000);
}
TEST_CASE("soak: without a cache of prefixes, every block is free in the end", "[serve][soak]") {
    const EngineOptions options{.cache_tokens = 80,
                                .block_tokens = 4,
                                .sequences = 8,
                                .rows = 24,
                                .prompt_rows = 12,
                                .draft_rows = 8,
                                .prefix_cache = false};
    soak("llama3", options, 2, 2000);
}
TEST_CASE("soak: where layers keep a state", "[serve][soak]") {
    const EngineOptions options{.cache_tokens = 80, .block_tokens = 4, .sequences = 8, .rows = 24, .prompt_rows = 12};
    soak("mamba2", options, 3, 1000);
}
TEST_CASE("soak: where windows pass what lies before them", "[serve][soak]") {
    const EngineOptions options{.cache_tokens = 80, .block_tokens = 4, .sequences = 8, .rows = 24, .prompt_rows = 12};
    soak("gemma3_std", options, 4, 1000);
}

// Case EH-08 of the public bug cases, its part (a): after an engine, its model and its file, nothing is left.
TEST_CASE("soak: engines come and go", "[serve][soak]") {
    Tokens first;
    std::size_t memory = 0, threads = 0, files = 0;
    for (int round = 0; round < 200; ++round) {
        {
            const Scene scene("llama3");
            Engine engine = scene.engine({.cache_tokens = 512}, 2);
            Tokens written;
            Ask ask;
            ask.prompt = decant_test::random_tokens(40, 5, 160);
            ask.max_tokens = 5;
            ask.ignore_end = true;
            ask.listener = [&](const Delta& delta) {
                if (delta.token) written.push_back(*delta.token);
            };
            static_cast<void>(taken(engine.ask(std::move(ask))));
            // Every other engine goes while it has work.
            for (int steps = 0; (round % 2 == 0 || steps < 3) && taken(engine.step()); ++steps) {
            }
            if (round == 0) first = written;
            if (round % 2 == 0) CHECK(written == first);
        }
        if (round == 20) {
            memory = resident();
            threads = entries("task");
            files = entries("fd");
        }
    }
    CHECK(first.size() == 5);
    CHECK(resident() <= memory + (std::size_t{1} << 20));
    CHECK(entries("task") == threads);
    CHECK(entries("fd") == files);
}

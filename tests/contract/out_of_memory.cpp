// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// An allocation that fails, whichever it is, ends in an error or in std::bad_alloc: nothing aborts, nothing leaks, and
// what stood before still works (case EH-05 of ../shared/cases).
//
//     out_of_memory MODEL [STEP]     every allocation fails once, or every STEP-th beyond the first thousand
#include "contract/program.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <vector>

namespace {

constexpr std::uint64_t never = (std::numeric_limits<std::uint64_t>::max)();
std::atomic<std::uint64_t> until_failure{never};
std::atomic<std::int64_t> live{0};

void* allocate(std::size_t size, std::size_t alignment) noexcept {
    if (until_failure != never && until_failure.fetch_sub(1) == 0) {
        until_failure = never;
        return nullptr;
    }
    void* data = alignment <= alignof(std::max_align_t)
                     ? std::malloc(size == 0 ? 1 : size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (data != nullptr) ++live;
    return data;
}
// Not inlined: g++ takes free for a mistake where it sees new next to it.
[[gnu::noinline]] void give_back(void* data) noexcept {
    if (data != nullptr) --live;
    std::free(data);
}

}  // namespace

void* operator new(std::size_t size) {
    if (void* data = allocate(size, 1)) return data;
    throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
    if (void* data = allocate(size, static_cast<std::size_t>(alignment))) return data;
    throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void operator delete(void* data) noexcept { give_back(data); }
void operator delete(void* data, std::size_t) noexcept { give_back(data); }
void operator delete(void* data, std::align_val_t) noexcept { give_back(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { give_back(data); }
void operator delete(void* data, const std::nothrow_t&) noexcept { give_back(data); }

namespace {

using decant_test::check;
using decant_test::question;

enum class Outcome { worked, error, thrown };

/// Runs `body`, which returns a Result, with its allocation number `failing` failing.
template <class F>
Outcome with_failure(std::uint64_t failing, F body) {
    until_failure = failing;
    Outcome outcome = Outcome::thrown;
    try {
        outcome = body() ? Outcome::worked : Outcome::error;
    } catch (const std::bad_alloc&) {
    }
    const bool happened = until_failure == never;
    until_failure = never;
    if (!happened) return Outcome::worked;
    return outcome == Outcome::worked ? Outcome::error : outcome;  // it was met and got over
}

/// Lets every allocation of `body` fail in turn; `after` looks at the state each time.
template <class F, class After>
void each_allocation(const char* what, std::uint64_t step, F body, After after) {
    std::uint64_t failing = 0, errors = 0;
    while (true) {
        const std::int64_t before = live;
        const Outcome outcome = with_failure(failing, body);
        after();
        const bool kept = live != before;  // before the message is made
        check(!kept, std::string(what) + " leaked at allocation " + std::to_string(failing));
        if (outcome == Outcome::worked) break;
        ++errors;
        failing += failing < 1000 ? 1 : step;
    }
    std::printf("%s: %llu failures\n", what, static_cast<unsigned long long>(errors));
    check(errors > 0, std::string(what) + " allocates nothing: this checks nothing");
}

}  // namespace

int main(int count, char** arguments) {
    using decant::Simd;
    if (count < 2) return 2;
    const char* const path = arguments[1];
    std::uint64_t step = 997;
    if (count > 2) std::from_chars(arguments[2], arguments[2] + std::strlen(arguments[2]), step);
    const auto nothing = [] {};

    each_allocation(
        "opening", step, [&] { return decant::Weights::open(path).has_value(); }, nothing);
    const auto weights = decant_test::need(decant::Weights::open(path), "opening");
    each_allocation(
        "the tokenizer", step, [&] { return decant::Tokenizer::from(weights).has_value(); }, nothing);
    const auto tokenizer = decant_test::need(decant::Tokenizer::from(weights), "the tokenizer");
    const auto tokens = tokenizer.encode(question);
    each_allocation(
        "encoding", step, [&] { return tokenizer.encode(question) == tokens; }, nothing);
    each_allocation(
        "binding", step, [&] { return decant::Model<Simd>::bind(weights).has_value(); }, nothing);
    const auto model = decant_test::need(decant::Model<Simd>::bind(weights), "binding");
    each_allocation(
        "a context, a cache and the first pass", step,
        [&] {
            decant::Context context(model, decant::ThreadPool{4, 4}, {.rows = 16});
            const decant::KvCache cache(context, {.tokens = 64});
            auto sequence = cache.sequence();
            return sequence && context.prefill(*sequence, tokens);
        },
        nothing);

    // A state that stands: whatever fails, it is as before, and goes on to the same token.
    decant::Context context(model, decant::ThreadPool{4, 4}, {.rows = 16});
    const decant::KvCache cache(context, {.tokens = 64});
    auto sequence = decant_test::need(cache.sequence(), "a sequence");
    const auto free_blocks = cache.free_blocks();
    std::optional<std::vector<float>> expected;
    const auto unchanged = [&] {
        check(sequence.size() == 0 && cache.free_blocks() == free_blocks, "a failed call changed the sequence");
        const auto logits = context.prefill(sequence, tokens);
        check(static_cast<bool>(logits), "the call after a failed one failed");
        if (!logits) return;
        const std::span<const float> row = *logits;
        if (!expected) expected.emplace(row.begin(), row.end());
        check(std::equal(row.begin(), row.end(), expected->begin()), "the call after a failed one differs");
        sequence.truncate(0);
    };
    unchanged();
    std::uint64_t failing = 0;
    for (Outcome outcome = Outcome::error; outcome != Outcome::worked; ++failing) {
        decant::Context fresh(model, decant::ThreadPool{2}, {.rows = 8});
        outcome = with_failure(failing, [&] { return fresh.prefill(sequence, tokens).has_value(); });
        if (outcome == Outcome::worked) sequence.truncate(0);
        unchanged();
    }
    std::printf("a first pass on a sequence that stands: %llu failures\n",
                static_cast<unsigned long long>(failing - 1));

    each_allocation(
        "a fork and the chain of a sampler", step,
        [&] {
            const auto fork = sequence.fork();
            auto sampler = decant::Sampler::chain({decant::TopK{5}, decant::Temperature{0.5f}}, 1);
            return sampler && sampler->pick(*expected, tokens);
        },
        [&] { check(cache.free_blocks() == free_blocks, "a failed fork kept blocks"); });

    // An engine: a failed step may end answers, but the others go on, and nothing hangs.
    struct Answer {
        std::array<decant::Token, 4> tokens{};
        std::size_t count = 0;
        int ends = 0;
        decant::FinishReason end = decant::FinishReason::none;
    };
    const std::vector<decant::Token> few(tokens.begin(), tokens.begin() + 3);
    const auto serve = [&](std::uint64_t failing_one, std::array<Answer, 2>& answers) {
        auto engine = decant_test::need(
            decant::Engine<Simd>::create(model, tokenizer, decant::SerialExecutor{},
                                         {.cache_tokens = 32, .block_tokens = 2, .sequences = 2, .rows = 8}),
            "an engine");
        for (Answer& answer : answers) {
            answer = {};
            decant::Ask ask;
            ask.prompt = few;
            ask.prompt.push_back(few[&answer == &answers[0] ? 0 : 1]);
            ask.max_tokens = answer.tokens.size();
            ask.ignore_end = true;
            ask.draft_tokens = 2;
            ask.listener = [&answer](const decant::Delta& delta) {
                if (delta.token && answer.count < answer.tokens.size()) answer.tokens[answer.count++] = *delta.token;
                answer.end = delta.finish;
                if (delta.finish != decant::FinishReason::none) ++answer.ends;
            };
            check(engine.ask(ask).has_value(), "an ask was refused");
        }
        bool failed = false;
        until_failure = failing_one;
        int steps = 0;
        for (bool more = true; more && steps < 100; ++steps) {
            try {
                const auto stepped = engine.step();
                failed |= !stepped;
                more = !stepped || *stepped;
            } catch (const std::bad_alloc&) {
                failed = true;
            }
        }
        const bool happened = until_failure == never && failing_one != never;
        until_failure = never;
        const decant::EngineCounts counts = engine.counts();
        check(counts.free_blocks + counts.remembered_blocks == counts.blocks, "an engine keeps blocks");
        check(engine.idle(), "an engine hangs after an allocation that failed: " + std::to_string(failing_one));
        return happened || failed;
    };
    std::array<Answer, 2> right, found;
    static_cast<void>(serve(never, right));
    std::uint64_t broken = 0;
    const std::int64_t before = live;
    while (serve(broken, found)) {
        for (std::size_t i = 0; i < 2; ++i) {
            const auto count = static_cast<std::ptrdiff_t>(found[i].count);
            const bool same =
                found[i].ends == 1 && (count == 4 || found[i].end == decant::FinishReason::failed) &&
                std::equal(found[i].tokens.begin(), found[i].tokens.begin() + count, right[i].tokens.begin());
            check(same, "an answer differs after an allocation that failed: " + std::to_string(broken));
        }
        ++broken;
    }
    check(live == before, "an engine leaked");
    std::printf("steps of an engine: %llu failures\n", static_cast<unsigned long long>(broken));
    return decant_test::failures == 0 ? 0 : 1;
}

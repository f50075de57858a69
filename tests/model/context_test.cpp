// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Passes over a model (context.hpp, logits.hpp, model.hpp): the same answer however it is asked, and failed calls that
// leave no trace.
#include <decant/model/context.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/thread_pool.hpp>

#include "model/support.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#endif

using decant::CacheOptions;
using decant::Context;
using decant::ContextOptions;
using decant::ErrorCode;
using decant::KvCache;
using decant::Model;
using decant::PassPart;
using decant::RunState;
using decant::Sequence;
using decant::Simd;
using decant::StopFlag;
using decant::TaskRef;
using decant::ThreadPool;
using decant::Token;
using decant::Want;
using decant_test::Floats;
using decant_test::models;
using decant_test::random_tokens;
using decant_test::same_bits;
using decant_test::taken;
using decant_test::TinyFile;
using decant_test::Tokens;
using decant_test::whole;

namespace {

constexpr ContextOptions wide{.rows = 128, .sequences = 8, .logits = 128};

template <class B>
ErrorCode refused(Context<B>& context, std::vector<PassPart<B>> parts, std::string_view part) {
    const auto logits = context.pass(parts);
    REQUIRE_FALSE(logits);
    INFO(logits.error().message());
    CHECK(decant_test::contains(logits.error().message(), part));
    return logits.error().code;
}

/// Runs everything on the calling thread, but claims two, and requests a stop at a chosen moment.
struct Interrupter {
    StopFlag* flag;
    std::size_t after;  // calls of parallel_for
    std::size_t calls = 0;

    [[nodiscard]] std::size_t concurrency() const { return 2; }
    void parallel_for(std::size_t n, TaskRef task) {
        if (calls++ == after) flag->request();
        for (std::size_t i = n; i-- > 0;) task(i);
    }
};

/// As many threads as tasks, started afresh each time, in the worst order.
struct Reckless {
    [[nodiscard]] std::size_t concurrency() const { return 4; }
    void parallel_for(std::size_t n, TaskRef task) const {
        std::vector<std::thread> threads;
        for (std::size_t i = n; i-- > 0;) threads.emplace_back([task, i] { task(i); });
        for (std::thread& thread : threads) thread.join();
    }
};

}  // namespace

TEMPLATE_TEST_CASE("a prompt in chunks of any size gives the bits of the whole", "[model]", decant::Eigen, Simd) {
    for (const auto& model : models<TestType>()) {
        const Tokens tokens = random_tokens(70, 1, model.spec().vocabulary);
        const auto expected = whole(model, tokens);
        for (const std::uint32_t rows : {1u, 2u, 3u, 5u, 16u, 64u, 69u, 70u, 200u}) {
            Context context(model, {.rows = rows, .sequences = 1, .logits = 1});
            const KvCache cache(context, {.tokens = 100});
            auto sequence = taken(cache.sequence());
            const auto logits = taken(context.prefill(sequence, tokens));
            REQUIRE(logits.rows() == 1);
            INFO("chunks of " << rows);
            CHECK(same_bits(decant_test::row(logits), expected.back()));
            CHECK(std::ranges::equal(sequence.tokens(), tokens));
        }
    }
}

TEMPLATE_TEST_CASE("decoding gives the bits of prefilling", "[model]", decant::Eigen, Simd) {
    for (const auto& model : models<TestType>()) {
        const Tokens tokens = random_tokens(40, 2, model.spec().vocabulary);
        const auto expected = whole(model, tokens);
        for (const std::size_t prompt : {1u, 7u, 16u, 33u}) {
            Context context(model);
            const KvCache cache(context, {.tokens = 64});
            auto sequence = taken(cache.sequence());
            Floats logits = decant_test::row(taken(context.prefill(sequence, std::span(tokens).first(prompt))));
            for (std::size_t i = prompt; i < tokens.size(); ++i) {
                if (!same_bits(logits, expected[i - 1])) FAIL("prompt of " << prompt << ", token " << i);
                logits = decant_test::row(taken(context.decode(sequence, tokens[i])));
            }
            CHECK(same_bits(logits, expected.back()));
            CHECK(sequence.size() == tokens.size());
        }
    }
}

TEMPLATE_TEST_CASE("batch mates change no bit", "[model]", decant::Eigen, Simd) {
    for (const auto& model : models<TestType>()) {
        Context context(model, wide);
        const KvCache cache(context, {.tokens = 1024, .block_tokens = 5});
        decant_test::Random random{3};
        const std::size_t count = 7;
        std::vector<Tokens> texts;
        std::vector<std::vector<Floats>> expected;
        std::vector<Sequence<TestType>> sequences;
        for (std::size_t s = 0; s < count; ++s) {
            texts.push_back(random_tokens(60, 100 + s, model.spec().vocabulary));
            expected.push_back(whole(model, texts.back()));
            sequences.push_back(taken(cache.sequence()));
        }
        // Passes with a random selection of sequences, in random order, each with a random number of its next tokens.
        for (int pass = 0; pass < 40; ++pass) {
            std::vector<PassPart<TestType>> parts;
            for (std::size_t s = 0; s < count; ++s) {
                const std::size_t at = sequences[s].size();
                const std::size_t tokens = (std::min)(random.below(8), texts[s].size() - at);
                if (tokens == 0) continue;
                parts.push_back(
                    {&sequences[s], std::span(texts[s]).subspan(at, tokens), static_cast<Want>(random.below(3))});
            }
            for (std::size_t i = parts.size(); i > 1; --i) std::swap(parts[i - 1], parts[random.below(i)]);
            if (parts.empty()) continue;
            const auto logits = taken(context.pass(parts));
            std::size_t row = 0;
            for (const auto& part : parts) {
                const auto s = static_cast<std::size_t>(part.sequence - sequences.data());
                const std::size_t end = sequences[s].size();
                const std::size_t begin = part.want == Want::all    ? end - part.tokens.size()
                                          : part.want == Want::last ? end - 1
                                                                    : end;
                for (std::size_t i = begin; i < end; ++i, ++row)
                    if (!same_bits(decant_test::row(logits, row), expected[s][i]))
                        FAIL("sequence " << s << " at " << i);
            }
            CHECK(logits.rows() == row);
        }
        std::size_t done = 0;
        for (const auto& sequence : sequences) done += sequence.size();
        CHECK(done > 300);
    }
}

TEMPLATE_TEST_CASE("threads and executors change no bit", "[model]", decant::Eigen, Simd) {
    for (const auto& model : models<TestType>()) {
        const Tokens tokens = random_tokens(50, 4, model.spec().vocabulary);
        const auto expected = whole(model, tokens);
        const auto check = [&](auto&& executor) {
            Context context(model, std::forward<decltype(executor)>(executor), wide);
            const KvCache cache(context, {.tokens = 64});
            auto sequence = taken(cache.sequence());
            const auto logits = taken(context.pass({{&sequence, tokens, Want::all}}));
            for (std::size_t i = 0; i < tokens.size(); ++i)
                if (!same_bits(decant_test::row(logits, i), expected[i])) FAIL("position " << i);
        };
        check(decant::SerialExecutor{});
        for (const std::size_t threads : {1u, 2u, 3u, 7u}) check(ThreadPool{threads, threads});
        ThreadPool lent{2};
        check(lent);
        check(Reckless{});
        StopFlag never;
        check(Interrupter{&never, 1u << 30});
    }
}

TEMPLATE_TEST_CASE("a pass in pieces of any size gives the bits of the whole", "[model]", decant::Eigen, Simd) {
    for (const auto& model : models<TestType>()) {
        const Tokens tokens = random_tokens(12, 5, model.spec().vocabulary);
        const auto expected = whole(model, tokens);
        for (const std::size_t threads : {1u, 3u}) {
            Context context(model, ThreadPool{threads, threads}, wide);
            const KvCache cache(context, {.tokens = 64});
            for (const std::uint64_t tiles : {1u, 2u, 7u, 50u, 1'000'000u}) {
                auto sequence = taken(cache.sequence());
                const std::vector<PassPart<TestType>> parts{{&sequence, tokens, Want::all}};
                REQUIRE(context.begin(parts));
                std::size_t calls = 1;
                for (; context.advance({.tiles = tiles}) != RunState::finished; ++calls) {
                    CHECK(sequence.size() == 0);
                    REQUIRE(calls < 100'000);
                }
                const auto logits = taken(context.finish(parts));
                CHECK(sequence.size() == tokens.size());
                CHECK((tiles == 1'000'000u) == (calls == 1));
                for (std::size_t i = 0; i < tokens.size(); ++i)
                    if (!same_bits(decant_test::row(logits, i), expected[i])) FAIL("position " << i);
            }
        }
    }
}

TEMPLATE_TEST_CASE("a pass without tiles makes no progress, an unfinished one is forgotten", "[model]", decant::Eigen,
                   Simd) {
    const auto model = decant_test::bind<TestType>(TinyFile{}.open());
    const Tokens tokens = random_tokens(9, 6, 24);
    const auto expected = whole(model, tokens);
    Context context(model, wide);
    const KvCache cache(context, {.tokens = 64});
    auto sequence = taken(cache.sequence());
    auto other = taken(cache.sequence());
    const std::vector<PassPart<TestType>> abandoned{{&other, std::span(tokens).first(5), Want::last}};
    REQUIRE(context.begin(abandoned));
    for (int i = 0; i < 10; ++i) CHECK(context.advance({.tiles = 0}) == RunState::stopped);
    for (int i = 0; i < 10; ++i) CHECK(context.advance({.tiles = 3}) == RunState::stopped);
    CHECK(same_bits(decant_test::row(taken(context.prefill(sequence, tokens))), expected.back()));
    CHECK(other.size() == 0);
    CHECK(cache.free_blocks() == 2);  // of 4: the room of the abandoned pass is still reserved
    other.truncate(0);
    CHECK(cache.free_blocks() == 3);
    CHECK(same_bits(decant_test::row(taken(context.prefill(other, tokens))), expected.back()));
}

TEMPLATE_TEST_CASE("a cancelled call leaves everything as it was", "[model]", decant::Eigen, Simd) {
    for (const auto& model : models<TestType>()) {
        const Tokens tokens = random_tokens(45, 7, model.spec().vocabulary);
        const auto expected = whole(model, tokens);
        StopFlag stop;
        Interrupter interrupter{&stop, 0};
        // Small chunks: some moments lie between two passes of one prefill.
        Context context(model, interrupter, {.rows = 8, .sequences = 2, .logits = 8});
        const KvCache cache(context, {.tokens = 96, .block_tokens = 4});
        auto sequence = taken(cache.sequence());
        const std::size_t known = 10;
        const auto prompt = std::span(tokens).first(known);
        interrupter.after = ~std::size_t{0};
        REQUIRE(context.prefill(sequence, prompt));
        auto fork = sequence.fork();  // shares the last block: a cancelled call also undoes the copy on write
        const std::size_t free = cache.free_blocks();
        const std::vector<std::int32_t> table(sequence.table().begin(), sequence.table().end());

        std::size_t moments = 0;
        for (std::size_t moment = 0;; moment += 1 + moment / 10, ++moments) {
            REQUIRE(moment < 10'000);
            stop.clear();
            interrupter.after = interrupter.calls + moment;
            const auto result = context.prefill(sequence, std::span(tokens).subspan(known), {.stop = &stop});
            if (result) break;
            CHECK(result.error().code == ErrorCode::cancelled);
            CHECK(std::ranges::equal(sequence.tokens(), prompt));
            CHECK(std::ranges::equal(sequence.table(), table));
            CHECK(cache.free_blocks() == free);
            CHECK_FALSE(context.decode(fork, tokens[known], {.stop = &stop}));  // still requested
            CHECK(cache.free_blocks() == free);
        }
        CHECK(moments > 20);
        sequence.truncate(known);
        stop.clear();
        interrupter.after = ~std::size_t{0};
        for (auto* again : {&sequence, &fork}) {
            const auto logits = taken(context.prefill(*again, std::span(tokens).subspan(known), {.stop = &stop}));
            CHECK(same_bits(decant_test::row(logits), expected.back()));
        }
    }
}

TEMPLATE_TEST_CASE("a stop from another thread at any moment", "[model]", decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    const Tokens tokens = random_tokens(90, 8, 160);
    const auto expected = whole(model, tokens);
    StopFlag stop;
    Context context(model, ThreadPool{2}, {.rows = 32, .sequences = 1, .logits = 1});
    const KvCache cache(context, {.tokens = 96});
    auto sequence = taken(cache.sequence());
    std::atomic<int> round{0};
    std::atomic<bool> end{false};
    std::thread host([&] {
        decant_test::Random random{9};
        for (int seen = 0; !end; std::this_thread::yield()) {
            if (round == seen) continue;
            seen = round;
            for (std::size_t spin = random.below(20'000); spin > 0; --spin) decant::detail::pause_cpu();
            stop.request();
        }
    });
    std::size_t failures = 0;
    for (int i = 1; i <= 60; ++i) {
        stop.clear();
        round = i;
        const auto logits = context.prefill(sequence, tokens, {.stop = &stop});
        if (logits) {
            failures += !same_bits(decant_test::row(*logits), expected.back());
            sequence.truncate(0);
        }
        failures += sequence.size() != 0 || cache.free_blocks() != cache.blocks();
        while (!stop.requested()) std::this_thread::yield();  // one request per round
    }
    end = true;
    host.join();
    CHECK(failures == 0);
    stop.clear();
    CHECK(same_bits(decant_test::row(taken(context.prefill(sequence, tokens, {.stop = &stop}))), expected.back()));
}

TEST_CASE("arguments that cannot be used are refused and change nothing", "[model]") {
    const auto model = decant_test::bind<Simd>(TinyFile{}.open());
    Context context(model, {.rows = 8, .sequences = 2, .logits = 4});
    const KvCache cache(context, {.tokens = 64, .block_tokens = 4});
    auto a = taken(cache.sequence());
    auto b = taken(cache.sequence());
    auto c = taken(cache.sequence());
    const Tokens tokens = random_tokens(9, 10, 24);
    const auto first = [&](std::size_t count) { return std::span(tokens).first(count); };

    for (const std::int32_t id : {-1, 24, 2147483647, -2147483647 - 1}) {
        const Token token{id};
        const std::string text = "token " + std::to_string(id) + " ";
        CHECK(refused<Simd>(context, {{&a, first(2)}, {&b, {&token, 1}}}, text) == ErrorCode::invalid_argument);
        const auto decoded = context.decode(a, token);
        REQUIRE_FALSE(decoded);
        CHECK(decoded.error().code == ErrorCode::invalid_argument);
        Tokens prompt = random_tokens(20, 1, 24);  // in its third chunk
        prompt[18] = token;
        const auto prefilled = context.prefill(a, prompt);
        REQUIRE_FALSE(prefilled);
        CHECK(decant_test::contains(prefilled.error().message(), text));
        CHECK(a.size() == 0);
        CHECK(cache.free_blocks() == cache.blocks());
    }
    CHECK(refused<Simd>(context, {}, "without parts") == ErrorCode::invalid_argument);
    CHECK(refused<Simd>(context, {{&a, {}}}, "without tokens") == ErrorCode::invalid_argument);
    CHECK(refused<Simd>(context, {{&a, first(1)}, {&b, {}}}, "without tokens") == ErrorCode::invalid_argument);
    const auto empty = context.prefill(a, {});
    REQUIRE_FALSE(empty);
    CHECK(empty.error().code == ErrorCode::invalid_argument);
    CHECK(refused<Simd>(context, {{&a, first(9)}}, "9 tokens") == ErrorCode::invalid_argument);
    CHECK(refused<Simd>(context, {{&a, first(5)}, {&b, first(4)}}, "9 tokens") == ErrorCode::invalid_argument);
    CHECK(refused<Simd>(context, {{&a, first(1)}, {&b, first(1)}, {&c, first(1)}}, "3 sequences") ==
          ErrorCode::invalid_argument);
    CHECK(refused<Simd>(context, {{&a, first(5), Want::all}}, "5 rows of logits") == ErrorCode::invalid_argument);
    CHECK(refused<Simd>(context, {{&a, first(4), Want::all}, {&b, first(1)}}, "5 rows of logits") ==
          ErrorCode::invalid_argument);
    CHECK(refused<Simd>(context, {{&a, first(1)}, {&a, first(1)}}, "twice") == ErrorCode::invalid_argument);

    const KvCache elsewhere(context, {.tokens = 64, .block_tokens = 4});
    auto foreign = taken(elsewhere.sequence());
    CHECK(refused<Simd>(context, {{&a, first(1)}, {&foreign, first(1)}}, "different caches") ==
          ErrorCode::invalid_argument);
    const KvCache unfit(decant_test::bind<Simd>(decant_test::tiny("llama3")));
    auto misfit = taken(unfit.sequence());
    CHECK(refused<Simd>(context, {{&misfit, first(1)}}, "another model") == ErrorCode::invalid_argument);

    for (const auto* sequence : {&a, &b, &c, &foreign, &misfit}) CHECK(sequence->size() == 0);
    CHECK(cache.free_blocks() == cache.blocks());
    CHECK(elsewhere.free_blocks() == elsewhere.blocks());
    CHECK(context.pass({{&a, first(4), Want::all}, {&b, first(4), Want::none}}));
    CHECK(a.size() == 4);
    CHECK(b.size() == 4);
}

TEMPLATE_TEST_CASE("a full cache is an error that changes nothing", "[model]", decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(TinyFile{}.open());
    const Tokens tokens = random_tokens(24, 11, 24);
    const auto expected = whole(model, tokens);
    Context context(model, {.rows = 8, .sequences = 3, .logits = 8});
    const KvCache cache(context, {.tokens = 24, .block_tokens = 4});
    auto a = taken(cache.sequence());
    auto b = taken(cache.sequence());
    REQUIRE(context.prefill(a, std::span(tokens).first(16)));
    const auto full = context.prefill(b, std::span(tokens).first(12));
    REQUIRE_FALSE(full);
    CHECK(full.error().code == ErrorCode::cache_full);
    CHECK_FALSE(full.error().hint.empty());
    CHECK(b.size() == 0);
    CHECK(cache.free_blocks() == 2);
    REQUIRE(context.prefill(b, std::span(tokens).first(4)));

    // One block is left and both are at the end of theirs: together they do not fit, and neither may keep the block.
    const std::vector<PassPart<TestType>> both{{&a, {&tokens[16], 1}, Want::last}, {&b, {&tokens[4], 1}, Want::last}};
    for (int i = 0; i < 2; ++i) {
        const auto logits = context.pass(both);
        REQUIRE_FALSE(logits);
        CHECK(logits.error().code == ErrorCode::cache_full);
        CHECK(cache.free_blocks() == 1);
    }
    CHECK(a.size() == 16);
    CHECK(b.size() == 4);
    CHECK(same_bits(decant_test::row(taken(context.decode(b, tokens[4]))), expected[4]));
    CHECK_FALSE(context.decode(a, tokens[16]));
    b.truncate(4);
    CHECK(same_bits(decant_test::row(taken(context.decode(a, tokens[16]))), expected[16]));
    b.truncate(0);
    CHECK(same_bits(decant_test::row(taken(context.prefill(a, std::span(tokens).subspan(17)))), expected.back()));
    CHECK(cache.free_blocks() == 0);
    CHECK_FALSE(context.decode(a, tokens[0]));
    CHECK(a.size() == 24);
}

TEST_CASE("a failed pass gives back a copy on write", "[model]") {
    const auto model = decant_test::bind<Simd>(TinyFile{}.open());
    const Tokens tokens = random_tokens(24, 12, 24);
    const auto expected = whole(model, tokens);
    Context context(model, {.rows = 8, .sequences = 3, .logits = 8});
    const KvCache cache(context, {.tokens = 12, .block_tokens = 4});
    auto a = taken(cache.sequence());
    REQUIRE(context.prefill(a, std::span(tokens).first(6)));
    auto b = a.fork();
    auto c = taken(cache.sequence());
    REQUIRE(cache.free_blocks() == 1);
    // The copy that b needs takes the last block, then c finds none.
    const auto full = context.pass({{&b, {&tokens[6], 1}, Want::last}, {&c, {&tokens[0], 1}, Want::last}});
    REQUIRE_FALSE(full);
    CHECK(full.error().code == ErrorCode::cache_full);
    CHECK(cache.free_blocks() == 1);
    CHECK(std::ranges::equal(a.table(), b.table()));
    CHECK(same_bits(decant_test::row(taken(context.decode(c, tokens[0]))), expected[0]));
    c.truncate(0);
    CHECK(same_bits(decant_test::row(taken(context.decode(b, tokens[6]))), expected[6]));
    CHECK(same_bits(decant_test::row(taken(context.decode(a, tokens[6]))), expected[6]));
}

TEST_CASE("memory that the system refuses is an error, and a smaller wish then succeeds", "[model]") {
    const auto model = decant_test::bind<Simd>(TinyFile{}.open());
    const Tokens tokens = random_tokens(3, 13, 24);
    Context greedy(model, {.rows = 4'000'000'000u, .sequences = 1, .logits = 4'000'000'000u});
    const KvCache cache(greedy, {.tokens = 16});
    auto sequence = taken(cache.sequence());
    const auto refused = greedy.prefill(sequence, tokens);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::out_of_memory);
    CHECK(sequence.size() == 0);
    CHECK(cache.free_blocks() == cache.blocks());
    CHECK_FALSE(greedy.prefill(sequence, tokens));  // and again
    Context modest(model, {.rows = 4, .sequences = 1, .logits = 1});
    CHECK(modest.prefill(sequence, tokens));
}

TEST_CASE("a context serves caches of different sizes", "[model]") {
    const auto model = decant_test::bind<Simd>(TinyFile{}.open());
    const Tokens tokens = random_tokens(30, 14, 24);
    const auto expected = whole(model, tokens);
    Context context(model, {.rows = 16, .sequences = 2, .logits = 2});
    CHECK(context.workspace_bytes() == 0);
    for (const std::size_t size : {32u, 200u, 64u}) {
        const KvCache cache(context, {.tokens = size, .block_tokens = 3});
        auto sequence = taken(cache.sequence());
        CHECK(same_bits(decant_test::row(taken(context.prefill(sequence, tokens))), expected.back()));
    }
    CHECK(context.workspace_bytes() > 0);
    CHECK(context.options().rows == 16);
}

TEST_CASE("capacities of zero are refused", "[model]") {
    const auto model = decant_test::bind<Simd>(TinyFile{}.open());
    const Tokens tokens = random_tokens(5, 15, 24);
    for (const ContextOptions options : {ContextOptions{.rows = 0}, {.sequences = 0}, {.logits = 0}}) {
        Context context(model, options);
        const KvCache cache(context, {.tokens = 8});
        auto sequence = taken(cache.sequence());
        const auto logits = context.prefill(sequence, tokens);
        REQUIRE_FALSE(logits);
        CHECK(logits.error().code == ErrorCode::invalid_argument);
        CHECK(sequence.size() == 0);
        CHECK(cache.free_blocks() == cache.blocks());
    }
}

TEST_CASE("logits know their rows", "[model]") {
    const auto model = decant_test::bind<Simd>(TinyFile{}.open());
    const Tokens tokens = random_tokens(5, 16, 24);
    Context context(model, wide);
    const KvCache cache(context);
    auto a = taken(cache.sequence());
    auto b = taken(cache.sequence());
    CHECK(decant::Logits{}.rows() == 0);
    CHECK(taken(context.pass({{&a, tokens, Want::none}})).rows() == 0);
    const auto logits = taken(context.pass({{&a, tokens, Want::all}, {&b, tokens, Want::last}}));
    CHECK(logits.rows() == 6);
    CHECK(logits.vocabulary() == 24);
    CHECK(logits.row(5).size() == 24);
    const auto one = taken(context.decode(a, tokens[0]));
    const std::span<const float> span = one;
    CHECK(span.data() == one.row(0).data());
}

#if !defined(NDEBUG) && (defined(__unix__) || defined(__APPLE__))
TEST_CASE("debug builds catch logits that are read too late", "[model]") {
    const auto model = decant_test::bind<Simd>(TinyFile{}.open());
    const Token token{3};
    Context context(model);
    const KvCache cache(context);
    auto sequence = taken(cache.sequence());
    const auto logits = taken(context.decode(sequence, token));
    CHECK(logits.row(0).size() == 24);
    REQUIRE(context.decode(sequence, token));
    const pid_t child = fork();
    if (child == 0) {
        std::signal(SIGABRT, SIG_DFL);
        static_cast<void>(std::freopen("/dev/null", "w", stderr));
        _exit(logits.row(0).empty() ? 1 : 2);  // must not come this far
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
}
#endif

TEST_CASE("one model serves contexts of several threads at once", "[model]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    constexpr std::size_t count = 3;
    std::vector<Tokens> texts;
    std::vector<Floats> expected;
    for (std::size_t i = 0; i < count; ++i) {
        texts.push_back(random_tokens(40, 200 + i, 160));
        expected.push_back(whole(model, texts.back()).back());
    }
    std::atomic<std::size_t> wrong{0};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) {
        threads.emplace_back([&, i] {
            for (int round = 0; round < 20; ++round) {
                Context context(model, {.rows = 16});
                const KvCache cache(context, {.tokens = 64});
                auto sequence = cache.sequence();
                const auto logits =
                    sequence ? context.prefill(*sequence, texts[i]) : decant::Result<decant::Logits>(sequence.error());
                wrong += !logits || !same_bits(decant_test::row(*logits), expected[i]);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
}

TEST_CASE("one executor serves contexts of several threads at once", "[model]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    const Tokens tokens = random_tokens(40, 17, 160);
    const Floats expected = whole(model, tokens).back();
    ThreadPool pool{2};
    std::atomic<std::size_t> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&] {
            Context context(model, pool, {.rows = 16});
            for (int round = 0; round < 20; ++round) {
                const KvCache cache(context, {.tokens = 64});
                auto sequence = cache.sequence();
                const auto logits =
                    sequence ? context.prefill(*sequence, tokens) : decant::Result<decant::Logits>(sequence.error());
                wrong += !logits || !same_bits(decant_test::row(*logits), expected);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("objects may go in any order", "[model]", decant::Eigen, Simd) {
    const Tokens tokens = random_tokens(20, 18, 160);
    const auto expected = whole(decant_test::bind<TestType>(decant_test::tiny("llama2")), tokens);
    // Bits of `order` name who goes first.
    for (int order = 0; order < 16; ++order) {
        auto weights = std::make_optional(decant_test::tiny("llama2"));
        auto model = std::make_optional(decant_test::bind<TestType>(*weights));
        if (order & 1) weights.reset();
        std::optional<Context<TestType>> context;
        context.emplace(*model, ContextOptions{.rows = 32});
        if (order & 2) model.reset();
        auto cache = std::make_optional<KvCache<TestType>>(*context, CacheOptions{.tokens = 64});
        auto sequence = std::make_optional(taken(cache->sequence()));
        auto fork = std::make_optional(sequence->fork());
        if (order & 4) cache.reset();
        CHECK(same_bits(decant_test::row(taken(context->prefill(*sequence, tokens))), expected.back()));
        if (order & 8) context.reset();
        if (context) {
            CHECK(same_bits(decant_test::row(taken(context->decode(*fork, tokens[0]))), expected[0]));
        }
        fork.reset();
        if (cache) CHECK(cache->free_blocks() < cache->blocks());
        sequence.reset();
        if (cache) CHECK(cache->free_blocks() == cache->blocks());
    }
}

TEST_CASE("a context and a sequence may be moved", "[model]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama2"));
    const Tokens tokens = random_tokens(20, 19, 160);
    const auto expected = whole(model, tokens);
    Context first(model, ThreadPool{2}, ContextOptions{.rows = 32});
    KvCache cache(first, {.tokens = 64});
    auto sequence = taken(cache.sequence());
    REQUIRE(first.prefill(sequence, std::span(tokens).first(7)));
    Context second = std::move(first);
    Sequence<Simd> moved = std::move(sequence);
    REQUIRE(second.prefill(moved, std::span(tokens).subspan(7, 6)));
    sequence = std::move(moved);
    const KvCache elsewhere = std::move(cache);
    const auto logits = taken(second.prefill(sequence, std::span(tokens).subspan(13)));
    CHECK(same_bits(decant_test::row(logits), expected.back()));
    sequence = taken(elsewhere.sequence());  // gives the old blocks back
    CHECK(elsewhere.free_blocks() == elsewhere.blocks());
}

TEST_CASE("context: absurd capacities and parts without a sequence are errors", "[model][context]") {
    const auto weights = decant::Weights::open(decant_test::data("tiny-gguf/llama2.gguf"));
    REQUIRE(weights);
    const auto model = decant::Model<decant::Simd>::bind(*weights);
    REQUIRE(model);
    const decant::Token token{1};
    for (const decant::ContextOptions options :
         {decant::ContextOptions{512, 4000000000u, 16}, decant::ContextOptions{4000000000u, 16, 16},
          decant::ContextOptions{512, 16, 4000000000u}}) {
        decant::Context<decant::Simd> context(*model, options);
        const decant::KvCache<decant::Simd> cache(context, {.tokens = 64});
        auto sequence = cache.sequence();
        REQUIRE(sequence);
        const auto logits = context.prefill(*sequence, {&token, 1});
        REQUIRE_FALSE(logits);
        CHECK(logits.error().code == decant::ErrorCode::out_of_memory);
        CHECK(sequence->size() == 0);
    }
    decant::Context<decant::Simd> context(*model);
    const auto nothing = context.pass({{nullptr, {&token, 1}}});
    REQUIRE_FALSE(nothing);
    CHECK(nothing.error().code == decant::ErrorCode::invalid_argument);
}

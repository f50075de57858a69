// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Whatever is asked beside it, and whatever happens to it, an answer is what a request alone writes.
#include <decant/serve/engine.hpp>

#include <decant/model/cost.hpp>

#include "serve/support.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

using decant::Ask;
using decant::AskId;
using decant::Delta;
using decant::EngineOptions;
using decant::ErrorCode;
using decant::FinishReason;
using decant::Sampler;
using decant::Simd;
using decant::Token;
using decant_test::alone;
using decant_test::drain;
using decant_test::Listener;
using decant_test::Random;
using decant_test::Scene;
using decant_test::taken;
using decant_test::Tokens;
using decant_test::Written;
using Engine = decant::Engine<Simd>;

namespace {

/// Returns what was counted.
decant::EngineCounts run_randomly(const std::string& model, EngineOptions options, std::uint64_t seed, int asks) {
    CAPTURE(model);
    const Scene scene(model);
    Random random{seed};
    Engine engine = scene.engine(options, 2);
    return decant_test::run_randomly(scene, engine, random, asks);
}

}  // namespace

TEST_CASE("engine: answers are those of requests alone, with room for all", "[serve][engine]") {
    CHECK(run_randomly("llama3", {.cache_tokens = 4096}, 1, 60).cached_tokens > 0);
    CHECK(run_randomly("llama3", {.cache_tokens = 4096, .prefix_cache = false}, 2, 40).cached_tokens == 0);
    run_randomly("gemma3_std", {.cache_tokens = 4096, .rows = 16, .prompt_rows = 5}, 3, 40);
}

TEST_CASE("engine: the same where answers push each other out", "[serve][engine]") {
    EngineOptions options{.cache_tokens = 160, .block_tokens = 4, .rows = 24, .prompt_rows = 7};
    CHECK(run_randomly("llama3", options, 4, 80).preemptions > 0);
    options = {.cache_tokens = 112, .block_tokens = 8, .sequences = 4, .prefix_cache = false};
    CHECK(run_randomly("llama3", options, 5, 60).preemptions > 0);
}

TEST_CASE("engine: the same where layers keep a state", "[serve][engine]") {
    const EngineOptions options{.cache_tokens = 160, .block_tokens = 8, .sequences = 6, .rows = 32};
    CHECK(run_randomly("mamba2", options, 6, 40).preemptions > 0);
}

TEST_CASE("engine: the same where blocks that were given away wait in the host's memory", "[serve][engine]") {
    for (const char* const model : {"llama3", "gemma3_std", "mamba2"}) {
        // Without a cache of prefixes, which would have kept the blocks as long as there is room.
        EngineOptions options{
            .cache_tokens = 160, .block_tokens = 8, .sequences = 6, .rows = 32, .prefix_cache = false};
        options.swap_bytes = 1 << 30;
        const decant::EngineCounts swapped = run_randomly(model, options, 8, 60);
        CHECK(swapped.preemptions > 0);
        CHECK(swapped.swapped_tokens > 0);
        options.swap_bytes = 1;
        CHECK(run_randomly(model, options, 8, 60).swapped_tokens == 0);
    }
}

// A window of 16 tokens, and 32 that are kept before it: long answers give most of their blocks back.
TEST_CASE("engine: the same where windows pass what lies before them", "[serve][engine]") {
    EngineOptions options{.cache_tokens = 144, .block_tokens = 4, .rows = 24, .prompt_rows = 7, .draft_rows = 8};
    for (const bool remember : {true, false}) {
        options.prefix_cache = remember;
        const decant::EngineCounts counts = run_randomly("gemma3_std", options, 10, 60);
        CHECK(counts.preemptions > 0);
        CHECK(counts.accepted_tokens > 0);
        CHECK((counts.cached_tokens > 0) == remember);
    }
    const Scene scene("gemma3_std");
    options = {.cache_tokens = 240, .block_tokens = 4, .sequences = 3, .rows = 40};
    for (const bool remember : {true, false}) {
        options.prefix_cache = remember;
        Engine engine = scene.engine(options);
        Listener listener;
        std::map<AskId, Ask> asked;
        for (std::uint64_t n = 0; n < 2; ++n) {
            Ask ask;
            ask.prompt = decant_test::random_tokens(100 + 150 * n, 30 + n, 160);
            ask.sampler = Sampler({.temperature = 1.0f, .seed = n});
            ask.max_tokens = 150;
            ask.ignore_end = true;
            ask.draft_tokens = 4;
            ask.listener = [&](const Delta& delta) { listener(delta); };
            asked.emplace(taken(engine.ask(ask)), ask);
        }
        drain(engine);
        for (const auto& [id, ask] : asked) CHECK(listener.answers[{id, 0}].tokens == alone(scene, ask, 0).tokens);
        const decant::EngineCounts counts = engine.counts();
        CHECK(counts.preemptions == 0);  // 250 and 400 tokens, where there is room for 240 in all layers
        CHECK(counts.free_blocks + counts.remembered_blocks == counts.blocks);
        if (!remember) CHECK(counts.free_blocks == counts.blocks);
        CHECK(counts.most_used_blocks < counts.blocks);
    }
}

TEST_CASE("engine: a beginning that was computed is not computed again", "[serve][engine]") {
    for (const char* const model : {"llama3", "gemma3_std"}) {
        const Scene scene(model);
        Engine engine = scene.engine({.cache_tokens = 1024, .block_tokens = 8});
        Tokens context = decant_test::random_tokens(30, 9, 160);
        std::uint64_t before = 0;
        for (int turn = 0; turn < 20; ++turn) {
            Listener listener;
            Ask ask;
            ask.prompt = context;
            ask.max_tokens = 4;
            ask.ignore_end = true;
            ask.listener = [&](const Delta& delta) { listener(delta); };
            const AskId id = taken(engine.ask(ask));
            drain(engine);
            const std::uint64_t computed = engine.counts().prompt_tokens - before;
            before = engine.counts().prompt_tokens;
            // The new tokens, the last one of the answer before, and what is beyond whole blocks.
            CHECK(computed <= (turn == 0 ? 30 : 5 + 1 + 8));
            const Tokens& answer = listener.answers[{id, 0}].tokens;
            CHECK(answer.size() == 4);
            context.insert(context.end(), answer.begin(), answer.end());
            const Tokens next = decant_test::random_tokens(5, 100 + static_cast<std::uint64_t>(turn), 160);
            context.insert(context.end(), next.begin(), next.end());
        }
    }
}

TEST_CASE("engine: domains do not share", "[serve][engine]") {
    const Scene scene("llama3");
    Engine engine = scene.engine({.cache_tokens = 512});
    for (const char* cache_salt : {"a", "b", "a"}) {
        Ask ask;
        ask.prompt = decant_test::random_tokens(40, 1, 160);
        ask.max_tokens = 1;
        ask.cache_salt = cache_salt;
        static_cast<void>(taken(engine.ask(ask)));
        drain(engine);
    }
    CHECK(engine.counts().cached_tokens == 32);
}

TEST_CASE("engine: what it refuses, and what comes too late", "[serve][engine]") {
    const Scene scene("llama3");
    CHECK(Engine::create(scene.model, scene.tokenizer, decant::SerialExecutor{}, {.sequences = 0}).error().code ==
          ErrorCode::invalid_argument);
    Engine engine = scene.engine({.cache_tokens = 64, .sequences = 2});
    const auto refused = [&](Ask ask) {
        return engine.ask(std::move(ask)).error().code == ErrorCode::invalid_argument;
    };
    CHECK(refused({}));
    CHECK(refused({.prompt = {Token{-1}}}));
    CHECK(refused({.prompt = {Token{1 << 20}}}));
    CHECK(refused({.prompt = Tokens(65, Token{1})}));
    CHECK(refused({.prompt = {Token{1}}, .answers = 3}));
    CHECK(refused({.prompt = {Token{1}}, .answers = 0}));

    Listener listener;
    Ask ask;
    ask.prompt = {Token{1}, Token{2}};
    ask.listener = [&](const Delta& delta) { listener(delta); };
    ask.deadline = Engine::Clock::now() - std::chrono::seconds(1);
    const AskId late = taken(engine.ask(ask));
    ask.deadline.reset();
    ask.ignore_end = true;
    ask.max_tokens = 1000;
    const AskId large = taken(engine.ask(ask));
    drain(engine);
    CHECK(listener.answers[{late, 0}].end == FinishReason::deadline);
    CHECK(listener.answers[{large, 0}].end == FinishReason::full);
    CHECK(listener.answers[{large, 0}].tokens.size() == 63);
    CHECK(engine.counts().free_blocks + engine.counts().remembered_blocks == engine.counts().blocks);
}

TEST_CASE("engine: log-probabilities are those of the model, with a draft or without", "[serve][engine]") {
    const Scene scene("llama3");
    Tokens prompt = decant_test::random_tokens(20, 21, 160);
    prompt.insert(prompt.end(), prompt.begin(), prompt.end());  // something to draft from
    for (const std::uint32_t drafted : {0u, 4u}) {
        Engine engine = scene.engine({.cache_tokens = 512, .block_tokens = 8});
        Ask ask;
        ask.prompt = prompt;
        ask.sampler = Sampler({.temperature = 0.9f, .seed = 3});
        ask.max_tokens = 24;
        ask.ignore_end = true;
        ask.draft_tokens = drafted;
        ask.log_probabilities = 3;
        Tokens answer;
        std::vector<std::vector<decant::LogProbability>> told;
        ask.listener = [&](const Delta& delta) {
            answer.push_back(*delta.token);
            told.emplace_back(delta.log_probabilities.begin(), delta.log_probabilities.end());
        };
        static_cast<void>(taken(engine.ask(ask)));
        drain(engine);
        REQUIRE(answer.size() == 24);

        decant::Context<Simd> context(scene.model);
        const decant::KvCache<Simd> cache(context, {.tokens = 512});
        auto sequence = taken(cache.sequence());
        Tokens next = prompt;
        for (std::size_t i = 0; i < answer.size(); ++i) {
            const decant::Logits logits = taken(context.prefill(sequence, next));
            const std::span<const float> row = logits.row(0);
            double sum = 0.0;
            for (const float logit : row) sum += std::exp(static_cast<double>(logit));
            const auto value = [&](Token token) { return row[static_cast<std::size_t>(id(token))] - std::log(sum); };
            REQUIRE(told[i].size() == 4);
            CHECK(told[i][0].token == answer[i]);
            for (const auto& one : told[i]) CHECK(one.value == Approx(value(one.token)).margin(1e-5));
            std::size_t better = 0;  // than the last of the best
            for (const float logit : row) better += logit > row[static_cast<std::size_t>(id(told[i][3].token))] ? 1 : 0;
            CHECK(better == 2);
            CHECK((told[i][1].value >= told[i][2].value && told[i][2].value >= told[i][3].value));
            next = {answer[i]};
        }
    }
}

TEST_CASE("engine: a short prompt does not wait for a long one before it", "[serve][engine]") {
    const Scene scene("llama3");
    Engine engine = scene.engine({.cache_tokens = 2048, .rows = 64, .prompt_rows = 64});
    std::vector<AskId> ended;
    const auto ask = [&](std::size_t length) {
        Ask one;
        one.prompt = decant_test::random_tokens(length, length, 160);
        one.max_tokens = 1;
        one.listener = [&](const Delta& delta) { ended.push_back(delta.ask); };
        return taken(engine.ask(one));
    };
    const AskId tall = ask(1000), brief = ask(30);
    drain(engine);
    CHECK(ended == std::vector<AskId>{brief, tall});
}

// Case KV-03 of the public bug cases: off by one at the end of the context and at the borders of batches.
TEST_CASE("engine: up to the last token of the cache", "[serve][engine]") {
    const Scene scene("llama3");
    struct Case {
        std::size_t prompt, wanted, written;
        FinishReason end;
    };
    for (const Case& one :
         {Case{7, 1, 1, FinishReason::length}, Case{8, 1, 1, FinishReason::length}, Case{8, 2, 1, FinishReason::full},
          Case{1, 8, 8, FinishReason::length}, Case{1, 9, 8, FinishReason::full}}) {
        for (const std::uint32_t rows : {1u, 2u, 3u, 7u, 100u}) {
            Engine engine = scene.engine({.cache_tokens = 8, .block_tokens = 4, .sequences = 1, .rows = rows});
            Listener listener;
            Ask ask;
            ask.prompt = decant_test::random_tokens(one.prompt, 5, 160);
            ask.max_tokens = one.wanted;
            ask.ignore_end = true;
            ask.listener = [&](const Delta& delta) { listener(delta); };
            const AskId id = taken(engine.ask(ask));
            drain(engine);
            CAPTURE(one.prompt, one.wanted, rows);
            const Written& found = listener.answers[{id, 0}];
            CHECK(found.end == one.end);
            Ask shorter = ask;
            shorter.max_tokens = one.written;
            CHECK(found.tokens == alone(scene, shorter, 0).tokens);
        }
    }
    Engine engine = scene.engine({.cache_tokens = 8, .block_tokens = 4, .sequences = 1});
    CHECK(engine.ask({.prompt = Tokens(9, Token{1})}).error().code == ErrorCode::invalid_argument);
    CHECK(engine.counts().free_blocks == 2);
}

// Case BS-02 of the public bug cases: a block is found before it was computed.
TEST_CASE("engine: asks with one beginning that come together, are cancelled, or are known as a whole",
          "[serve][engine]") {
    const Scene scene("llama3");
    const Tokens common = decant_test::random_tokens(128, 11, 160);
    for (const bool cancel : {false, true}) {
        Engine engine = scene.engine({.cache_tokens = 2048, .rows = 100, .prompt_rows = 50});
        Listener listener;
        std::vector<std::pair<AskId, Ask>> asked;
        const auto ask = [&](std::size_t beyond) {
            Ask one;
            one.prompt = common;
            for (std::size_t i = 0; i < beyond; ++i) one.prompt.push_back(Token{static_cast<std::int32_t>(i)});
            one.max_tokens = 5;
            one.ignore_end = true;
            one.listener = [&](const Delta& delta) { listener(delta); };
            asked.emplace_back(taken(engine.ask(one)), one);
        };
        for (std::size_t i = 0; i < 8; ++i) ask(i % 3);
        static_cast<void>(taken(engine.step_for(std::chrono::microseconds(1))));
        if (cancel) engine.cancel(asked[0].first);
        drain(engine);
        const std::uint64_t before = engine.counts().prompt_tokens;
        for (const std::size_t beyond : {0u, 1u, 15u, 16u})
            ask(beyond);  // miss and hit, and a prompt that is all there
        drain(engine);
        CHECK(engine.counts().prompt_tokens - before <= 16 + 1 + 15 + 16);
        for (std::size_t i = cancel ? 1 : 0; i < asked.size(); ++i)
            CHECK(listener.answers[{asked[i].first, 0}].tokens == alone(scene, asked[i].second, 0).tokens);
        if (cancel) CHECK(listener.answers[{asked[0].first, 0}].end == FinishReason::cancelled);
    }
}

TEST_CASE("engine: drafts change nothing but the number of steps", "[serve][engine]") {
    const Scene scene("llama3");
    std::uint64_t steps[2];
    for (const std::uint32_t drafts : {0u, 8u}) {
        Engine engine = scene.engine({.cache_tokens = 2048, .draft_rows = 8});
        Listener listener;
        Ask ask;
        ask.prompt = decant_test::random_tokens(40, 2, 160);
        // An answer of two tokens in turn, more or less.
        ask.sampler =
            taken(Sampler::chain({decant::LogitBias{{{Token{20}, 30.0f}, {Token{21}, 30.0f}}},
                                  decant::Penalties{.presence = 1.0f, .last_n = 1}, decant::Temperature{0.3f}},
                                 5));
        ask.max_tokens = 200;
        ask.ignore_end = true;
        ask.draft_tokens = drafts;
        ask.listener = [&](const Delta& delta) { listener(delta); };
        const AskId id = taken(engine.ask(ask));
        drain(engine);
        CHECK(listener.answers[{id, 0}].tokens == alone(scene, ask, 0).tokens);
        steps[drafts > 0 ? 1 : 0] = engine.metrics().steps;
        CHECK((engine.counts().accepted_tokens > 0) == (drafts > 0));
        CHECK(engine.counts().accepted_tokens <= engine.counts().draft_tokens);
        CHECK(engine.counts().answer_tokens == 200);
    }
    CHECK(steps[0] == 200);
    CHECK(steps[1] < 100);
}

TEST_CASE("engine: blocks of what is cancelled go back at once, or when the pass that writes them is done",
          "[serve][engine]") {
    const Scene scene("llama3");
    Engine engine = scene.engine({.cache_tokens = 512, .block_tokens = 8, .prefix_cache = false});
    Listener listener;
    std::vector<std::pair<AskId, Ask>> asked;
    for (std::uint64_t i = 0; i < 3; ++i) {
        Ask ask;
        ask.prompt = decant_test::random_tokens(40, i, 160);
        ask.max_tokens = 10;
        ask.ignore_end = true;
        ask.listener = [&](const Delta& delta) { listener(delta); };
        asked.emplace_back(taken(engine.ask(ask)), ask);
    }
    REQUIRE(taken(engine.step()));
    const std::size_t all = engine.counts().free_blocks;
    engine.cancel(asked[0].first);
    const std::size_t rest = engine.counts().free_blocks;
    CHECK(rest >= all + 5);  // 40 tokens
    REQUIRE(taken(engine.step_for(std::chrono::nanoseconds(1))));
    const std::size_t under_way = engine.counts().free_blocks;
    engine.cancel(asked[1].first);
    CHECK(engine.counts().free_blocks == under_way);
    REQUIRE(taken(engine.step()));
    CHECK(engine.counts().free_blocks >= under_way + 5);
    drain(engine);
    CHECK(engine.counts().free_blocks == engine.counts().blocks);
    CHECK(listener.answers[{asked[0].first, 0}].end == FinishReason::cancelled);
    CHECK(listener.answers[{asked[1].first, 0}].end == FinishReason::cancelled);
    CHECK(listener.answers[{asked[2].first, 0}].tokens == alone(scene, asked[2].second, 0).tokens);
}

TEST_CASE("engine: what passes move and multiply, and how full they are", "[serve][engine]") {
    const Scene scene("llama3");
    const decant::ModelCost cost(scene.model.weights(), scene.model.spec());
    Engine engine = scene.engine({.cache_tokens = 512,
                                  .block_tokens = 8,
                                  .sequences = 4,
                                  .rows = 10,
                                  .prompt_rows = 10,
                                  .bytes_per_second = 1e9,
                                  .operations_per_second = 2e9});
    Ask ask;
    ask.prompt = decant_test::random_tokens(16, 1, 160);
    ask.max_tokens = 4;
    ask.ignore_end = true;
    ask.answers = 2;
    static_cast<void>(taken(engine.ask(ask)));
    double bytes = 0.0, operations = 0.0;
    // The prompt in two passes, then a token of each answer in three.
    const auto pass = [&](std::size_t before, std::size_t tokens, std::size_t answers, std::size_t wanted) {
        const auto before_it = engine.metrics();
        static_cast<void>(taken(engine.step()));
        const auto now = engine.metrics();
        const auto of = static_cast<double>(answers);
        double products = of * cost.attention(before, tokens);
        for (const double kind : cost.products(answers * tokens, wanted)) products += kind;
        const double moved = cost.weight_bytes(answers * tokens, wanted) +
                             of * (cost.cache_read(before, tokens) + cost.cache_written(tokens));
        CHECK(now.last_step.bytes == Approx(moved));
        CHECK(now.last_step.operations == Approx(products));
        CHECK(now.last_step.steps == 1);
        CHECK(now.last_step.rows == answers * tokens);
        CHECK(now.last_step.sequences == answers);
        CHECK(now.last_step.pass_seconds == Approx(now.pass_seconds - before_it.pass_seconds));
        CHECK(now.last_counts.answer_tokens == now.counts.answer_tokens - before_it.counts.answer_tokens);
        bytes += moved;
        operations += products;
    };
    pass(0, 10, 1, 0);
    CHECK(engine.counts().used_blocks == 2);
    pass(10, 6, 1, 1);
    for (std::size_t i = 0; i < 3; ++i) pass(16 + i, 1, 2, 2);
    CHECK(engine.idle());
    const decant::EngineMetrics metrics = engine.metrics();
    CHECK(metrics.bytes == Approx(bytes));
    CHECK(metrics.operations == Approx(operations));
    CHECK(metrics.steps == 5);
    CHECK(metrics.limits.row_share(metrics) == Approx(22.0 / 50.0));
    CHECK(metrics.limits.sequence_share(metrics) == Approx(8.0 / 20.0));
    CHECK(metrics.limits.bandwidth_share(metrics) == Approx(bytes / 1e9 / metrics.pass_seconds));
    CHECK(metrics.limits.arithmetic_share(metrics) == Approx(operations / 2e9 / metrics.pass_seconds));
    CHECK(metrics.counts.most_used_blocks == 4);  // two that both share, and one for each
    CHECK(metrics.counts.used_blocks == 0);
}

TEST_CASE("engine: what listeners and hosts cancel is not counted as used", "[serve][engine]") {
    const Scene scene("llama3");
    Engine engine = scene.engine({.cache_tokens = 512, .block_tokens = 8});
    Ask ask;
    ask.prompt = decant_test::random_tokens(40, 1, 160);
    ask.ignore_end = true;
    const AskId by_host = taken(engine.ask(ask));
    REQUIRE(taken(engine.step()));
    CHECK(engine.counts().used_blocks >= 5);
    engine.cancel(by_host);
    CHECK(engine.counts().used_blocks == 0);
    ask.listener = [&](const Delta& delta) { engine.cancel(delta.ask); };
    static_cast<void>(taken(engine.ask(ask)));
    drain(engine);
    CHECK(engine.counts().running == 0);
    CHECK(engine.counts().used_blocks == 0);
}

TEST_CASE("engine: where the time of steps goes, and how long each answer took", "[serve][engine]") {
    const Scene scene("llama3");
    Engine engine = scene.engine({.cache_tokens = 512, .block_tokens = 8, .sequences = 1});
    constexpr double pause = 0.003;
    std::map<AskId, decant::AnswerTimes> times;
    int early = 0;
    const auto start = Engine::Clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(Engine::Clock::now() - start).count(); };
    Ask ask;
    ask.prompt = decant_test::random_tokens(30, 1, 160);
    ask.max_tokens = 6;
    ask.ignore_end = true;
    ask.listener = [&](const Delta& delta) {
        for (const double from = seconds(); seconds() - from < pause;) {
        }
        if (delta.finish == FinishReason::none)
            early += delta.times ? 1 : 0;
        else
            times[delta.ask] = delta.times.value();
    };
    const AskId first = taken(engine.ask(ask)), second = taken(engine.ask(ask)), third = taken(engine.ask(ask));
    const double asked = seconds();
    for (int i = 0; i < 8; ++i) REQUIRE(taken(engine.step()));
    engine.cancel(third);
    drain(engine);
    const double wall = seconds();
    CHECK(early == 0);
    REQUIRE(times.size() == 3);
    for (const AskId id : {first, second}) {
        const decant::AnswerTimes& one = times[id];
        CHECK(one.tokens == 6);
        CHECK((0.0 <= one.queue && one.queue <= one.first_token && one.last_token <= one.end));
        CHECK(one.last_token - one.first_token >= 5 * pause);
        CHECK(one.tokens_per_second() == Approx(5.0 / (one.last_token - one.first_token)));
        CHECK((one.between_p50 >= pause && one.between_p95 >= one.between_p50 && one.between_p99 >= one.between_p95));
        CHECK(one.end <= wall);
    }
    CHECK(times[first].cached_tokens == 0);
    CHECK(times[second].cached_tokens == 24);  // whole blocks
    CHECK(times[second].queue + asked >= times[first].last_token);
    CHECK(times[third].tokens == 0);
    CHECK(times[third].tokens_per_second() == 0.0);
    CHECK(times[third].queue == Approx(times[third].end));  // it never had a place

    const decant::EngineMetrics metrics = engine.metrics();
    CHECK(metrics.listener_seconds >= 13 * pause);
    CHECK(metrics.seconds() <= wall);
    CHECK((metrics.pass_seconds > 0.0 && metrics.sample_seconds > 0.0 && metrics.own_seconds > 0.0));
    // What is left is the engine's own, and not a listener's or a pass's.
    CHECK(metrics.own_seconds < wall - metrics.listener_seconds - metrics.pass_seconds);
    CHECK(metrics.answer.count() == 2);
    CHECK(metrics.pace.count() == 2);
    CHECK(metrics.pace.sum() == Approx((times[first].last_token - times[first].first_token + times[second].last_token -
                                        times[second].first_token) /
                                       5.0)
                                    .epsilon(1e-4));
}

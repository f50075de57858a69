// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// A draft model proposes what it would write itself, and changes nothing in an answer but the number of steps.
#include <decant/serve/draft_model.hpp>

#include "serve/support.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
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
using decant_test::between;
using decant_test::bind;
using decant_test::drain;
using decant_test::Listener;
using decant_test::Random;
using decant_test::Scene;
using decant_test::taken;
using decant_test::tiny;
using decant_test::Tokens;
using decant_test::Written;
using DraftModel = decant::DraftModel<Simd>;
using Engine = decant::Engine<Simd>;
using Model = decant::Model<Simd>;

namespace {

constexpr float always = 1e6f;  // of EngineOptions::draft_loss: drafts need not pay

Engine engine_with(const Scene& scene, const Model& draft, EngineOptions options, std::size_t threads = 1) {
    return taken(Engine::create(scene.model, scene.tokenizer, decant::ThreadPool(threads), options, draft));
}

/// No token comes twice, so that nothing is found in what was written before.
Sampler without_repeats(float temperature, std::uint64_t seed) {
    return taken(Sampler::chain({decant::Penalties{.presence = 1000.0f}, decant::Temperature{temperature}}, seed));
}

Tokens different(std::size_t count, std::int32_t first) {
    Tokens tokens;
    for (std::size_t i = 0; i < count; ++i) tokens.push_back(Token{first + static_cast<std::int32_t>(i)});
    return tokens;
}

bool all_free(const decant::EngineCounts& counts) {
    return counts.free_draft_blocks == counts.draft_blocks && counts.draft_blocks > 0 &&
           counts.free_blocks + counts.remembered_blocks == counts.blocks;
}

/// Returns what was counted.
decant::EngineCounts run_randomly(const char* model, const char* draft, EngineOptions options, std::uint64_t seed,
                                  int asks) {
    CAPTURE(model, draft);
    const Scene scene(model);
    Random random{seed};
    Engine engine = engine_with(scene, bind<Simd>(tiny(draft)), options, 2);
    const decant::EngineCounts counts = decant_test::run_randomly(scene, engine, random, asks);
    CHECK(all_free(counts));
    return counts;
}

}  // namespace

TEST_CASE("draft model: proposes what it would write, whatever it proposed before", "[serve][draft_model]") {
    const Scene scene("llama3");
    Random random{3};
    // Passes so small that prompts come in parts; rounds that end at any place, or are given up.
    auto drafts = taken(DraftModel::create(scene.model, decant::AnyExecutor(decant::SerialExecutor{}),
                                           {.tokens = 400, .block_tokens = 4, .sequences = 3}, 9));
    struct Text {
        Tokens tokens;
        Ask ask;
    };
    std::vector<Text> texts(3);
    for (std::uint64_t n = 0; n < 3; ++n) {
        texts[n].tokens = decant_test::random_tokens(random, 10 + 8 * n);
        texts[n].ask.sampler =
            n == 0 ? Sampler({.temperature = 0.0f})
                   : taken(Sampler::chain({decant::Penalties{.frequency = 0.5f}, decant::Temperature{0.8f}}, n));
    }
    std::size_t complete = 0, parts = 0;
    for (int round = 0; round < 60; ++round) {
        drafts.begin();
        std::map<std::size_t, std::size_t> wanted;
        for (std::size_t n = 0; n < texts.size(); ++n) {
            if (between(random, 0, 3) == 0) continue;
            const std::size_t length = between(random, 1, 5);
            if (drafts.want({AskId{n}, 0}, texts[n].tokens, length, texts[n].ask.sampler)) wanted[n] = length;
        }
        const bool given_up = between(random, 0, 5) == 0;
        decant::RunLimits limits;
        limits.tiles = between(random, 1, 40);
        while (!drafts.advance(limits) && !given_up) ++parts;
        for (std::size_t n = 0; n < texts.size(); ++n) {
            const auto found = drafts.found({AskId{n}, 0});
            const std::size_t length = wanted.contains(n) ? wanted[n] : 0;
            if (given_up)
                REQUIRE(found.size() <= length);
            else
                REQUIRE(found.size() == length);
            if (between(random, 0, 3) == 0) {  // it goes on without a draft
                const Tokens others = decant_test::random_tokens(random, between(random, 1, 6));
                texts[n].tokens.insert(texts[n].tokens.end(), others.begin(), others.end());
                continue;
            }
            if (found.empty()) continue;
            ++complete;
            Ask ask = texts[n].ask;
            ask.prompt = texts[n].tokens;
            ask.max_tokens = found.size();
            ask.ignore_end = true;
            CHECK(Tokens(found.begin(), found.end()) == alone(scene, ask, 0).tokens);
            // Some of it turns out right, and something else follows.
            const std::size_t right = between(random, 0, found.size());
            texts[n].tokens.insert(texts[n].tokens.end(), found.begin(),
                                   found.begin() + static_cast<std::ptrdiff_t>(right));
            texts[n].tokens.push_back(Token{static_cast<std::int32_t>(random.below(160))});
        }
    }
    CHECK(complete > 30);
    CHECK(parts > 0);
    for (std::size_t n = 0; n < texts.size(); ++n) drafts.release({AskId{n}, 0});
    CHECK(drafts.free_blocks() == drafts.blocks());
}

TEST_CASE("draft model: one that is the model itself is right, greedy and drawn", "[serve][draft_model]") {
    const Scene scene("llama3");
    for (const float temperature : {0.0f, 1.0f}) {
        for (const std::size_t asks : {1u, 3u}) {
            Engine engine = engine_with(
                scene, scene.model, {.cache_tokens = 1024, .block_tokens = 8, .draft_rows = 64, .draft_loss = always});
            Listener listener;
            std::vector<std::pair<AskId, Ask>> asked;
            for (std::size_t n = 0; n < asks; ++n) {
                Ask ask;
                ask.prompt = different(10 + n, static_cast<std::int32_t>(20 * n + 1));
                ask.sampler = without_repeats(temperature, n);
                ask.max_tokens = 60;
                ask.ignore_end = true;
                ask.draft_tokens = 8;
                ask.listener = [&](const Delta& delta) { listener(delta); };
                asked.emplace_back(taken(engine.ask(ask)), ask);
            }
            drain(engine);
            for (const auto& [id, ask] : asked) CHECK(listener.answers[{id, 0}].tokens == alone(scene, ask, 0).tokens);
            const decant::EngineCounts counts = engine.counts();
            CAPTURE(temperature, asks, engine.metrics().steps, counts.draft_tokens);
            CHECK(counts.accepted_tokens == counts.draft_tokens);
            CHECK(counts.draft_tokens > 40 * asks);
            CHECK(engine.metrics().steps < 15);
            CHECK(all_free(counts));
            CHECK(engine.metrics().draft_seconds > 0.0);
        }
    }
}

TEST_CASE("draft model: answers are those of requests alone, whatever it drafts", "[serve][draft_model]") {
    EngineOptions options{.cache_tokens = 4096, .draft_loss = always};
    CHECK(run_randomly("llama3", "llama3", options, 1, 50).accepted_tokens > 0);
    const decant::EngineCounts counts = run_randomly("llama3", "qwen3", options, 2, 50);
    CHECK(counts.accepted_tokens * 2 < counts.draft_tokens);
    options = {.cache_tokens = 4096, .rows = 20, .prompt_rows = 5};  // only where it pays
    run_randomly("llama3", "llama3", options, 3, 40);
}

TEST_CASE("draft model: the same where answers push each other out, of either cache", "[serve][draft_model]") {
    EngineOptions options{.cache_tokens = 160, .block_tokens = 4, .rows = 24, .prompt_rows = 7};
    options.draft_loss = always;
    CHECK(run_randomly("llama3", "llama3", options, 4, 60).preemptions > 0);
    CHECK(run_randomly("llama3", "qwen3", options, 5, 60).preemptions > 0);
    options.cache_tokens = 4096;
    options.draft_cache_tokens = 120;
    CHECK(run_randomly("llama3", "llama3", options, 6, 60).accepted_tokens > 0);
}

TEST_CASE("draft model: a cache that is far too small for it changes nothing", "[serve][draft_model]") {
    const Scene scene("llama3");
    EngineOptions options{.cache_tokens = 1024, .block_tokens = 4, .draft_loss = always};
    options.draft_cache_tokens = 4;
    Engine engine = engine_with(scene, scene.model, options);
    Listener listener;
    Ask ask;
    ask.prompt = different(20, 1);
    ask.sampler = without_repeats(0.0f, 0);
    ask.max_tokens = 40;
    ask.ignore_end = true;
    ask.draft_tokens = 4;
    ask.listener = [&](const Delta& delta) { listener(delta); };
    const AskId id = taken(engine.ask(ask));
    drain(engine);
    CHECK(listener.answers[{id, 0}].tokens == alone(scene, ask, 0).tokens);
    CHECK(engine.counts().draft_tokens == 0);
    CHECK(engine.metrics().steps == 40);
    CHECK(all_free(engine.counts()));
}

TEST_CASE("draft model: an answer that is cancelled in the middle of a round leaves nothing", "[serve][draft_model]") {
    const Scene scene("llama3");
    Engine engine = engine_with(scene, scene.model, {.cache_tokens = 1024, .block_tokens = 4, .draft_loss = always});
    Listener listener;
    std::vector<std::pair<AskId, Ask>> asked;
    for (std::int32_t n = 0; n < 3; ++n) {
        Ask ask;
        ask.prompt = different(12, 20 * n + 1);
        ask.sampler = without_repeats(0.0f, 0);
        ask.max_tokens = 90;
        ask.ignore_end = true;
        ask.draft_tokens = 6;
        ask.listener = [&](const Delta& delta) { listener(delta); };
        asked.emplace_back(taken(engine.ask(ask)), ask);
    }
    while (engine.metrics().draft_seconds == 0.0) REQUIRE(taken(engine.step()));
    // In a round are calls that take time for drafts and none for the pass behind them.
    for (std::size_t n = 0; n < 2; ++n) {
        bool in_round = false;
        for (int calls = 0; calls < 20000 && !in_round; ++calls) {
            const double drafting = engine.metrics().draft_seconds, passes = engine.metrics().pass_seconds;
            REQUIRE(taken(engine.step_for(std::chrono::microseconds(30))));
            in_round = engine.metrics().draft_seconds > drafting && engine.metrics().pass_seconds == passes;
        }
        REQUIRE(in_round);
        engine.cancel(asked[n].first);
    }
    drain(engine);
    CHECK(listener.answers[{asked[0].first, 0}].end == FinishReason::cancelled);
    CHECK(listener.answers[{asked[1].first, 0}].end == FinishReason::cancelled);
    CHECK(listener.answers[{asked[2].first, 0}].tokens == alone(scene, asked[2].second, 0).tokens);
    CHECK(all_free(engine.counts()));
}

TEST_CASE("draft model: what is refused", "[serve][draft_model]") {
    const auto refusal = [](const char* model, const Model& draft) {
        const Scene scene(model);
        return Engine::create(scene.model, scene.tokenizer, decant::SerialExecutor{}, {}, draft).error();
    };
    const Model llama = bind<Simd>(tiny("llama3"));
    const Model other = bind<Simd>(decant_test::TinyFile().open());
    REQUIRE(other.spec().vocabulary != llama.spec().vocabulary);
    const decant::Error error = refusal("llama3", other);
    CHECK(error.code == ErrorCode::mismatch);
    CHECK(error.message().find(std::to_string(other.spec().vocabulary)) != std::string::npos);
    const Model mamba = bind<Simd>(tiny("mamba2"));
    CHECK(refusal("llama3", mamba).code == ErrorCode::unsupported);
    CHECK(refusal("mamba2", mamba).code == ErrorCode::unsupported);
}

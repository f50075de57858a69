// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The engine with small cache entries: what is shared, given away and taken back has the same bits.
#include <decant/serve/engine.hpp>

#include "serve/support.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

using decant::DType;
using decant::EngineOptions;
using decant_test::Listener;
using decant_test::Random;
using decant_test::Scene;

namespace {

/// Answers of many asks at once in a small cache, or of each alone in a large one, all in the order of asking.
std::vector<decant_test::Tokens> answers(const Scene& scene, EngineOptions options, bool together,
                                         decant::EngineCounts& counts) {
    Random random{61};
    const decant_test::Tokens common = decant_test::random_tokens(random, 30, scene.model.spec().vocabulary);
    const auto listener = std::make_shared<Listener>();
    auto engine = scene.engine(options, together ? 2 : 1);
    for (std::size_t i = 0; i < 12; ++i) {
        decant::Ask ask;
        ask.prompt = common;
        ask.prompt.resize(10 + i);
        ask.prompt.push_back(decant::Token{static_cast<std::int32_t>(i)});
        ask.sampler = decant::Sampler({.temperature = 1.0f, .seed = i});
        ask.max_tokens = 25;
        ask.ignore_end = true;
        ask.listener = [listener](const decant::Delta& delta) { (*listener)(delta); };
        static_cast<void>(decant_test::taken(engine.ask(std::move(ask))));
        if (!together) decant_test::drain(engine);
    }
    decant_test::drain(engine);
    counts = engine.metrics().counts;
    std::vector<decant_test::Tokens> all;
    for (const auto& [key, written] : listener->answers) {
        CHECK(written.tokens.size() == 25);
        all.push_back(written.tokens);
    }
    return all;
}

}  // namespace

TEST_CASE("engine: small cache entries change with nothing that happens beside an answer", "[serve][engine]") {
    const Scene scene(decant_test::bind<decant::Simd>(decant_test::TinyFile(DType::q4_1, 64, 64, 2, 64).open()));
    for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_0}) {
        CAPTURE(decant::name(dtype));
        decant::EngineCounts counts;
        EngineOptions options{.cache_tokens = 4096, .prefix_cache = false};
        options.cache_dtype = dtype;
        const auto expected = answers(scene, options, false, counts);
        CHECK(expected.size() == 12);

        options = {.cache_tokens = 4096, .block_tokens = 4, .sequences = 3};  // most wait until others have begun
        options.cache_dtype = dtype;
        CHECK(answers(scene, options, true, counts) == expected);
        CHECK(counts.cached_tokens > 0);

        options = {.cache_tokens = 160, .block_tokens = 4, .rows = 24, .prompt_rows = 7, .prefix_cache = false};
        options.cache_dtype = dtype;
        options.swap_bytes = 1 << 30;
        CHECK(answers(scene, options, true, counts) == expected);
        CHECK(counts.preemptions > 0);
        CHECK(counts.swapped_tokens > 0);
    }
}

TEST_CASE("engine: entries in blocks of 32 and heads that are no multiple of it", "[serve][engine]") {
    const Scene scene(decant_test::bind<decant::Simd>(decant_test::TinyFile().open()));  // heads of 16
    EngineOptions options;
    options.cache_dtype = DType::q8_0;
    const auto engine =
        decant::Engine<decant::Simd>::create(scene.model, scene.tokenizer, decant::ThreadPool(1), options);
    REQUIRE_FALSE(engine);
    CHECK(engine.error().code == decant::ErrorCode::unsupported);
    CHECK(decant_test::contains(engine.error().message(), "heads of 16 numbers"));
}

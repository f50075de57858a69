// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Hosts that ask for the least, the most and at odd moments.
#include <decant/serve/engine.hpp>

#include "serve/support.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using decant::Ask;
using decant::AskId;
using decant::DType;
using decant::EngineOptions;
using decant::FinishReason;
using decant_test::Listener;
using decant_test::Random;
using decant_test::Scene;
using decant_test::taken;

namespace {

constexpr auto most32 = (std::numeric_limits<std::uint32_t>::max)();

Ask plain_ask(Random& random, std::size_t tokens) {
    Ask ask;
    ask.prompt = decant_test::random_tokens(random, tokens);
    ask.sampler = decant::Sampler({.temperature = 1.0f, .seed = random.next()});
    ask.max_tokens = 12;
    ask.ignore_end = true;
    return ask;
}

void all_finite(const nlohmann::json& value) {
    if (value.is_structured()) {
        for (const auto& part : value) all_finite(part);
    } else if (value.is_number()) {
        CHECK(std::isfinite(value.get<double>()));
        CHECK(value.get<double>() >= 0.0);
    }
}

}  // namespace

TEST_CASE("odd asks: the least and the most of everything", "[serve][odd]") {
    const Scene scene("llama3");
    Random random{71};
    std::vector<Ask> asks;
    for (int i = 0; i < 9; ++i) asks.push_back(plain_ask(random, 5));
    asks[0].max_tokens = 0;
    asks[1].max_tokens = (std::numeric_limits<std::size_t>::max)();
    asks[2].draft_tokens = most32;
    asks[3].log_probabilities = most32;
    asks[4].priority = (std::numeric_limits<int>::min)();
    asks[5].priority = (std::numeric_limits<int>::max)();
    asks[6].stop = {std::string(100000, 'x'), "yyyy"};
    asks[7].deadline = std::chrono::steady_clock::time_point::min();
    asks[8].deadline = std::chrono::steady_clock::time_point::max();

    const auto listener = std::make_shared<Listener>();
    auto engine = scene.engine({.cache_tokens = 256, .prefix_cache = false});
    std::vector<AskId> ids;
    for (Ask& ask : asks) {
        ask.listener = [listener](const decant::Delta& delta) { (*listener)(delta); };
        ids.push_back(taken(engine.ask(ask)));
    }
    decant_test::drain(engine);
    const auto found = [&](std::size_t i) -> const decant_test::Written& { return listener->answers[{ids[i], 0}]; };
    for (std::size_t i = 0; i < asks.size(); ++i) CHECK(found(i).ends == 1);
    CHECK(found(0).tokens.size() == 1);
    CHECK(found(1).end == FinishReason::full);
    CHECK(found(7).end == FinishReason::deadline);
    CHECK(found(7).tokens.empty());
    for (const std::size_t i : {2, 3, 4, 5, 6, 8}) {
        CAPTURE(i);
        CHECK(found(i).tokens == decant_test::alone(scene, asks[i], 0).tokens);
    }
    CHECK(engine.counts().free_blocks == engine.counts().blocks);

    Ask many = plain_ask(random, 5);
    many.answers = most32;
    CHECK(engine.ask(many).error().code == decant::ErrorCode::invalid_argument);
    many.answers = 0;
    CHECK(engine.ask(many).error().code == decant::ErrorCode::invalid_argument);
    CHECK(engine.idle());
}

TEST_CASE("odd asks: an empty stop string stops nothing", "[serve][odd]") {
    const Scene scene("llama3");
    Random random{72};
    Ask ask = plain_ask(random, 5);
    const auto expected = decant_test::alone(scene, ask, 0);
    const auto listener = std::make_shared<Listener>();
    ask.stop = {""};
    ask.listener = [listener](const decant::Delta& delta) { (*listener)(delta); };
    auto engine = scene.engine({});
    const AskId id = taken(engine.ask(ask));
    decant_test::drain(engine);
    const auto& found = listener->answers[{id, 0}];
    CHECK(found.tokens == expected.tokens);
    CHECK(found.text == expected.text);
}

TEST_CASE("odd asks: listeners ask and cancel, themselves too, and engines move meanwhile", "[serve][odd]") {
    const Scene scene("llama3");
    Random random{73};
    for (const DType dtype : {DType::f16, DType::f32, DType::bf16}) {
        EngineOptions options{.cache_tokens = 192, .block_tokens = 8};
        options.cache_dtype = dtype;
        options.swap_bytes = 1 << 20;
        auto engine = scene.engine(options);
        decant::Engine<decant::Simd>* current = &engine;
        std::size_t ended = 0, asked = 0;
        const auto ask_one = [&](auto& self, int depth) -> void {
            Ask ask = plain_ask(random, decant_test::between(random, 1, 40));
            ask.listener = [&, depth](const decant::Delta& delta) {
                ended += delta.finish == FinishReason::none ? 0 : 1;
                if (delta.finish == FinishReason::none && random.below(8) == 0) current->cancel(delta.ask);
                if (depth > 0 && random.below(6) == 0) self(self, depth - 1);
            };
            static_cast<void>(taken(current->ask(std::move(ask))));
            ++asked;
        };
        for (int i = 0; i < 10; ++i) ask_one(ask_one, 2);
        for (int i = 0; i < 20; ++i) static_cast<void>(taken(engine.step_for(std::chrono::nanoseconds(0))));
        auto moved = std::move(engine);
        current = &moved;
        while (taken(moved.step_for(std::chrono::microseconds(20)))) {
            const auto metrics = moved.metrics();
            all_finite(nlohmann::json::parse(decant::to_json(metrics)));
            CHECK_FALSE(metrics.diagnose().empty());
        }
        CHECK(ended == asked);
        const auto counts = moved.counts();
        CHECK(counts.free_blocks + counts.remembered_blocks == counts.blocks);
    }
}

TEST_CASE("odd asks: an engine that goes in the middle of a pass leaves the others as they are", "[serve][odd]") {
    const Scene scene("llama3");
    Random random{74};
    const auto listener = std::make_shared<Listener>();
    Ask kept = plain_ask(random, 30);
    kept.listener = [listener](const decant::Delta& delta) { (*listener)(delta); };
    const auto expected = decant_test::alone(scene, kept, 0);
    for (int steps = 0; steps < 30; ++steps) {
        auto other = scene.engine({.cache_tokens = 512});
        const AskId id = taken(other.ask(kept));
        {
            auto engine = scene.engine({.cache_tokens = 512});
            for (int i = 0; i < 4; ++i) static_cast<void>(taken(engine.ask(plain_ask(random, 30))));
            for (int i = 0; i < steps; ++i) {
                static_cast<void>(taken(engine.step_for(std::chrono::nanoseconds(0))));
                static_cast<void>(taken(other.step_for(std::chrono::nanoseconds(0))));
            }
        }
        decant_test::drain(other);
        CHECK(listener->answers[{id, 0}].tokens == expected.tokens);
        listener->answers.clear();
    }
}

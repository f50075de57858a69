// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Hosts that ask for the least, the most and at odd moments.
#include <decant/serve/engine.hpp>

#include "serve/support.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
using Engine = decant::Engine<decant::Simd>;

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
        Engine* current = &engine;
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

TEST_CASE("odd asks: a budget may be as long as a duration can be", "[serve][odd]") {
    using Duration = Engine::Clock::duration;
    const Scene scene("llama3");
    Random random{75};
    for (const Duration budget : {(Duration::max)(), (Duration::max)() - Duration(1), (Duration::max)() / 2}) {
        auto engine = scene.engine({.cache_tokens = 256});
        static_cast<void>(taken(engine.ask(plain_ask(random, 30))));
        for (std::uint64_t steps = 1; steps <= 12; ++steps) {
            CHECK(taken(engine.step_for(budget)) == (steps < 12));
            REQUIRE(engine.metrics().steps == steps);
        }
    }
}

TEST_CASE("odd asks: whatever the budget, enough calls bring every answer to its end", "[serve][odd]") {
    using Duration = Engine::Clock::duration;
    const Scene scene("llama3");
    for (const Duration budget : {Duration(0), Duration(-1), (Duration::min)(), Duration(1), Duration(300)}) {
        for (const bool drafts : {false, true}) {
            CAPTURE(budget.count(), drafts);
            Random random{76};
            const EngineOptions options{.cache_tokens = 512, .draft_loss = 1e6f};
            auto engine = taken(Engine::create(scene.model, scene.tokenizer, decant::ThreadPool(2), options,
                                               drafts ? std::optional(scene.model) : std::nullopt));
            const auto listener = std::make_shared<Listener>();
            std::vector<std::pair<AskId, Ask>> asked;
            for (int i = 0; i < 3; ++i) {
                Ask ask = plain_ask(random, 20);
                ask.draft_tokens = drafts ? 3 : 0;
                if (i == 2) {
                    ask.max_tokens = 400;
                    ask.deadline = Engine::Clock::now() + std::chrono::milliseconds(1);
                }
                ask.listener = [listener](const decant::Delta& delta) { (*listener)(delta); };
                asked.emplace_back(taken(engine.ask(ask)), ask);
            }
            std::size_t calls = 0;
            while (taken(engine.step_for(budget))) REQUIRE(++calls < 1'000'000);
            for (const auto& [id, ask] : asked) {
                const auto& found = listener->answers[{id, 0}];
                CHECK(found.ends == 1);
                CHECK(found.end == (ask.deadline ? FinishReason::deadline : FinishReason::length));
                if (!ask.deadline) CHECK(found.tokens == decant_test::alone(scene, ask, 0).tokens);
            }
            CHECK(calls > engine.metrics().steps);
        }
    }
}

TEST_CASE("odd asks: room that a restored answer does not use is nobody's loss", "[serve][odd]") {
    const Scene scene("llama3");
    Random random{77};
    const EngineOptions options{.cache_tokens = 256, .prefix_cache = false};
    auto from = scene.engine(options), to = scene.engine(options);
    const Ask ask = plain_ask(random, 20);
    const auto expected = decant_test::alone(scene, ask, 0);
    std::vector<std::vector<std::byte>> saved;
    for (int i = 0; i < 2; ++i) {
        const AskId id = taken(from.ask(ask));
        for (int steps = 0; steps < 3; ++steps) static_cast<void>(taken(from.step()));
        saved.push_back(taken(from.save(id)));
    }
    Listener first, second;
    static_cast<void>(taken(to.restore(saved[0], [&](const decant::Delta& delta) { first(delta); })));
    static_cast<void>(taken(to.restore(
        saved[1], [&](const decant::Delta& delta) { second(delta); }, taken(to.room(200)))));
    CHECK(to.counts().free_blocks == to.counts().blocks);
    Ask large = plain_ask(random, 150);
    Listener others;
    large.listener = [&](const decant::Delta& delta) { others(delta); };
    large.priority = 1;
    const AskId id = taken(to.ask(large));
    decant_test::drain(to);
    for (const Listener* const one : {&first, &second}) {
        REQUIRE(one->answers.size() == 1);
        const auto& found = one->answers.begin()->second;
        CHECK(found.end == FinishReason::length);
        CHECK(std::equal(found.tokens.rbegin(), found.tokens.rend(), expected.tokens.rbegin()));
    }
    CHECK(others.answers[{id, 0}].tokens == decant_test::alone(scene, large, 0).tokens);
}

TEST_CASE("odd asks: the higher priority goes first, whatever its level is worth", "[serve][odd]") {
    constexpr auto most64 = (std::numeric_limits<std::uint64_t>::max)();
    constexpr int most = (std::numeric_limits<int>::max)(), least = (std::numeric_limits<int>::min)();
    const Scene scene("llama3");
    Random random{78};
    for (const std::uint64_t steps : {std::uint64_t{1}, std::uint64_t{1} << 31, std::uint64_t{1} << 32,
                                      std::uint64_t{1} << 33, std::uint64_t{1} << 40, most64 / 2, most64}) {
        CAPTURE(steps);
        auto engine = scene.engine({.cache_tokens = 256, .sequences = 1, .steps_per_priority = steps});
        std::vector<int> ended;
        for (const int priority : {0, least, 1, most - 1, least + 1, -1, most, 1 << 20}) {
            Ask ask = plain_ask(random, 3);
            ask.max_tokens = 1;
            ask.priority = priority;
            ask.listener = [&ended, priority](const decant::Delta&) { ended.push_back(priority); };
            static_cast<void>(taken(engine.ask(std::move(ask))));
        }
        decant_test::drain(engine);
        CHECK(ended == std::vector{most, most - 1, 1 << 20, 1, 0, -1, least + 1, least});
    }
}

TEST_CASE("odd asks: options are refused by name, or an engine of them answers", "[serve][odd]") {
    const Scene scene("llama3");
    Random random{79};
    const Ask ask = plain_ask(random, 20);
    const auto expected = decant_test::alone(scene, ask, 0);
    struct Case {
        EngineOptions options;
        std::string_view names;  // in the error's hint; none where it works
        bool draft = false;
    };
    const std::vector<Case> cases{
        {{.sequences = most32}, "EngineOptions::sequences"},
        {{.sequences = most32 - 31}, "EngineOptions::sequences"},  // with the rows of drafts: 0 in 32 bits
        {{.cache_tokens = 16, .sequences = 1u << 28}, "EngineOptions::sequences"},
        {{.sequences = 1u << 20}, "EngineOptions::block_tokens"},
        {{.sequences = 1u << 12, .draft_cache_tokens = 1u << 22}, "EngineOptions::draft_cache_tokens", true},
        {{.rows = most32}, "EngineOptions::rows"},
        {{.rows = 1u << 28}, "EngineOptions::rows"},
        {{.sequences = 0}, "EngineOptions::sequences"},
        {{.rows = 0}, "rows"},
        {{.prompt_rows = 0}, "prompt_rows"},
        {{.cache_tokens = 256, .sequences = 1u << 12}, {}},
        {{.cache_tokens = 256, .rows = 1u << 12}, {}},
        {{.prompt_rows = most32}, {}},
        {{.prompt_rows = most32}, {}, true},
        {{.draft_rows = most32}, {}},
        {{.draft_rows = most32}, {}, true},
        {{.draft_rows = 0}, {}, true},
        {{.swap_bytes = (std::numeric_limits<std::size_t>::max)()}, {}},
    };
    for (const Case& one : cases) {
        CAPTURE(one.options.sequences, one.options.rows, one.options.draft_rows, one.draft);
        auto engine = Engine::create(scene.model, scene.tokenizer, decant::SerialExecutor{}, one.options,
                                     one.draft ? std::optional(scene.model) : std::nullopt);
        CHECK(engine.has_value() == one.names.empty());
        if (!engine) {
            CHECK(engine.error().code == decant::ErrorCode::invalid_argument);
            CHECK(engine.error().hint.find(one.names) != std::string::npos);
            continue;
        }
        if (!one.names.empty()) continue;
        Listener listener;
        Ask wanted = ask;
        wanted.draft_tokens = 4;
        wanted.listener = [&](const decant::Delta& delta) { listener(delta); };
        const AskId id = taken(engine->ask(wanted));
        decant_test::drain(*engine);
        CHECK(listener.answers[{id, 0}].tokens == expected.tokens);
    }
}

TEST_CASE("odd asks: a step within a step is refused, and times stay what they are", "[serve][odd]") {
    const Scene scene("llama3");
    Random random{80};
    auto engine = scene.engine({.cache_tokens = 256});
    std::size_t refused = 0, calls = 0;
    for (int i = 0; i < 2; ++i) {
        Ask ask = plain_ask(random, 5);
        ask.listener = [&](const decant::Delta&) {
            ++calls;
            const auto more = calls % 2 == 0 ? engine.step() : engine.step_for(std::chrono::seconds(1));
            refused += !more && more.error().code == decant::ErrorCode::invalid_argument ? 1 : 0;
        };
        static_cast<void>(taken(engine.ask(std::move(ask))));
    }
    do {
        const auto metrics = engine.metrics();
        CHECK(metrics.own_seconds >= 0.0);
        CHECK(metrics.last_step.own_seconds >= 0.0);
    } while (taken(engine.step()));
    CHECK(calls == 24);
    CHECK(refused == calls);
}

TEST_CASE("odd asks: metrics are JSON whatever limits a host names", "[serve][odd]") {
    const Scene scene("llama3");
    Random random{81};
    constexpr double endless = std::numeric_limits<double>::infinity();
    for (const double limit : {1e-300, 5e-324, 1e300, -1.0, endless, -endless, std::nan("")}) {
        CAPTURE(limit);
        EngineOptions options{.cache_tokens = 256};
        options.bytes_per_second = options.operations_per_second = limit;
        auto engine = scene.engine(options);
        static_cast<void>(taken(engine.ask(plain_ask(random, 5))));
        decant_test::drain(engine);
        decant::EngineMetrics metrics = engine.metrics();
        CHECK(metrics.steps > 0);
        CHECK(nlohmann::json::accept(decant::to_json(metrics)));
        all_finite(nlohmann::json::parse(decant::to_json(metrics), nullptr, false));
        metrics.pass_seconds = metrics.bytes = metrics.last_step.operations = limit;  // of a host's own making
        CHECK(nlohmann::json::accept(decant::to_json(metrics)));
    }
}

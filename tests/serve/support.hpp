// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the tests of the engine share: a tiny model with a tokenizer of bytes, what came for each answer, and the same
/// by a request alone.

#include "model/support.hpp"
#include "text/support.hpp"

#include <decant/backend/simd/simd.hpp>
#include <decant/cache/kv_cache.hpp>
#include <decant/core/thread_pool.hpp>
#include <decant/serve/engine.hpp>
#include <decant/serve/request.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace decant_test {

inline std::size_t between(Random& random, std::size_t least, std::size_t most) {
    return least + random.below(most - least + 1);
}

/// A model and its tokenizer.
struct Scene {
    decant::Model<decant::Simd> model;
    decant::Tokenizer tokenizer;

    explicit Scene(decant::Model<decant::Simd> model_)
        : model(std::move(model_)), tokenizer(letters(model.spec().vocabulary)) {}
    explicit Scene(const std::string& name) : Scene(bind<decant::Simd>(tiny(name))) {}

    /// A byte for each token; one of them ends a turn.
    static decant::Tokenizer letters(std::size_t vocabulary) {
        TokenizerFile file = byte_tokenizer();
        file.tokens.resize((std::min)(file.tokens.size(), vocabulary));
        if (!file.types.empty()) file.types.resize(file.tokens.size());
        file.eos = 7;
        return taken(decant::Tokenizer::from(file.open()));
    }

    [[nodiscard]] decant::Engine<decant::Simd> engine(decant::EngineOptions options, std::size_t threads = 1) const {
        return taken(decant::Engine<decant::Simd>::create(model, tokenizer, decant::ThreadPool(threads), options));
    }
};

struct Written {
    Tokens tokens;
    std::string text;
    decant::FinishReason end = decant::FinishReason::none;
    int ends = 0;
};

/// What came for each answer.
struct Listener {
    std::map<std::pair<decant::AskId, std::uint32_t>, Written> answers;

    void operator()(const decant::Delta& delta) {
        Written& written = answers[{delta.ask, delta.answer}];
        REQUIRE(written.ends == 0);
        if (delta.token) written.tokens.push_back(*delta.token);
        if (delta.finish != decant::FinishReason::failed) written.text += delta.text;
        written.end = delta.finish;
        if (delta.finish != decant::FinishReason::none) ++written.ends;
    }
};

/// The same by a request alone, with a cache that is large enough, token by token.
inline Written alone(const Scene& scene, const decant::Ask& ask, std::uint32_t answer) {
    decant::Context<decant::Simd> context(scene.model);
    const decant::KvCache<decant::Simd> cache(context, {.tokens = 4096});
    decant::Request<decant::Simd> request(taken(cache.sequence()), ask.sampler, decant::TextStream(scene.tokenizer));
    if (answer > 0) request.sampler().reseed(ask.sampler.seed() + answer);
    request.push(ask.prompt);
    Written written;
    std::string text;
    while (written.end == decant::FinishReason::none) {
        const decant::Step step = taken(request.step(context));
        written.tokens.push_back(step.token);
        text += step.text;
        const bool asked =
            std::find(ask.stop_tokens.begin(), ask.stop_tokens.end(), step.token) != ask.stop_tokens.end();
        std::size_t first = std::string::npos;
        for (const std::string& stop : ask.stop) first = (std::min)(first, text.find(stop));
        if (first != std::string::npos) {
            text.resize(first);
            written.end = decant::FinishReason::stop;
        } else if ((step.ends && !ask.ignore_end) || asked) {
            written.end = decant::FinishReason::stop;
        } else if (written.tokens.size() >= ask.max_tokens) {
            written.end = decant::FinishReason::length;
        }
        if (written.end != decant::FinishReason::none && first == std::string::npos) text += request.finish();
    }
    written.text = text;
    return written;
}

template <class Engine>
void drain(Engine& engine) {
    while (taken(engine.step())) {
    }
}

inline decant::Ask random_ask(Random& random, const Tokens& common) {
    decant::Ask ask;
    ask.prompt.assign(common.begin(), common.begin() + static_cast<std::ptrdiff_t>(between(random, 0, common.size())));
    const Tokens own = random_tokens(random, between(random, 1, 12));
    ask.prompt.insert(ask.prompt.end(), own.begin(), own.end());
    switch (between(random, 0, 2)) {
        case 0: ask.sampler = decant::Sampler({.temperature = 0.0f}); break;
        case 1:
            ask.sampler = taken(decant::Sampler::chain(
                {decant::Penalties{.repetition = 1.2f, .frequency = 0.1f}, decant::Temperature{1.1f}}, random.next()));
            break;
        default: ask.sampler = taken(decant::Sampler::chain({decant::Mirostat{}}, random.next()));
    }
    ask.max_tokens = between(random, 1, 30);
    ask.answers = between(random, 0, 5) == 0 ? 3 : 1;
    ask.priority = static_cast<int>(between(random, 0, 2)) - 1;
    ask.ignore_end = between(random, 0, 1) == 1;
    ask.draft_tokens = static_cast<std::uint32_t>(between(random, 0, 6));
    if (between(random, 0, 3) == 0) ask.stop_tokens = random_tokens(random, 3);
    if (between(random, 0, 3) == 0) ask.stop = {"a", "th"};
    return ask;
}

/// Asks, cancels and interrupts at random, and compares all answers with requests alone. Returns what was counted.
inline decant::EngineCounts run_randomly(const Scene& scene, decant::Engine<decant::Simd>& engine, Random& random,
                                         int asks) {
    const Tokens common = random_tokens(random, 40);
    const auto listener = std::make_shared<Listener>();
    std::map<decant::AskId, decant::Ask> asked;
    std::map<decant::AskId, bool> cancelled;
    bool more = true;
    for (int left = asks; left > 0 || more;) {
        if (left > 0 && between(random, 0, 1) == 1) {
            decant::Ask ask = random_ask(random, common);
            ask.listener = [listener](const decant::Delta& delta) { (*listener)(delta); };
            const decant::AskId id = taken(engine.ask(ask));
            asked.emplace(id, std::move(ask));
            --left;
        }
        if (!asked.empty() && between(random, 0, 9) == 0) {
            const auto at = std::next(asked.begin(), static_cast<std::ptrdiff_t>(between(random, 0, asked.size() - 1)));
            engine.cancel(at->first);
            cancelled[at->first] = true;
        }
        const bool whole = between(random, 0, 1) == 1;
        more = taken(whole ? engine.step() : engine.step_for(std::chrono::microseconds(between(random, 0, 200))));
        const decant::EngineCounts counts = engine.counts();
        REQUIRE(counts.free_blocks + counts.remembered_blocks <= counts.blocks);
    }
    CHECK(engine.idle());
    const decant::EngineCounts counts = engine.counts();
    CHECK(counts.free_blocks + counts.remembered_blocks == counts.blocks);
    std::size_t answers = 0;
    for (const auto& [id, ask] : asked) {
        for (std::uint32_t n = 0; n < ask.answers; ++n, ++answers) {
            const Written& found = listener->answers[{id, n}];
            const Written expected = alone(scene, ask, n);
            CAPTURE(static_cast<std::uint64_t>(id), n, static_cast<int>(found.end), found.text, expected.text);
            CHECK(found.ends == 1);
            if (found.end == decant::FinishReason::cancelled) {
                CHECK(cancelled[id]);
                REQUIRE(found.tokens.size() <= expected.tokens.size());
                CHECK(std::equal(found.tokens.begin(), found.tokens.end(), expected.tokens.begin()));
                continue;
            }
            CHECK(found.tokens == expected.tokens);
            CHECK(found.text == expected.text);
            CHECK(found.end == expected.end);
        }
    }
    CHECK(counts.finished == answers);
    return counts;
}

}  // namespace decant_test

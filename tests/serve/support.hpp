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
#include <cstddef>
#include <cstdint>
#include <map>
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

}  // namespace decant_test

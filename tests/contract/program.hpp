// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// For tests that need a process of their own, because they replace or observe something that belongs to the whole
/// process: checks that are counted, and a model that answers.

#include <decant/decant.hpp>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant_test {

inline int failures = 0;

inline void check(bool good, std::string_view what) {
    if (good) return;
    if (++failures > 20) return;
    std::fprintf(stderr, "FAILED: %.*s\n", static_cast<int>(what.size()), what.data());
}

template <class T>
T need(decant::Result<T> result, std::string_view what) {
    if (!result) {
        std::fprintf(stderr, "FAILED: %.*s: %s\n", static_cast<int>(what.size()), what.data(),
                     result.error().message().c_str());
        std::_Exit(1);
    }
    return *std::move(result);
}

/// Everything that a host makes to run a model.
template <class B>
struct Host {
    explicit Host(const std::filesystem::path& path, std::size_t threads = 2, std::size_t tokens = 256)
        : weights(need(decant::Weights::open(path), "opening")),
          tokenizer(need(decant::Tokenizer::from(weights), "the tokenizer")),
          model(need(decant::Model<B>::bind(weights), "binding")),
          context(model, decant::ThreadPool{threads, threads}, {.rows = 64}),
          cache(context, {.tokens = tokens}),
          sequence(need(cache.sequence(), "a sequence")) {}

    /// `count` tokens of text after a prompt.
    std::string answer(std::string_view prompt, int count) {
        std::string text;
        decant::Sampler sampler;
        decant::TextStream stream(tokenizer);
        sequence.truncate(0);
        auto logits = need(context.prefill(sequence, tokenizer.encode(prompt)), "prefill");
        for (int i = 0; i < count; ++i) {
            const decant::Token token = need(sampler.pick(logits, sequence.tokens()), "pick");
            text += stream.push(token);
            logits = need(context.decode(sequence, token), "decode");
        }
        return text += stream.finish();
    }

    decant::Weights weights;
    decant::Tokenizer tokenizer;
    decant::Model<B> model;
    decant::Context<B> context;
    decant::KvCache<B> cache;
    decant::Sequence<B> sequence;
};

inline constexpr std::string_view question = "The capital of France is";

}  // namespace decant_test

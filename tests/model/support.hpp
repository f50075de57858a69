// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the tests of the model and of the cache share: the tiny models, checked binding, bitwise comparison.

#include "support/catch.hpp"
#include "support/data.hpp"

#include "model/tiny_file.hpp"

#include <decant/cache/kv_cache.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/context.hpp>
#include <decant/model/model.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace decant_test {

inline decant::Weights tiny(const std::string& name) {
    auto weights = decant::Weights::open(data("tiny-gguf/" + name + ".gguf"));
    INFO((weights ? std::string() : weights.error().message()));
    REQUIRE(weights);
    return *weights;
}

template <class B>
decant::Model<B> bind(const decant::Weights& weights) {
    auto model = decant::Model<B>::bind(weights);
    INFO((model ? std::string() : model.error().message()));
    REQUIRE(model);
    return *model;
}

template <class T>
T taken(decant::Result<T> result) {
    INFO((result ? std::string() : result.error().message()));
    REQUIRE(result);
    return *std::move(result);
}

inline std::vector<decant::Token> tokens_of(const nlohmann::json& ids) {
    std::vector<decant::Token> tokens;
    for (const int id : ids) tokens.push_back(decant::Token{id});
    return tokens;
}

using Tokens = std::vector<decant::Token>;

inline Tokens random_tokens(Random& random, std::size_t count, std::size_t vocabulary = 160) {
    Tokens tokens;
    for (std::size_t i = 0; i < count; ++i)
        tokens.push_back(decant::Token{static_cast<std::int32_t>(random.below(vocabulary))});
    return tokens;
}
inline Tokens random_tokens(std::size_t count, std::uint64_t seed, std::size_t vocabulary) {
    Random random{seed};
    return random_tokens(random, count, vocabulary);
}

/// Models that every path of the kernels has a part in: 8-bit products (Q4_1) and float ones (the tiny file).
template <class B>
std::vector<decant::Model<B>> models() {
    return {bind<B>(tiny("llama3")), bind<B>(TinyFile(decant::DType::q4_1).open())};
}

using Floats = std::vector<float>;

inline Floats row(const decant::Logits& logits, std::size_t r = 0) {
    const auto values = logits.row(r);
    return {values.begin(), values.end()};
}

/// The same bits; NaN equals itself, and 0 is not -0.
inline bool same_bits(const Floats& a, const Floats& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Logits at every position of `tokens`, from one pass of a fresh sequence on the calling thread.
template <class B>
std::vector<Floats> whole(const decant::Model<B>& model, std::span<const decant::Token> tokens,
                          decant::DType dtype = decant::DType::f16) {
    const auto count = static_cast<std::uint32_t>(tokens.size());
    decant::Context<B> context(model, {.rows = count, .sequences = 1, .logits = count});
    const decant::KvCache<B> cache(context, {.tokens = tokens.size(), .dtype = dtype});
    auto sequence = taken(cache.sequence());
    const auto logits = taken(context.pass({{&sequence, tokens, decant::Want::all}}));
    std::vector<Floats> rows;
    for (std::size_t r = 0; r < logits.rows(); ++r) rows.push_back(row(logits, r));
    return rows;
}

/// Every block in a sequence of its own, given back in random order: what is taken next lies scattered.
template <class B>
void scatter_free_blocks(const decant::KvCache<B>& cache, Random& random) {
    std::vector<decant::Sequence<B>> holders;
    for (bool good = true; good && cache.free_blocks() > 0;) {
        holders.push_back(taken(cache.sequence()));
        good = bool(holders.back().reserve(1));
    }
    REQUIRE(cache.free_blocks() == 0);
    while (!holders.empty()) {
        std::swap(holders[random.below(holders.size())], holders.back());
        holders.pop_back();
    }
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace decant_test

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

inline std::vector<decant::Token> random_tokens(Random& random, std::size_t count, std::size_t vocabulary = 160) {
    std::vector<decant::Token> tokens;
    for (std::size_t i = 0; i < count; ++i)
        tokens.push_back(decant::Token{static_cast<std::int32_t>(random.below(vocabulary))});
    return tokens;
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

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace decant_test

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Ernie 4.5 (Baidu 2025), the dense models: Llama with rotary pairs side by side.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/config_rope.hpp>
#include <decant/model/families/config_transformer.hpp>
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

namespace decant::inline DECANT_ABI {

/// From `ernie4_5.*` keys.
[[nodiscard]] inline Result<ModelSpec> ernie4_5_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::interleaved, spec.layers[0].attention.head_dim));
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> ernie4_5_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec,
               config_transformer(weights, keys, {.usual_epsilon = 1e-5, .tied = true, .head_dim = 128}));
    DECANT_TRY(spec.ropes.emplace_back(), config_rope(keys, spec, spec.layers[0].attention.head_dim,
                                                      {.layout = RopeLayout::interleaved, .usual_theta = 500000.0}));
    DECANT_CHECK(config_biases(weights, keys, spec, "use_bias", false,
                               {Role::q, Role::k, Role::v, Role::out, Role::gate, Role::up, Role::down}));
    return spec;
}

}  // namespace decant::inline DECANT_ABI

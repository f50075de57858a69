// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The Llama family: pre-norm, grouped-query attention, rotary positions, gated SiLU.

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

/// From `llama.*` keys, Mixtral included. The converter permutes the rows of q and k so that pairs lie side by side.
[[nodiscard]] inline Result<ModelSpec> llama_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::interleaved, spec.layers[0].attention.head_dim));
    if (!keys.contains("expert_count")) return spec;
    RouteSpec route;
    route.normalize = true;
    DECANT_CHECK(gguf_experts(keys, spec, route));
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> llama_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(), config_rope(keys, spec, spec.layers[0].attention.head_dim));
    DECANT_CHECK(config_biases(weights, keys, spec, "attention_bias", false, {Role::q, Role::k, Role::v, Role::out}));
    DECANT_CHECK(config_biases(weights, keys, spec, "mlp_bias", false, {Role::gate, Role::up, Role::down}));
    return spec;
}

}  // namespace decant::inline DECANT_ABI

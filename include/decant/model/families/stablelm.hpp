// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// StableLM 2: layer norms with biases, part of each head rotated, and an option to run attention and feed-forward side
/// by side.

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

/// From `stablelm.*` keys.
[[nodiscard]] inline Result<ModelSpec> stablelm_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::halves, spec.layers[0].attention.head_dim));
    DECANT_TRY(const bool parallel, keys.flag("use_parallel_residual", false));
    for (LayerSpec& layer : spec.layers) layer.parallel = parallel;
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> stablelm_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_transformer(weights, keys, {.epsilon = "layer_norm_eps", .usual_epsilon = 1e-5}));
    spec.norm.centered = true;
    DECANT_TRY(spec.ropes.emplace_back(),
               config_rope(keys, spec, spec.layers[0].attention.head_dim, {.usual_partial = 0.25}));
    DECANT_CHECK(config_biases(weights, keys, spec, "use_qkv_bias", false, {Role::q, Role::k, Role::v}));
    DECANT_TRY(const bool parallel, keys.flag("use_parallel_residual", false));
    DECANT_CHECK(config_agrees(weights, keys, "use_parallel_residual", parallel == false,
                               spec.names.of(Role::hidden_norm, 0) + ".weight"));
    for (LayerSpec& layer : spec.layers) layer.parallel = parallel;
    DECANT_TRY(const bool qk_norm, keys.flag("qk_layernorm", false));
    if (qk_norm)
        return keys.wrong(ErrorCode::unsupported, "qk_layernorm", "true: a norm for every head is not supported");
    return spec;
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// GPT-NeoX (Black et al. 2022), Pythia: layer norms, attention and feed-forward side by side, no gate, part of each
/// head rotated, q, k and v in one tensor head by head.

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

/// From `gptneox.*` keys. The converter sorts the rows of q, k and v.
[[nodiscard]] inline Result<ModelSpec> gpt_neox_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::halves, spec.layers[0].attention.head_dim));
    DECANT_TRY(const bool parallel, keys.flag("use_parallel_residual", true));
    for (LayerSpec& layer : spec.layers) {
        layer.parallel = parallel;
        layer.gated = false;
    }
    spec.gate.activation = Activation::gelu;
    spec.names[Role::qkv] = "attn_qkv";
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> gpt_neox_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec,
               config_transformer(weights, keys,
                                  {.epsilon = "layer_norm_eps", .usual_epsilon = 1e-5, .usual_activation = "gelu"}));
    spec.norm.centered = true;
    DECANT_TRY(spec.ropes.emplace_back(),
               config_rope(keys, spec, spec.layers[0].attention.head_dim,
                           {.theta = "rotary_emb_base", .partial = "rotary_pct", .usual_partial = 0.25}));
    DECANT_TRY(const bool parallel, keys.flag("use_parallel_residual", true));
    for (LayerSpec& layer : spec.layers) {
        layer.attention.kv_heads = layer.attention.heads;  // the key is written, and means nothing here
        layer.parallel = parallel;
        layer.gated = false;
    }
    spec.names.layers = "gpt_neox.layers.";
    spec.names.qkv_by_head = true;
    spec.names[Role::embedding] = "gpt_neox.embed_in";
    spec.names[Role::final_norm] = "gpt_neox.final_layer_norm";
    spec.names[Role::head] = "embed_out";
    spec.names[Role::qkv] = "attention.query_key_value";
    spec.names[Role::out] = "attention.dense";
    spec.names[Role::up] = "mlp.dense_h_to_4h";
    spec.names[Role::down] = "mlp.dense_4h_to_h";
    DECANT_CHECK(config_biases(weights, keys, spec, "attention_bias", true, {Role::qkv, Role::out}));
    return spec;
}

}  // namespace decant::inline DECANT_ABI

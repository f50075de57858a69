// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Phi-3: Llama with q, k and v in one tensor, gate and up in another, and a sliding window in every layer.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/config_rope.hpp>
#include <decant/model/families/config_transformer.hpp>
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <cstdint>

namespace decant::inline DECANT_ABI {

/// From `phi3.*` keys.
[[nodiscard]] inline Result<ModelSpec> phi3_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::halves, spec.layers[0].attention.head_dim));
    DECANT_TRY(const std::uint32_t window, keys.number("attention.sliding_window", 0));
    for (LayerSpec& layer : spec.layers) layer.attention.window = window;
    spec.names[Role::qkv] = "attn_qkv";
    spec.names[Role::gate_up] = "ffn_up";
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> phi3_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_transformer(weights, keys, {.usual_epsilon = 1e-5}));
    DECANT_TRY(spec.ropes.emplace_back(), config_rope(keys, spec, spec.layers[0].attention.head_dim));
    DECANT_TRY(const std::uint32_t window, keys.number("sliding_window", 0));
    for (LayerSpec& layer : spec.layers) layer.attention.window = window;
    DECANT_CHECK(keys.number("original_max_position_embeddings", 0));  // for LongRoPE, which is refused
    DECANT_CHECK(config_biases(weights, keys, spec, "attention_bias", false, {Role::qkv, Role::out}));
    spec.names[Role::qkv] = "self_attn.qkv_proj";
    spec.names[Role::gate_up] = "mlp.gate_up_proj";
    return spec;
}

}  // namespace decant::inline DECANT_ABI

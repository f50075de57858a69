// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// gpt-oss (OpenAI 2025): a mixture of experts with a clamped gate, attention sinks, every other layer with a sliding
/// window.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/config_rope.hpp>
#include <decant/model/families/config_transformer.hpp>
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <cstddef>
#include <cstdint>

namespace decant::inline DECANT_ABI {

/// From `gpt-oss.*` keys. The format does not say the gate's constants.
[[nodiscard]] inline Result<ModelSpec> gpt_oss_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::halves, spec.layers[0].attention.head_dim));
    RouteSpec route;
    route.normalize = true;
    DECANT_CHECK(gguf_experts(keys, spec, route));
    DECANT_TRY(const std::uint32_t window, keys.count("attention.sliding_window"));
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        spec.layers[l].sinks = true;
        if (l % 2 == 0) spec.layers[l].attention.window = window;
    }
    spec.gate = {Activation::silu, 1.702f, 7.0f};
    spec.names[Role::hidden_norm] = "post_attention_norm";
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> gpt_oss_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_transformer(weights, keys, {.usual_epsilon = 1e-5, .head_dim = 64}));
    DECANT_TRY(spec.ropes.emplace_back(),
               config_rope(keys, spec, spec.layers[0].attention.head_dim, {.usual_theta = 150000.0}));
    DECANT_CHECK(config_biases(weights, keys, spec, "attention_bias", true, {Role::q, Role::k, Role::v, Role::out}));
    DECANT_TRY(const std::uint32_t window, keys.count("sliding_window", 128));
    DECANT_CHECK(config_windows(keys, spec, window, [](std::size_t l) { return l % 2 == 0; }));
    for (LayerSpec& layer : spec.layers) layer.sinks = true;
    DECANT_TRY(const double alpha, keys.positive("swiglu_alpha", 1.702));
    DECANT_TRY(const double limit, keys.positive("swiglu_limit", 7.0));
    spec.gate = {spec.gate.activation, static_cast<float>(alpha), static_cast<float>(limit)};
    RouteSpec route;
    route.normalize = true;
    DECANT_TRY(route.experts, keys.count("num_local_experts"));
    DECANT_TRY(route.chosen, keys.count("num_experts_per_tok"));
    DECANT_CHECK(config_same(keys, "experts_per_token", route.chosen, "num_experts_per_tok"));
    DECANT_CHECK(config_experts(keys, spec, route, spec.layers[0].hidden));
    spec.names.experts_across = true;
    spec.names[Role::router] = "mlp.router";
    spec.names[Role::expert_gate_up] = "mlp.experts.gate_up_proj";
    spec.names[Role::expert_down] = "mlp.experts.down_proj";
    return spec;
}

}  // namespace decant::inline DECANT_ABI

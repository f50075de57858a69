// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Gemma 2 (Gemma Team 2024): a scaled embedding, norms after attention and feed-forward, capped scores and logits,
/// every other layer with a sliding window.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/config_rope.hpp>
#include <decant/model/families/config_transformer.hpp>
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace decant::inline DECANT_ABI {

namespace detail {

/// What all Gemmas share.
inline void gemma(ModelSpec& spec) {
    spec.embedding_scale = std::sqrt(static_cast<float>(spec.width));
    spec.gate.activation = Activation::gelu_tanh;
    for (LayerSpec& layer : spec.layers) layer.post_norms = true;
}

/// Caps of scores and logits, where keys say that there are any.
[[nodiscard]] inline Result<void> gemma_softcaps(const ModelKeys& keys, ModelSpec& spec, std::string_view scores,
                                                 std::string_view logits) {
    if (keys.contains(scores)) {
        DECANT_TRY(const double cap, keys.positive(scores));
        for (LayerSpec& layer : spec.layers) layer.attention.softcap = static_cast<float>(cap);
    }
    if (keys.contains(logits)) {
        DECANT_TRY(const double cap, keys.positive(logits));
        spec.logit_softcap = static_cast<float>(cap);
    }
    return {};
}

/// What the config.json of Gemma 2 and 3 say alike. Norm weights are stored without their 1.
[[nodiscard]] inline Result<ModelSpec> gemma_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_transformer(weights, keys,
                                                  {.activation = "hidden_activation",
                                                   .usual_activation = "gelu_pytorch_tanh",
                                                   .tied = true,
                                                   .head_dim = 256}));
    const Activation activation = spec.gate.activation;
    gemma(spec);
    spec.gate.activation = activation;
    spec.norm.offset = 1.0f;
    spec.names[Role::hidden_norm] = "pre_feedforward_layernorm";
    DECANT_TRY(const double scalar, keys.positive("query_pre_attn_scalar", 256.0));
    for (LayerSpec& layer : spec.layers) layer.attention.scale = static_cast<float>(1.0 / std::sqrt(scalar));
    DECANT_CHECK(gemma_softcaps(keys, spec, "attn_logit_softcapping", "final_logit_softcapping"));
    DECANT_CHECK(config_biases(weights, keys, spec, "attention_bias", false, {Role::q, Role::k, Role::v, Role::out}));
    DECANT_TRY(const bool both_ways, keys.flag("use_bidirectional_attention", false));
    if (both_ways) return keys.wrong(ErrorCode::unsupported, "use_bidirectional_attention", "true: not a decoder");
    return spec;
}

}  // namespace detail

/// From `gemma2.*` keys, where norms are stored with their 1. The format does not say the scale of the scores; it is
/// that of all published sizes but 27B.
[[nodiscard]] inline Result<ModelSpec> gemma2_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::halves, spec.layers[0].attention.head_dim));
    detail::gemma(spec);
    DECANT_CHECK(detail::gemma_softcaps(keys, spec, "attn_logit_softcapping", "final_logit_softcapping"));
    DECANT_TRY(const std::uint32_t window, keys.count("attention.sliding_window", 4096));
    for (std::size_t l = 0; l < spec.layers.size(); l += 2) spec.layers[l].attention.window = window;
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> gemma2_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, detail::gemma_config(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(), config_rope(keys, spec, spec.layers[0].attention.head_dim));
    DECANT_TRY(const std::uint32_t window, keys.count("sliding_window", 4096));
    DECANT_CHECK(config_windows(keys, spec, window, [](std::size_t l) { return l % 2 == 0; }));
    return spec;
}

}  // namespace decant::inline DECANT_ABI

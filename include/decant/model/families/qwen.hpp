// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Qwen 2 (biases on q, k and v) and Qwen 3 (norms of q and k).

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

namespace detail {

[[nodiscard]] inline Result<ModelSpec> qwen_config(const Weights& weights, const ModelKeys& keys,
                                                   std::uint32_t head_dim) {
    ConfigWords words;
    words.head_dim = head_dim;
    DECANT_TRY(ModelSpec spec, config_transformer(weights, keys, words));
    DECANT_TRY(spec.ropes.emplace_back(), config_rope(keys, spec, spec.layers[0].attention.head_dim));
    DECANT_TRY(const bool slides, keys.flag("use_sliding_window", false));
    DECANT_TRY(const std::uint32_t window, keys.number("sliding_window", 0));
    DECANT_TRY(const std::uint32_t full, keys.number("max_window_layers", 28));  // layers in front that see everything
    DECANT_CHECK(config_windows(keys, spec, slides ? window : 0, [&](std::size_t l) { return slides && l >= full; }));
    return spec;
}

}  // namespace detail

[[nodiscard]] inline Result<ModelSpec> qwen2_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::halves, spec.layers[0].attention.head_dim));
    return spec;
}
[[nodiscard]] inline Result<ModelSpec> qwen3_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, qwen2_gguf(weights, keys));
    for (LayerSpec& layer : spec.layers) layer.qk_norm = true;
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> qwen2_config(const Weights& weights, const ModelKeys& keys) {
    return detail::qwen_config(weights, keys, 0);
}
[[nodiscard]] inline Result<ModelSpec> qwen3_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, detail::qwen_config(weights, keys, 128));
    DECANT_CHECK(config_biases(weights, keys, spec, "attention_bias", false, {Role::q, Role::k, Role::v, Role::out}));
    for (LayerSpec& layer : spec.layers) layer.qk_norm = true;
    return spec;
}

}  // namespace decant::inline DECANT_ABI

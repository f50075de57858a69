// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Qwen 3 with a mixture of experts (Yang et al. 2025): Qwen 3 whose layers, all or some, have experts.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/config_rope.hpp>
#include <decant/model/families/config_transformer.hpp>
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// From `qwen3moe.*` keys. The format says neither that weights are normalized nor which layers have no experts.
[[nodiscard]] inline Result<ModelSpec> qwen3_moe_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::halves, spec.layers[0].attention.head_dim));
    RouteSpec route;
    route.normalize = true;
    DECANT_CHECK(gguf_experts(keys, spec, route));
    for (LayerSpec& layer : spec.layers) layer.qk_norm = true;
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> qwen3_moe_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_transformer(weights, keys, {.kv_heads = 4}));
    DECANT_TRY(spec.ropes.emplace_back(), config_rope(keys, spec, spec.layers[0].attention.head_dim));
    DECANT_CHECK(config_biases(weights, keys, spec, "attention_bias", false, {Role::q, Role::k, Role::v, Role::out}));
    DECANT_TRY(const bool slides, keys.flag("use_sliding_window", false));
    DECANT_TRY(const std::uint32_t window, keys.number("sliding_window", 0));
    DECANT_CHECK(keys.number("max_window_layers", 0));  // written by the hub, and read by no version of transformers
    if (slides && window == 0)
        return keys.wrong(ErrorCode::missing, "sliding_window", "use_sliding_window says that there is one");
    for (LayerSpec& layer : spec.layers) {
        layer.qk_norm = true;
        layer.attention.window = slides ? window : 0;
    }

    RouteSpec route;
    const std::string_view count = keys.contains("num_experts") ? "num_experts" : "num_local_experts";
    DECANT_TRY(route.experts, keys.count(count, 128));
    DECANT_CHECK(config_same(keys, "num_local_experts", route.experts, "num_experts"));
    DECANT_TRY(route.chosen, keys.count("num_experts_per_tok", 8));
    DECANT_TRY(route.normalize, keys.flag("norm_topk_prob", false));
    DECANT_TRY(const std::uint32_t hidden, keys.count("moe_intermediate_size", 768));
    DECANT_TRY(const std::uint32_t step, keys.count("decoder_sparse_step", 1));
    DECANT_TRY(const auto listed, keys.integers("mlp_only_layers"));
    const auto size = static_cast<std::int64_t>(spec.layers.size());
    if (std::any_of(listed.begin(), listed.end(), [&](std::int64_t l) { return l < 0 || l >= size; }))
        return keys.wrong(ErrorCode::bad_format, "mlp_only_layers", detail::text("not all in [0, ", size, ")"));
    const auto is_listed = [&](std::size_t l) {
        return std::find(listed.begin(), listed.end(), static_cast<std::int64_t>(l)) != listed.end();
    };
    DECANT_CHECK(config_experts(keys, spec, route, hidden, 0,
                                [&](std::size_t l) { return !is_listed(l) && (l + 1) % step == 0; }));
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        const Role other = spec.layers[l].routes() ? Role::gate : Role::router;
        if (weights.find(spec.names.of(other, l) + ".weight") == nullptr) continue;
        return keys.wrong(ErrorCode::mismatch, is_listed(l) ? "mlp_only_layers" : "decoder_sparse_step",
                          detail::text("layer ", l, " has experts in the configuration or in the file, not in both"),
                          "the folder is damaged or mixes two models");
    }
    return spec;
}

}  // namespace decant::inline DECANT_ABI

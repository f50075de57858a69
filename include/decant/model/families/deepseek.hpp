// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// DeepSeek-V3 (DeepSeek-AI 2024), R1, Kimi K2: latent attention, and a mixture of experts with groups, a bias on the
/// choice, and an expert that every token goes to.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/config_rope.hpp>
#include <decant/model/families/config_transformer.hpp>
#include <decant/model/families/latent.hpp>
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// From `deepseek2.*` keys of converters that split the latent's two halves (of 2025 and newer).
[[nodiscard]] inline Result<ModelSpec> deepseek_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_base(weights, keys));
    LatentSpec latent;
    DECANT_TRY(latent.q_rank, keys.number("attention.q_lora_rank", 0));
    DECANT_TRY(latent.kv_rank, keys.count("attention.kv_lora_rank"));
    DECANT_TRY(latent.rope, keys.count("rope.dimension_count"));
    DECANT_TRY(latent.value, keys.count("attention.value_length_mla"));
    DECANT_TRY(const std::uint32_t head_dim, keys.count("attention.key_length_mla"));
    if (head_dim <= latent.rope) {
        return keys.wrong(ErrorCode::bad_format, "attention.key_length_mla",
                          detail::text("value ", head_dim, ", of which ", latent.rope, " are rotated"));
    }
    latent.plain = head_dim - latent.rope;
    DECANT_TRY(spec.ropes.emplace_back(),
               gguf_rope(weights, keys, RopeLayout::interleaved, latent.rope + latent.kv_rank));
    float magnitude = 1.0f;
    if (keys.contains("rope.scaling.yarn_log_multiplier")) {  // 0.1 mscale_all_dim: scores grow, cos and sin stay
        DECANT_TRY(const double multiplier, keys.positive("rope.scaling.yarn_log_multiplier"));
        DECANT_TRY(const double factor, keys.positive("rope.scaling.factor", 1.0));
        magnitude = static_cast<float>(1.0 + multiplier * std::log((std::max)(factor, 1.0)));
        spec.ropes[0].rope.magnitude = 1.0f;
    }
    DECANT_CHECK(latent_layers(keys, spec, latent, "attention.head_count", "feed_forward_length", magnitude));
    DECANT_TRY(const std::uint32_t dense, keys.number("leading_dense_block_count", 0));
    DECANT_CHECK(gguf_experts(keys, spec, {}, dense));
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> deepseek_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_base(weights, keys, {}));
    LatentSpec latent;
    DECANT_TRY(latent.q_rank, keys.number("q_lora_rank", 0));
    DECANT_TRY(latent.kv_rank, keys.count("kv_lora_rank"));
    DECANT_TRY(latent.rope, keys.count("qk_rope_head_dim"));
    DECANT_TRY(latent.plain, keys.count("qk_nope_head_dim"));
    DECANT_TRY(latent.value, keys.count("v_head_dim"));
    DECANT_TRY(const bool pairs, keys.flag("rope_interleave", true));
    DECANT_TRY(spec.ropes.emplace_back(), config_rope(keys, spec, latent.rope,
                                                      {.layout = pairs ? RopeLayout::interleaved : RopeLayout::halves,
                                                       .head_dim = "qk_rope_head_dim"}));
    spec.ropes[0].rope.head_dim = latent.rope + latent.kv_rank;
    const std::string scaling = rope_prefix(keys);
    YarnScaling yarn;
    DECANT_TRY(yarn.factor, keys.positive(scaling + "factor", 1.0));
    DECANT_TRY(const double all_dim, keys.positive(scaling + "mscale_all_dim", 1e-30));
    DECANT_CHECK(
        latent_layers(keys, spec, latent, "num_attention_heads", "intermediate_size", yarn.magnitude(all_dim)));
    DECANT_CHECK(config_same(keys, "num_key_value_heads", spec.layers[0].attention.heads, "num_attention_heads"));
    DECANT_CHECK(config_same(keys, "head_dim", latent.rope, "qk_rope_head_dim"));
    DECANT_CHECK(config_same(keys, "qk_head_dim", latent.rope + latent.plain, "qk_nope_head_dim + qk_rope_head_dim"));
    DECANT_CHECK(config_same(keys, "moe_layer_freq", 1, "this version"));
    DECANT_CHECK(config_biases(weights, keys, spec, "attention_bias", false, {Role::q_a, Role::kv_a, Role::out}));

    RouteSpec route;
    route.scoring = RouteSpec::Scoring::sigmoid;
    DECANT_CHECK(config_known(keys, "scoring_func", "sigmoid"));
    DECANT_CHECK(config_known(keys, "topk_method", "noaux_tc"));
    DECANT_TRY(route.experts, keys.count("n_routed_experts"));
    DECANT_TRY(route.chosen, keys.count("num_experts_per_tok"));
    DECANT_TRY(route.groups, keys.count("n_group", 8));
    DECANT_TRY(route.groups_kept, keys.count("topk_group", 4));
    DECANT_TRY(route.normalize, keys.flag("norm_topk_prob", true));
    DECANT_TRY(const double scale, keys.positive("routed_scaling_factor", 2.5));
    route.scale = static_cast<float>(scale);
    DECANT_TRY(const std::uint32_t hidden, keys.count("moe_intermediate_size"));
    DECANT_TRY(const std::uint32_t shared, keys.number("n_shared_experts", 1));
    DECANT_TRY(const std::uint32_t dense, keys.number("first_k_dense_replace", 3));
    DECANT_TRY(spec.names.unused_layers, keys.number("num_nextn_predict_layers", 0));
    DECANT_CHECK(config_experts(keys, spec, route, hidden, shared, [&](std::size_t l) { return l >= dense; }));
    const auto agrees = [&](std::string_view key, bool says, Role role, std::size_t layer) {
        return layer >= spec.layers.size()
                   ? Result<void>()
                   : config_agrees(weights, keys, key, says, spec.names.of(role, layer) + ".weight");
    };
    DECANT_CHECK(agrees("q_lora_rank", latent.q_rank > 0, Role::q_a, 0));
    DECANT_CHECK(agrees("first_k_dense_replace", true, Role::router, dense));
    if (dense > 0) DECANT_CHECK(agrees("first_k_dense_replace", true, Role::gate, dense - 1));
    DECANT_CHECK(agrees("n_shared_experts", shared > 0, Role::shared_gate, dense));
    return spec;
}

}  // namespace decant::inline DECANT_ABI

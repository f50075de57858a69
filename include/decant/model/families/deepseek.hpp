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
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace decant::inline DECANT_ABI {

namespace detail {

/// Layers of latent attention; scores are scaled by 1 / sqrt(plain + rope) times the square of `magnitude`.
[[nodiscard]] inline Result<void> latent_layers(const ModelKeys& keys, ModelSpec& spec, const LatentSpec& latent,
                                                std::uint32_t heads, float magnitude, std::string_view heads_key) {
    const std::uint64_t widest = std::uint64_t{latent.plain} + latent.rope + latent.kv_rank + latent.value;
    if (heads * widest > ModelKeys::largest) {
        return keys.wrong(ErrorCode::bad_format, heads_key, text("value ", heads, " is too large"),
                          "the file is damaged");
    }
    const auto head_dim = static_cast<float>(latent.plain + latent.rope);
    for (LayerSpec& layer : spec.layers) {
        layer.attention = {heads, 1, latent.rope + latent.kv_rank, magnitude * magnitude / std::sqrt(head_dim)};
        layer.attention.key_skip = latent.rope;
        layer.latent = latent;
    }
    return {};
}

[[nodiscard]] inline Result<void> check_groups(const ModelKeys& keys, const RouteSpec& route,
                                               std::string_view groups_key, std::string_view kept_key) {
    if (route.experts % route.groups != 0) {
        return keys.wrong(ErrorCode::bad_format, groups_key,
                          text("value ", route.groups, " does not divide the ", route.experts, " experts"));
    }
    if (route.groups_kept > route.groups || route.chosen > route.experts / route.groups * route.groups_kept) {
        return keys.wrong(ErrorCode::bad_format, kept_key,
                          text("value ", route.groups_kept, " of ", route.groups, " groups"));
    }
    return {};
}

}  // namespace detail

/// From `deepseek2.*` keys of converters that split the latent's two halves (of 2025 and newer).
[[nodiscard]] inline Result<ModelSpec> deepseek_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_base(weights, keys));
    DECANT_TRY(const std::uint32_t heads, keys.count("attention.head_count"));
    LatentSpec latent;
    DECANT_TRY(latent.q_rank, keys.number("attention.q_lora_rank", 0));
    DECANT_TRY(latent.kv_rank, keys.count("attention.kv_lora_rank"));
    DECANT_TRY(latent.rope, keys.count("rope.dimension_count"));
    DECANT_TRY(const std::uint32_t head_dim, keys.count("attention.key_length_mla"));
    DECANT_TRY(latent.value, keys.count("attention.value_length_mla"));
    if (head_dim <= latent.rope) {
        return keys.wrong(
            ErrorCode::bad_format, "attention.key_length_mla",
            detail::text("value ", head_dim, " leaves nothing beside the ", latent.rope, " rotated elements"));
    }
    latent.plain = head_dim - latent.rope;
    DECANT_TRY(auto rope, gguf_rope(weights, keys, RopeLayout::interleaved, latent.rope + latent.kv_rank));
    // The converter writes 0.1 mscale_all_dim, by which the scores grow; cos and sin stay.
    DECANT_TRY(const double multiplier, keys.positive("rope.scaling.yarn_log_multiplier", 1e-30));
    DECANT_TRY(const double factor, keys.positive("rope.scaling.factor", 1.0));
    const auto magnitude = static_cast<float>(1.0 + multiplier * std::log((std::max)(factor, 1.0)));
    if (keys.contains("rope.scaling.yarn_log_multiplier")) rope.rope.magnitude = 1.0f;
    spec.ropes.push_back(std::move(rope));
    DECANT_CHECK(detail::latent_layers(keys, spec, latent, heads, magnitude, "attention.head_count"));

    DECANT_TRY(const std::uint32_t hidden, keys.count("feed_forward_length"));
    for (LayerSpec& layer : spec.layers) layer.hidden = hidden;
    RouteSpec route;
    DECANT_TRY(route.experts, keys.count("expert_count"));
    DECANT_TRY(route.chosen, keys.count("expert_used_count"));
    DECANT_TRY(route.groups, keys.count("expert_group_count", 1));
    DECANT_TRY(route.groups_kept, keys.count("expert_group_used_count", 1));
    DECANT_CHECK(detail::check_groups(keys, route, "expert_group_count", "expert_group_used_count"));
    DECANT_TRY(route.normalize, keys.flag("expert_weights_norm", false));
    DECANT_TRY(const double scale, keys.positive("expert_weights_scale", 1.0));
    route.scale = static_cast<float>(scale);
    DECANT_TRY(const std::uint32_t gating, keys.count("expert_gating_func", 1));
    if (gating > 2) {
        return keys.wrong(ErrorCode::unsupported, "expert_gating_func", detail::text("value ", gating),
                          "known: 1 (softmax), 2 (sigmoid)");
    }
    route.scoring = gating == 2 ? RouteSpec::Scoring::sigmoid : RouteSpec::Scoring::softmax;
    DECANT_TRY(const std::uint32_t dense, keys.number("leading_dense_block_count", 0));
    DECANT_CHECK(gguf_experts(keys, spec, route, dense));
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> deepseek_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_base(weights, keys, {}));
    DECANT_TRY(const std::uint32_t heads, keys.count("num_attention_heads"));
    LatentSpec latent;
    DECANT_TRY(latent.q_rank, keys.number("q_lora_rank", 0));
    DECANT_TRY(latent.kv_rank, keys.count("kv_lora_rank"));
    DECANT_TRY(latent.rope, keys.count("qk_rope_head_dim"));
    DECANT_TRY(latent.plain, keys.count("qk_nope_head_dim"));
    DECANT_TRY(latent.value, keys.count("v_head_dim"));
    for (const auto& [key, value] : {std::pair{"num_key_value_heads", heads}, std::pair{"head_dim", latent.rope},
                                     std::pair{"qk_head_dim", latent.rope + latent.plain}}) {
        DECANT_TRY(const std::uint32_t says, keys.count(key, value));
        if (says != value)
            return keys.wrong(ErrorCode::mismatch, key, detail::text("value ", says, ", other keys say ", value));
    }
    DECANT_TRY(const bool pairs, keys.flag("rope_interleave", true));
    DECANT_TRY(spec.ropes.emplace_back(),
               config_rope(keys, spec, latent.rope, {.layout = pairs ? RopeLayout::interleaved : RopeLayout::halves}));
    spec.ropes[0].rope.head_dim = latent.rope + latent.kv_rank;
    const std::string_view scaling = keys.contains_group("rope_parameters") ? "rope_parameters." : "rope_scaling.";
    float magnitude = 1.0f;
    if (keys.contains(detail::text(scaling, "mscale_all_dim"))) {
        YarnScaling yarn;
        DECANT_TRY(yarn.factor, keys.positive(detail::text(scaling, "factor")));
        DECANT_TRY(const double all, keys.positive(detail::text(scaling, "mscale_all_dim")));
        magnitude = yarn.magnitude(all);
    }
    DECANT_CHECK(detail::latent_layers(keys, spec, latent, heads, magnitude, "num_attention_heads"));
    DECANT_CHECK(config_biases(weights, keys, spec, "attention_bias", false, {Role::q_a, Role::kv_a, Role::out}));

    DECANT_TRY(const std::uint32_t hidden, keys.count("intermediate_size"));
    for (LayerSpec& layer : spec.layers) layer.hidden = hidden;
    RouteSpec route;
    DECANT_TRY(route.experts, keys.count("n_routed_experts"));
    DECANT_TRY(route.chosen, keys.count("num_experts_per_tok"));
    DECANT_TRY(route.groups, keys.count("n_group", 1));
    DECANT_TRY(route.groups_kept, keys.count("topk_group", 1));
    DECANT_CHECK(detail::check_groups(keys, route, "n_group", "topk_group"));
    DECANT_TRY(route.normalize, keys.flag("norm_topk_prob", true));
    DECANT_TRY(const double scale, keys.positive("routed_scaling_factor", 2.5));
    route.scale = static_cast<float>(scale);
    route.scoring = RouteSpec::Scoring::sigmoid;
    for (const auto& [key, known] : {std::pair{"scoring_func", "sigmoid"}, std::pair{"topk_method", "noaux_tc"}}) {
        DECANT_TRY(const std::string_view says, keys.string(key));
        if (!says.empty() && says != known)
            return keys.wrong(ErrorCode::unsupported, key, detail::text("value ", detail::quoted(says)),
                              detail::text("known: ", known));
    }
    DECANT_TRY(const std::uint32_t expert, keys.count("moe_intermediate_size"));
    DECANT_TRY(const std::uint32_t shared, keys.number("n_shared_experts", 0));
    DECANT_TRY(const std::uint32_t dense, keys.number("first_k_dense_replace", 0));
    DECANT_TRY(spec.names.unused_layers, keys.number("num_nextn_predict_layers", 0));
    DECANT_CHECK(config_experts(keys, spec, route, expert, shared, dense));
    return spec;
}

}  // namespace decant::inline DECANT_ABI

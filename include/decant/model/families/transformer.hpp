// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the GGUF metadata of every transformer says alike: counts and widths, checked against each other.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace decant::inline DECANT_ABI {

namespace detail {

/// Each layer has tensors of its own, so a count beyond the file's tensors is a lie and sizes nothing.
[[nodiscard]] inline Result<void> check_layers(const Weights& weights, const ModelKeys& keys, std::string_view key,
                                               std::uint32_t layers) {
    constexpr std::uint32_t most = 4096;
    if (layers > most)
        return keys.wrong(ErrorCode::bad_format, key, text("value ", layers, " exceeds ", most), "the file is damaged");
    if (layers <= weights.tensors().size()) return {};
    return keys.wrong(ErrorCode::mismatch, key,
                      text("value ", layers, " but the file has only ", weights.tensors().size(), " tensors"),
                      "the file is damaged or incomplete");
}

/// Query heads must be a multiple of key heads, and their elements be countable.
[[nodiscard]] inline Result<void> check_heads(const ModelKeys& keys, std::uint32_t heads, std::uint32_t kv_heads,
                                              std::uint32_t head_dim, std::string_view heads_key,
                                              std::string_view kv_heads_key) {
    if (heads % kv_heads != 0) {
        return keys.wrong(ErrorCode::bad_format, kv_heads_key,
                          text("value ", kv_heads, " does not divide the ", heads, " of ", heads_key));
    }
    constexpr std::uint32_t longest = 1u << 16;
    if (head_dim > longest) {
        return keys.wrong(ErrorCode::bad_format, heads_key, text("heads of ", head_dim, " elements exceed ", longest),
                          "the file is damaged");
    }
    if (std::uint64_t{heads} * head_dim > ModelKeys::largest) {
        return keys.wrong(ErrorCode::bad_format, heads_key,
                          text("value ", heads, " times the head's length ", head_dim, " exceeds ", ModelKeys::largest),
                          "the file is damaged");
    }
    return {};
}

/// The keys of the numbers that `expert_layers` checks.
struct ExpertWords {
    std::string_view experts, chosen, groups, groups_kept;
};

/// Experts in the layers that `routes(layer)` names, with `shared` more of the same width for every token.
template <class Routes>
[[nodiscard]] Result<void> expert_layers(const ModelKeys& keys, const ExpertWords& words, ModelSpec& spec,
                                         ExpertsSpec experts, std::uint32_t shared, Routes routes) {
    const RouteSpec& route = experts.route;
    const auto wrong = [&](std::string_view key, std::uint32_t value, std::string_view what) {
        return keys.wrong(ErrorCode::bad_format, key, text("value ", value, what));
    };
    if (route.experts % route.groups != 0)
        return wrong(words.groups, route.groups,
                     text(" does not divide the ", route.experts, " experts (", words.experts, ")"));
    if (route.groups_kept > route.groups)
        return wrong(words.groups_kept, route.groups_kept, text(" of ", route.groups, " groups (", words.groups, ")"));
    if (route.chosen > RouteSpec::most || route.groups > RouteSpec::most)
        return wrong(words.chosen, route.chosen,
                     text(" of ", route.groups, " groups (", words.groups, "): at most ", RouteSpec::most, " of each"));
    if (route.chosen > route.experts / route.groups * route.groups_kept)
        return wrong(
            words.chosen, route.chosen,
            text(" of ", route.experts, " experts (", words.experts, ", ", words.groups, ", ", words.groups_kept, ")"));
    if (std::uint64_t{route.chosen} * (std::max)(experts.hidden, spec.width) > ModelKeys::largest ||
        std::uint64_t{shared} * experts.hidden > ModelKeys::largest)
        return wrong(words.chosen, route.chosen, " gives too wide a layer");
    experts.shared = shared * experts.hidden;
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        if (!routes(l)) continue;
        spec.layers[l].hidden = 0;
        spec.layers[l].experts = experts;
    }
    return {};
}

}  // namespace detail

/// Width, context length, norm and the number of layers, which are empty.
[[nodiscard]] inline Result<ModelSpec> gguf_base(const Weights& weights, const ModelKeys& keys) {
    ModelSpec spec;
    DECANT_TRY(const std::uint32_t layers, keys.count("block_count"));
    DECANT_TRY(spec.width, keys.count("embedding_length"));
    DECANT_TRY(spec.context_length, keys.count("context_length", ModelKeys::largest));
    spec.norm.centered = keys.contains("attention.layer_norm_epsilon");
    DECANT_TRY(const double epsilon,
               keys.positive(spec.norm.centered ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"));
    spec.norm.epsilon = static_cast<float>(epsilon);
    DECANT_CHECK(detail::check_layers(weights, keys, "block_count", layers));
    spec.layers.resize(layers);
    return spec;
}

/// Fills equal layers from `<architecture>.*` keys: grouped-query attention with a scale of 1 / sqrt(head_dim), no
/// window, the first rope. Errors name the key.
[[nodiscard]] inline Result<ModelSpec> gguf_transformer(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_base(weights, keys));
    DECANT_TRY(const std::uint32_t hidden, keys.count("feed_forward_length"));
    DECANT_TRY(const std::uint32_t heads, keys.count("attention.head_count"));
    DECANT_TRY(const std::uint32_t kv_heads, keys.count("attention.head_count_kv", heads));
    if (!keys.contains("attention.key_length") && spec.width % heads != 0) {
        return keys.wrong(ErrorCode::bad_format, "attention.head_count",
                          detail::text("value ", heads, " does not divide the width ", spec.width));
    }
    DECANT_TRY(const std::uint32_t head_dim, keys.count("attention.key_length", spec.width / heads));
    DECANT_TRY(const std::uint32_t value_dim, keys.count("attention.value_length", head_dim));
    if (value_dim != head_dim) {
        return keys.wrong(ErrorCode::unsupported, "attention.value_length",
                          detail::text("value ", value_dim, " differs from the key length ", head_dim));
    }
    DECANT_CHECK(
        detail::check_heads(keys, heads, kv_heads, head_dim, "attention.head_count", "attention.head_count_kv"));
    for (LayerSpec& layer : spec.layers) {
        layer.attention = {heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim))};
        layer.hidden = hidden;
    }
    return spec;
}

/// Experts in all layers from `dense` on, in place of their feed-forward part. `usual` says what keys leave out; its
/// counts are not looked at.
[[nodiscard]] inline Result<void> gguf_experts(const ModelKeys& keys, ModelSpec& spec, const RouteSpec& usual,
                                               std::size_t dense = 0) {
    RouteSpec route = usual;
    DECANT_TRY(route.experts, keys.count("expert_count"));
    DECANT_TRY(route.chosen, keys.count("expert_used_count"));
    DECANT_TRY(route.groups, keys.count("expert_group_count", 1));
    DECANT_TRY(route.groups_kept, keys.count("expert_group_used_count", route.groups));
    DECANT_TRY(route.normalize, keys.flag("expert_weights_norm", usual.normalize));
    DECANT_TRY(const double scale, keys.positive("expert_weights_scale", static_cast<double>(usual.scale)));
    route.scale = static_cast<float>(scale);
    DECANT_TRY(const std::uint32_t gating, keys.number("expert_gating_func", 0));
    if (gating > 2) {
        return keys.wrong(ErrorCode::unsupported, "expert_gating_func", detail::text("value ", gating),
                          "known: 1 (softmax), 2 (sigmoid)");
    }
    if (gating > 0) route.scoring = gating == 2 ? RouteSpec::Scoring::sigmoid : RouteSpec::Scoring::softmax;
    DECANT_TRY(const std::uint32_t wide, keys.count("feed_forward_length"));
    DECANT_TRY(const std::uint32_t hidden, keys.count("expert_feed_forward_length", wide));
    DECANT_TRY(const std::uint32_t shared, keys.number("expert_shared_count", 0));
    const detail::ExpertWords words{"expert_count", "expert_used_count", "expert_group_count",
                                    "expert_group_used_count"};
    return detail::expert_layers(keys, words, spec, {route, hidden, 0}, shared,
                                 [&](std::size_t l) { return l >= dense; });
}

}  // namespace decant::inline DECANT_ABI

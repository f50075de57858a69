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
                          text("value ", kv_heads, " does not divide the ", heads, " query heads"));
    }
    if (std::uint64_t{heads} * head_dim > ModelKeys::largest) {
        return keys.wrong(ErrorCode::bad_format, heads_key,
                          text("value ", heads, " times the head's length ", head_dim, " exceeds ", ModelKeys::largest),
                          "the file is damaged");
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

/// Experts in all layers from `dense` on, in place of their feed-forward part, chosen as `route` says.
[[nodiscard]] inline Result<void> gguf_experts(const ModelKeys& keys, ModelSpec& spec, RouteSpec route,
                                               std::size_t dense = 0) {
    DECANT_TRY(route.experts, keys.count("expert_count"));
    DECANT_TRY(route.chosen, keys.count("expert_used_count"));
    if (route.chosen > route.experts) {
        return keys.wrong(ErrorCode::bad_format, "expert_used_count",
                          detail::text("value ", route.chosen, " of ", route.experts, " experts"));
    }
    DECANT_TRY(const std::uint32_t usual, keys.count("feed_forward_length"));
    DECANT_TRY(const std::uint32_t hidden, keys.count("expert_feed_forward_length", usual));
    DECANT_TRY(const std::uint32_t shared, keys.number("expert_shared_count", 0));
    if (std::uint64_t{route.chosen} * (std::max)(hidden, spec.width) > ModelKeys::largest ||
        std::uint64_t{shared} * hidden > ModelKeys::largest) {
        return keys.wrong(ErrorCode::bad_format, "expert_used_count",
                          detail::text("value ", route.chosen, " is too large"), "the file is damaged");
    }
    for (std::size_t l = dense; l < spec.layers.size(); ++l) {
        spec.layers[l].hidden = 0;
        spec.layers[l].experts = {route, hidden, shared * hidden};
    }
    return {};
}

}  // namespace decant::inline DECANT_ABI

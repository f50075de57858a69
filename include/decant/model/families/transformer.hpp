// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the metadata of every transformer says alike: counts and widths, checked against each other.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/gguf_keys.hpp>
#include <decant/model/spec.hpp>

#include <cmath>
#include <cstdint>

namespace decant::inline DECANT_ABI {

/// Fills family, width, context length, norm and equal layers from `<architecture>.*` keys: grouped-query attention
/// with a scale of 1 / sqrt(head_dim), no window, the first rope. Errors name the key.
[[nodiscard]] inline Result<ModelSpec> transformer_spec(const Weights& weights, const GgufKeys& keys) {
    ModelSpec spec;
    spec.family = keys.architecture();
    DECANT_TRY(const std::uint32_t layers, keys.count("block_count"));
    DECANT_TRY(spec.width, keys.count("embedding_length"));
    DECANT_TRY(spec.context_length, keys.count("context_length", GgufKeys::largest));
    DECANT_TRY(const std::uint32_t hidden, keys.count("feed_forward_length"));
    DECANT_TRY(const std::uint32_t heads, keys.count("attention.head_count"));
    DECANT_TRY(const std::uint32_t kv_heads, keys.count("attention.head_count_kv", heads));
    if (heads % kv_heads != 0) {
        return keys.wrong(ErrorCode::bad_format, "attention.head_count_kv",
                          detail::text("value ", kv_heads, " does not divide the ", heads, " query heads"));
    }
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
    if (std::uint64_t{heads} * head_dim > GgufKeys::largest) {
        return keys.wrong(
            ErrorCode::bad_format, "attention.head_count",
            detail::text("value ", heads, " times the head's length ", head_dim, " exceeds ", GgufKeys::largest),
            "the file is damaged");
    }
    if (keys.contains("expert_count")) {
        return keys.wrong(ErrorCode::unsupported, "expert_count", "mixture of experts is not supported");
    }
    DECANT_TRY(const double epsilon, keys.positive("attention.layer_norm_rms_epsilon"));
    spec.norm.epsilon = static_cast<float>(epsilon);
    // Each layer has tensors of its own, so a count beyond the file's tensors is a lie and sizes nothing.
    if (layers > weights.tensors().size()) {
        return keys.wrong(
            ErrorCode::mismatch, "block_count",
            detail::text("value ", layers, " but the file has only ", weights.tensors().size(), " tensors"),
            "the file is damaged or incomplete");
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    spec.layers.assign(layers, LayerSpec{{heads, kv_heads, head_dim, scale, 0}, hidden, 0});
    return spec;
}

}  // namespace decant::inline DECANT_ABI

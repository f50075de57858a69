// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The Llama family from GGUF metadata: pre-norm, grouped-query attention, rotary positions, gated SiLU.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/gguf_keys.hpp>
#include <decant/model/rope_scaling.hpp>
#include <decant/model/spec.hpp>
#include <decant/quant/formats.hpp>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Rotary table of a Llama file. Its converter permutes the rows of q and k so that pairs lie side by side.
[[nodiscard]] inline Result<RopeTable> llama_rope(const Weights& weights, const GgufKeys& keys,
                                                  std::uint32_t head_dim) {
    DECANT_TRY(const std::uint32_t dim, keys.count("rope.dimension_count", head_dim));
    if (dim > head_dim || dim % 2 != 0) {
        return keys.wrong(ErrorCode::bad_format, "rope.dimension_count",
                          detail::text("value ", dim, " is odd or larger than the head (", head_dim, ")"));
    }
    DECANT_TRY(const double theta, keys.positive("rope.freq_base", 10000.0));
    RopeTable table{{RopeLayout::interleaved, head_dim, dim, 1.0f}, rope_frequencies(dim, theta)};

    DECANT_TRY(const auto scaling, keys.string("rope.scaling.type"));
    if (scaling == "linear") {
        DECANT_TRY(const double factor, keys.positive("rope.scaling.factor"));
        scale_linear(table.frequencies, factor);
    } else if (scaling == "yarn") {
        YarnScaling yarn;
        DECANT_TRY(yarn.factor, keys.positive("rope.scaling.factor"));
        DECANT_TRY(yarn.original_context, keys.positive("rope.scaling.original_context_length"));
        DECANT_TRY(yarn.beta_fast, keys.positive("rope.scaling.yarn_beta_fast", yarn.beta_fast));
        DECANT_TRY(yarn.beta_slow, keys.positive("rope.scaling.yarn_beta_slow", yarn.beta_slow));
        DECANT_TRY(const double attention, keys.positive("rope.scaling.attn_factor", 1.0));
        if (theta == 1.0) return keys.wrong(ErrorCode::bad_format, "rope.freq_base", "value 1 with YaRN scaling");
        scale_yarn(table.frequencies, theta, yarn);
        table.rope.magnitude = static_cast<float>(attention) * yarn.magnitude();
    } else if (!scaling.empty() && scaling != "none") {
        return keys.wrong(ErrorCode::unsupported, "rope.scaling.type",
                          detail::text("unknown rule ", detail::quoted(scaling)), "known: none, linear, yarn");
    }

    if (const Tensor* factors = weights.find("rope_freqs.weight")) {
        if (factors->dtype != DType::f32 || factors->shape.rank != 1 || factors->columns() != dim / 2) {
            return Error{ErrorCode::mismatch, detail::text("expected ", dim / 2, " F32 factors"),
                         "tensor \"rope_freqs.weight\"", "the file is damaged"};
        }
        std::vector<float> values(dim / 2);
        dequantize_row(DType::f32, factors->bytes.data(), values.size(), values.data());
        for (const float value : values) {
            if (!std::isfinite(value) || value == 0.0f) {
                return Error{ErrorCode::bad_format, detail::text("factor ", value, " cannot divide a frequency"),
                             "tensor \"rope_freqs.weight\"", "the file is damaged"};
            }
        }
        scale_by_factors(table.frequencies, values);
    }
    return table;
}

/// Fills a spec from `llama.*` keys. Errors name the key.
[[nodiscard]] inline Result<ModelSpec> llama_spec(const Weights& weights) {
    const GgufKeys keys(weights, "llama");
    ModelSpec spec;
    spec.family = "llama";
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
    DECANT_TRY(RopeTable rope, llama_rope(weights, keys, head_dim));
    spec.ropes.push_back(std::move(rope));

    // Each layer has tensors of its own, so a count beyond the file's tensors is a lie and sizes nothing.
    if (layers > weights.tensors().size()) {
        return keys.wrong(
            ErrorCode::mismatch, "block_count",
            detail::text("value ", layers, " but the file has only ", weights.tensors().size(), " tensors"),
            "the file is damaged or incomplete");
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    spec.layers.assign(layers, LayerSpec{{heads, kv_heads, head_dim, scale}, hidden, 0});
    return spec;
}

}  // namespace decant::inline DECANT_ABI

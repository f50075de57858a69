// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Rotary positions from GGUF metadata, with every scaling rule that a file may name.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/rope_scaling.hpp>
#include <decant/model/spec.hpp>
#include <decant/quant/formats.hpp>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// The rotary table that `<architecture>.rope.*` and the tensor `rope_freqs.weight` describe. Errors name key or
/// tensor.
[[nodiscard]] inline Result<RopeTable> gguf_rope(const Weights& weights, const ModelKeys& keys, RopeLayout layout,
                                                 std::uint32_t head_dim, double usual_theta = 10000.0) {
    DECANT_TRY(const std::uint32_t dim, keys.count("rope.dimension_count", head_dim));
    if (dim > head_dim || dim % 2 != 0) {
        return keys.wrong(ErrorCode::bad_format, "rope.dimension_count",
                          detail::text("value ", dim, " is odd or larger than the head (", head_dim, ")"));
    }
    DECANT_TRY(const double theta, keys.positive("rope.freq_base", usual_theta));
    RopeTable table{{layout, head_dim, dim, 1.0f}, rope_frequencies(dim, theta)};

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

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Gemma 3 (text) from GGUF metadata: a scaled embedding, norms of q and k, norms after attention and feed-forward, and
/// five layers with a sliding window for each that sees everything. Norm weights are stored with their 1 added.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/gguf_keys.hpp>
#include <decant/model/rope_scaling.hpp>
#include <decant/model/spec.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace decant::inline DECANT_ABI {

/// Fills a spec from `gemma3.*` keys. The format does not say the pattern of the windows, the base of their rotation or
/// the scale of the scores: they are those of all published sizes but the 27B one. Errors name the key.
[[nodiscard]] inline Result<ModelSpec> gemma3_spec(const Weights& weights) {
    constexpr std::size_t pattern = 6;  // every sixth layer sees everything
    constexpr double local_theta = 10000.0;
    const GgufKeys keys(weights, "gemma3");
    DECANT_TRY(ModelSpec spec, transformer_spec(weights, keys));
    const std::uint32_t head_dim = spec.layers[0].attention.head_dim;
    if (head_dim % 2 != 0) {
        return keys.wrong(ErrorCode::bad_format, "attention.key_length", detail::text("value ", head_dim, " is odd"));
    }
    spec.activation = Activation::gelu_tanh;
    spec.embedding_scale = std::sqrt(static_cast<float>(spec.width));

    DECANT_TRY(const double theta, keys.positive("rope.freq_base", 1e6));
    RopeTable global{{RopeLayout::halves, head_dim, head_dim, 1.0f}, rope_frequencies(head_dim, theta)};
    DECANT_TRY(const auto scaling, keys.string("rope.scaling.type"));
    if (scaling == "linear") {  // the larger sizes stretch the layers that see everything
        DECANT_TRY(const double factor, keys.positive("rope.scaling.factor"));
        scale_linear(global.frequencies, factor);
    } else if (!scaling.empty() && scaling != "none") {
        return keys.wrong(ErrorCode::unsupported, "rope.scaling.type",
                          detail::text("unknown rule ", detail::quoted(scaling)), "known: none, linear");
    }
    RopeTable local{{RopeLayout::halves, head_dim, head_dim, 1.0f}, rope_frequencies(head_dim, local_theta)};
    spec.ropes = {std::move(global), std::move(local)};

    DECANT_TRY(const std::uint32_t window, keys.count("attention.sliding_window"));
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        LayerSpec& layer = spec.layers[l];
        layer.qk_norm = layer.post_norms = true;
        if ((l + 1) % pattern == 0) continue;
        layer.attention.window = window;
        layer.rope = 1;
    }
    return spec;
}

}  // namespace decant::inline DECANT_ABI

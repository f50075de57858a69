// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Gemma 3 (text): as Gemma 2, with norms of q and k instead of caps, and five layers with a sliding window and a
/// rotary base of their own for each that sees everything.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/config_rope.hpp>
#include <decant/model/families/config_transformer.hpp>
#include <decant/model/families/gemma2.hpp>
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <cstddef>
#include <cstdint>

namespace decant::inline DECANT_ABI {

namespace detail {

/// The second rope belongs to the layers with a window.
inline void gemma3_layers(ModelSpec& spec) {
    for (LayerSpec& layer : spec.layers) {
        layer.qk_norm = true;
        layer.rope = layer.attention.window > 0 ? 1 : 0;
    }
}

}  // namespace detail

/// From `gemma3.*` keys. The format does not say the pattern of the windows, the base of their rotation or the scale of
/// the scores: they are those of all published sizes but the 27B one.
[[nodiscard]] inline Result<ModelSpec> gemma3_gguf(const Weights& weights, const ModelKeys& keys) {
    constexpr std::size_t pattern = 6;  // every sixth layer sees everything
    DECANT_TRY(ModelSpec spec, gguf_transformer(weights, keys));
    detail::gemma(spec);
    const std::uint32_t head_dim = spec.layers[0].attention.head_dim;
    DECANT_TRY(spec.ropes.emplace_back(), gguf_rope(weights, keys, RopeLayout::halves, head_dim, 1e6));
    spec.ropes.push_back({{RopeLayout::halves, head_dim, head_dim, 1.0f}, rope_frequencies(head_dim, 10000.0)});
    DECANT_TRY(const std::uint32_t window, keys.count("attention.sliding_window"));
    for (std::size_t l = 0; l < spec.layers.size(); ++l)
        if ((l + 1) % pattern != 0) spec.layers[l].attention.window = window;
    detail::gemma3_layers(spec);
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> gemma3_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, detail::gemma_config(weights, keys));
    const std::uint32_t head_dim = spec.layers[0].attention.head_dim;
    DECANT_TRY(spec.ropes.emplace_back(),
               config_rope(keys, spec, head_dim, {.usual_theta = 1e6, .group = "full_attention"}));
    DECANT_TRY(spec.ropes.emplace_back(),
               config_rope(keys, spec, head_dim,
                           {.theta = "rope_local_base_freq", .group = "sliding_attention", .scaled = false}));
    DECANT_TRY(const std::uint32_t window, keys.count("sliding_window", 4096));
    DECANT_TRY(
        const std::uint32_t pattern,
        keys.count(keys.contains("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern", 6));
    DECANT_CHECK(config_windows(keys, spec, window, [&](std::size_t l) { return (l + 1) % pattern != 0; }));
    detail::gemma3_layers(spec);
    return spec;
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ModelSpec`: an architecture as data. A family header fills it; the one forward pass (model.hpp) reads it.

#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {

/// A rotary embedding with its frequencies in radians per position, scaling already applied: [rope.dim / 2].
struct RopeTable {
    RopeSpec rope;
    std::vector<float> frequencies;
};

/// One transformer layer.
struct LayerSpec {
    AttentionSpec attention;
    std::uint32_t hidden = 0;  ///< width of the gated feed-forward part
    std::size_t rope = 0;      ///< index into ModelSpec::ropes
    bool qk_norm = false;      ///< norms of each head of q and k, before the rotation
    bool post_norms = false;   ///< norms of what attention and the feed-forward part add to the residual stream
};

/// Everything that the forward pass needs to know of a model, besides its weights. Widths are in elements.
struct ModelSpec {
    std::string family;
    std::uint32_t vocabulary = 0;
    std::uint32_t width = 0;           ///< of the residual stream
    std::uint64_t context_length = 0;  ///< positions that the model was trained for
    NormSpec norm;
    Activation activation = Activation::silu;
    float embedding_scale = 1.0f;
    std::vector<RopeTable> ropes;
    std::vector<LayerSpec> layers;

    /// What the KV cache keeps per token and layer.
    [[nodiscard]] std::vector<CacheLayer> cache_layers() const {
        std::vector<CacheLayer> shape;
        shape.reserve(layers.size());
        for (const LayerSpec& layer : layers) shape.push_back({layer.attention.kv_heads, layer.attention.head_dim});
        return shape;
    }
};

}  // namespace decant::inline DECANT_ABI

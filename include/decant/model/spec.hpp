// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ModelSpec`: an architecture as data. A family header fills it; the one forward pass (model.hpp) reads it.

#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>
#include <decant/model/names.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace decant::inline DECANT_ABI {

/// A rotary embedding with its frequencies in radians per position, scaling already applied: [rope.dim / 2].
struct RopeTable {
    RopeSpec rope;
    std::vector<float> frequencies;
};

/// Latent attention (DeepSeek-V2 2024): keys and values are kept as one vector of `kv_rank` numbers per token, which
/// all heads share, and `rope` rotated ones beside it. Queries are brought into that space instead of the keys out of
/// it, so `LayerSpec::attention` has one key head of rope + kv_rank elements.
struct LatentSpec {
    std::uint32_t q_rank = 0;  ///< 0 = queries come from the stream directly
    std::uint32_t kv_rank = 0;
    std::uint32_t plain = 0;  ///< elements of a head that are not rotated
    std::uint32_t rope = 0;   ///< and those that are
    std::uint32_t value = 0;  ///< elements of a head's value
};

/// A mixture of experts in place of the feed-forward part.
struct ExpertsSpec {
    RouteSpec route;
    std::uint32_t hidden = 0;  ///< width of one expert
    std::uint32_t shared = 0;  ///< width of the expert that every token goes to; 0 = there is none
};

/// One layer: attention or a state space, then a feed-forward part or experts. Members that are 0 are not there.
struct LayerSpec {
    AttentionSpec attention;
    std::uint32_t hidden = 0;  ///< width of the feed-forward part
    std::size_t rope = 0;      ///< index into ModelSpec::ropes
    bool qk_norm = false;      ///< norms of each head of q and k, before the rotation
    bool post_norms = false;   ///< norms of what attention and the feed-forward part add to the residual stream
    bool gated = true;         ///< whether the feed-forward part has a gate
    bool parallel = false;     ///< the feed-forward part reads what attention read, not what it added
    bool sinks = false;        ///< a logit per head that takes part in the softmax alone (gpt-oss)
    LatentSpec latent;
    ExpertsSpec experts;
    StateSpec state;

    [[nodiscard]] bool attends() const noexcept { return attention.heads > 0; }
    [[nodiscard]] bool is_latent() const noexcept { return latent.kv_rank > 0; }
    [[nodiscard]] bool routes() const noexcept { return experts.route.experts > 0; }
};

/// Everything that the forward pass needs to know of a model, besides its weights. Widths are in elements.
struct ModelSpec {
    std::string family;
    std::uint32_t vocabulary = 0;
    std::uint32_t width = 0;           ///< of the residual stream
    std::uint64_t context_length = 0;  ///< positions that the model was trained for
    NormSpec norm;
    GateSpec gate;
    float embedding_scale = 1.0f;
    float logit_softcap = 0.0f;  ///< logits become softcap tanh(logit / softcap); 0 = they stay
    std::optional<bool> tied;    ///< whether the embedding is the head, too; unknown = if the file has no head
    std::vector<RopeTable> ropes;
    std::vector<LayerSpec> layers;
    TensorNames names = TensorNames::gguf();

    /// What the cache keeps per layer.
    [[nodiscard]] std::vector<CacheLayer> cache_layers() const {
        std::vector<CacheLayer> shape;
        shape.reserve(layers.size());
        for (const LayerSpec& layer : layers) {
            const AttentionSpec& attention = layer.attention;
            shape.push_back({attention.kv_heads, attention.head_dim, attention.key_skip, layer.state.floats(),
                             attention.kv_heads > 0 ? attention.window : 0});
        }
        return shape;
    }
};

}  // namespace decant::inline DECANT_ABI

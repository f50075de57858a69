// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// A model's weights as the forward pass reads them.

#include <decant/core/config.hpp>

#include <memory>
#include <optional>
#include <vector>

namespace decant::inline DECANT_ABI {

/// A linear map: y = x weight^T (+ bias).
template <class W>
struct Affine {
    W weight;               ///< [out, in]
    std::optional<W> bias;  ///< [out]
    [[nodiscard]] const W* bias_or_null() const noexcept { return bias ? &*bias : nullptr; }
};

/// The same for every expert; `biases` is empty if there are none.
template <class W>
struct ExpertAffine {
    std::vector<W> weights;  ///< [experts] of [out, in]
    std::vector<W> biases;   ///< [experts] of [out]
};

/// A feed-forward part; `gate` is bound if the layer is gated.
template <class W>
struct HiddenWeights {
    Affine<W> gate;  ///< [hidden, width]
    Affine<W> up;    ///< [hidden, width]
    Affine<W> down;  ///< [width, hidden]
};

template <class W>
struct AttentionWeights {
    Affine<W> q;                      ///< [heads * head_dim, width]
    Affine<W> k;                      ///< [kv_heads * head_dim, width]
    Affine<W> v;                      ///< [kv_heads * head_dim, width]
    std::optional<W> q_norm, k_norm;  ///< [head_dim]
    std::optional<W> sinks;           ///< [heads]
};

template <class W>
struct LatentWeights {
    std::optional<Affine<W>> q_a;  ///< [q_rank, width]
    std::optional<W> q_a_norm;     ///< [q_rank]
    Affine<W> q_b;                 ///< [heads * (plain + rope), q_rank or width]
    Affine<W> kv;                  ///< [kv_rank, width]
    Affine<W> k_rope;              ///< [rope, width]
    W kv_norm;                     ///< [kv_rank]
    W k_b;                         ///< [heads * kv_rank, plain]
    W v_b;                         ///< [heads * value, kv_rank]
};

template <class W>
struct StateWeights {
    Affine<W> z;      ///< [channels, width]
    Affine<W> mixed;  ///< [mixed, width]
    Affine<W> steps;  ///< [heads, width]
    Affine<W> conv;   ///< [mixed, kernel]
    W a;              ///< [heads]
    W skip;           ///< [heads]
    W norm;           ///< [channels]
};

template <class W>
struct ExpertsWeights {
    Affine<W> router;              ///< [experts, width]
    std::optional<W> router_bias;  ///< [experts]
    ExpertAffine<W> gate, up;      ///< [hidden, width]
    ExpertAffine<W> down;          ///< [width, hidden]
    HiddenWeights<W> shared;
};

/// What a layer does not have is empty.
template <class W>
struct LayerWeights {
    Affine<W> attention_norm;              ///< [width] as all norms here
    std::optional<Affine<W>> hidden_norm;  ///< a parallel layer may have one norm for both halves
    std::optional<W> attention_post_norm, hidden_post_norm;
    AttentionWeights<W> attention;
    LatentWeights<W> latent;
    StateWeights<W> state;
    Affine<W> out;  ///< [width, what attention or state space give]
    HiddenWeights<W> hidden;
    ExpertsWeights<W> experts;
};

template <class W>
struct ModelWeights {
    W embedding;            ///< [vocabulary, width]
    Affine<W> final_norm;   ///< [width]
    std::optional<W> head;  ///< [vocabulary, width]; absent if tied to the embedding
    std::vector<W> ropes;   ///< [dim / 2] each, one per ModelSpec::ropes
    std::vector<LayerWeights<W>> layers;
    std::vector<std::shared_ptr<const void>> owners;  ///< of tensors that were rearranged
};

}  // namespace decant::inline DECANT_ABI

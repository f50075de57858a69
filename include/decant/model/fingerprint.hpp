// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `fingerprint`: a number that two models share if their cached keys and values mean the same.

#include <decant/core/config.hpp>
#include <decant/core/hash.hpp>
#include <decant/files/tensor.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/spec.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace decant::inline DECANT_ABI {
namespace detail {

inline void add(Hash64& hash, const LayerSpec& layer) {
    const AttentionSpec& a = layer.attention;
    hash.add(a.heads, a.kv_heads, a.head_dim, a.scale, a.window, a.softcap, a.key_skip);
    hash.add(layer.hidden, layer.rope, layer.qk_norm, layer.post_norms, layer.gated, layer.parallel, layer.sinks);
    const LatentSpec& l = layer.latent;
    hash.add(l.q_rank, l.kv_rank, l.plain, l.rope, l.value);
    const RouteSpec& r = layer.experts.route;
    hash.add(layer.experts.hidden, layer.experts.shared, r.scoring, r.normalize, r.experts, r.chosen, r.groups,
             r.groups_kept, r.scale);
    const StateSpec& s = layer.state;
    hash.add(s.heads, s.head_dim, s.groups, s.size, s.kernel, s.step_min, s.step_max);
}

inline void add(Hash64& hash, const ModelSpec& spec) {
    hash.add(spec.family, spec.vocabulary, spec.width);
    hash.add(spec.norm.epsilon, spec.norm.offset, spec.norm.centered);
    hash.add(spec.gate.activation, spec.gate.alpha, spec.gate.limit);
    hash.add(spec.embedding_scale, spec.logit_softcap);
    hash.add(spec.ropes.size());
    for (const RopeTable& table : spec.ropes) {
        hash.add(table.rope.layout, table.rope.head_dim, table.rope.dim, table.rope.magnitude);
        for (const float frequency : table.frequencies) hash.add(frequency);
    }
    hash.add(spec.layers.size());
    for (const LayerSpec& layer : spec.layers) add(hash, layer);
}

/// Name, type, shape, and a sample of the numbers: all of them, or pieces from beginning to end.
inline void add(Hash64& hash, const Tensor& tensor) {
    constexpr std::size_t pieces = 4, piece = 512;
    hash.add(tensor.name, tensor.type_name, tensor.shape.rank);
    for (const std::uint64_t dim : tensor.shape.dims) hash.add(dim);
    const std::span<const std::byte> bytes = tensor.bytes;
    if (bytes.size() <= pieces * piece) return hash.add(bytes);
    for (std::size_t i = 0; i < pieces; ++i) hash.add(bytes.subspan((bytes.size() - piece) / (pieces - 1) * i, piece));
}

}  // namespace detail

/// Over all that a spec says and a sample of every tensor (2 KB at most, so that a model of any size takes milliseconds
/// once the pages are in memory). The same for every backend, and for a copy of the file elsewhere; another for another
/// precision, or other weights. Two files that differ in a few numbers alone may share it.
[[nodiscard]] inline std::uint64_t fingerprint(const ModelSpec& spec, const Weights& weights) {
    Hash64 hash;
    detail::add(hash, spec);
    for (const std::size_t i : detail::order_by_name(weights.tensors())) detail::add(hash, weights.tensors()[i]);
    return hash.value();
}

}  // namespace decant::inline DECANT_ABI

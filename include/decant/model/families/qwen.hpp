// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Qwen 2 (biases on q, k and v, which are bound if the file has them) and Qwen 3 (norms of q and k) from GGUF
/// metadata.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/gguf_keys.hpp>
#include <decant/model/spec.hpp>

#include <utility>

namespace decant::inline DECANT_ABI {

namespace detail {

[[nodiscard]] inline Result<ModelSpec> qwen_spec(const Weights& weights, const GgufKeys& keys, bool qk_norm) {
    DECANT_TRY(ModelSpec spec, transformer_spec(weights, keys));
    DECANT_TRY(RopeTable rope, gguf_rope(weights, keys, RopeLayout::halves, spec.layers[0].attention.head_dim));
    spec.ropes.push_back(std::move(rope));
    for (LayerSpec& layer : spec.layers) layer.qk_norm = qk_norm;
    return spec;
}

}  // namespace detail

/// Fill a spec from `qwen2.*` and `qwen3.*` keys. Errors name the key.
[[nodiscard]] inline Result<ModelSpec> qwen2_spec(const Weights& weights) {
    return detail::qwen_spec(weights, GgufKeys(weights, "qwen2"), false);
}
[[nodiscard]] inline Result<ModelSpec> qwen3_spec(const Weights& weights) {
    return detail::qwen_spec(weights, GgufKeys(weights, "qwen3"), true);
}

}  // namespace decant::inline DECANT_ABI

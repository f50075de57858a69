// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The Llama family from GGUF metadata: pre-norm, grouped-query attention, rotary positions, gated SiLU.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/rope.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/gguf_keys.hpp>
#include <decant/model/spec.hpp>

#include <utility>

namespace decant::inline DECANT_ABI {

/// Fills a spec from `llama.*` keys. The converter permutes the rows of q and k so that pairs lie side by side. Errors
/// name the key.
[[nodiscard]] inline Result<ModelSpec> llama_spec(const Weights& weights) {
    const GgufKeys keys(weights, "llama");
    DECANT_TRY(ModelSpec spec, transformer_spec(weights, keys));
    DECANT_TRY(RopeTable rope, gguf_rope(weights, keys, RopeLayout::interleaved, spec.layers[0].attention.head_dim));
    spec.ropes.push_back(std::move(rope));
    return spec;
}

}  // namespace decant::inline DECANT_ABI

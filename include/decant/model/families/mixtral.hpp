// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Mixtral (Jiang et al. 2024): Llama with a mixture of experts. Its GGUF files are of the llama architecture.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/config_rope.hpp>
#include <decant/model/families/config_transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <cstddef>
#include <cstdint>

namespace decant::inline DECANT_ABI {

[[nodiscard]] inline Result<ModelSpec> mixtral_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_transformer(weights, keys, {.usual_epsilon = 1e-5}));
    DECANT_TRY(spec.ropes.emplace_back(),
               config_rope(keys, spec, spec.layers[0].attention.head_dim, {.usual_theta = 1e6}));
    DECANT_TRY(const std::uint32_t window, keys.number("sliding_window", 0));
    DECANT_CHECK(config_windows(keys, spec, window, [&](std::size_t) { return window > 0; }));
    RouteSpec route;
    route.normalize = true;
    DECANT_TRY(route.experts, keys.count("num_local_experts"));
    DECANT_TRY(route.chosen, keys.count("num_experts_per_tok"));
    DECANT_CHECK(config_experts(keys, spec, route, spec.layers[0].hidden));
    spec.names[Role::router] = "block_sparse_moe.gate";
    spec.names[Role::expert_gate] = "block_sparse_moe.experts.{}.w1";
    spec.names[Role::expert_up] = "block_sparse_moe.experts.{}.w3";
    spec.names[Role::expert_down] = "block_sparse_moe.experts.{}.w2";
    return spec;
}

}  // namespace decant::inline DECANT_ABI

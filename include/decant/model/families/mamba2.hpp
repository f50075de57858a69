// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Mamba-2 (Dao and Gu 2024): a state space instead of attention, and nothing else.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/config_transformer.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <cstdint>
#include <limits>
#include <string_view>

namespace decant::inline DECANT_ABI {

namespace detail {

[[nodiscard]] inline Result<void> state_layers(const ModelKeys& keys, ModelSpec& spec, const StateSpec& state,
                                               std::string_view heads_key, std::string_view groups_key,
                                               std::string_view kernel_key) {
    if (state.heads % state.groups != 0) {
        return keys.wrong(ErrorCode::bad_format, groups_key,
                          text("value ", state.groups, " does not divide the ", state.heads, " heads"));
    }
    const std::uint64_t channels = std::uint64_t{state.heads} * state.head_dim;
    if (channels > ModelKeys::largest || std::uint64_t{state.groups} * state.size > ModelKeys::largest ||
        channels * state.size > (std::uint64_t{1} << 32)) {
        return keys.wrong(ErrorCode::bad_format, heads_key, text("value ", state.heads, " gives too large a state"),
                          "the file is damaged");
    }
    if (state.kernel < 2 || state.kernel > 1024)
        return keys.wrong(ErrorCode::bad_format, kernel_key, text("value ", state.kernel, " is not in [2, 1024]"));
    for (LayerSpec& layer : spec.layers) layer.state = state;
    return {};
}

}  // namespace detail

/// From `mamba2.*` keys.
[[nodiscard]] inline Result<ModelSpec> mamba2_gguf(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, gguf_base(weights, keys));
    StateSpec state;
    DECANT_TRY(state.heads, keys.count("ssm.time_step_rank"));
    DECANT_TRY(const std::uint32_t inner, keys.count("ssm.inner_size"));
    if (inner % state.heads != 0) {
        return keys.wrong(ErrorCode::bad_format, "ssm.inner_size",
                          detail::text("value ", inner, " is not a multiple of the ", state.heads, " heads"));
    }
    state.head_dim = inner / state.heads;
    DECANT_TRY(state.groups, keys.count("ssm.group_count", 1));
    DECANT_TRY(state.size, keys.count("ssm.state_size"));
    DECANT_TRY(state.kernel, keys.count("ssm.conv_kernel"));
    state.step_max = std::numeric_limits<float>::infinity();
    DECANT_CHECK(detail::state_layers(keys, spec, state, "ssm.time_step_rank", "ssm.group_count", "ssm.conv_kernel"));
    return spec;
}

[[nodiscard]] inline Result<ModelSpec> mamba2_config(const Weights& weights, const ModelKeys& keys) {
    DECANT_TRY(ModelSpec spec, config_base(weights, keys, {.epsilon = "layer_norm_epsilon", .usual_epsilon = 1e-5}));
    if (spec.gate.activation != Activation::silu)
        return keys.wrong(ErrorCode::unsupported, "hidden_act", "not silu, which the convolution is followed by");
    StateSpec state;
    DECANT_TRY(state.heads, keys.count("num_heads"));
    DECANT_TRY(state.head_dim, keys.count("head_dim"));
    DECANT_TRY(state.groups, keys.count("n_groups", 1));
    DECANT_TRY(state.size, keys.count("state_size"));
    DECANT_TRY(state.kernel, keys.count("conv_kernel", 4));
    DECANT_TRY(const std::uint32_t expand, keys.count("expand", 2));
    if (std::uint64_t{expand} * spec.width != std::uint64_t{state.heads} * state.head_dim) {
        return keys.wrong(ErrorCode::mismatch, "expand",
                          detail::text("value ", expand, " times hidden_size is not num_heads times head_dim"));
    }
    DECANT_TRY(const auto limits, keys.limits("time_step_limit", {0.0f, std::numeric_limits<float>::infinity()}));
    state.step_min = limits[0];
    state.step_max = limits[1];
    DECANT_CHECK(detail::state_layers(keys, spec, state, "num_heads", "n_groups", "conv_kernel"));
    spec.names.layers = "backbone.layers.";
    spec.names.state_a_is_log = true;
    spec.names[Role::embedding] = "backbone.embeddings";
    spec.names[Role::final_norm] = "backbone.norm_f";
    spec.names[Role::attention_norm] = "norm";
    DECANT_CHECK(config_biases(weights, keys, spec, "use_bias", false, {Role::state_in, Role::state_out}));
    DECANT_CHECK(config_biases(weights, keys, spec, "use_conv_bias", true, {Role::state_conv}));
    return spec;
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the config.json of every transformer says alike, with the defaults of transformers where a key is absent.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/transformer.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// What families call otherwise, or leave out otherwise.
struct ConfigWords {
    std::string_view epsilon = "rms_norm_eps";
    double usual_epsilon = 1e-6;
    std::string_view activation = "hidden_act";
    std::string_view usual_activation = "silu";
    bool tied = false;
    std::uint32_t head_dim = 0;  ///< if the key is absent; 0 = hidden_size / num_attention_heads
    std::uint32_t kv_heads = 0;  ///< if the key is absent; 0 = num_attention_heads
};

/// An activation by the name that transformers gives it. Errors: `unsupported`, naming the key.
[[nodiscard]] inline Result<Activation> config_activation(const ModelKeys& keys, const ConfigWords& words) {
    DECANT_TRY(const std::string_view name, keys.string(words.activation, words.usual_activation));
    if (name == "silu" || name == "swish") return Activation::silu;
    if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
    if (name == "gelu") return Activation::gelu;
    return keys.wrong(ErrorCode::unsupported, words.activation, detail::text("unknown function ", detail::quoted(name)),
                      "known: silu, gelu, gelu_pytorch_tanh");
}

/// Width, vocabulary, context length, norm, tied embedding and the number of layers, which are empty.
[[nodiscard]] inline Result<ModelSpec> config_base(const Weights& weights, const ModelKeys& keys,
                                                   const ConfigWords& words) {
    ModelSpec spec;
    spec.names = TensorNames::hugging_face();
    DECANT_TRY(const std::uint32_t layers, keys.count("num_hidden_layers"));
    DECANT_TRY(spec.width, keys.count("hidden_size"));
    DECANT_TRY(spec.vocabulary, keys.count("vocab_size"));
    DECANT_TRY(spec.context_length, keys.count("max_position_embeddings", ModelKeys::largest));
    DECANT_TRY(const double epsilon, keys.positive(words.epsilon, words.usual_epsilon));
    spec.norm.epsilon = static_cast<float>(epsilon);
    DECANT_TRY(spec.gate.activation, config_activation(keys, words));
    DECANT_TRY(spec.tied, keys.flag("tie_word_embeddings", words.tied));
    DECANT_CHECK(detail::check_layers(weights, keys, "num_hidden_layers", layers));
    spec.layers.resize(layers);
    return spec;
}

/// Fills equal layers: grouped-query attention with a scale of 1 / sqrt(head_dim), no window, the first rope. Errors
/// name the key.
[[nodiscard]] inline Result<ModelSpec> config_transformer(const Weights& weights, const ModelKeys& keys,
                                                          const ConfigWords& words = {}) {
    DECANT_TRY(ModelSpec spec, config_base(weights, keys, words));
    DECANT_TRY(const std::uint32_t hidden, keys.count("intermediate_size"));
    DECANT_TRY(const std::uint32_t heads, keys.count("num_attention_heads"));
    DECANT_TRY(const std::uint32_t kv_heads,
               keys.count("num_key_value_heads", words.kv_heads > 0 ? words.kv_heads : heads));
    const bool told = keys.contains("head_dim");
    if (!told && words.head_dim == 0 && spec.width % heads != 0) {
        return keys.wrong(ErrorCode::bad_format, "num_attention_heads",
                          detail::text("value ", heads, " does not divide hidden_size ", spec.width));
    }
    DECANT_TRY(const std::uint32_t head_dim,
               keys.count("head_dim", words.head_dim > 0 ? words.head_dim : spec.width / heads));
    DECANT_CHECK(detail::check_heads(keys, heads, kv_heads, head_dim, "num_attention_heads", "num_key_value_heads"));
    for (LayerSpec& layer : spec.layers) {
        layer.attention = {heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim))};
        layer.hidden = hidden;
    }
    return spec;
}

/// A number that follows from others must be what they give, if it is there.
[[nodiscard]] inline Result<void> config_same(const ModelKeys& keys, std::string_view key, std::uint32_t value,
                                              std::string_view because) {
    DECANT_TRY(const std::uint32_t says, keys.count(key, value));
    if (says == value) return {};
    return keys.wrong(ErrorCode::mismatch, key, detail::text("value ", says, ", but ", value, " for ", because));
}
/// An option of which one value is known.
[[nodiscard]] inline Result<void> config_known(const ModelKeys& keys, std::string_view key, std::string_view known) {
    DECANT_TRY(const std::string_view says, keys.string(key, known));
    if (says == known) return {};
    return keys.wrong(ErrorCode::unsupported, key, detail::text("value ", detail::quoted(says)),
                      detail::text("known: ", known));
}

/// Whether the file holds the tensor must be as a key says (or would, with its default).
[[nodiscard]] inline Result<void> config_agrees(const Weights& weights, const ModelKeys& keys, std::string_view key,
                                                bool says, std::string_view tensor) {
    const bool holds = weights.find(tensor) != nullptr;
    if (holds == says) return {};
    return keys.wrong(ErrorCode::mismatch, key,
                      detail::text(says ? "true, but the file does not hold " : "false, but the file holds ",
                                   detail::tensor_label(tensor)),
                      "the folder is damaged or mixes two models");
}
/// The same for the biases of some maps of the first layer.
[[nodiscard]] inline Result<void> config_biases(const Weights& weights, const ModelKeys& keys, const ModelSpec& spec,
                                                std::string_view key, bool usual, std::initializer_list<Role> roles) {
    DECANT_TRY(const bool says, keys.flag(key, usual));
    for (const Role role : roles)
        DECANT_CHECK(config_agrees(weights, keys, key, says, spec.names.of(role, 0) + ".bias"));
    return {};
}

/// Windows by `layer_types`; without it a layer has one if `slides(layer)` says so.
template <class Slides>
[[nodiscard]] Result<void> config_windows(const ModelKeys& keys, ModelSpec& spec, std::uint32_t window, Slides slides) {
    DECANT_TRY(const auto types, keys.strings("layer_types"));
    if (!types.empty() && types.size() != spec.layers.size()) {
        return keys.wrong(ErrorCode::mismatch, "layer_types",
                          detail::text(types.size(), " entries, num_hidden_layers says ", spec.layers.size()));
    }
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        const bool sliding = types.empty() ? slides(l) : types[l] == "sliding_attention";
        if (!types.empty() && !sliding && types[l] != "full_attention") {
            return keys.wrong(ErrorCode::unsupported, "layer_types",
                              detail::text("unknown type ", detail::quoted(types[l])),
                              "known: full_attention, sliding_attention");
        }
        if (!sliding) continue;
        if (window == 0) {
            return keys.wrong(ErrorCode::missing, "sliding_window",
                              detail::text("layer_types says that layer ", l, " has a window, but not how long it is"));
        }
        spec.layers[l].attention.window = window;
    }
    return {};
}

/// Experts in the layers that `routes(layer)` names, in place of their feed-forward part; `route` has its counts.
template <class Routes>
[[nodiscard]] Result<void> config_experts(const ModelKeys& keys, ModelSpec& spec, const RouteSpec& route,
                                          std::uint32_t hidden, std::uint32_t shared, Routes routes) {
    const detail::ExpertWords words{"n_routed_experts, num_experts, num_local_experts", "num_experts_per_tok",
                                    "n_group", "topk_group"};
    return detail::expert_layers(keys, words, spec, {route, hidden, 0}, shared, routes);
}
/// In all layers.
[[nodiscard]] inline Result<void> config_experts(const ModelKeys& keys, ModelSpec& spec, const RouteSpec& route,
                                                 std::uint32_t hidden) {
    return config_experts(keys, spec, route, hidden, 0, [](std::size_t) { return true; });
}

}  // namespace decant::inline DECANT_ABI

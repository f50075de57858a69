// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Rotary positions from config.json: `rope_theta` and `rope_scaling`, or the `rope_parameters` that transformers 5
/// writes.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/rope_scaling.hpp>
#include <decant/model/spec.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// Where a table's numbers stand, and what holds without them.
struct RopeWords {
    RopeLayout layout = RopeLayout::halves;
    std::string_view theta = "rope_theta";
    double usual_theta = 10000.0;
    std::string_view partial = "partial_rotary_factor";
    double usual_partial = 1.0;
    std::string_view head_dim = "head_dim";  ///< the key that the length of a head follows from
    std::string_view group{};                ///< the layer type whose part of rope_parameters this is
    bool scaled = true;                      ///< whether rope_scaling is about this table
};

/// What the keys of a table's scaling begin with.
[[nodiscard]] inline std::string rope_prefix(const ModelKeys& keys, std::string_view group = {}) {
    if (!keys.contains_group("rope_parameters")) return "rope_scaling.";
    return group.empty() ? std::string("rope_parameters.") : detail::text("rope_parameters.", group, ".");
}

/// The rotary table of heads of `head_dim` elements. Errors name the key.
[[nodiscard]] inline Result<RopeTable> config_rope(const ModelKeys& keys, const ModelSpec& spec, std::uint32_t head_dim,
                                                   const RopeWords& words = {}) {
    const bool nested = keys.contains_group("rope_parameters");
    const std::string prefix = rope_prefix(keys, words.group);
    const auto key = [&](std::string_view name) { return detail::text(prefix, name); };
    const auto own = [&](std::string_view name) { return nested ? key(name) : std::string(name); };

    DECANT_TRY(const double theta,
               keys.positive(nested ? key("rope_theta") : std::string(words.theta), words.usual_theta));
    const std::string partial_key =
        keys.contains(own("partial_rotary_factor")) ? own("partial_rotary_factor") : std::string(words.partial);
    DECANT_TRY(const double partial, keys.positive(partial_key, words.usual_partial));
    const double rotated = std::floor(head_dim * partial);
    if (partial > 1.0 || rotated < 2.0 || std::fmod(rotated, 2.0) != 0.0) {
        return keys.wrong(
            ErrorCode::bad_format, partial_key,
            detail::text("value ", partial, " rotates ", rotated, " of the ", head_dim, " of ", words.head_dim),
            "an even number of them must be rotated");
    }
    const auto dim = static_cast<std::uint32_t>(rotated);
    RopeTable table{{words.layout, head_dim, dim, 1.0f}, rope_frequencies(dim, theta)};
    if (!words.scaled && !nested) return table;

    DECANT_TRY(const std::string_view old_rule, keys.string(key("type"), "default"));
    DECANT_TRY(const std::string_view rule, keys.string(key("rope_type"), old_rule));
    if (rule == "default") return table;
    if (rule != "linear" && rule != "llama3" && rule != "yarn") {
        return keys.wrong(ErrorCode::unsupported, key("rope_type"), detail::text("unknown rule ", detail::quoted(rule)),
                          "known: default, linear, llama3, yarn");
    }
    const auto needed = [&](std::string_view name) -> Result<double> {
        if (keys.contains(key(name))) return keys.positive(key(name));
        return keys.wrong(ErrorCode::missing, key(name), detail::text("rope_type ", detail::quoted(rule), " needs it"));
    };
    DECANT_TRY(const double factor, needed("factor"));
    const std::string original_key = key("original_max_position_embeddings");
    if (rule == "linear") {
        scale_linear(table.frequencies, factor);
        return table;
    }
    if (rule == "llama3") {
        Llama3Scaling llama{factor};
        DECANT_TRY(llama.low, needed("low_freq_factor"));
        DECANT_TRY(llama.high, needed("high_freq_factor"));
        DECANT_CHECK(needed("original_max_position_embeddings"));
        DECANT_TRY(llama.original_context, keys.count(original_key));
        if (!(llama.low < llama.high)) {
            return keys.wrong(ErrorCode::bad_format, key("low_freq_factor"),
                              detail::text("value ", llama.low, " is not below high_freq_factor ", llama.high));
        }
        scale_llama3(table.frequencies, llama);
        return table;
    }
    YarnScaling yarn;
    yarn.factor = factor;
    DECANT_TRY(yarn.original_context, keys.count(original_key, spec.context_length));
    DECANT_TRY(yarn.beta_fast, keys.positive(key("beta_fast"), yarn.beta_fast));
    DECANT_TRY(yarn.beta_slow, keys.positive(key("beta_slow"), yarn.beta_slow));
    DECANT_TRY(yarn.truncate, keys.flag(key("truncate"), true));
    if (theta == 1.0) return keys.wrong(ErrorCode::bad_format, own(words.theta), "value 1 with YaRN scaling");
    scale_yarn(table.frequencies, theta, yarn);
    if (keys.contains(key("attention_factor"))) {
        DECANT_TRY(const double attention, keys.positive(key("attention_factor")));
        table.rope.magnitude = static_cast<float>(attention);
    } else if (keys.contains(key("mscale")) && keys.contains(key("mscale_all_dim"))) {
        DECANT_TRY(const double m, keys.positive(key("mscale")));
        DECANT_TRY(const double all, keys.positive(key("mscale_all_dim")));
        table.rope.magnitude = yarn.magnitude(m) / yarn.magnitude(all);
    } else {
        table.rope.magnitude = yarn.magnitude();
    }
    return table;
}

}  // namespace decant::inline DECANT_ABI

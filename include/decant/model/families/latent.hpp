// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What models with latent attention share.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <cmath>
#include <cstdint>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// Latent attention in all layers, with scores scaled by magnitude^2 / sqrt(plain + rope), and a feed-forward part.
[[nodiscard]] inline Result<void> latent_layers(const ModelKeys& keys, ModelSpec& spec, const LatentSpec& latent,
                                                std::string_view heads_key, std::string_view hidden_key,
                                                float magnitude) {
    DECANT_TRY(const std::uint32_t heads, keys.count(heads_key));
    DECANT_TRY(const std::uint32_t hidden, keys.count(hidden_key));
    const std::uint64_t widest = std::uint64_t{latent.plain} + latent.rope + latent.kv_rank + latent.value;
    constexpr std::uint64_t longest = std::uint64_t{1} << 16;
    if (heads * widest > ModelKeys::largest || widest > longest) {
        return keys.wrong(ErrorCode::bad_format, heads_key, detail::text("value ", heads, " is too large"),
                          "the file is damaged");
    }
    const auto head_dim = static_cast<float>(latent.plain + latent.rope);
    for (LayerSpec& layer : spec.layers) {
        layer.attention = {heads, 1, latent.rope + latent.kv_rank, magnitude * magnitude / std::sqrt(head_dim)};
        layer.attention.key_skip = latent.rope;
        layer.latent = latent;
        layer.hidden = hidden;
    }
    return {};
}

}  // namespace decant::inline DECANT_ABI

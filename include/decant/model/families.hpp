// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The list of known families: from the architecture's name in a file to the function that reads its spec.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/gemma3.hpp>
#include <decant/model/families/llama.hpp>
#include <decant/model/families/qwen.hpp>
#include <decant/model/spec.hpp>

#include <array>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {

struct Family {
    std::string_view architecture;  ///< GGUF's general.architecture
    Result<ModelSpec> (*spec)(const Weights&);
};

inline constexpr std::array families{Family{"gemma3", &gemma3_spec}, Family{"llama", &llama_spec},
                                     Family{"qwen2", &qwen2_spec}, Family{"qwen3", &qwen3_spec}};

/// The spec of the model in a file. Errors: `missing` without an architecture, `unsupported` for an unknown one.
[[nodiscard]] inline Result<ModelSpec> read_spec(const Weights& weights) {
    DECANT_TRY(const std::string_view architecture, weights.metadata().string("general.architecture"));
    std::string known;
    for (const Family& family : families) {
        if (family.architecture == architecture) return family.spec(weights);
        known += detail::text(known.empty() ? "" : ", ", family.architecture);
    }
    return Error{ErrorCode::unsupported, detail::text("unknown architecture ", detail::quoted(architecture)),
                 "key general.architecture", detail::text("known: ", known)};
}

}  // namespace decant::inline DECANT_ABI

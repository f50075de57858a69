// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The list of known families: from the architecture's name in a file to the function that reads its spec.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/families/deepseek.hpp>
#include <decant/model/families/ernie4_5.hpp>
#include <decant/model/families/gemma2.hpp>
#include <decant/model/families/gemma3.hpp>
#include <decant/model/families/gpt_neox.hpp>
#include <decant/model/families/gpt_oss.hpp>
#include <decant/model/families/llama.hpp>
#include <decant/model/families/mamba2.hpp>
#include <decant/model/families/mixtral.hpp>
#include <decant/model/families/phi3.hpp>
#include <decant/model/families/qwen.hpp>
#include <decant/model/families/qwen3_moe.hpp>
#include <decant/model/families/stablelm.hpp>
#include <decant/model/inert_keys.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/spec.hpp>

#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace decant::inline DECANT_ABI {

/// Fills a spec from a file's keys. Errors name the key.
using ReadSpec = Result<ModelSpec> (*)(const Weights&, const ModelKeys&);

struct Family {
    std::string_view architecture;  ///< GGUF's general.architecture, which its keys begin with
    std::string_view model_type;    ///< that of config.json
    ReadSpec gguf;                  ///< null where there are no such files
    ReadSpec config;
};

inline constexpr std::array families{
    Family{"deepseek2", "deepseek_v3", &deepseek_gguf, &deepseek_config},
    Family{"ernie4_5", "ernie4_5", &ernie4_5_gguf, &ernie4_5_config},
    Family{"gemma2", "gemma2", &gemma2_gguf, &gemma2_config},
    Family{"gemma3", "gemma3_text", &gemma3_gguf, &gemma3_config},
    Family{"gptneox", "gpt_neox", &gpt_neox_gguf, &gpt_neox_config},
    Family{"gpt-oss", "gpt_oss", &gpt_oss_gguf, &gpt_oss_config},
    Family{"llama", "llama", &llama_gguf, &llama_config},
    Family{"mamba2", "mamba2", &mamba2_gguf, &mamba2_config},
    Family{"", "mixtral", nullptr, &mixtral_config},
    Family{"phi3", "phi3", &phi3_gguf, &phi3_config},
    Family{"qwen2", "qwen2", &qwen2_gguf, &qwen2_config},
    Family{"qwen3", "qwen3", &qwen3_gguf, &qwen3_config},
    Family{"qwen3moe", "qwen3_moe", &qwen3_moe_gguf, &qwen3_moe_config},
    Family{"stablelm", "stablelm", &stablelm_gguf, &stablelm_config},
};

/// The spec of the model in a file. Errors: `missing` without an architecture, `unsupported` for an unknown one or for
/// a key that the family does not know and that may mean something.
[[nodiscard]] inline Result<ModelSpec> read_spec(const Weights& weights) {
    if (weights.format() == WeightsFormat::safetensors) {
        return Error{ErrorCode::missing, "a safetensors file alone does not say its architecture", weights.name(),
                     "open the folder that holds it and config.json"};
    }
    const bool gguf = weights.format() == WeightsFormat::gguf;
    const std::string_view key = gguf ? "general.architecture" : "model_type";
    DECANT_TRY(const std::string_view name, weights.metadata().string(key));
    std::string known;
    for (const Family& family : families) {
        const std::string_view own = gguf ? family.architecture : family.model_type;
        if (own.empty()) continue;
        if (own != name) {
            known += detail::text(known.empty() ? "" : ", ", own);
            continue;
        }
        const ModelKeys keys(weights, gguf ? name : std::string_view{});
        auto read = (gguf ? family.gguf : family.config)(weights, keys);
        if (!read) {
            Error error = std::move(read).error();
            if (!gguf && error.hint.empty()) error.hint = detail::text("model_type is ", detail::quoted(name));
            return error;
        }
        ModelSpec spec = *std::move(read);
        spec.family = name;
        DECANT_CHECK(gguf ? check_gguf_keys(keys) : check_config_keys(keys, name));
        return spec;
    }
    return Error{ErrorCode::unsupported, detail::text("unknown architecture ", detail::quoted(name)),
                 detail::text("key ", key), detail::text("known: ", known)};
}

}  // namespace decant::inline DECANT_ABI

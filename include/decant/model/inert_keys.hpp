// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Nothing in a file is silently ignored: a key that no one has read is an error, unless it stands here because it says
/// nothing about how logits are computed.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/model/model_keys.hpp>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// Keys of config.json about training, sampling, precision, bookkeeping, or the way to compute the same. One that ends
/// with '.' or '_' stands for all that begin so.
inline constexpr std::string_view inert_config_keys[] = {
    // What the folder is.
    "architectures",
    "model_type",
    "_name_or_path",
    "name_or_path",
    "auto_map.",
    "transformers_version",
    "transformers.js_config.",
    "_attn_implementation_autoset",
    "_commit_hash",
    "unsloth_",
    "hub_",
    // Precision in which it was trained or saved.
    "torch_dtype",
    "dtype",
    "torchscript",
    "residual_in_fp32",
    // Training.
    "initializer_range",
    "attention_dropout",
    "hidden_dropout",
    "classifier_dropout",
    "embd_pdrop",
    "resid_pdrop",
    "attn_pdrop",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "output_router_logits",
    "aux_loss_alpha",
    "seq_aux",
    "rescale_prenorm_residual",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "time_step_rank",
    "initial_context_length",
    // Written by some, and read by no version of transformers.
    "is_llama_config",
    "rope_interleaved",
    "norm_before_gate",
    "rms_norm",
    // Other ways to compute the same.
    "pretraining_tp",
    "use_cache",
    "cache_implementation",
    "chunk_size",
    "ep_size",
    "use_mambapy",
    "is_decoder",
    "is_encoder_decoder",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    // Tokens, which the tokenizer knows.
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "id2label.",
    "label2id.",
    "problem_type",
    "task_specific_params.",
};

/// Errors: `unsupported`, naming the first key of config.json that nobody has read and that is not inert.
[[nodiscard]] inline Result<void> check_config_keys(const ModelKeys& keys, std::string_view model_type) {
    for (const std::string_view key : keys.unread()) {
        const bool inert =
            std::any_of(std::begin(inert_config_keys), std::end(inert_config_keys), [&](std::string_view known) {
                return known.ends_with('.') || known.ends_with('_') ? key.starts_with(known) : key == known;
            });
        if (inert) continue;
        return keys.wrong(ErrorCode::unsupported, key,
                          detail::text("model_type ", detail::quoted(model_type), " has no use for this key"),
                          "the model is a variant that this version does not know");
    }
    return {};
}

/// GGUF converters write keys that only some loaders read; these change what a model computes.
[[nodiscard]] inline Result<void> check_gguf_keys(const ModelKeys& keys) {
    constexpr std::string_view weighty[] = {"expert_count",    "attn_logit_softcapping",   "final_logit_softcapping",
                                            "logit_scale",     "embedding_scale",          "residual_scale",
                                            "attention.scale", "attention.max_alibi_bias", "attention.clamp_kqv"};
    const auto unread = keys.unread();
    for (const std::string_view key : weighty) {
        const auto found = std::find_if(unread.begin(), unread.end(), [&](std::string_view full) {
            return full.size() > key.size() && full.ends_with(key) && full[full.size() - key.size() - 1] == '.';
        });
        if (found == unread.end()) continue;
        return keys.wrong(ErrorCode::unsupported, key, "the family has no use for this key",
                          "the model is a variant that this version does not know");
    }
    return {};
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Nothing in a file is silently ignored: a key that no one has read is an error, unless it stands here because it says
/// nothing about how logits are computed.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/model/model_keys.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// Keys of config.json about training, sampling, precision, bookkeeping, or the way to compute the same. One that ends
/// with '.' or '_' stands for all that begin so.
inline constexpr std::array inert_config_keys{
    // What the folder is.
    std::string_view("architectures"),
    std::string_view("model_type"),
    std::string_view("_name_or_path"),
    std::string_view("name_or_path"),
    std::string_view("auto_map."),
    std::string_view("transformers_version"),
    std::string_view("transformers.js_config."),
    std::string_view("_attn_implementation_autoset"),
    std::string_view("_commit_hash"),
    std::string_view("unsloth_"),
    std::string_view("hub_"),
    // Precision in which it was trained or saved.
    std::string_view("torch_dtype"),
    std::string_view("dtype"),
    std::string_view("torchscript"),
    std::string_view("residual_in_fp32"),
    // Training.
    std::string_view("initializer_range"),
    std::string_view("attention_dropout"),
    std::string_view("hidden_dropout"),
    std::string_view("classifier_dropout"),
    std::string_view("embd_pdrop"),
    std::string_view("resid_pdrop"),
    std::string_view("attn_pdrop"),
    std::string_view("router_aux_loss_coef"),
    std::string_view("router_jitter_noise"),
    std::string_view("output_router_logits"),
    std::string_view("aux_loss_alpha"),
    std::string_view("seq_aux"),
    std::string_view("rescale_prenorm_residual"),
    std::string_view("time_step_min"),
    std::string_view("time_step_max"),
    std::string_view("time_step_floor"),
    std::string_view("time_step_rank"),
    std::string_view("initial_context_length"),
    // Other ways to compute the same.
    std::string_view("pretraining_tp"),
    std::string_view("use_cache"),
    std::string_view("cache_implementation"),
    std::string_view("chunk_size"),
    std::string_view("ep_size"),
    std::string_view("use_mambapy"),
    std::string_view("is_decoder"),
    std::string_view("is_encoder_decoder"),
    std::string_view("return_dict"),
    std::string_view("output_attentions"),
    std::string_view("output_hidden_states"),
    // Tokens, which the tokenizer knows.
    std::string_view("bos_token_id"),
    std::string_view("eos_token_id"),
    std::string_view("pad_token_id"),
    std::string_view("unk_token_id"),
    std::string_view("sep_token_id"),
    std::string_view("id2label."),
    std::string_view("label2id."),
    std::string_view("problem_type"),
    std::string_view("task_specific_params."),
};

/// Errors: `unsupported`, naming the first key of config.json that nobody has read and that is not inert.
[[nodiscard]] inline Result<void> check_config_keys(const ModelKeys& keys) {
    for (const std::string_view key : keys.unread()) {
        const bool inert = std::any_of(inert_config_keys.begin(), inert_config_keys.end(), [&](std::string_view known) {
            return known.ends_with('.') || known.ends_with('_') ? key.starts_with(known) : key == known;
        });
        if (inert) continue;
        return keys.wrong(ErrorCode::unsupported, key, "the family has no use for this key",
                          "the model is a variant that this version does not know");
    }
    return {};
}

/// GGUF converters write keys that only some loaders read; these change what a model computes.
[[nodiscard]] inline Result<void> check_gguf_keys(const ModelKeys& keys) {
    constexpr std::array weighty{std::string_view("expert_count"),
                                 std::string_view("attn_logit_softcapping"),
                                 std::string_view("final_logit_softcapping"),
                                 std::string_view("logit_scale"),
                                 std::string_view("embedding_scale"),
                                 std::string_view("residual_scale"),
                                 std::string_view("attention.scale"),
                                 std::string_view("attention.max_alibi_bias"),
                                 std::string_view("attention.clamp_kqv")};
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

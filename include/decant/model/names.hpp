// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What tensors are called: a role has one name in GGUF files and one in Hugging Face folders. A family that calls a
/// tensor otherwise changes the entry.

#include <decant/core/config.hpp>
#include <decant/core/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// What a tensor is for.
enum class Role : std::uint8_t {
    // Of the model.
    embedding,
    final_norm,
    head,
    // Of a layer: norms of what its two halves read, and of what they add.
    attention_norm,
    attention_post_norm,
    hidden_norm,
    hidden_post_norm,
    // Attention.
    q,
    k,
    v,
    qkv,  ///< the three in one
    out,
    q_norm,
    k_norm,
    sinks,
    // Latent attention.
    q_a,
    q_a_norm,
    q_b,
    kv_a,
    kv_a_norm,
    kv_b,  ///< k_b (transposed) and v_b in one
    k_b,
    v_b,
    // The feed-forward part.
    gate,
    up,
    gate_up,  ///< the two in one
    down,
    // Mixture of experts.
    router,
    router_bias,
    expert_gate,
    expert_up,
    expert_gate_up,  ///< the two in one
    expert_down,
    shared_gate,
    shared_up,
    shared_down,
    // State space.
    state_in,
    state_conv,
    state_step,
    state_a,
    state_skip,
    state_norm,
    state_out,
};

/// The names of one file. A name is given without its ending `.weight` or `.bias`; "{}" in it stands for the number of
/// an expert that is a tensor of its own. An empty name: files do not have such a tensor.
class TensorNames {
 public:
    /// The names that the llama.cpp converter gives.
    [[nodiscard]] static TensorNames gguf() { return TensorNames("blk.", &Entry::gguf); }
    /// The names of most models in transformers.
    [[nodiscard]] static TensorNames hugging_face() { return TensorNames("model.layers.", &Entry::hugging_face); }

    [[nodiscard]] std::string_view& operator[](Role role) { return names_[static_cast<std::size_t>(role)]; }
    [[nodiscard]] std::string_view operator[](Role role) const { return names_[static_cast<std::size_t>(role)]; }

    /// The name of a tensor of the model, or of a layer.
    [[nodiscard]] std::string of(Role role) const { return std::string((*this)[role]); }
    [[nodiscard]] std::string of(Role role, std::size_t layer) const {
        return detail::text(layers, layer, ".", (*this)[role]);
    }

    std::string_view layers;          ///< what the names of layers' tensors begin with, before the layer's number
    bool gguf_words = false;          ///< whether messages speak of the keys of GGUF
    bool qkv_by_head = false;         ///< rows of `qkv` are [heads, 3, head_dim], not [3, heads, head_dim]
    bool experts_across = false;      ///< experts are [in, out], gate and up alternating (gpt-oss in transformers)
    bool state_a_is_log = false;      ///< `state_a` holds log(-a)
    std::uint32_t unused_layers = 0;  ///< layers behind the last that no pass reads (multi-token prediction)

 private:
    struct Entry {
        Role role;
        std::string_view gguf;
        std::string_view hugging_face;
    };
    static constexpr std::array entries{
        Entry{Role::embedding, "token_embd", "model.embed_tokens"},
        Entry{Role::final_norm, "output_norm", "model.norm"},
        Entry{Role::head, "output", "lm_head"},
        Entry{Role::attention_norm, "attn_norm", "input_layernorm"},
        Entry{Role::attention_post_norm, "post_attention_norm", "post_attention_layernorm"},
        Entry{Role::hidden_norm, "ffn_norm", "post_attention_layernorm"},
        Entry{Role::hidden_post_norm, "post_ffw_norm", "post_feedforward_layernorm"},
        Entry{Role::q, "attn_q", "self_attn.q_proj"},
        Entry{Role::k, "attn_k", "self_attn.k_proj"},
        Entry{Role::v, "attn_v", "self_attn.v_proj"},
        Entry{Role::qkv, "", ""},
        Entry{Role::out, "attn_output", "self_attn.o_proj"},
        Entry{Role::q_norm, "attn_q_norm", "self_attn.q_norm"},
        Entry{Role::k_norm, "attn_k_norm", "self_attn.k_norm"},
        Entry{Role::sinks, "attn_sinks", "self_attn.sinks"},
        Entry{Role::q_a, "attn_q_a", "self_attn.q_a_proj"},
        Entry{Role::q_a_norm, "attn_q_a_norm", "self_attn.q_a_layernorm"},
        Entry{Role::q_b, "attn_q_b", "self_attn.q_b_proj"},
        Entry{Role::kv_a, "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
        Entry{Role::kv_a_norm, "attn_kv_a_norm", "self_attn.kv_a_layernorm"},
        Entry{Role::kv_b, "", "self_attn.kv_b_proj"},
        Entry{Role::k_b, "attn_k_b", ""},
        Entry{Role::v_b, "attn_v_b", ""},
        Entry{Role::gate, "ffn_gate", "mlp.gate_proj"},
        Entry{Role::up, "ffn_up", "mlp.up_proj"},
        Entry{Role::gate_up, "", ""},
        Entry{Role::down, "ffn_down", "mlp.down_proj"},
        Entry{Role::router, "ffn_gate_inp", "mlp.gate"},
        Entry{Role::router_bias, "exp_probs_b", "mlp.gate.e_score_correction_bias"},
        Entry{Role::expert_gate, "ffn_gate_exps", "mlp.experts.{}.gate_proj"},
        Entry{Role::expert_up, "ffn_up_exps", "mlp.experts.{}.up_proj"},
        Entry{Role::expert_gate_up, "", ""},
        Entry{Role::expert_down, "ffn_down_exps", "mlp.experts.{}.down_proj"},
        Entry{Role::shared_gate, "ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
        Entry{Role::shared_up, "ffn_up_shexp", "mlp.shared_experts.up_proj"},
        Entry{Role::shared_down, "ffn_down_shexp", "mlp.shared_experts.down_proj"},
        Entry{Role::state_in, "ssm_in", "mixer.in_proj"},
        Entry{Role::state_conv, "ssm_conv1d", "mixer.conv1d"},
        Entry{Role::state_step, "ssm_dt.bias", "mixer.dt_bias"},
        Entry{Role::state_a, "ssm_a", "mixer.A_log"},
        Entry{Role::state_skip, "ssm_d", "mixer.D"},
        Entry{Role::state_norm, "ssm_norm", "mixer.norm"},
        Entry{Role::state_out, "ssm_out", "mixer.out_proj"},
    };

    TensorNames(std::string_view prefix, std::string_view Entry::*column)
        : layers(prefix), gguf_words(column == &Entry::gguf) {
        for (const Entry& entry : entries) (*this)[entry.role] = entry.*column;
    }

    std::array<std::string_view, entries.size()> names_{};
};

}  // namespace decant::inline DECANT_ABI

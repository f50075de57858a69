// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Binds a model's weights: every tensor that the spec asks for, its shape checked, and none left over.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/binder.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/names.hpp>
#include <decant/model/spec.hpp>
#include <decant/model/weights_map.hpp>
#include <decant/quant/formats.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

namespace detail {

/// Binds the layers of one file.
template <class B>
class LayerBinder {
 public:
    using W = typename B::Weight;

    LayerBinder(Binder<B>& binder, const ModelSpec& spec) : binder_(binder), spec_(spec), width_(Extent::width(spec)) {}

    [[nodiscard]] Result<LayerWeights<W>> bind(std::size_t l) {
        const LayerSpec& layer = spec_.layers[l];
        binder_.layer = l;
        LayerWeights<W> w;
        DECANT_TRY(w.attention_norm, norm(Role::attention_norm));
        if (layer.state.heads > 0) {
            DECANT_TRY(w.state, state(layer.state));
            DECANT_TRY(w.out, affine(Role::state_out, width_,
                                     Extent{layer.state.channels(), "ssm.inner_size", "num_heads * head_dim"}));
        } else if (layer.is_latent()) {
            DECANT_TRY(w.latent, latent(layer));
            DECANT_TRY(w.out,
                       affine(Role::out, width_,
                              heads_times(layer, layer.latent.value, "attention.value_length_mla", "v_head_dim")));
        } else {
            DECANT_TRY(w.attention, attention(layer));
            DECANT_TRY(w.out, affine(Role::out, width_, queries(layer)));
        }
        if (layer.post_norms) {
            DECANT_TRY(w.attention_post_norm, binder_.vector(Role::attention_post_norm, width_));
            DECANT_TRY(w.hidden_post_norm, binder_.vector(Role::hidden_post_norm, width_));
        }
        if (layer.hidden == 0 && !layer.routes()) return w;
        if (!layer.parallel || binder_.contains(Role::hidden_norm)) {
            DECANT_TRY(w.hidden_norm, norm(Role::hidden_norm));
        }
        if (layer.routes()) {
            DECANT_TRY(w.experts, experts(layer.experts));
        } else {
            const Extent hidden{layer.hidden, "feed_forward_length", "intermediate_size"};
            DECANT_TRY(w.hidden, feed_forward(layer.gated, hidden, Role::gate, Role::up, Role::down));
        }
        return w;
    }

 private:
    static Extent heads_times(const LayerSpec& layer, std::uint64_t each, std::string_view gguf, std::string_view hf) {
        return {layer.attention.heads * each, text("attention.head_count * ", gguf),
                text("num_attention_heads * ", hf)};
    }
    static Extent queries(const LayerSpec& layer) {
        return heads_times(layer, layer.attention.head_dim, "attention.key_length", "head_dim");
    }
    Result<Affine<W>> affine(Role role, const Extent& rows, const Extent& columns) {
        Affine<W> made;
        DECANT_TRY(made.weight, binder_.matrix(role, rows, columns));
        if (!binder_.contains(role, ".bias")) return made;
        DECANT_TRY(made.bias, binder_.vector(role, rows, ".bias"));
        return made;
    }
    /// A norm of the residual stream.
    Result<Affine<W>> norm(Role role) {
        Affine<W> made;
        DECANT_TRY(made.weight, binder_.vector(role, width_));
        if (!spec_.norm.centered || !binder_.contains(role, ".bias")) return made;
        DECANT_TRY(made.bias, binder_.vector(role, width_, ".bias"));
        return made;
    }
    /// Rows [first, first + count) of an affine map that holds several.
    Result<Affine<W>> part(const Tensor& weight, const std::optional<Tensor>& bias, std::uint64_t first,
                           std::uint64_t count) {
        Affine<W> made;
        DECANT_TRY(made.weight, binder_.rows(weight, first, count));
        if (bias) {
            DECANT_TRY(made.bias, binder_.elements(*bias, first, count));
        }
        return made;
    }
    /// An affine map that holds several, and their parts, whose rows are given.
    Result<std::vector<Affine<W>>> parts(Role role, std::span<const std::uint64_t> counts, const std::string& gguf,
                                         const std::string& hf) {
        std::uint64_t sum = 0;
        for (const std::uint64_t count : counts) sum += count;
        const Extent all{sum, gguf, hf};
        DECANT_TRY(Tensor weight, binder_.tensor(role, all, width_));
        std::optional<Tensor> bias;
        if (binder_.contains(role, ".bias")) {
            DECANT_TRY(bias, binder_.flat(role, all, ".bias"));
        }
        if (role == Role::qkv && spec_.names.qkv_by_head) {
            const std::uint64_t head_dim = spec_.layers[binder_.layer].attention.head_dim;
            const std::uint64_t heads = counts[0] / head_dim;
            const auto row = [=](std::uint64_t r) {
                return (r / head_dim % heads * 3 + r / head_dim / heads) * head_dim + r % head_dim;
            };
            DECANT_TRY(weight, binder_.gathered(weight, all.size, width_.size, [&](std::uint64_t r, std::uint64_t c) {
                return row(r) * width_.size + c;
            }));
            if (bias) {
                DECANT_TRY(
                    bias, binder_.gathered(*bias, 1, all.size, [&](std::uint64_t, std::uint64_t c) { return row(c); }));
            }
        }
        std::vector<Affine<W>> made;
        std::uint64_t first = 0;
        for (const std::uint64_t count : counts) {
            DECANT_TRY(made.emplace_back(), part(weight, bias, first, count));
            first += count;
        }
        return made;
    }

    Result<AttentionWeights<W>> attention(const LayerSpec& layer) {
        AttentionWeights<W> w;
        const Extent q = queries(layer);
        const Extent kv{std::uint64_t{layer.attention.kv_heads} * layer.attention.head_dim,
                        "attention.head_count_kv * attention.key_length",
                        "num_key_value_heads * head_dim or hidden_size / num_attention_heads"};
        if (binder_.contains(Role::qkv)) {
            DECANT_TRY(auto three,
                       parts(Role::qkv, std::array{q.size, kv.size, kv.size}, "attention.head_count and head_count_kv",
                             "num_attention_heads and num_key_value_heads"));
            w.q = std::move(three[0]);
            w.k = std::move(three[1]);
            w.v = std::move(three[2]);
        } else {
            DECANT_TRY(w.q, affine(Role::q, q, width_));
            DECANT_TRY(w.k, affine(Role::k, kv, width_));
            DECANT_TRY(w.v, affine(Role::v, kv, width_));
        }
        if (layer.qk_norm) {
            const Extent head{layer.attention.head_dim, "attention.key_length", "head_dim"};
            DECANT_TRY(w.q_norm, binder_.vector(Role::q_norm, head));
            DECANT_TRY(w.k_norm, binder_.vector(Role::k_norm, head));
        }
        if (layer.sinks) {
            const Extent heads{layer.attention.heads, "attention.head_count", "num_attention_heads"};
            DECANT_TRY(w.sinks, binder_.vector(Role::sinks, heads));
        }
        return w;
    }

    Result<LatentWeights<W>> latent(const LayerSpec& layer) {
        const LatentSpec& s = layer.latent;
        const std::uint64_t heads = layer.attention.heads;
        LatentWeights<W> w;
        const Extent q =
            heads_times(layer, s.plain + s.rope, "attention.key_length_mla", "(qk_nope_head_dim + qk_rope_head_dim)");
        const Extent q_rank{s.q_rank, "attention.q_lora_rank", "q_lora_rank"};
        const Extent kv_rank{s.kv_rank, "attention.kv_lora_rank", "kv_lora_rank"};
        if (s.q_rank > 0) {
            DECANT_TRY(w.q_a, affine(Role::q_a, q_rank, width_));
            DECANT_TRY(w.q_a_norm, binder_.vector(Role::q_a_norm, q_rank));
            DECANT_TRY(w.q_b, affine(Role::q_b, q, q_rank));
        } else {
            DECANT_TRY(w.q_b, affine(Role::q, q, width_));
        }
        DECANT_TRY(auto both,
                   parts(Role::kv_a, std::array<std::uint64_t, 2>{s.kv_rank, s.rope},
                         "attention.kv_lora_rank + rope.dimension_count", "kv_lora_rank + qk_rope_head_dim"));
        w.kv = std::move(both[0]);
        w.k_rope = std::move(both[1]);
        DECANT_TRY(w.kv_norm, binder_.vector(Role::kv_a_norm, kv_rank));

        const Extent plain{s.plain, "attention.key_length_mla - rope.dimension_count", "qk_nope_head_dim"};
        if (!binder_.contains(Role::kv_b)) {
            DECANT_TRY(w.k_b,
                       binder_.matrix(Role::k_b, heads_times(layer, s.kv_rank, kv_rank.gguf, kv_rank.config), plain));
            DECANT_TRY(w.v_b, binder_.matrix(Role::v_b,
                                             heads_times(layer, s.value, "attention.value_length_mla", "v_head_dim"),
                                             kv_rank));
            return w;
        }
        // [heads, plain + value, kv_rank]: the keys' part is transposed, head by head.
        const std::uint64_t each = s.plain + s.value;
        DECANT_TRY(
            const Tensor kv_b,
            binder_.tensor(Role::kv_b, heads_times(layer, each, "", "(qk_nope_head_dim + v_head_dim)"), kv_rank));
        DECANT_TRY(const Tensor k_b,
                   binder_.gathered(kv_b, heads * s.kv_rank, s.plain, [&](std::uint64_t r, std::uint64_t c) {
                       return (r / s.kv_rank * each + c) * s.kv_rank + r % s.kv_rank;
                   }));
        DECANT_TRY(const Tensor v_b,
                   binder_.gathered(kv_b, heads * s.value, s.kv_rank, [&](std::uint64_t r, std::uint64_t c) {
                       return (r / s.value * each + s.plain + r % s.value) * s.kv_rank + c;
                   }));
        DECANT_TRY(w.k_b, binder_.weight(k_b));
        DECANT_TRY(w.v_b, binder_.weight(v_b));
        return w;
    }

    /// The elements of a vector.
    Result<std::vector<float>> floats(Role role, const Extent& size, std::string_view suffix) {
        DECANT_TRY(const Tensor tensor, binder_.flat(role, size, suffix));
        std::vector<float> values(static_cast<std::size_t>(size.size));
        dequantize_row(tensor.dtype, tensor.bytes.data(), values.size(), values.data());
        return values;
    }

    Result<StateWeights<W>> state(const StateSpec& s) {
        StateWeights<W> w;
        const Extent heads{s.heads, "ssm.time_step_rank", "num_heads"};
        const Extent mixed{s.mixed(), "ssm.inner_size + 2 * ssm.group_count * ssm.state_size",
                           "num_heads * head_dim + 2 * n_groups * state_size"};
        DECANT_TRY(auto three, parts(Role::state_in, std::array<std::uint64_t, 3>{s.channels(), s.mixed(), s.heads},
                                     "ssm.inner_size, ssm.group_count, ssm.state_size, ssm.time_step_rank",
                                     "num_heads, head_dim, n_groups, state_size"));
        w.z = std::move(three[0]);
        w.mixed = std::move(three[1]);
        w.steps = std::move(three[2]);
        DECANT_TRY(w.conv, affine(Role::state_conv, mixed, Extent{s.kernel, "ssm.conv_kernel", "conv_kernel"}));
        DECANT_TRY(auto offsets, floats(Role::state_step, heads, ""));
        if (binder_.contains(Role::state_in, ".bias")) {  // the map has one of its own
            const std::uint64_t before = std::uint64_t{s.channels()} + s.mixed();
            DECANT_TRY(const auto own, floats(Role::state_in, Extent{before + s.heads, "", ""}, ".bias"));
            for (std::size_t h = 0; h < offsets.size(); ++h) offsets[h] += own[static_cast<std::size_t>(before) + h];
        }
        DECANT_TRY(w.steps.bias, binder_.backend().constant(std::move(offsets)));
        DECANT_TRY(w.skip, binder_.vector(Role::state_skip, heads, ""));
        DECANT_TRY(w.norm,
                   binder_.vector(Role::state_norm, Extent{s.channels(), "ssm.inner_size", "num_heads * head_dim"}));
        DECANT_TRY(auto rates, floats(Role::state_a, heads, ""));
        if (spec_.names.state_a_is_log)
            for (float& rate : rates) rate = -std::exp(rate);
        DECANT_TRY(w.a, binder_.backend().constant(std::move(rates)));
        return w;
    }

    Result<HiddenWeights<W>> feed_forward(bool gated, const Extent& hidden, Role gate, Role up, Role down) {
        HiddenWeights<W> w;
        if (gate == Role::gate && binder_.contains(Role::gate_up)) {
            DECANT_TRY(auto two, parts(Role::gate_up, std::array{hidden.size, hidden.size}, "2 * feed_forward_length",
                                       "2 * intermediate_size"));
            w.gate = std::move(two[0]);
            w.up = std::move(two[1]);
        } else {
            if (gated) {
                DECANT_TRY(w.gate, affine(gate, hidden, width_));
            }
            DECANT_TRY(w.up, affine(up, hidden, width_));
        }
        DECANT_TRY(w.down, affine(down, width_, hidden));
        return w;
    }

    Result<ExpertsWeights<W>> experts(const ExpertsSpec& s) {
        ExpertsWeights<W> w;
        const Extent count{s.route.experts, "expert_count", "num_local_experts, n_routed_experts"};
        const Extent hidden{s.hidden, "expert_feed_forward_length", "moe_intermediate_size, intermediate_size"};
        DECANT_TRY(w.router, affine(Role::router, count, width_));
        for (const std::string_view suffix : {"", ".bias"}) {
            if (!binder_.contains(Role::router_bias, suffix)) continue;
            DECANT_TRY(w.router_bias, binder_.vector(Role::router_bias, count, suffix));
        }
        if (binder_.contains(Role::expert_gate_up)) {
            DECANT_TRY(w.gate, alternating(count, hidden, 0));
            DECANT_TRY(w.up, alternating(count, hidden, 1));
        } else {
            DECANT_TRY(w.gate, stack(Role::expert_gate, count, hidden, width_));
            DECANT_TRY(w.up, stack(Role::expert_up, count, hidden, width_));
        }
        DECANT_TRY(w.down, stack(Role::expert_down, count, width_, hidden));
        if (s.shared > 0) {
            const Extent shared{s.shared, "expert_shared_feed_forward_length",
                                "n_shared_experts * moe_intermediate_size"};
            DECANT_TRY(w.shared, feed_forward(true, shared, Role::shared_gate, Role::shared_up, Role::shared_down));
        }
        return w;
    }

    /// One map per expert, from a tensor each or from one that holds all.
    Result<ExpertAffine<W>> stack(Role role, const Extent& count, const Extent& rows, const Extent& columns) {
        ExpertAffine<W> made;
        if (spec_.names[role].find("{}") != std::string_view::npos) {
            for (std::uint64_t e = 0; e < count.size; ++e) {
                binder_.expert = e;
                DECANT_TRY(auto one, affine(role, rows, columns));
                made.weights.push_back(std::move(one.weight));
                if (one.bias) made.biases.push_back(*std::move(one.bias));
                if (made.biases.empty() || made.biases.size() == made.weights.size()) continue;
                return Error{ErrorCode::mismatch, "some experts have a bias and others have none",
                             tensor_label(spec_.names.of(role, binder_.layer)), "the file is damaged"};
            }
            return made;
        }
        const bool across = spec_.names.experts_across;
        DECANT_TRY(Tensor all, binder_.tensor(role, count * (across ? columns : rows), across ? rows : columns));
        if (across) {
            DECANT_TRY(
                all, binder_.gathered(all, count.size * rows.size, columns.size, [&](std::uint64_t r, std::uint64_t c) {
                    return (r / rows.size * columns.size + c) * rows.size + r % rows.size;
                }));
        }
        DECANT_CHECK(split(all, role, count.size, rows, made));
        return made;
    }
    /// Gate (`odd` = 0) or up (1) of a tensor [experts, width, hidden * 2] whose last dimension alternates.
    Result<ExpertAffine<W>> alternating(const Extent& count, const Extent& hidden, std::uint64_t odd) {
        constexpr Role role = Role::expert_gate_up;
        ExpertAffine<W> made;
        const Extent two{2 * hidden.size, text("2 * ", hidden.gguf), text("2 * ", hidden.config)};
        DECANT_TRY(const Tensor both, binder_.tensor(role, count * width_, two));
        DECANT_TRY(const Tensor all,
                   binder_.gathered(both, count.size * hidden.size, width_.size, [&](std::uint64_t r, std::uint64_t c) {
                       return (r / hidden.size * width_.size + c) * two.size + 2 * (r % hidden.size) + odd;
                   }));
        for (std::uint64_t e = 0; e < count.size; ++e) {
            DECANT_TRY(made.weights.emplace_back(), binder_.rows(all, e * hidden.size, hidden.size));
        }
        if (!binder_.contains(role, "_bias")) return made;
        DECANT_TRY(const Tensor biases, binder_.flat(role, count * two, "_bias"));
        DECANT_TRY(const Tensor own,
                   binder_.gathered(biases, count.size, hidden.size,
                                    [&](std::uint64_t r, std::uint64_t c) { return r * two.size + 2 * c + odd; }));
        for (std::uint64_t e = 0; e < count.size; ++e) {
            DECANT_TRY(made.biases.emplace_back(), binder_.elements(own, e * hidden.size, hidden.size));
        }
        return made;
    }
    Result<void> split(const Tensor& all, Role role, std::uint64_t count, const Extent& rows, ExpertAffine<W>& made) {
        for (std::uint64_t e = 0; e < count; ++e) {
            DECANT_TRY(made.weights.emplace_back(), binder_.rows(all, e * rows.size, rows.size));
        }
        for (const std::string_view suffix : {".bias", "_bias"}) {
            if (!binder_.contains(role, suffix)) continue;
            DECANT_TRY(const Tensor biases, binder_.flat(role, Extent{count, "", ""} * rows, suffix));
            for (std::uint64_t e = 0; e < count; ++e) {
                DECANT_TRY(made.biases.emplace_back(), binder_.elements(biases, e * rows.size, rows.size));
            }
        }
        return {};
    }

    Binder<B>& binder_;
    const ModelSpec& spec_;
    Extent width_;
};

}  // namespace detail

/// Rows of the embedding. Errors: `missing`, `mismatch`.
[[nodiscard]] inline Result<std::uint32_t> vocabulary_of(const Weights& weights, const ModelSpec& spec) {
    const std::string name = spec.names.of(Role::embedding) + ".weight";
    DECANT_TRY(const Tensor embedding, weights.tensor(name));
    if (embedding.rows() == 0 || embedding.rows() > ModelKeys::largest) {
        return Error{ErrorCode::mismatch, detail::text("a vocabulary of ", embedding.rows(), " tokens"),
                     detail::tensor_label(name), "the file is damaged"};
    }
    const auto rows = static_cast<std::uint32_t>(embedding.rows());
    if (spec.vocabulary != 0 && spec.vocabulary != rows) {
        return Error{ErrorCode::mismatch,
                     detail::text("vocab_size is ", spec.vocabulary, ", but the embedding has ", rows, " rows"),
                     detail::tensor_label(name), "the folder is damaged or mixes two models"};
    }
    return rows;
}

/// Finds every tensor that the spec asks for and checks that none is left.
template <class B>
[[nodiscard]] Result<ModelWeights<typename B::Weight>> bind_weights(const Weights& weights, const B& backend,
                                                                    ModelSpec& spec) {
    using W = typename B::Weight;
    DECANT_TRY(spec.vocabulary, vocabulary_of(weights, spec));
    Binder<B> binder(weights, backend, spec);
    const Extent vocabulary{spec.vocabulary, "", "vocab_size"};
    const Extent width = Extent::width(spec);
    ModelWeights<W> model;
    DECANT_TRY(model.embedding, binder.matrix(Role::embedding, vocabulary, width));
    DECANT_TRY(model.final_norm.weight, binder.vector(Role::final_norm, width));
    if (spec.norm.centered && binder.contains(Role::final_norm, ".bias")) {
        DECANT_TRY(model.final_norm.bias, binder.vector(Role::final_norm, width, ".bias"));
    }
    if (spec.tied.value_or(false)) {
        binder.mark(spec.names.of(Role::head) + ".weight");  // a copy that some files carry
    } else if (spec.tied.has_value() || binder.contains(Role::head)) {
        DECANT_TRY(model.head, binder.matrix(Role::head, vocabulary, width));
    }
    for (const RopeTable& rope : spec.ropes) {
        DECANT_TRY(model.ropes.emplace_back(), backend.constant(rope.frequencies));
    }
    detail::LayerBinder<B> layers(binder, spec);
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        DECANT_TRY(model.layers.emplace_back(), layers.bind(l));
    }
    DECANT_CHECK(binder.finish());
    model.owners = binder.take_owners();
    return model;
}

}  // namespace decant::inline DECANT_ABI

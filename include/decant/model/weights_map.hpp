// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// A model's weights by role, bound from a file's tensors by name with every shape checked against the spec.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/gguf_keys.hpp>
#include <decant/model/spec.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// A linear map: y = x weight^T (+ bias).
template <class W>
struct Affine {
    W weight;               ///< [out, in]
    std::optional<W> bias;  ///< [out]
    [[nodiscard]] const W* bias_or_null() const noexcept { return bias ? &*bias : nullptr; }
};

template <class W>
struct LayerWeights {
    W attention_norm;                                        ///< [width]
    Affine<W> q;                                             ///< [heads * head_dim, width]
    Affine<W> k;                                             ///< [kv_heads * head_dim, width]
    Affine<W> v;                                             ///< [kv_heads * head_dim, width]
    Affine<W> out;                                           ///< [width, heads * head_dim]
    W hidden_norm;                                           ///< [width]
    std::optional<W> q_norm, k_norm;                         ///< [head_dim]
    std::optional<W> attention_post_norm, hidden_post_norm;  ///< [width]
    Affine<W> gate;                                          ///< [hidden, width]
    Affine<W> up;                                            ///< [hidden, width]
    Affine<W> down;                                          ///< [width, hidden]
};

template <class W>
struct ModelWeights {
    W embedding;            ///< [vocabulary, width]
    W final_norm;           ///< [width]
    std::optional<W> head;  ///< [vocabulary, width]; absent if tied to the embedding
    std::vector<W> ropes;   ///< [dim / 2] each, one per ModelSpec::ropes
    std::vector<LayerWeights<W>> layers;
};

/// Takes tensors from a file one by one and knows at the end which were left over.
template <class B>
class Binder {
 public:
    using W = typename B::Weight;

    Binder(const Weights& weights, const B& backend)
        : weights_(weights), backend_(backend), used_(weights.tensors().size(), false) {}

    /// The tensor `name` with exactly `rows` x `columns` elements. Errors: `missing`, `mismatch` with both shapes.
    [[nodiscard]] Result<W> matrix(const std::string& name, std::uint64_t rows, std::uint64_t columns) {
        DECANT_TRY(const Tensor tensor, weights_.tensor(name));
        const int rank = tensor.shape.rank;
        if (rank > 2 || tensor.rows() != rows || tensor.columns() != columns) {
            return Error{ErrorCode::mismatch,
                         detail::text("expected ", rows, " x ", columns, ", found ", tensor.rows(), " x ",
                                      tensor.columns(), " (rank ", rank, ")"),
                         detail::text("tensor ", detail::quoted(name)),
                         "the file's tensors contradict its metadata: it is damaged or of another model"};
        }
        mark(name);
        return backend_.weight(tensor);
    }
    /// A vector of plain floats (F32, F16 or BF16).
    [[nodiscard]] Result<W> vector(const std::string& name, std::uint64_t columns) {
        const Tensor* tensor = weights_.find(name);
        if (tensor != nullptr && traits(tensor->dtype).block_elements > 1) {
            return Error{ErrorCode::unsupported, detail::text("a vector of type ", tensor->type_name),
                         detail::text("tensor ", detail::quoted(name)), "vectors must be F32, F16 or BF16"};
        }
        return matrix(name, 1, columns);
    }
    [[nodiscard]] Result<Affine<W>> affine(const std::string& name, std::uint64_t rows, std::uint64_t columns) {
        DECANT_TRY(W weight, matrix(name + ".weight", rows, columns));
        if (!contains(name + ".bias")) return Affine<W>{std::move(weight), {}};
        DECANT_TRY(W bias, vector(name + ".bias", rows));
        return Affine<W>{std::move(weight), std::move(bias)};
    }
    [[nodiscard]] bool contains(const std::string& name) const { return weights_.find(name) != nullptr; }
    /// A tensor that somebody else has read.
    void mark(const std::string& name) {
        if (const Tensor* tensor = weights_.find(name))
            used_[static_cast<std::size_t>(tensor - weights_.tensors().data())] = true;
    }
    /// Nothing in a file is silently ignored. Errors: `unsupported`, naming the first tensor that no one took.
    [[nodiscard]] Result<void> finish(std::string_view family) const {
        for (std::size_t i = 0; i < used_.size(); ++i) {
            if (used_[i]) continue;
            return Error{ErrorCode::unsupported, detail::text("the family ", family, " has no use for this tensor"),
                         detail::text("tensor ", detail::quoted(weights_.tensors()[i].name)),
                         "the model is a variant that this version does not know"};
        }
        return {};
    }

 private:
    Weights weights_;
    B backend_;
    std::vector<bool> used_;
};

/// Rows of the embedding. Errors: `missing`, `mismatch`.
[[nodiscard]] inline Result<std::uint32_t> vocabulary_of(const Weights& weights) {
    DECANT_TRY(const Tensor embedding, weights.tensor("token_embd.weight"));
    if (embedding.rows() == 0 || embedding.rows() > GgufKeys::largest) {
        return Error{ErrorCode::mismatch, detail::text("a vocabulary of ", embedding.rows(), " tokens"),
                     "tensor \"token_embd.weight\"", "the file is damaged"};
    }
    return static_cast<std::uint32_t>(embedding.rows());
}

/// Binds a file with GGUF's tensor names.
template <class B>
[[nodiscard]] Result<ModelWeights<typename B::Weight>> bind_gguf(const Weights& weights, const B& backend,
                                                                 ModelSpec& spec) {
    Binder<B> binder(weights, backend);
    ModelWeights<typename B::Weight> model;
    const std::uint64_t width = spec.width;

    DECANT_TRY(spec.vocabulary, vocabulary_of(weights));
    DECANT_TRY(model.embedding, binder.matrix("token_embd.weight", spec.vocabulary, width));
    DECANT_TRY(model.final_norm, binder.vector("output_norm.weight", width));
    if (binder.contains("output.weight")) {
        DECANT_TRY(model.head, binder.matrix("output.weight", spec.vocabulary, width));
    }
    binder.mark("rope_freqs.weight");
    for (const RopeTable& rope : spec.ropes) {
        DECANT_TRY(auto table, backend.constant(rope.frequencies));
        model.ropes.push_back(std::move(table));
    }
    model.layers.resize(spec.layers.size());
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        const LayerSpec& layer = spec.layers[l];
        const std::uint64_t q = std::uint64_t{layer.attention.heads} * layer.attention.head_dim;
        const std::uint64_t kv = std::uint64_t{layer.attention.kv_heads} * layer.attention.head_dim;
        const std::string block = detail::text("blk.", l, ".");
        LayerWeights<typename B::Weight>& w = model.layers[l];
        DECANT_TRY(w.attention_norm, binder.vector(block + "attn_norm.weight", width));
        DECANT_TRY(w.q, binder.affine(block + "attn_q", q, width));
        DECANT_TRY(w.k, binder.affine(block + "attn_k", kv, width));
        DECANT_TRY(w.v, binder.affine(block + "attn_v", kv, width));
        DECANT_TRY(w.out, binder.affine(block + "attn_output", width, q));
        DECANT_TRY(w.hidden_norm, binder.vector(block + "ffn_norm.weight", width));
        if (layer.qk_norm) {
            DECANT_TRY(w.q_norm, binder.vector(block + "attn_q_norm.weight", layer.attention.head_dim));
            DECANT_TRY(w.k_norm, binder.vector(block + "attn_k_norm.weight", layer.attention.head_dim));
        }
        if (layer.post_norms) {
            DECANT_TRY(w.attention_post_norm, binder.vector(block + "post_attention_norm.weight", width));
            DECANT_TRY(w.hidden_post_norm, binder.vector(block + "post_ffw_norm.weight", width));
        }
        DECANT_TRY(w.gate, binder.affine(block + "ffn_gate", layer.hidden, width));
        DECANT_TRY(w.up, binder.affine(block + "ffn_up", layer.hidden, width));
        DECANT_TRY(w.down, binder.affine(block + "ffn_down", width, layer.hidden));
    }
    DECANT_CHECK(binder.finish(spec.family));
    return model;
}

}  // namespace decant::inline DECANT_ABI

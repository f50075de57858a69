// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The one forward pass: reads a `ModelSpec`, enqueues operations. Every family and every backend runs through here.

#include <decant/core/best.hpp>
#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>
#include <decant/model/spec.hpp>
#include <decant/model/weights_map.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Activations of a pass, carved from one buffer. Widths are the largest of any layer; a layer views what it needs.
template <class B>
class Workspace {
 public:
    using View = typename B::View;

    /// Floats that a workspace for passes of this shape needs.
    [[nodiscard]] static std::size_t floats(const ModelSpec& spec, const PassShape& shape) {
        std::size_t row = 2 * std::size_t{spec.width};
        for (const std::uint32_t columns : widths(spec)) row += columns;
        for (const RopeTable& rope : spec.ropes) row += rope.rope.dim;
        return shape.rows * row +
               shape.wanted * (std::size_t{spec.width} + spec.vocabulary + BestTokens::columns(shape.best));
    }

    /// `buffer` holds at least `floats(spec, shape)` floats.
    Workspace(const B& backend, typename B::Buffer& buffer, const ModelSpec& spec, const PassShape& shape)
        : backend_(backend), buffer_(&buffer) {
        std::size_t offset = 0;
        const auto carve = [&](std::uint32_t columns, std::uint32_t rows) {
            const std::size_t at = offset;
            offset += std::size_t{columns} * rows;
            return at;
        };
        const auto [q, kv, hidden_width] = widths_of(spec);
        stream = view(carve(spec.width, shape.rows), spec.width);
        normed = view(carve(spec.width, shape.rows), spec.width);
        q_ = carve(q, shape.rows);
        k_ = carve(kv, shape.rows);
        v_ = carve(kv, shape.rows);
        mixed_ = carve(q, shape.rows);
        gate_ = carve(hidden_width, shape.rows);
        up_ = carve(hidden_width, shape.rows);
        for (const RopeTable& rope : spec.ropes)
            angles.push_back(view(carve(rope.rope.dim, shape.rows), rope.rope.dim));
        last = view(carve(spec.width, shape.wanted), spec.width, RowSet::wanted);
        logits = view(carve(spec.vocabulary, shape.wanted), spec.vocabulary, RowSet::wanted);
        best_columns = BestTokens::columns(shape.best);
        best = view(carve(best_columns, shape.wanted), best_columns, RowSet::wanted);
    }

    /// The views of one layer.
    struct LayerViews {
        View q, k, v;   // [rows, heads * head_dim], [rows, kv_heads * head_dim] twice
        View mixed;     // [rows, heads * head_dim]: attention's result
        View gate, up;  // [rows, hidden]
    };
    [[nodiscard]] LayerViews layer(const LayerSpec& spec) const {
        const std::uint32_t q = spec.attention.heads * spec.attention.head_dim;
        const std::uint32_t kv = spec.attention.kv_heads * spec.attention.head_dim;
        return {view(q_, q),           view(k_, kv), view(v_, kv), view(mixed_, q), view(gate_, spec.hidden),
                view(up_, spec.hidden)};
    }

    View stream;               // [rows, width]: the residual stream
    View normed;               // [rows, width]
    std::vector<View> angles;  // [rows, dim] per rope
    View last;                 // [wanted, width]
    View logits;               // [wanted, vocabulary]
    View best;                 // [wanted, best_columns]
    std::uint32_t best_columns = 0;

 private:
    struct Widths {
        std::uint32_t q = 0, kv = 0, hidden = 0;
    };
    static Widths widths_of(const ModelSpec& spec) {
        Widths most;
        for (const LayerSpec& layer : spec.layers) {
            most.q = (std::max)(most.q, layer.attention.heads * layer.attention.head_dim);
            most.kv = (std::max)(most.kv, layer.attention.kv_heads * layer.attention.head_dim);
            most.hidden = (std::max)(most.hidden, layer.hidden);
        }
        return most;
    }
    static std::vector<std::uint32_t> widths(const ModelSpec& spec) {
        const auto [q, kv, hidden] = widths_of(spec);
        return {q, kv, kv, q, hidden, hidden};
    }
    [[nodiscard]] View view(std::size_t offset, std::uint32_t columns, RowSet rows = RowSet::tokens) const {
        return backend_.view(*buffer_, offset, columns, rows);
    }

    B backend_;
    typename B::Buffer* buffer_;
    std::size_t q_ = 0, k_ = 0, v_ = 0, mixed_ = 0, gate_ = 0, up_ = 0;
};

/// Widest row that any product of the model reads.
[[nodiscard]] inline std::uint32_t widest_input(const ModelSpec& spec) {
    std::uint32_t widest = spec.width;
    for (const LayerSpec& layer : spec.layers)
        widest = (std::max)({widest, layer.attention.heads * layer.attention.head_dim, layer.hidden});
    return widest;
}

/// Enqueues the model on `pass`: tokens to the logits of the wanted rows, and to the `best` of each if that is not 0.
template <class B>
void forward(typename B::Pass& pass, const ModelSpec& spec, const ModelWeights<typename B::Weight>& weights,
             const Workspace<B>& work, std::uint32_t best) {
    using Target = typename B::LinearTarget;
    pass.embed(weights.embedding, work.stream, spec.embedding_scale);
    for (std::size_t r = 0; r < spec.ropes.size(); ++r)
        pass.angles(weights.ropes[r], spec.ropes[r].rope, work.angles[r]);

    // y = x weight^T, added to the residual stream, through a norm if there is one.
    const auto add_to_stream = [&](const auto& x, const auto& affine, const auto& norm) {
        if (!norm) {
            pass.linear(x, {Target{&affine.weight, affine.bias_or_null(), work.stream, true}});
        } else {
            pass.linear(x, {Target{&affine.weight, affine.bias_or_null(), work.normed}});
            pass.norm(work.normed, *norm, spec.norm, work.stream, true);
        }
    };
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        const LayerSpec& layer = spec.layers[l];
        const LayerWeights<typename B::Weight>& w = weights.layers[l];
        const auto views = work.layer(layer);
        const RopeSpec& rope = spec.ropes[layer.rope].rope;
        const auto index = static_cast<std::uint32_t>(l);

        pass.norm(work.stream, w.attention_norm, spec.norm, work.normed);
        pass.linear(work.normed,
                    {Target{&w.q.weight, w.q.bias_or_null(), views.q}, Target{&w.k.weight, w.k.bias_or_null(), views.k},
                     Target{&w.v.weight, w.v.bias_or_null(), views.v}});
        if (w.q_norm) pass.norm(views.q, *w.q_norm, spec.norm, views.q);
        if (w.k_norm) pass.norm(views.k, *w.k_norm, spec.norm, views.k);
        pass.rope(views.q, work.angles[layer.rope], rope);
        pass.rope(views.k, work.angles[layer.rope], rope);
        pass.store(views.k, views.v, index);
        pass.attend(views.q, index, layer.attention, views.mixed);
        add_to_stream(views.mixed, w.out, w.attention_post_norm);

        pass.norm(work.stream, w.hidden_norm, spec.norm, work.normed);
        pass.linear(work.normed, {Target{&w.gate.weight, w.gate.bias_or_null(), views.gate},
                                  Target{&w.up.weight, w.up.bias_or_null(), views.up}});
        pass.gate(views.gate, views.up, spec.activation, views.gate);
        add_to_stream(views.gate, w.down, w.hidden_post_norm);
    }
    pass.gather(work.stream, work.last);
    pass.norm(work.last, weights.final_norm, spec.norm, work.last);
    pass.linear(work.last, {Target{weights.head ? &*weights.head : &weights.embedding, nullptr, work.logits}});
    if (best > 0) pass.pick(work.logits, best, work.best);
}

/// Enqueues the move of cached rows to other positions. Turning an already scaled key keeps its magnitude.
template <class B>
void move_rows(typename B::Pass& pass, const ModelSpec& spec, const ModelWeights<typename B::Weight>& weights,
               const Workspace<B>& work) {
    const auto unscaled = [&](std::size_t r) {
        RopeSpec rope = spec.ropes[r].rope;
        rope.magnitude = 1.0f;
        return rope;
    };
    for (std::size_t r = 0; r < spec.ropes.size(); ++r) pass.angles(weights.ropes[r], unscaled(r), work.angles[r]);
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        const std::size_t r = spec.layers[l].rope;
        pass.move(static_cast<std::uint32_t>(l), work.angles[r], unscaled(r));
    }
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The one forward pass: reads a `ModelSpec`, enqueues operations. Every family and every backend runs through here.

#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>
#include <decant/model/spec.hpp>
#include <decant/model/weights_map.hpp>
#include <decant/model/workspace.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace decant::inline DECANT_ABI {

namespace detail {

/// Enqueues one layer.
template <class B>
class LayerPass {
 public:
    using View = typename B::View;
    using W = typename B::Weight;
    using Target = typename B::LinearTarget;

    LayerPass(typename B::Pass& pass, const ModelSpec& spec, const ModelWeights<W>& weights, const Workspace<B>& work,
              std::size_t index)
        : pass_(pass),
          spec_(spec),
          layer_(spec.layers[index]),
          w_(weights.layers[index]),
          work_(work),
          widths_(spec, layer_),
          index_(static_cast<std::uint32_t>(index)) {}

    void run() {
        const View normed = slot(Slot::normed);
        norm(work_.stream, w_.attention_norm, normed);
        if (layer_.parallel && w_.hidden_norm) norm(work_.stream, *w_.hidden_norm, slot(Slot::hidden_normed));
        if (layer_.state.heads > 0) {
            add(state(normed), w_.out, w_.attention_post_norm);
        } else if (layer_.is_latent()) {
            add(latent(normed), w_.out, w_.attention_post_norm);
        } else {
            add(attention(normed), w_.out, w_.attention_post_norm);
        }
        if (layer_.hidden == 0 && !layer_.routes()) return;
        if (!layer_.parallel) norm(work_.stream, *w_.hidden_norm, normed);
        const View read = layer_.parallel && w_.hidden_norm ? slot(Slot::hidden_normed) : normed;
        if (layer_.routes()) {
            experts(read);
        } else {
            add(feed_forward(read, w_.hidden, layer_.hidden), w_.hidden.down, w_.hidden_post_norm);
        }
    }

 private:
    View slot(Slot name) const { return work_.slot(name, widths_.columns[static_cast<std::size_t>(name)]); }
    static Target target(const Affine<W>& affine, View out, bool accumulate = false) {
        return {&affine.weight, affine.bias_or_null(), out, accumulate};
    }
    void norm(View x, const Affine<W>& weight, View y) {
        pass_.norm(x, weight.weight, spec_.norm, y, false, weight.bias_or_null(), 1);
    }
    /// A norm in place of what is no stream.
    void norm(View x, const W& weight, std::uint32_t groups = 1) {
        pass_.norm(x, weight, spec_.norm, x, false, nullptr, groups);
    }
    /// y = x weight^T, added to the residual stream, through a norm if there is one.
    void add(View x, const Affine<W>& affine, const std::optional<W>& post_norm) {
        if (!post_norm) return pass_.linear(x, {target(affine, work_.stream, true)});
        pass_.linear(x, {target(affine, slot(Slot::added))});
        pass_.norm(slot(Slot::added), *post_norm, spec_.norm, work_.stream, true, nullptr, 1);
    }

    View attention(View x) {
        const AttentionWeights<W>& w = w_.attention;
        const View q = slot(Slot::q), k = slot(Slot::k), v = slot(Slot::v);
        pass_.linear(x, {target(w.q, q), target(w.k, k), target(w.v, v)});
        if (w.q_norm) norm(q, *w.q_norm);
        if (w.k_norm) norm(k, *w.k_norm);
        return attend(q, k, v, w.sinks ? &*w.sinks : nullptr);
    }
    View attend(View q, View k, View v, const W* sinks) {
        const RopeSpec& rope = spec_.ropes[layer_.rope].rope;
        pass_.rope(q, work_.angles[layer_.rope], rope);
        pass_.rope(k, work_.angles[layer_.rope], rope);
        pass_.store(k, v, index_);
        pass_.attend(q, index_, layer_.attention, slot(Slot::attended), sinks);
        return slot(Slot::attended);
    }

    /// A head of q and k is its rotated part, then its part in the latent space.
    View latent(View x) {
        const LatentSpec& s = layer_.latent;
        const LatentWeights<W>& w = w_.latent;
        const std::uint32_t heads = layer_.attention.heads;
        const std::uint32_t head = layer_.attention.head_dim;
        const View q = slot(Slot::q), k = slot(Slot::k);
        const View low = slot(Slot::q_low), wide = slot(Slot::q_heads);
        if (w.q_a) {
            pass_.linear(
                x, {target(*w.q_a, low), target(w.kv, slot(Slot::kv_latent)), target(w.k_rope, slot(Slot::k_rope))});
            norm(low, *w.q_a_norm);
            pass_.linear(low, {target(w.q_b, wide)});
        } else {
            pass_.linear(
                x, {target(w.q_b, wide), target(w.kv, slot(Slot::kv_latent)), target(w.k_rope, slot(Slot::k_rope))});
        }
        pass_.copy(wide, slot(Slot::q_plain), {heads, s.plain, s.plain + s.rope, 0, s.plain, 0});
        pass_.copy(wide, q, {heads, s.rope, s.plain + s.rope, s.plain, head, 0});
        pass_.linear(slot(Slot::q_plain), {Target{&w.k_b, nullptr, slot(Slot::q_latent)}});
        pass_.copy(slot(Slot::q_latent), q, {heads, s.kv_rank, s.kv_rank, 0, head, s.rope});

        norm(slot(Slot::kv_latent), w.kv_norm);
        pass_.copy(slot(Slot::k_rope), k, {1, s.rope, s.rope, 0, head, 0});
        pass_.copy(slot(Slot::kv_latent), k, {1, s.kv_rank, s.kv_rank, 0, head, s.rope});
        pass_.linear(attend(q, k, k, nullptr), {Target{&w.v_b, nullptr, slot(Slot::values)}});
        return slot(Slot::values);
    }

    View state(View x) {
        const StateWeights<W>& w = w_.state;
        const View z = slot(Slot::state_z), out = slot(Slot::state_out), mixed = slot(Slot::state_mixed);
        pass_.linear(x,
                     {target(w.z, z), target(w.mixed, slot(Slot::state_in)), target(w.steps, slot(Slot::state_steps))});
        pass_.convolve(slot(Slot::state_in), w.conv.weight, w.conv.bias_or_null(), index_, mixed);
        pass_.scan(mixed, slot(Slot::state_steps), w.a, w.skip, layer_.state, index_, out);
        pass_.gate(z, out, Activation::silu, out);
        norm(out, w.norm, layer_.state.groups);
        return out;
    }

    View feed_forward(View x, const HiddenWeights<W>& w, std::uint32_t hidden) {
        const View gate = work_.slot(Slot::gate, hidden), up = work_.slot(Slot::up, hidden);
        if (!layer_.gated) {
            pass_.linear(x, {target(w.up, up)});
            pass_.activate(up, spec_.gate, up);
            return up;
        }
        pass_.linear(x, {target(w.gate, gate), target(w.up, up)});
        pass_.gate(gate, up, spec_.gate, gate);
        return gate;
    }

    void experts(View x) {
        const ExpertsSpec& s = layer_.experts;
        const ExpertsWeights<W>& w = w_.experts;
        const std::uint32_t hidden = s.route.chosen * s.hidden;
        const View gate = work_.slot(Slot::gate, hidden), up = work_.slot(Slot::up, hidden);
        const View routes = slot(Slot::routes);
        pass_.linear(x, {target(w.router, slot(Slot::scores))});
        pass_.route(slot(Slot::scores), w.router_bias ? &*w.router_bias : nullptr, s.route, routes);
        pass_.experts(x, w.gate.weights, w.gate.biases, routes, gate);
        pass_.experts(x, w.up.weights, w.up.biases, routes, up);
        pass_.gate(gate, up, spec_.gate, gate);
        pass_.experts(gate, w.down.weights, w.down.biases, routes, slot(Slot::expert_out));
        const View sum = w_.hidden_post_norm ? slot(Slot::added) : work_.stream;
        pass_.mix(slot(Slot::expert_out), routes, sum, !w_.hidden_post_norm);
        if (s.shared > 0) pass_.linear(feed_forward(x, w.shared, s.shared), {target(w.shared.down, sum, true)});
        if (w_.hidden_post_norm) pass_.norm(sum, *w_.hidden_post_norm, spec_.norm, work_.stream, true, nullptr, 1);
    }

    typename B::Pass& pass_;
    const ModelSpec& spec_;
    const LayerSpec& layer_;
    const LayerWeights<W>& w_;
    const Workspace<B>& work_;
    SlotWidths widths_;
    std::uint32_t index_;
};

}  // namespace detail

/// Enqueues the model on `pass`: tokens to the logits of the wanted rows, and to the `best` of each if that is not 0.
template <class B>
void forward(typename B::Pass& pass, const ModelSpec& spec, const ModelWeights<typename B::Weight>& weights,
             const Workspace<B>& work, std::uint32_t best) {
    using Target = typename B::LinearTarget;
    pass.embed(weights.embedding, work.stream, spec.embedding_scale);
    for (std::size_t r = 0; r < spec.ropes.size(); ++r)
        pass.angles(weights.ropes[r], spec.ropes[r].rope, work.angles[r]);
    for (std::size_t l = 0; l < spec.layers.size(); ++l) detail::LayerPass<B>(pass, spec, weights, work, l).run();
    pass.gather(work.stream, work.last);
    pass.norm(work.last, weights.final_norm.weight, spec.norm, work.last, false, weights.final_norm.bias_or_null(), 1);
    pass.linear(work.last, {Target{weights.head ? &*weights.head : &weights.embedding, nullptr, work.logits}});
    if (spec.logit_softcap > 0.0f) pass.softcap(work.logits, spec.logit_softcap);
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
        if (!spec.layers[l].attends()) continue;
        const std::size_t r = spec.layers[l].rope;
        pass.move(static_cast<std::uint32_t>(l), work.angles[r], unscaled(r));
    }
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Workspace`: the activations of a pass.

#include <decant/core/best.hpp>
#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>
#include <decant/model/spec.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Activations of a layer. Layers take turns: what one leaves, the next overwrites; and so do the parts of a layer:
/// what begins with `q` shares memory with what begins with `gate`.
enum class Slot : std::uint8_t {
    normed,         ///< [width]: what attention reads
    hidden_normed,  ///< [width]: what the feed-forward part of a parallel layer reads
    added,          ///< [width]: what goes through a norm before it is added to the stream
    q,              ///< [heads * head_dim]
    k,              ///< [kv_heads * head_dim]
    v,              ///< likewise
    attended,       ///< [heads * value_dim]
    q_low,          ///< latent attention: [q_rank]
    q_heads,        ///< [heads * (plain + rope)]
    q_plain,        ///< [heads * plain]
    q_latent,       ///< [heads * kv_rank]
    kv_latent,      ///< [kv_rank]
    k_rope,         ///< [rope]
    values,         ///< [heads * value]
    state_z,        ///< state space: [channels]
    state_in,       ///< [mixed]
    state_mixed,    ///< [mixed], after the convolution
    state_steps,    ///< [heads]
    state_out,      ///< [channels]
    gate,           ///< [hidden], or that of every chosen expert
    up,             ///< likewise
    scores,         ///< [experts]
    routes,         ///< [2 * chosen]
    expert_out,     ///< [chosen * width]
};
inline constexpr std::size_t slot_count = static_cast<std::size_t>(Slot::expert_out) + 1;

/// Columns of every slot in one layer; 0 for those that it does not use.
class SlotWidths {
 public:
    SlotWidths() = default;
    SlotWidths(const ModelSpec& spec, const LayerSpec& layer) {
        const AttentionSpec& a = layer.attention;
        of(Slot::normed) = spec.width;
        of(Slot::hidden_normed) = layer.parallel ? spec.width : 0;
        of(Slot::added) = layer.post_norms ? spec.width : 0;
        of(Slot::q) = a.heads * a.head_dim;
        of(Slot::k) = a.kv_heads * a.head_dim;
        of(Slot::v) = layer.is_latent() ? 0 : a.kv_heads * a.head_dim;
        of(Slot::attended) = a.heads * a.value_dim();
        if (const LatentSpec& latent = layer.latent; layer.is_latent()) {
            of(Slot::q_low) = latent.q_rank;
            of(Slot::q_heads) = a.heads * (latent.plain + latent.rope);
            of(Slot::q_plain) = a.heads * latent.plain;
            of(Slot::q_latent) = a.heads * latent.kv_rank;
            of(Slot::kv_latent) = latent.kv_rank;
            of(Slot::k_rope) = latent.rope;
            of(Slot::values) = a.heads * latent.value;
        }
        const ExpertsSpec& experts = layer.experts;
        const std::uint32_t chosen = experts.route.chosen;
        const std::uint32_t hidden = (std::max)({layer.hidden, chosen * experts.hidden, experts.shared});
        of(Slot::gate) = layer.gated || layer.routes() ? hidden : 0;
        of(Slot::up) = hidden;
        if (layer.routes()) {
            of(Slot::scores) = experts.route.experts;
            of(Slot::routes) = 2 * chosen;
            of(Slot::expert_out) = chosen * spec.width;
        }
        if (const StateSpec& state = layer.state; state.heads > 0) {
            of(Slot::state_z) = of(Slot::state_out) = state.channels();
            of(Slot::state_in) = of(Slot::state_mixed) = state.mixed();
            of(Slot::state_steps) = state.heads;
        }
    }
    /// The largest of all layers.
    explicit SlotWidths(const ModelSpec& spec) {
        for (const LayerSpec& layer : spec.layers) {
            const SlotWidths own(spec, layer);
            for (std::size_t s = 0; s < slot_count; ++s) columns[s] = (std::max)(columns[s], own.columns[s]);
        }
        of(Slot::normed) = spec.width;
    }

    [[nodiscard]] std::uint32_t& of(Slot slot) { return columns[static_cast<std::size_t>(slot)]; }

    std::array<std::uint32_t, slot_count> columns{};
};

/// Where the slots of a row lie.
struct SlotLayout {
    explicit SlotLayout(const SlotWidths& widths) {
        const auto place = [&](Slot first, Slot end, std::size_t at) {
            for (auto s = static_cast<std::size_t>(first); s < static_cast<std::size_t>(end); ++s) {
                before[s] = at;
                at += widths.columns[s];
            }
            return at;
        };
        const std::size_t shared = place(Slot::normed, Slot::q, 0);
        columns = (std::max)(place(Slot::q, Slot::gate, shared), place(Slot::gate, Slot{slot_count}, shared));
    }

    std::array<std::size_t, slot_count> before{};  ///< columns before each
    std::size_t columns = 0;                       ///< of all
};

/// Widest row that an operation reads, of activations or of a convolution's weights.
[[nodiscard]] inline std::uint32_t widest_input(const ModelSpec& spec) {
    const SlotWidths widths(spec);
    std::uint32_t widest = *std::max_element(widths.columns.begin(), widths.columns.end());
    for (const LayerSpec& layer : spec.layers) widest = (std::max)(widest, layer.state.kernel);
    return widest;
}

/// Activations of a pass, carved from one buffer.
template <class B>
class Workspace {
 public:
    using View = typename B::View;

    /// Floats that a workspace for passes of this shape needs.
    [[nodiscard]] static std::size_t floats(const ModelSpec& spec, const PassShape& shape) {
        std::size_t row = std::size_t{spec.width} + SlotLayout(SlotWidths(spec)).columns;
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
        stream = view(carve(spec.width, shape.rows), spec.width);
        const SlotLayout layout{SlotWidths(spec)};
        const std::size_t first = offset;
        offset += layout.columns * shape.rows;
        for (std::size_t s = 0; s < slot_count; ++s) offsets_[s] = first + layout.before[s] * shape.rows;
        for (const RopeTable& rope : spec.ropes)
            angles.push_back(view(carve(rope.rope.dim, shape.rows), rope.rope.dim));
        last = view(carve(spec.width, shape.wanted), spec.width, RowSet::wanted);
        logits = view(carve(spec.vocabulary, shape.wanted), spec.vocabulary, RowSet::wanted);
        best_columns = BestTokens::columns(shape.best);
        best = view(carve(best_columns, shape.wanted), best_columns, RowSet::wanted);
    }

    /// [rows, columns], at most as wide as the slot's widest layer.
    [[nodiscard]] View slot(Slot slot, std::uint32_t columns) const {
        return view(offsets_[static_cast<std::size_t>(slot)], columns);
    }

    View stream;               // [rows, width]: the residual stream
    std::vector<View> angles;  // [rows, dim] per rope
    View last;                 // [wanted, width]
    View logits;               // [wanted, vocabulary]
    View best;                 // [wanted, best_columns]
    std::uint32_t best_columns = 0;

 private:
    [[nodiscard]] View view(std::size_t offset, std::uint32_t columns, RowSet rows = RowSet::tokens) const {
        return backend_.view(*buffer_, offset, columns, rows);
    }

    B backend_;
    typename B::Buffer* buffer_;
    std::array<std::size_t, slot_count> offsets_{};
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Plain structs that the layers share: what each operation computes (specs), what a pass carries, how a cache is laid
/// out.

#include <decant/core/adjustment.hpp>
#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Root-mean-square norm: y[i] = x[i] / sqrt(mean(x^2) + epsilon) * (offset + weight[i]) (+ bias[i]) (Zhang and
/// Sennrich 2019). With `centered` the mean is taken from x first: layer normalization (Ba et al. 2016).
struct NormSpec {
    float epsilon = 1e-5f;
    float offset = 0.0f;  ///< 1 where the weights are stored as differences from 1
    bool centered = false;
    friend bool operator==(const NormSpec&, const NormSpec&) = default;
};

/// Which two elements of a head a rotation turns together.
enum class RopeLayout : std::uint8_t {
    halves,       ///< i and i + dim/2
    interleaved,  ///< 2i and 2i + 1
};

/// Rotary position embedding (Su et al. 2021) of the first `dim` elements of every head. The frequencies are data: they
/// lie in a table that the model computes from theta and the scaling rule once.
struct RopeSpec {
    RopeLayout layout = RopeLayout::halves;
    std::uint32_t head_dim = 0;
    std::uint32_t dim = 0;   ///< rotated elements per head, even, at most head_dim
    float magnitude = 1.0f;  ///< factor on cos and sin (YaRN's attention factor)
    friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

/// Causal grouped-query attention: query head h reads key/value head h / (heads / kv_heads).
struct AttentionSpec {
    std::uint32_t heads = 0;
    std::uint32_t kv_heads = 0;
    std::uint32_t head_dim = 0;
    float scale = 1.0f;        ///< on q.k before the softmax
    std::uint32_t window = 0;  ///< a query sees this many positions, its own included; 0 = all
    float softcap = 0.0f;      ///< scores become softcap tanh(score / softcap); 0 = they stay
    /// Where values are part of the keys (latent attention): V = K[key_skip, head_dim). 0 = they are rows of their own.
    std::uint32_t key_skip = 0;

    [[nodiscard]] std::uint32_t value_dim() const noexcept { return head_dim - key_skip; }
    friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

/// The f of a gated activation y = f(g) u, or of a plain one y = f(g).
enum class Activation : std::uint8_t {
    silu,       ///< f(x) = x / (1 + exp(-x))
    gelu_tanh,  ///< f(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016, the approximation)
    gelu,       ///< f(x) = x/2 (1 + erf(x / sqrt(2)))
};

/// How a gate is computed: y = f(alpha g) / alpha u. With a `limit` y = f(alpha g) / alpha (u + 1), where g is at most
/// `limit` and u within +-`limit` (gpt-oss).
struct GateSpec {
    constexpr GateSpec(Activation f = Activation::silu, float with_alpha = 1.0f, float with_limit = 0.0f) noexcept
        : activation(f), alpha(with_alpha), limit(with_limit) {}
    Activation activation;
    float alpha;
    float limit;  ///< 0 = none
    friend bool operator==(const GateSpec&, const GateSpec&) = default;
};

/// Which experts a token goes to (Shazeer et al. 2017). s = softmax or sigmoid of the router's scores; the `chosen`
/// largest of s (+ a bias that counts for the choice alone) win, and weigh what s says.
struct RouteSpec {
    enum class Scoring : std::uint8_t { softmax, sigmoid };
    static constexpr std::uint32_t most = 256;  ///< experts that a token may go to, and groups
    Scoring scoring = Scoring::softmax;
    bool normalize = false;  ///< the weights of a token's experts sum to 1 (before `scale`)
    std::uint32_t experts = 0;
    std::uint32_t chosen = 0;
    /// Experts stand in `groups` of equal size; only those of the `groups_kept` groups whose two best sum highest can
    /// win (DeepSeek-V3 2024).
    std::uint32_t groups = 1;
    std::uint32_t groups_kept = 1;
    float scale = 1.0f;
    friend bool operator==(const RouteSpec&, const RouteSpec&) = default;
};

/// A copy of part of every head: y[t, h, y_first + i] = x[t, h, x_first + i] for i < count. Heads lie `x_head` and
/// `y_head` floats apart.
struct CopySpec {
    std::uint32_t heads = 1;
    std::uint32_t count = 0;
    std::uint32_t x_head = 0;
    std::uint32_t x_first = 0;
    std::uint32_t y_head = 0;
    std::uint32_t y_first = 0;
    friend bool operator==(const CopySpec&, const CopySpec&) = default;
};

/// A selective state space (Mamba-2: Dao and Gu 2024) with `heads` x `head_dim` channels and `size` numbers of state
/// for each; heads / groups of them share the vectors B and C. Before it, a causal convolution over `kernel` tokens.
struct StateSpec {
    std::uint32_t heads = 0;
    std::uint32_t head_dim = 0;
    std::uint32_t groups = 0;
    std::uint32_t size = 0;
    std::uint32_t kernel = 0;
    float step_min = 0.0f;  ///< limits of a token's step
    float step_max = 0.0f;

    [[nodiscard]] std::uint32_t channels() const noexcept { return heads * head_dim; }
    /// Columns of the convolution: x [heads, head_dim], B [groups, size], C [groups, size].
    [[nodiscard]] std::uint32_t mixed() const noexcept { return channels() + 2 * groups * size; }
    /// Floats that a sequence keeps: the last kernel - 1 rows before the convolution, then [heads, head_dim, size].
    [[nodiscard]] std::size_t history() const noexcept { return kernel == 0 ? 0 : std::size_t{kernel - 1} * mixed(); }
    [[nodiscard]] std::size_t floats() const noexcept { return history() + std::size_t{channels()} * size; }
    friend bool operator==(const StateSpec&, const StateSpec&) = default;
};

/// What one layer keeps: a K and a V row per token, and a state per sequence.
struct CacheLayer {
    std::uint32_t kv_heads = 0;
    std::uint32_t head_dim = 0;
    std::uint32_t key_skip = 0;  ///< as `AttentionSpec::key_skip`
    std::size_t state = 0;       ///< floats
    std::uint32_t window = 0;    ///< as `AttentionSpec::window`: positions that a row sees, 0 = all before it

    /// Whether V is part of K and not kept.
    [[nodiscard]] bool latent() const noexcept { return key_skip > 0; }
    /// Numbers per token.
    [[nodiscard]] std::size_t elements() const noexcept {
        return (latent() ? 1 : 2) * std::size_t{kv_heads} * head_dim;
    }
    friend bool operator==(const CacheLayer&, const CacheLayer&) = default;
};

/// The first position that a row at `position` sees through a window, and so what every later row sees at most.
[[nodiscard]] constexpr std::size_t first_seen(std::size_t window, std::size_t position) noexcept {
    return window == 0 || position < window ? 0 : position + 1 - window;
}

/// Layout of the paged KV pool: first the states, [states][layer] in F32, then the blocks. A block holds `block_tokens`
/// tokens of all layers of a group in one piece: [layer][K: block_tokens x kv_heads*head_dim, then V likewise unless it
/// is latent], entries of `dtype` (F32, F16, BF16, Q8_0 or Q4_0). Blocks of Q8_0 and Q4_0 lie along a head, whose
/// length is a multiple of theirs.
///
/// Usually there is one group. Where layers give up what their windows have passed, `groups` says which of them do so
/// together: each group has a block table of its own, and all blocks are as large as those of the widest group.
///
/// Entries of Q4_0 are rotated: before a head is rounded, each `rotation` of its numbers are multiplied by a Hadamard
/// matrix, so that what is large in a few of them spreads over all (QuaRot: Ashkboos et al. 2024). Attention turns its
/// queries likewise, which changes no score, and its results back.
struct CacheShape {
    std::vector<CacheLayer> layers;
    std::uint32_t block_tokens = 16;
    DType dtype = DType::f16;
    std::uint32_t states = 0;                ///< room for so many; 0 unless a layer keeps one
    std::vector<std::uint32_t> groups = {};  ///< [layers] counted from 0; empty: one group, which gives nothing up

    [[nodiscard]] std::uint32_t group(std::size_t layer) const { return groups.empty() ? 0 : groups[layer]; }
    [[nodiscard]] std::uint32_t group_count() const {
        std::uint32_t count = 1;
        for (const std::uint32_t group : groups) count = group < count ? count : group + 1;
        return count;
    }
    /// The widest window of a group's layers; 0: one of them sees everything, or nothing is to be given up.
    [[nodiscard]] std::uint32_t window(std::uint32_t group) const {
        std::uint32_t widest = 0;
        for (std::size_t l = 0; l < groups.size(); ++l) {
            if (groups[l] != group || layers[l].kv_heads == 0) continue;
            if (layers[l].window == 0) return 0;
            widest = widest < layers[l].window ? layers[l].window : widest;
        }
        return widest;
    }
    [[nodiscard]] std::size_t head_bytes(std::size_t layer) const {
        return decant::row_bytes(dtype, layers[layer].head_dim);
    }
    [[nodiscard]] std::size_t row_bytes(std::size_t layer) const { return layers[layer].kv_heads * head_bytes(layer); }
    /// Numbers that are rotated together: the largest power of two that divides a head, and what is skipped of it where
    /// V is the rest. 0: entries are not rotated.
    [[nodiscard]] std::size_t rotation(std::size_t layer) const {
        const std::size_t bits = layers[layer].head_dim | layers[layer].key_skip;
        return dtype == DType::q4_0 ? bits & (~bits + 1) : 0;
    }
    /// Bytes that a layer keeps of one token.
    [[nodiscard]] std::size_t token_bytes(std::size_t layer) const {
        return (layers[layer].latent() ? 1 : 2) * row_bytes(layer);
    }
    /// Offset of a layer's K inside a block; its V follows after `block_tokens` rows.
    [[nodiscard]] std::size_t layer_offset(std::size_t layer) const {
        std::size_t offset = 0;
        for (std::size_t l = 0; l < layer; ++l)
            if (group(l) == group(layer)) offset += block_tokens * token_bytes(l);
        return offset;
    }
    [[nodiscard]] std::size_t block_bytes() const {
        std::size_t widest = 0;
        for (std::uint32_t of = group_count(); of-- > 0;) {
            std::size_t bytes = 0;
            for (std::size_t l = 0; l < layers.size(); ++l)
                if (group(l) == of) bytes += block_tokens * token_bytes(l);
            widest = widest < bytes ? bytes : widest;
        }
        return widest;
    }
    /// Offset of a layer's part of a state.
    [[nodiscard]] std::size_t state_offset(std::size_t layer) const {
        std::size_t floats = 0;
        for (std::size_t l = 0; l < layer; ++l) floats += layers[l].state;
        return floats * sizeof(float);
    }
    [[nodiscard]] std::size_t state_bytes() const { return state_offset(layers.size()); }
    /// Where the blocks begin.
    [[nodiscard]] std::size_t blocks_offset() const { return states * state_bytes(); }
    friend bool operator==(const CacheShape&, const CacheShape&) = default;
};

/// Which rows of a pass a view spans: one per token, or one per row that wants logits.
enum class RowSet : std::uint8_t { tokens, wanted };

/// Capacities of a pass: the key under which a backend keeps a recorded one. Rows are tokens.
struct PassShape {
    std::uint32_t rows = 0;       ///< tokens in one pass, of all sequences together
    std::uint32_t sequences = 0;  ///< sequences in one pass
    std::uint32_t wanted = 0;     ///< rows whose logits are computed
    std::uint32_t table = 0;      ///< blocks per sequence
    std::uint32_t best = 0;       ///< tokens that `pick` hands over per wanted row
    std::uint32_t groups = 1;     ///< of layers with block tables of their own
    friend bool operator==(const PassShape&, const PassShape&) = default;
};

/// What a pass with `picks` weighs before it picks, per wanted row.
struct PickInputs {
    std::span<const LogitAdjustment> adjustments;  ///< of all rows, one after another, each row's sorted by token
    std::span<const std::uint32_t> ends;           ///< [wanted] where a row's adjustments end
    std::span<const std::uint32_t> allowed;        ///< [masks, (vocabulary + 31) / 32] a bit per token
    std::span<const std::int32_t> masks;           ///< [wanted] row of `allowed`, -1 = every token is allowed
};

/// Which of its recordings a pass runs.
enum class PassVariant : std::uint8_t {
    forward,  ///< tokens to logits
    move,     ///< cached rows to other slots and positions
};
inline constexpr std::size_t pass_variants = 2;

/// The inputs of one run, uploaded together. All arrays are as long as the shape says; unused rows carry -1 and every
/// operation ignores them. `rows` and `wanted_rows` count the used ones, which come first.
struct PassInputs {
    std::uint32_t rows = 0;
    std::uint32_t wanted_rows = 0;
    std::span<const std::int32_t> tokens;     ///< [rows] vocabulary ids
    std::span<const std::int32_t> positions;  ///< [rows] position in its sequence, from 0; for `move` how far it turns
    std::span<const std::int32_t> sequences;  ///< [rows] which block table
    /// [groups, rows] block * block_tokens + offset: where the row's K and V go
    std::span<const std::int32_t> cache_slots;
    std::span<const std::int32_t> sources;      ///< [groups, rows] slots that `move` reads, -1 = not there; else empty
    std::span<const std::int32_t> tables;       ///< [groups, sequences, shape.table] block ids, -1 = none to be read
    std::span<const std::int32_t> states_from;  ///< [sequences] state before the pass; -1 = zeros, or none kept
    std::span<const std::int32_t> states_to;    ///< [sequences] where the state after it goes, another one
    std::span<const std::int32_t> wanted;       ///< [wanted] rows that want logits
    bool picks = false;                         ///< whether `pick` runs
    PickInputs pick = {};
    PassVariant variant = PassVariant::forward;
};

}  // namespace decant::inline DECANT_ABI

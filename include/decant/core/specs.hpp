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

/// Root-mean-square norm: y[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i] (Zhang and Sennrich 2019).
struct NormSpec {
    float epsilon = 1e-5f;
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
    friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

/// Gated activation y = f(g) * u.
enum class Activation : std::uint8_t {
    silu,       ///< f(x) = x / (1 + exp(-x))
    gelu_tanh,  ///< f(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016, the approximation)
};

/// What one layer keeps per token.
struct CacheLayer {
    std::uint32_t kv_heads = 0;
    std::uint32_t head_dim = 0;
    friend bool operator==(const CacheLayer&, const CacheLayer&) = default;
};

/// Layout of the paged KV pool. A block holds `block_tokens` tokens of all layers in one piece:
/// [layer][K: block_tokens x kv_heads*head_dim, then V likewise], entries of `dtype` (F32 or F16).
struct CacheShape {
    std::vector<CacheLayer> layers;
    std::uint32_t block_tokens = 16;
    DType dtype = DType::f16;

    [[nodiscard]] std::size_t row_bytes(std::size_t layer) const {
        return std::size_t{layers[layer].kv_heads} * layers[layer].head_dim * traits(dtype).block_bytes;
    }
    /// Offset of a layer's K inside a block; its V follows after `block_tokens` rows.
    [[nodiscard]] std::size_t layer_offset(std::size_t layer) const {
        std::size_t offset = 0;
        for (std::size_t l = 0; l < layer; ++l) offset += 2 * block_tokens * row_bytes(l);
        return offset;
    }
    [[nodiscard]] std::size_t block_bytes() const { return layer_offset(layers.size()); }
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
    std::span<const std::int32_t> cache_slots;  ///< [rows] block * block_tokens + offset: where the row's K and V go
    std::span<const std::int32_t> sources;      ///< [rows] slots that `move` reads; else empty
    std::span<const std::int32_t> tables;       ///< [sequences, shape.table] block ids
    std::span<const std::int32_t> wanted;       ///< [wanted] rows that want logits
    bool picks = false;                         ///< whether `pick` runs
    PickInputs pick = {};
    PassVariant variant = PassVariant::forward;
};

}  // namespace decant::inline DECANT_ABI

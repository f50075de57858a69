// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the attention kernels of every instruction set take.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/specs.hpp>

#include <cstddef>
#include <cstdint>

namespace decant::inline DECANT_ABI {
namespace simd {

/// Positions whose keys are transposed together, and positions after which sums begin anew: what a row adds up in one
/// piece is a partial result, and partial results are added in order. Both count from absolute zero.
inline constexpr std::size_t attention_span = 128;
inline constexpr std::size_t attention_piece = 1024;
inline constexpr std::size_t attention_slab = 256;  // elements of a head at a time
inline constexpr std::size_t direct_slab = 32;      // where keys serve few queries
inline constexpr std::size_t most_queries = 512;    // at a time

/// Rows of one sequence at positions that follow one another, and the query heads that share a key head.
struct AttentionRows {
    const float* q = nullptr;  ///< the first row's first of these heads; they follow one another
    std::size_t q_stride = 0;  ///< floats from one row to the next
    float* y = nullptr;
    std::size_t y_stride = 0;
    std::size_t rows = 0;
    std::size_t heads = 0;
    std::size_t head_dim = 0;
    std::size_t value_dim = 0;
    float scale = 1.0f;
    float softcap = 0.0f;
    const float* sinks = nullptr;  ///< [heads] or null
    std::size_t position = 0;      ///< of the first row
    std::size_t window = 0;        ///< 0: all

    const std::byte* cache = nullptr;  ///< the head's key at the first token of block 0
    const std::int32_t* table = nullptr;
    std::size_t block_tokens = 0;
    std::size_t block_bytes = 0;
    std::size_t row_bytes = 0;    ///< from one token of a block to the next
    std::size_t to_value = 0;     ///< from a key to its value
    DType dtype = DType::f16;     ///< of keys and values
    std::size_t entries = 1;      ///< numbers that are stored together,
    std::size_t entry_bytes = 2;  ///< in so many bytes
    std::size_t rotation = 0;     ///< of keys and values, as `CacheShape` says

    /// Bytes of the first n numbers of a key or value.
    [[nodiscard]] constexpr std::size_t bytes(std::size_t n) const noexcept { return n / entries * entry_bytes; }

    /// Positions [begin, end) are seen by row r.
    [[nodiscard]] constexpr std::size_t end(std::size_t r) const noexcept { return position + r + 1; }
    [[nodiscard]] constexpr std::size_t begin(std::size_t r) const noexcept { return first_seen(window, position + r); }
};

/// Floats of one partial result: value_dim sums, padded; then the largest score and the sum of the weights.
[[nodiscard]] constexpr std::size_t partial_floats(std::size_t value_dim) noexcept {
    return (value_dim + 15) / 16 * 16 + 16;
}

/// Floats of scratch for rows of q (all heads) of at most `columns` floats.
[[nodiscard]] constexpr std::size_t attention_floats(std::size_t columns) noexcept {
    constexpr std::size_t room = most_queries * 128;
    const std::size_t heads = columns > room ? columns : room;
    // Keys, values and a copy of 16 rows (in floats: pairs of integers take less, scales included); what is kept for
    // each query; its elements, its sums and those of a piece.
    return 2 * attention_slab * attention_span + 16 * attention_slab + 3 * 16 + 16 * 16 +
           most_queries * (attention_span + 2 * 16 + 3) + 3 * heads + 2 * most_queries * (16 + 16);
}

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What kernels and instruction sets agree on.

#include <decant/backend/simd/attention_rows.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/specs.hpp>
#include <decant/quant/formats.hpp>
#include <decant/quant/hadamard.hpp>
#include <decant/quant/panel.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace decant::inline DECANT_ABI {
namespace simd {

/// Columns that share one scale of quantized activations, and the half of it that sums are kept for.
inline constexpr std::size_t activation_block = 32;
inline constexpr std::size_t activation_half = 16;

/// 32 columns of a row of activations in 8 bits: x[i] = scale * codes[i], codes in [-127, 127].
struct alignas(16) ActivationBlock {
    std::int8_t codes[activation_block];
    float scale;
    float weighted_sum;                  // scale * sum of the codes
    std::int32_t negative_sum;           // -(sum of the codes)
    std::int16_t negative_half_sums[2];  // of 16 each
};
static_assert(sizeof(ActivationBlock) == 48);

/// 32 columns of a row of activations as BF16: words i hold columns i and, above them, 16 + i. See amx_multiply.inl.
struct alignas(64) PairBlock {
    std::uint32_t pairs[activation_half];
};

// Magnitudes below this are taken for 0: their reciprocal would overflow.
inline constexpr float smallest_magnitude = 1e-35f;

/// Weight rows that a tile multiplies, and columns of them that are unpacked at a time: a tile's panels stay in the
/// first-level cache.
inline constexpr std::size_t tile_rows = 2 * panel_rows;
inline constexpr std::size_t piece_columns = 576;
inline constexpr std::size_t float_piece_columns = 128;

inline constexpr std::size_t code_panel_bytes = piece_columns * panel_rows;
inline constexpr std::size_t scale_panel_bytes = piece_columns / activation_half * panel_rows * sizeof(float);
inline constexpr std::size_t panels_bytes = tile_rows / panel_rows * (code_panel_bytes + 2 * scale_panel_bytes);
static_assert(panels_bytes >= tile_rows * float_piece_columns * sizeof(float));
/// A row of a tile of a unit that multiplies small matrices; and a copy of rows of 8 bits and their scales.
inline constexpr std::size_t tile_row_bytes = 64;
inline constexpr std::size_t pair_copy_bytes = panel_rows * (piece_columns + piece_columns / 8);
/// What a product needs: panels, and a copy of rows where a weight has no 16 left; or panels of pairs, that copy, and
/// one of activations.
inline constexpr std::size_t product_bytes =
    (std::max)(panels_bytes + panel_rows * piece_columns * sizeof(float),
               2 * tile_rows * piece_columns * sizeof(std::uint16_t) + pair_copy_bytes);
/// Rows of sums that it may write beyond those asked for.
inline constexpr std::size_t spare_rows = 8;

/// Weight rows that a tile multiplies by few tokens, where a set unpacks in registers.
inline constexpr std::size_t wide_tile_rows = 8 * panel_rows;

/// Rows of a weight that one tile multiplies: `count` of them, at least 1.
struct WeightRows {
    const std::byte* first = nullptr;
    std::size_t row_bytes = 0;
    std::size_t count = 0;
    std::size_t columns = 0;
    bool more = false;                ///< rows follow: a few bytes behind these may be read
    const std::byte* next = nullptr;  ///< what is multiplied next; null: what follows
};

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

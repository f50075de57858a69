// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Panels: the layout that kernels compute with. A format knows how to unpack a piece of up to `panel_rows` rows into a
/// panel, an instruction set knows how to multiply a panel, and neither knows the other.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace decant::inline DECANT_ABI {

static_assert(std::endian::native == std::endian::little,
              "the unpackers read the file's little-endian words as they are");

/// Rows of a panel: one lane of a 512-bit register each.
inline constexpr std::size_t panel_rows = 16;

/// Columns whose codes lie side by side: the four bytes that a dot-product instruction adds up in one lane.
inline constexpr std::size_t panel_group = 4;

/// A piece of `columns` columns in codes of at most 8 bits: w[row, column] = scale * (code - bias) + offset, where
/// `bias` is a constant of the format and one scale (and offset) covers the `panel_block` columns of a row. The memory
/// belongs to the caller; any alignment will do here, kernels want 64 bytes.
struct CodePanel {
    std::uint8_t* codes = nullptr;  // [columns / 4][16 rows][4 columns]
    float* scales = nullptr;        // [columns / panel_block][16 rows]
    float* offsets = nullptr;       // [columns / panel_block][16 rows]; only read and written if the format has offsets
};

/// A piece of `columns` columns in F32. The memory belongs to the caller, as above.
struct FloatPanel {
    float* values = nullptr;  // [columns][16 rows]
};

/// A format that unpacks to codes. Has the constants `dtype`, `panel_block`, `bias`, `has_offset` and `code_bits`
/// (codes are below 2^code_bits), and the functions `dequantize` (one block, exact) and `unpack`.
template <class Format>
concept CodeFormat = std::same_as<typename Format::Panel, CodePanel>;

/// A format that unpacks to floats. Has the constant `dtype` and the functions `dequantize` and `unpack`.
template <class Format>
concept FloatFormat = std::same_as<typename Format::Panel, FloatPanel>;

namespace detail {

template <class T>
[[nodiscard]] inline T load(const std::byte* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

/// Stores the codes of one row in the four columns of group `group`; `codes` points at the row in group 0.
inline void store_group(std::uint8_t* codes, std::size_t group, std::uint32_t four_codes) noexcept {
    std::memcpy(codes + group * panel_rows * panel_group, &four_codes, sizeof four_codes);
}

/// The part that all `unpack` functions of code formats share: calls `Format::unpack_block(block, codes, scales,
/// offsets)` for every block, with pointers at the row's place in the panel, and clears the rows that are not there.
template <class Format>
inline void unpack_blocks(const std::byte* first_row, std::size_t row_stride_bytes, std::size_t rows,
                          std::size_t first_column, std::size_t columns, CodePanel out) noexcept {
    constexpr DTypeTraits layout = traits(Format::dtype);
    constexpr std::size_t code_step = layout.block_elements * panel_rows;
    constexpr std::size_t scale_step = layout.block_elements / Format::panel_block * panel_rows;
    // Row by row reads the file in order; the stripe of the panel that all rows write to must stay in the first-level
    // cache meanwhile (here 16 KB of codes). Measured: 2 to 4 times slower without stripes from 4096 columns on.
    constexpr std::size_t stripe = 1024 / layout.block_elements;
    DECANT_ASSERT(rows >= 1 && rows <= panel_rows);
    DECANT_ASSERT(first_column % layout.block_elements == 0 && columns % layout.block_elements == 0);
    const std::size_t blocks = columns / layout.block_elements;
    first_row += first_column / layout.block_elements * layout.block_bytes;
    for (std::size_t begin = 0; begin < blocks; begin += stripe) {
        const std::size_t end = blocks - begin < stripe ? blocks : begin + stripe;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::byte* const from = first_row + row * row_stride_bytes;
            for (std::size_t block = begin; block < end; ++block) {
                const std::size_t scale_at = block * scale_step + row;
                Format::unpack_block(from + block * layout.block_bytes,
                                     out.codes + block * code_step + row * panel_group, out.scales + scale_at,
                                     Format::has_offset ? out.offsets + scale_at : nullptr);
            }
        }
    }
    for (std::size_t row = rows; row < panel_rows; ++row) {
        for (std::size_t group = 0; group < columns / panel_group; ++group)
            store_group(out.codes + row * panel_group, group, 0);
        for (std::size_t at = row; at < blocks * scale_step; at += panel_rows) {
            out.scales[at] = 0.0f;
            if constexpr (Format::has_offset) out.offsets[at] = 0.0f;
        }
    }
}

}  // namespace detail

}  // namespace decant::inline DECANT_ABI

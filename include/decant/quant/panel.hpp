// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Panels: the layout that kernels compute with, and what makes a format. How a format's blocks become a panel is told
/// by its unpacker (`<header>.inl` beside the format's header) in terms of an instruction set's lanes; how a panel is
/// multiplied, by the set; and neither knows the other.

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
/// belongs to the caller and has any alignment.
struct CodePanel {
    std::uint8_t* codes = nullptr;  // [columns / 4][16 rows][4 columns]
    float* scales = nullptr;        // [columns / panel_block][16 rows]
    float* offsets = nullptr;       // [columns / panel_block][16 rows]; only read and written if the format has offsets
};

/// What kernels know of a format whose blocks are integer codes: its panels are `CodePanel`s.
template <class Format>
concept CodeFormat = requires {
    { Format::dtype } -> std::convertible_to<DType>;
    { Format::panel_block } -> std::convertible_to<std::size_t>;  // columns that share a scale in a panel
    { Format::bias } -> std::convertible_to<int>;
    { Format::has_offset } -> std::convertible_to<bool>;
    { Format::code_bits } -> std::convertible_to<int>;  // codes are below 2^code_bits
};

/// A format whose blocks are one number each: its panels are floats, [columns][16 rows].
template <class Format>
concept FloatFormat = !CodeFormat<Format> && traits(Format::dtype).block_elements == 1;

namespace detail {

template <class T>
[[nodiscard]] inline T load(const std::byte* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

}  // namespace detail

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The float formats F32, F16 and BF16. Their block is one number.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/quant/float16.hpp>
#include <decant/quant/panel.hpp>
#include <decant/quant/writable.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace decant::inline DECANT_ABI {

namespace detail {

/// The part that the `unpack` functions of float formats share: a transposition, in tiles of a few columns so that each
/// row is read in runs.
template <class Format>
inline void unpack_floats(const std::byte* first_row, std::size_t row_stride_bytes, std::size_t rows,
                          std::size_t first_column, std::size_t columns, FloatPanel out) noexcept {
    constexpr std::size_t width = traits(Format::dtype).block_bytes;
    constexpr std::size_t tile = 16;
    DECANT_ASSERT(rows >= 1 && rows <= panel_rows);
    const std::byte* const first = first_row + first_column * width;
    std::size_t column = 0;
    for (; column + tile <= columns; column += tile) {
        float* const values = out.values + column * panel_rows;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::byte* from = first + row * row_stride_bytes + column * width;
            float run[tile];
            for (std::size_t i = 0; i < tile; ++i) Format::dequantize(from + i * width, run + i);
            for (std::size_t i = 0; i < tile; ++i) values[i * panel_rows + row] = run[i];
        }
    }
    for (; column < columns; ++column) {
        for (std::size_t row = 0; row < rows; ++row)
            Format::dequantize(first + row * row_stride_bytes + column * width, out.values + column * panel_rows + row);
    }
    if (rows == panel_rows) return;
    for (column = 0; column < columns; ++column) {
        for (std::size_t row = rows; row < panel_rows; ++row) out.values[column * panel_rows + row] = 0.0f;
    }
}

}  // namespace detail

struct F32 {
    using Panel = FloatPanel;
    static constexpr DType dtype = DType::f32;

    /// One number.
    static void dequantize(const std::byte* block, float* out) noexcept { *out = detail::load<float>(block); }
    /// One number, exactly.
    static void quantize(const float* number, std::byte* block) noexcept { std::memcpy(block, number, sizeof *number); }

    /// Columns [first_column, first_column + columns) of `rows` (1 to 16) rows to a panel. Rows that are not there
    /// become zero.
    static void unpack(const std::byte* first_row, std::size_t row_stride_bytes, std::size_t rows,
                       std::size_t first_column, std::size_t columns, FloatPanel out) noexcept {
        detail::unpack_floats<F32>(first_row, row_stride_bytes, rows, first_column, columns, out);
    }
};

struct F16 {
    using Panel = FloatPanel;
    static constexpr DType dtype = DType::f16;

    /// One number.
    static void dequantize(const std::byte* block, float* out) noexcept {
        *out = half_to_float(detail::load<std::uint16_t>(block));
    }
    /// One number, to nearest.
    static void quantize(const float* number, std::byte* block) noexcept {
        detail::store(block, float_to_half(*number));
    }

    /// See F32.
    static void unpack(const std::byte* first_row, std::size_t row_stride_bytes, std::size_t rows,
                       std::size_t first_column, std::size_t columns, FloatPanel out) noexcept {
        detail::unpack_floats<F16>(first_row, row_stride_bytes, rows, first_column, columns, out);
    }
};

struct BF16 {
    using Panel = FloatPanel;
    static constexpr DType dtype = DType::bf16;

    /// One number.
    static void dequantize(const std::byte* block, float* out) noexcept {
        *out = bfloat16_to_float(detail::load<std::uint16_t>(block));
    }
    /// One number, to nearest.
    static void quantize(const float* number, std::byte* block) noexcept {
        detail::store(block, float_to_bfloat16(*number));
    }

    /// See F32.
    static void unpack(const std::byte* first_row, std::size_t row_stride_bytes, std::size_t rows,
                       std::size_t first_column, std::size_t columns, FloatPanel out) noexcept {
        detail::unpack_floats<BF16>(first_row, row_stride_bytes, rows, first_column, columns, out);
    }
};

}  // namespace decant::inline DECANT_ABI

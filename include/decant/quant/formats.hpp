// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// From a `DType` of a file to the format's struct.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/quant/floats.hpp>
#include <decant/quant/k_quants.hpp>
#include <decant/quant/q4.hpp>
#include <decant/quant/q5.hpp>
#include <decant/quant/q8.hpp>
#include <decant/quant/writable.hpp>

#include <cstddef>

namespace decant::inline DECANT_ABI {

/// Calls `visitor` with an object of the dtype's format struct (a tag: `[]<class Format>(Format) {
/// Format::dequantize(...); }`). Returns false, without calling it, for `DType::other`.
template <class Visitor>
constexpr bool visit_format(DType dtype, Visitor&& visitor) {
    switch (dtype) {
        case DType::f32: return visitor(F32{}), true;
        case DType::f16: return visitor(F16{}), true;
        case DType::bf16: return visitor(BF16{}), true;
        case DType::q4_0: return visitor(Q4_0{}), true;
        case DType::q4_1: return visitor(Q4_1{}), true;
        case DType::q5_0: return visitor(Q5_0{}), true;
        case DType::q8_0: return visitor(Q8_0{}), true;
        case DType::q4_k: return visitor(Q4_K{}), true;
        case DType::q6_k: return visitor(Q6_K{}), true;
        case DType::other: break;
    }
    return false;
}

/// Writes the first `columns` numbers (a multiple of the dtype's block) of a row to `out`. Not for `DType::other`.
inline void dequantize_row(DType dtype, const std::byte* row, std::size_t columns, float* out) noexcept {
    const bool known = visit_format(dtype, [&]<class Format>(Format) {
        constexpr DTypeTraits layout = traits(Format::dtype);
        DECANT_ASSERT(columns % layout.block_elements == 0);
        for (std::size_t block = 0; block < columns / layout.block_elements; ++block)
            Format::dequantize(row + block * layout.block_bytes, out + block * layout.block_elements);
    });
    DECANT_ASSERT(known);
    static_cast<void>(known);
}

/// Whether `quantize_row` writes the dtype.
[[nodiscard]] constexpr bool can_quantize(DType dtype) noexcept {
    bool can = false;
    visit_format(dtype, [&]<class Format>(Format) { can = WritableFormat<Format>; });
    return can;
}

/// Writes `columns` numbers (a multiple of the dtype's block) as a row of a dtype that `can_quantize`. What becomes of
/// numbers that are not finite is told at `WritableFormat`.
inline void quantize_row(DType dtype, const float* numbers, std::size_t columns, std::byte* row) noexcept {
    DECANT_ASSERT(can_quantize(dtype));
    visit_format(dtype, [&]<class Format>(Format) {
        if constexpr (WritableFormat<Format>) {
            constexpr DTypeTraits layout = traits(Format::dtype);
            DECANT_ASSERT(columns % layout.block_elements == 0);
            for (std::size_t block = 0; block < columns / layout.block_elements; ++block)
                Format::quantize(numbers + block * layout.block_elements, row + block * layout.block_bytes);
        }
    });
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Q8_0: signed bytes in blocks of 32 with a scale. Layout and formula follow the GGUF type definition of ggml.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/target.hpp>
#include <decant/quant/float16.hpp>
#include <decant/quant/panel.hpp>
#include <decant/quant/writable.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace decant::inline DECANT_ABI {

/// w = scale * value; the panel's codes are value + 128.
struct Q8_0 {
    struct Block {
        std::uint16_t scale;     // F16
        std::int8_t values[32];  // column i in byte i
    };
    static_assert(sizeof(Block) == traits(DType::q8_0).block_bytes && alignof(Block) <= 2);

    static constexpr DType dtype = DType::q8_0;
    static constexpr std::size_t panel_block = 32;
    static constexpr int bias = 128;
    static constexpr bool has_offset = false;
    static constexpr int code_bits = 8;

    /// One block to 32 floats.
    DECANT_ALWAYS_INLINE static void dequantize(const std::byte* block, float* out) noexcept {
        // Apart: a copy of the whole would be read back from addresses that none of its stores covers.
        const float scale = half_to_float(detail::load<std::uint16_t>(block));
        std::int8_t values[32];
        std::memcpy(values, block + offsetof(Block, values), sizeof values);
        for (std::size_t i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(values[i]);
    }

    /// 32 numbers to one block: scale = largest magnitude / 127, value = number / scale to nearest, halves away from
    /// zero.
    static void quantize(const float* numbers, std::byte* block) noexcept {
        const float largest = detail::largest_magnitude(numbers);
        const detail::BlockScale scale(largest / 127.0f, detail::is_finite_magnitude(largest));
        Block out;
        out.scale = scale.half;
        for (std::size_t i = 0; i < 32; ++i) {
            const float magnitude = std::fabs(numbers[i] * scale.inverse);
            const int whole = detail::code_of(magnitude, 127.0f);
            const int rounded = whole + (whole < 127 && magnitude - static_cast<float>(whole) >= 0.5f ? 1 : 0);
            out.values[i] = static_cast<std::int8_t>(std::signbit(numbers[i]) ? -rounded : rounded);
        }
        detail::store(block, out);
    }
};

}  // namespace decant::inline DECANT_ABI

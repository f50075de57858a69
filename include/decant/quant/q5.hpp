// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Q5_0: 5-bit codes in blocks of 32 with a scale. Layout and formula follow the GGUF type definition of ggml: the low
/// four bits as in Q4_0, the fifth bit of column i in bit i of a 32-bit word.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/quant/float16.hpp>
#include <decant/quant/panel.hpp>

#include <cstddef>
#include <cstdint>

namespace decant::inline DECANT_ABI {

/// w = scale * (code - 16).
struct Q5_0 {
    struct Block {
        std::uint16_t scale;          // F16
        std::uint8_t high_bits[4];    // little-endian word, bit i of column i
        std::uint8_t low_halves[16];  // byte i: column i low, column 16 + i high
    };
    static_assert(sizeof(Block) == traits(DType::q5_0).block_bytes && alignof(Block) <= 2);

    static constexpr DType dtype = DType::q5_0;
    static constexpr std::size_t panel_block = 32;
    static constexpr int bias = 16;
    static constexpr bool has_offset = false;
    static constexpr int code_bits = 5;

    /// One block to 32 floats.
    static void dequantize(const std::byte* block, float* out) noexcept {
        const auto in = detail::load<Block>(block);
        const auto high_bits = detail::load<std::uint32_t>(block + offsetof(Block, high_bits));
        const float scale = half_to_float(in.scale);
        for (std::size_t i = 0; i < 16; ++i) {
            const auto first = static_cast<int>((in.low_halves[i] & 0x0Fu) | ((high_bits >> i) & 1u) << 4);
            const auto second =
                static_cast<int>((std::uint32_t{in.low_halves[i]} >> 4) | ((high_bits >> (i + 16)) & 1u) << 4);
            out[i] = scale * static_cast<float>(first - bias);
            out[i + 16] = scale * static_cast<float>(second - bias);
        }
    }
};

}  // namespace decant::inline DECANT_ABI

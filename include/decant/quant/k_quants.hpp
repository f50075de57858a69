// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The formats with super-blocks of 256: Q4_K (eight sub-blocks of 32 with a scale and a minimum each) and Q6_K
/// (sixteen of 16 with a scale each); the sub-blocks' scales are small integers times a scale of the super-block.
/// Layouts and formulas follow the GGUF type definitions of ggml.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/quant/float16.hpp>
#include <decant/quant/panel.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace decant::inline DECANT_ABI {

/// w = (scale * s) * code - (minimum * m), with 6-bit integers s and m of the sub-block.
struct Q4_K {
    struct Block {
        std::uint16_t scale;                  // F16
        std::uint16_t minimum;                // F16
        std::uint8_t packed_multipliers[12];  // see `multipliers`
        std::uint8_t codes[128];              // per 64 columns 32 bytes: the first 32 columns in the low halves
    };
    static_assert(sizeof(Block) == traits(DType::q4_k).block_bytes && alignof(Block) <= 2);

    static constexpr DType dtype = DType::q4_k;
    static constexpr std::size_t panel_block = 32;
    static constexpr int bias = 0;
    static constexpr bool has_offset = true;
    static constexpr int code_bits = 4;

    /// One block to 256 floats.
    static void dequantize(const std::byte* block, float* out) noexcept {
        const Multipliers integers = multipliers(block);
        const float block_scale = half_to_float(detail::load<std::uint16_t>(block + offsetof(Block, scale)));
        const float block_minimum = half_to_float(detail::load<std::uint16_t>(block + offsetof(Block, minimum)));
        for (std::size_t sub = 0; sub < 8; ++sub) {
            const float scale = block_scale * static_cast<float>(integers.scale[sub]);
            const float minimum = block_minimum * static_cast<float>(integers.minimum[sub]);
            const std::byte* codes = block + offsetof(Block, codes) + sub / 2 * 32;
            for (std::size_t i = 0; i < 32; ++i) {
                const auto pair = std::to_integer<std::uint32_t>(codes[i]);
                const std::uint32_t code = sub % 2 == 0 ? pair & 0x0Fu : pair >> 4;
                out[sub * 32 + i] = scale * static_cast<float>(code) - minimum;
            }
        }
    }

 private:
    struct Multipliers {
        std::uint8_t scale[8];
        std::uint8_t minimum[8];
    };

    /// Unpacks the 6-bit integers, four at a time. Of the three words, the first holds scales 0..3, the second minimums
    /// 0..3 (six low bits of each byte), the third the low four bits of scales 4..7 (low halves) and of minimums 4..7
    /// (high halves), whose upper two bits lie in the spare bits of the first and second word.
    static Multipliers multipliers(const std::byte* block) noexcept {
        const std::byte* packed = block + offsetof(Block, packed_multipliers);
        const auto first = detail::load<std::uint32_t>(packed);
        const auto second = detail::load<std::uint32_t>(packed + 4);
        const auto third = detail::load<std::uint32_t>(packed + 8);
        const std::uint32_t words[4] = {
            first & 0x3F3F3F3Fu,
            (third & 0x0F0F0F0Fu) | ((first >> 2) & 0x30303030u),
            second & 0x3F3F3F3Fu,
            ((third >> 4) & 0x0F0F0F0Fu) | ((second >> 2) & 0x30303030u),
        };
        Multipliers result;
        static_assert(sizeof result == sizeof words);
        std::memcpy(&result, words, sizeof result);
        return result;
    }
};

/// w = (scale * s) * (code - 32), with a signed 8-bit integer s of the sub-block.
struct Q6_K {
    struct Block {
        // Per 128 columns, 64 bytes hold the low four bits: columns 0..63 in the low halves, 64..127 in the high
        // halves.
        std::uint8_t low_halves[128];
        // Per 128 columns, byte i of 32 holds the high two bits of columns i, 32 + i, 64 + i, 96 + i, lowest first.
        std::uint8_t high_pairs[64];
        std::int8_t multipliers[16];  // of 16 columns each
        std::uint16_t scale;          // F16
    };
    static_assert(sizeof(Block) == traits(DType::q6_k).block_bytes && alignof(Block) <= 2);

    static constexpr DType dtype = DType::q6_k;
    static constexpr std::size_t panel_block = 16;
    static constexpr int bias = 32;
    static constexpr bool has_offset = false;
    static constexpr int code_bits = 6;

    /// One block to 256 floats.
    static void dequantize(const std::byte* block, float* out) noexcept {
        const auto in = detail::load<Block>(block);
        const float block_scale = half_to_float(in.scale);
        for (std::size_t sub = 0; sub < 16; ++sub) {  // sub-block of 16 columns
            const float scale = block_scale * static_cast<float>(in.multipliers[sub]);
            const std::size_t half = sub / 8;
            const std::size_t quarter = sub % 8 / 2;
            const std::uint8_t* low = in.low_halves + half * 64 + sub % 4 * 16;
            const std::uint8_t* high = in.high_pairs + half * 32 + sub % 2 * 16;
            for (std::size_t i = 0; i < 16; ++i) {
                const int code = (low[i] >> (quarter / 2 * 4) & 0x0F) | (high[i] >> (quarter * 2) & 0x03) << 4;
                out[sub * 16 + i] = scale * static_cast<float>(code - bias);
            }
        }
    }
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The 4-bit formats with blocks of 32: Q4_0 (a scale) and Q4_1 (a scale and a minimum). Layouts and formulas follow
/// the GGUF type definitions of ggml. Byte i of a block's codes holds column i in its low half and column 16 + i in its
/// high half.

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

namespace detail {

/// Writes 32 codes: column i's is `code(i)`, below 16.
template <class Code>
inline void pack_nibbles(std::uint8_t (&codes)[16], Code code) noexcept {
    for (std::size_t i = 0; i < 16; ++i) codes[i] = static_cast<std::uint8_t>(code(i) | code(i + 16) << 4);
}

}  // namespace detail

/// w = scale * (code - 8).
struct Q4_0 {
    struct Block {
        std::uint16_t scale;     // F16
        std::uint8_t codes[16];  // see above
    };
    static_assert(sizeof(Block) == traits(DType::q4_0).block_bytes && alignof(Block) <= 2);

    static constexpr DType dtype = DType::q4_0;
    static constexpr std::size_t panel_block = 32;
    static constexpr int bias = 8;
    static constexpr bool has_offset = false;
    static constexpr int code_bits = 4;

    /// One block to 32 floats.
    DECANT_ALWAYS_INLINE static void dequantize(const std::byte* block, float* out) noexcept {
        const float scale = half_to_float(detail::load<std::uint16_t>(block));
        std::uint8_t codes[16];
        std::memcpy(codes, block + offsetof(Block, codes), sizeof codes);
        for (std::size_t i = 0; i < 16; ++i) out[i] = scale * static_cast<float>((codes[i] & 0x0F) - bias);
        for (std::size_t i = 0; i < 16; ++i) out[i + 16] = scale * static_cast<float>((codes[i] >> 4) - bias);
    }

    /// 32 numbers to one block. The scale makes the number of largest magnitude code 0, which has a magnitude more than
    /// the largest code: scale = number / -8, code = floor(number / scale + 8.5), at most 15.
    static void quantize(const float* numbers, std::byte* block) noexcept {
        const float magnitude = detail::largest_magnitude(numbers);
        float largest = 0.0f;
        for (std::size_t i = 32; i-- > 0;) largest = std::fabs(numbers[i]) == magnitude ? numbers[i] : largest;
        const detail::BlockScale scale(largest / -8.0f, detail::is_finite_magnitude(magnitude));
        Block out;
        out.scale = scale.half;
        detail::pack_nibbles(out.codes,
                             [&](std::size_t i) { return detail::code_of(numbers[i] * scale.inverse + 8.5f, 15.0f); });
        detail::store(block, out);
    }
};

/// w = scale * code + offset.
struct Q4_1 {
    struct Block {
        std::uint16_t scale;     // F16
        std::uint16_t offset;    // F16
        std::uint8_t codes[16];  // see above
    };
    static_assert(sizeof(Block) == traits(DType::q4_1).block_bytes && alignof(Block) <= 2);

    static constexpr DType dtype = DType::q4_1;
    static constexpr std::size_t panel_block = 32;
    static constexpr int bias = 0;
    static constexpr bool has_offset = true;
    static constexpr int code_bits = 4;

    /// One block to 32 floats.
    static void dequantize(const std::byte* block, float* out) noexcept {
        const auto in = detail::load<Block>(block);
        const float scale = half_to_float(in.scale);
        const float offset = half_to_float(in.offset);
        for (std::size_t i = 0; i < 16; ++i) {
            out[i] = scale * static_cast<float>(in.codes[i] & 0x0F) + offset;
            out[i + 16] = scale * static_cast<float>(in.codes[i] >> 4) + offset;
        }
    }

    /// 32 numbers to one block: offset = minimum, scale = (maximum - minimum) / 15, code = floor((number - minimum) /
    /// scale + 0.5).
    static void quantize(const float* numbers, std::byte* block) noexcept {
        float lowest = numbers[0];
        float highest = numbers[0];
        for (std::size_t i = 1; i < 32; ++i) {
            lowest = numbers[i] < lowest ? numbers[i] : lowest;
            highest = numbers[i] > highest ? numbers[i] : highest;
        }
        const bool finite = detail::is_finite_magnitude(detail::largest_magnitude(numbers));
        const detail::BlockScale scale((highest - lowest) / 15.0f, finite);
        Block out;
        out.scale = scale.half;
        out.offset = float_to_half(lowest);
        detail::pack_nibbles(out.codes, [&](std::size_t i) {
            return detail::code_of((numbers[i] - lowest) * scale.inverse + 0.5f, 15.0f);
        });
        detail::store(block, out);
    }
};

}  // namespace decant::inline DECANT_ABI

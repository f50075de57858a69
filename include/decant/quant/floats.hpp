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

struct F32 {
    static constexpr DType dtype = DType::f32;

    /// One number.
    static void dequantize(const std::byte* block, float* out) noexcept { *out = detail::load<float>(block); }
    /// One number, exactly.
    static void quantize(const float* number, std::byte* block) noexcept { std::memcpy(block, number, sizeof *number); }
};

struct F16 {
    static constexpr DType dtype = DType::f16;

    /// One number.
    static void dequantize(const std::byte* block, float* out) noexcept {
        *out = half_to_float(detail::load<std::uint16_t>(block));
    }
    /// One number, to nearest.
    static void quantize(const float* number, std::byte* block) noexcept {
        detail::store(block, float_to_half(*number));
    }
};

struct BF16 {
    static constexpr DType dtype = DType::bf16;

    /// One number.
    static void dequantize(const std::byte* block, float* out) noexcept {
        *out = bfloat16_to_float(detail::load<std::uint16_t>(block));
    }
    /// One number, to nearest.
    static void quantize(const float* number, std::byte* block) noexcept {
        detail::store(block, float_to_bfloat16(*number));
    }
};

}  // namespace decant::inline DECANT_ABI

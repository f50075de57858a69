// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The kernels of the `Simd` backend for a machine about which nothing is known, and the contract of every other set. A
/// set inherits from the next worse one and hides what it does better.

#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>
#include <decant/quant/float16.hpp>
#include <decant/quant/panel.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace decant::inline DECANT_ABI {
namespace simd {

/// Columns that share one scale of quantized activations, and the half of it that sums are kept for.
inline constexpr std::size_t activation_block = 32;
inline constexpr std::size_t activation_half = 16;

/// Rows of activations in 8 bits: x[t, i] = scales[t, i / 32] * codes[t, i], codes in [-127, 127].
/// sums[t, i / 16] = sum of 16 codes. Row t begins at t * stride (codes), t * stride / 32 and t * stride / 16.
struct Activations {
    std::int8_t* codes = nullptr;
    float* scales = nullptr;
    std::int32_t* sums = nullptr;
    std::size_t stride = 0;  // a multiple of 32

    [[nodiscard]] Activations from(std::size_t row, std::size_t column) const noexcept {
        const std::size_t at = row * stride + column;
        return {codes + at, scales + at / activation_block, sums + at / activation_half, stride};
    }
};

// Magnitudes below this are taken for 0: their reciprocal would overflow.
inline constexpr float smallest_magnitude = 1e-35f;

struct Portable {
    static constexpr Isa isa = Isa::portable;

    /// Quantizes `columns` floats (a multiple of 32) to a row of activations, to nearest, ties to even. A block with a
    /// NaN or an infinity gets a NaN scale, so that it cannot pass unseen.
    static void quantize(const float* x, std::size_t columns, Activations row) noexcept {
        for (std::size_t b = 0; b < columns / activation_block; ++b, x += activation_block) {
            float peak = 0.0f;
            float nothing = 0.0f;  // NaN as soon as an element is not finite
            for (std::size_t i = 0; i < activation_block; ++i) {
                const float magnitude = x[i] < 0.0f ? -x[i] : x[i];
                peak = magnitude > peak ? magnitude : peak;
                nothing += x[i] * 0.0f;
            }
            const bool usable = nothing == 0.0f && peak >= smallest_magnitude;
            const float inverse = usable ? 127.0f / peak : 0.0f;
            row.scales[b] = usable ? peak / 127.0f : nothing;
            for (std::size_t half = 0; half < 2; ++half) {
                std::int32_t sum = 0;
                for (std::size_t i = half * activation_half; i < (half + 1) * activation_half; ++i) {
                    // Adding 1.5 * 2^23 leaves the integer nearest to a small float in the low bits.
                    const float shifted = (usable ? x[i] * inverse : 0.0f) + 12582912.0f;
                    const std::int32_t code = std::bit_cast<std::int32_t>(shifted) - 0x4B400000;
                    row.codes[b * activation_block + i] = static_cast<std::int8_t>(code);
                    sum += code;
                }
                row.sums[2 * b + half] = sum;
            }
        }
    }

    /// acc[t, r] += sum over blocks b in order of
    ///     float(sum over the block's columns c of code[r, c] a[t, c] - bias * sum of a[t, c]) * (scale[r, b] * s[t,
    ///     b])
    ///     (+ offset[r, b] * (s[t, b] * sum of a[t, c]))
    /// where the integer sum is exact. `EightBits`: codes may exceed 127. `columns` is a multiple of 32; acc is
    /// [tokens][16].
    template <std::size_t Block, bool HasOffset, bool EightBits>
    static void multiply(CodePanel panel, int bias, std::size_t columns, Activations a, std::size_t tokens,
                         float* acc) noexcept {
        for (std::size_t t = 0; t < tokens; ++t, acc += panel_rows) {
            const Activations row = a.from(t, 0);
            for (std::size_t b = 0; b < columns / Block; ++b) {
                const std::int32_t sum = block_sum<Block>(row, b);
                std::int32_t dots[panel_rows];
                for (std::size_t r = 0; r < panel_rows; ++r) dots[r] = -bias * sum;
                for (std::size_t g = b * Block / panel_group; g < (b + 1) * Block / panel_group; ++g) {
                    const std::int8_t* x = row.codes + g * panel_group;
                    const std::uint8_t* w = panel.codes + g * panel_group * panel_rows;
                    for (std::size_t r = 0; r < panel_rows; ++r)
                        for (std::size_t c = 0; c < panel_group; ++c) dots[r] += w[r * panel_group + c] * x[c];
                }
                const float scale = row.scales[b * Block / activation_block];
                const float weighted = scale * static_cast<float>(sum);
                for (std::size_t r = 0; r < panel_rows; ++r) {
                    acc[r] += static_cast<float>(dots[r]) * (panel.scales[b * panel_rows + r] * scale);
                    if constexpr (HasOffset) acc[r] += panel.offsets[b * panel_rows + r] * weighted;
                }
            }
        }
    }

    /// acc[t, r] += sum over columns c of values[c, r] x[t, c]: four partial sums over c mod 4, added as (0 + 1) + (2 +
    /// 3). x rows lie `stride` floats apart.
    static void multiply(FloatPanel panel, std::size_t columns, const float* x, std::size_t stride, std::size_t tokens,
                         float* acc) noexcept {
        for (std::size_t t = 0; t < tokens; ++t, x += stride, acc += panel_rows) {
            float partial[4][panel_rows] = {};
            for (std::size_t c = 0; c < columns; ++c)
                for (std::size_t r = 0; r < panel_rows; ++r)
                    partial[c % 4][r] += panel.values[c * panel_rows + r] * x[c];
            for (std::size_t r = 0; r < panel_rows; ++r)
                acc[r] += (partial[0][r] + partial[1][r]) + (partial[2][r] + partial[3][r]);
        }
    }

    /// values[c, r] = rows[r][c] for c < n: 16 rows of F16 or F32 (any alignment), zeros where a pointer is null.
    template <bool Half>
    static void transpose(const std::byte* const* rows, std::size_t n, FloatPanel out) noexcept {
        for (std::size_t r = 0; r < panel_rows; ++r) {
            for (std::size_t c = 0; c < n; ++c) {
                Entry<Half> entry{};
                if (rows[r] != nullptr) std::memcpy(&entry, rows[r] + c * sizeof entry, sizeof entry);
                if constexpr (Half) {
                    out.values[c * panel_rows + r] = half_to_float(entry);
                } else {
                    out.values[c * panel_rows + r] = entry;
                }
            }
        }
    }

    /// Sum over i of a[i] b[i], in an order that depends on n alone.
    static float dot(const float* a, const float* b, std::size_t n) noexcept {
        constexpr std::size_t lanes = 8;
        float partial[lanes] = {};
        std::size_t i = 0;
        for (; i + lanes <= n; i += lanes)
            for (std::size_t l = 0; l < lanes; ++l) partial[l] += a[i + l] * b[i + l];
        for (std::size_t l = 0; i < n; ++i, ++l) partial[l] += a[i] * b[i];
        return ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
               ((partial[1] + partial[5]) + (partial[3] + partial[7]));
    }

    /// Sum over i of a[i], in an order that depends on n alone.
    static float sum(const float* a, std::size_t n) noexcept {
        constexpr std::size_t lanes = 8;
        float partial[lanes] = {};
        for (std::size_t i = 0; i < n; ++i) partial[i % lanes] += a[i];
        return ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
               ((partial[1] + partial[5]) + (partial[3] + partial[7]));
    }

    /// y[i] += a x[i]
    static void axpy(float a, const float* x, float* y, std::size_t n) noexcept {
        for (std::size_t i = 0; i < n; ++i) y[i] += a * x[i];
    }

    /// F16 bits (any alignment) to floats and back, to nearest, ties to even.
    static void from_half(const std::byte* half, float* to, std::size_t n) noexcept {
        for (std::size_t i = 0; i < n; ++i) {
            std::uint16_t bits;
            std::memcpy(&bits, half + i * sizeof bits, sizeof bits);
            to[i] = half_to_float(bits);
        }
    }
    static void to_half(const float* from, std::byte* half, std::size_t n) noexcept {
        for (std::size_t i = 0; i < n; ++i) {
            const std::uint16_t bits = float_to_half(from[i]);
            std::memcpy(half + i * sizeof bits, &bits, sizeof bits);
        }
    }

 protected:
    /// How an entry of a cache is stored.
    template <bool Half>
    using Entry = std::conditional_t<Half, std::uint16_t, float>;

    /// The columns of `transpose` from `first` on, where they no longer fill a register.
    template <bool Half>
    static void transpose_rest(const std::byte* const* rows, std::size_t first, std::size_t n,
                               FloatPanel out) noexcept {
        const std::byte* rest[panel_rows];
        for (std::size_t r = 0; r < panel_rows; ++r)
            rest[r] = rows[r] == nullptr ? nullptr : rows[r] + first * sizeof(Entry<Half>);
        Portable::transpose<Half>(rest, n - first, {out.values + first * panel_rows});
    }

    template <std::size_t Block>
    static std::int32_t block_sum(const Activations& row, std::size_t b) noexcept {
        static_assert(Block == activation_block || Block == activation_half);
        if constexpr (Block == activation_half) return row.sums[b];
        return row.sums[2 * b] + row.sums[2 * b + 1];
    }
};

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Units that multiply small matrices: a set that multiplies block formats by tiles of BF16 (amx_multiply.inl) and is
/// otherwise the set that it derives from; and AMX, Intel's.
///
/// A policy `Tiles` names the unit's eight tiles by constants, in the manner of AMX. It has the members of `AmxTiles`,
/// so that the same products run without the processor.

#include <decant/backend/simd/avx512.hpp>
#include <decant/backend/simd/lanes.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>

#include <cstddef>
#include <cstdint>

namespace decant::inline DECANT_ABI {
namespace simd {

/// The shapes of the tiles as `ldtilecfg` reads them, palette 1 (Intel SDM, volume 1, chapter 18): up to 16 rows of up
/// to 64 bytes.
struct alignas(64) TileShapes {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    void set(std::size_t tile, std::size_t row_count, std::size_t bytes) noexcept {
        rows[tile] = static_cast<std::uint8_t>(row_count);
        row_bytes[tile] = static_cast<std::uint16_t>(bytes);
    }
};
static_assert(sizeof(TileShapes) == 64);

/// A set that multiplies by tiles what `Base` would multiply in integers. Weights and activations are rounded to BF16,
/// which is nearer than activations of 8 bits. The same steps for any number of tokens: results do not depend on it.
template <class Base, class Tiles>
struct Tiled : Base {
    static constexpr Isa isa = Tiles::isa;
    using Activations = PairBlock;

    static void quantize(const float* x, std::size_t columns, PairBlock* to) noexcept { Base::pair(x, columns, to); }

    template <class Format, class X>
    static void multiply(const WeightRows& w, const X* const* x, std::size_t tokens, float* sums,
                         std::byte* scratch) noexcept {
        if constexpr (CodeFormat<Format>)
            Base::template multiply_tiles<Format, Tiles>(w, x, tokens, sums, scratch);
        else
            Base::template multiply<Format>(w, x, tokens, sums, scratch);
    }
};

#if DECANT_AMX

/// The tiles of AMX-BF16. In assembly: the intrinsics of g++ 12 do not tell the compiler that they read memory, and
/// take no constants of templates.
struct AmxTiles {
    static constexpr Isa isa = Isa::amx;
    using Shapes = TileShapes;

    static void configure(const TileShapes& shapes) noexcept { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
    static void release() noexcept { asm volatile("tilerelease"); }

    template <int Tile>
    DECANT_ALWAYS_INLINE static void zero() noexcept {
        asm volatile("{tilezero %%tmm%c0|tilezero tmm%c0}" : : "i"(Tile));
    }
    /// Rows that lie `stride` bytes apart.
    template <int Tile>
    DECANT_ALWAYS_INLINE static void load(const void* from, std::ptrdiff_t stride) noexcept {
        asm volatile("{tileloadd (%0,%1,1), %%tmm%c2|tileloadd tmm%c2, [%0+%1*1]}"
                     :
                     : "r"(from), "r"(stride), "i"(Tile)
                     : "memory");
    }
    template <int Tile>
    DECANT_ALWAYS_INLINE static void store(void* to, std::ptrdiff_t stride) noexcept {
        asm volatile("{tilestored %%tmm%c2, (%0,%1,1)|tilestored [%0+%1*1], tmm%c2}"
                     :
                     : "r"(to), "r"(stride), "i"(Tile)
                     : "memory");
    }
    /// Sum[m][n] += A[m][k] B[k / 2][n][k % 2], of BF16; the sums over even and odd k are added up first, each on its
    /// own. Subnormal numbers are taken for 0.
    template <int Sum, int A, int B>
    DECANT_ALWAYS_INLINE static void add_products() noexcept {
        asm volatile("{tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbf16ps tmm%c0, tmm%c1, tmm%c2}"
                     :
                     : "i"(Sum), "i"(A), "i"(B));
    }
};

using Amx = Tiled<Avx512Vnni, AmxTiles>;

#endif

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

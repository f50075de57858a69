// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// AVX-512 with BF16 products, for hosts that ask for it: on processors that multiply such pairs faster than floats.

#include <decant/backend/simd/avx512.hpp>
#include <decant/backend/simd/lanes.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>
#include <decant/core/target.hpp>
#include <decant/quant/floats.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if DECANT_X86

namespace decant::inline DECANT_ABI {
namespace simd {
DECANT_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")

namespace avx512_bf16 {

using Lanes = avx512_vnni::Lanes;

/// Products of a tile of BF16 rows with activations that are rounded to BF16: one sum for each result, to which pair
/// after pair of columns is added (`vdpbf16ps`, Intel SDM, volume 2: subnormals are taken for 0). The same steps for
/// any number of tokens: results do not depend on it. Pairs lie in the file as the instruction reads them.
class Products {
 public:
    /// Sums and scratch are those of `Set::multiply`.
    static void run(const WeightRows& w, const float* const* x, std::size_t tokens, float* sums,
                    std::byte* scratch) noexcept {
        avx512_vnni::clear_floats(sums, tokens * avx512_vnni::Set::most_rows(tokens));
        if (tokens > avx512_vnni::most_few) return run_many(w, x, tokens, sums, scratch);
        for (; tokens > 8; tokens -= 8, x += 8, sums += 8 * wide_tile_rows) run_few<8>(w, x, 8, sums, scratch);
        if (tokens == 1) return run_few<1>(w, x, tokens, sums, scratch);
        if (tokens <= 4) return run_few<4>(w, x, tokens, sums, scratch);
        run_few<8>(w, x, tokens, sums, scratch);
    }

 private:
    static constexpr std::size_t each = 8;     // columns in 16 bytes
    static constexpr std::size_t piece = 256;  // columns at a time
    static constexpr std::size_t group = 32;   // tokens that are rounded at a time
    static constexpr std::size_t panels = tile_rows / panel_rows;
    static constexpr std::size_t panel_words = piece / 2 * panel_rows;
    static constexpr std::size_t few_piece = 2048;
    static constexpr std::size_t copy_bytes = panel_rows * piece * 2;
    static_assert(panels * panel_words * sizeof(std::uint32_t) <= panels_bytes);
    static_assert(copy_bytes + group * piece * 2 <= product_bytes - panels_bytes);
    static_assert(copy_bytes + 8 * few_piece * 2 <= product_bytes);

    /// With panels, which serve all tokens.
    static void run_many(const WeightRows& w, const float* const* x, std::size_t tokens, float* sums,
                         std::byte* scratch) noexcept {
        auto* const panel = reinterpret_cast<std::uint32_t*>(scratch);
        std::byte* const copy = scratch + panels_bytes;
        auto* const rows = reinterpret_cast<std::uint32_t*>(copy + copy_bytes);
        avx512_vnni::Fetch fetch{w.first + tile_rows * w.row_bytes};
        for (std::size_t k = 0; k < w.columns; k += piece) {
            const std::size_t n = w.columns - k < piece ? w.columns - k : piece;
            for (std::size_t p = 0; p * panel_rows < w.count; ++p) {
                ToPanel sink{panel + p * panel_words};
                read(Source(w, p, k, n, copy), n, fetch, sink);
            }
            for (std::size_t t = 0; t < tokens; t += group) {
                const std::size_t count = tokens - t < group ? tokens - t : group;
                for (std::size_t i = 0; i < count; ++i) round(x[t + i] + k, n, rows + i * (piece / 2));
                for (std::size_t i = 0; i < count; i += 8)
                    multiply(panel, n, rows, i, count, sums + (t + i) * tile_rows);
            }
        }
    }

    /// Without.
    template <std::size_t Tokens>
    static void run_few(const WeightRows& w, const float* const* x, std::size_t tokens, float* sums,
                        std::byte* scratch) noexcept {
        auto* const rows = reinterpret_cast<std::uint32_t*>(scratch + copy_bytes);
        const std::size_t most = w.count % panel_rows == 0 && w.columns % each == 0 ? few_piece : piece;
        for (std::size_t k = 0; k < w.columns; k += most) {
            const std::size_t n = w.columns - k < most ? w.columns - k : most;
            for (std::size_t t = 0; t < tokens; ++t) round(x[t] + k, n, rows + t * (few_piece / 2));
            for (std::size_t p = 0; p * panel_rows < w.count; ++p) {
                avx512_vnni::Fetch fetch{w.first + (p + 1) * panel_rows * w.row_bytes + k * 2};
                const Source source(w, p, k, n, scratch);
                ToSums<Tokens> sink;
                DECANT_UNROLL
                for (std::size_t t = 0; t < Tokens; ++t) {
                    sink.x[t] = rows + (t < tokens ? t : tokens - 1) * (few_piece / 2);
                    sink.y[t] = Lanes::load_floats(sums + t * wide_tile_rows + p * panel_rows);
                }
                read(source, n, fetch, sink);
                DECANT_UNROLL
                for (std::size_t t = 0; t < Tokens; ++t)
                    Lanes::store_floats(sums + t * wide_tile_rows + p * panel_rows, sink.y[t]);
            }
        }
    }

    /// Columns [k, k + n) of a panel's rows, where they lie or in a copy with zeros after the last column. Rows that
    /// are not there are the first.
    struct Source {
        const std::byte* first;
        std::size_t stride;
        Source(const WeightRows& w, std::size_t p, std::size_t k, std::size_t n, std::byte* copy) noexcept
            : first(w.first + p * panel_rows * w.row_bytes + k * 2), stride(w.row_bytes) {
            const std::size_t there = w.count - p * panel_rows;
            if (there >= panel_rows && n % each == 0) return;
            const std::size_t bytes = (n + each - 1) / each * each * 2;
            __builtin_memset(copy, 0, panel_rows * bytes);
            for (std::size_t r = 0; r < panel_rows; ++r)
                __builtin_memcpy(copy + r * bytes, first + (r < there ? r : 0) * stride, n * 2);
            first = copy;
            stride = bytes;
        }
    };

    /// Hands n columns of 16 rows to a sink, pair by pair.
    template <class Sink>
    DECANT_ALWAYS_INLINE static void read(Source from, std::size_t n, avx512_vnni::Fetch& fetch, Sink& sink) noexcept {
        for (std::size_t c = 0; c < n; c += each, from.first += each * 2) {
            if (c % (4 * each) == 0) avx512_vnni::FromCache::approach(from.first, from.stride);
            fetch.run<panel_rows * each * 2>();
            Lanes::Words words[4];
            Lanes::columns(from.first, from.stride, words);
            DECANT_UNROLL
            for (std::size_t i = 0; i < 4; ++i) sink.pair(words[i]);
        }
    }

    /// panel[pair of columns][row].
    struct ToPanel {
        std::uint32_t* to;
        DECANT_ALWAYS_INLINE void pair(Lanes::Words w) noexcept {
            Lanes::store(to, w);
            to += panel_rows;
        }
    };
    template <std::size_t Tokens>
    struct ToSums {
        const std::uint32_t* x[Tokens];
        Lanes::Floats y[Tokens];
        std::size_t c = 0;
        DECANT_ALWAYS_INLINE void pair(Lanes::Words w) noexcept {
            DECANT_UNROLL
            for (std::size_t t = 0; t < Tokens; ++t) y[t] = add(y[t], w, x[t] + c);
            ++c;
        }
    };

    /// n floats to BF16, and zeros up to a whole register.
    static void round(const float* x, std::size_t n, std::uint32_t* to) noexcept {
        for (std::size_t c = 0; c < n; c += 2 * panel_rows) {
            const std::size_t low = n - c < panel_rows ? n - c : panel_rows;
            const std::size_t left = n - c - low, high = left < panel_rows ? left : panel_rows;
            const __m512bh pairs =
                _mm512_cvtne2ps_pbh(Lanes::load_some(x + c + low, high), Lanes::load_some(x + c, low));
            Lanes::store(to + c / 2, __builtin_bit_cast(Lanes::Words, pairs));
        }
    }

    /// The panels by rows [t, t + 8) of `tokens`, the last one for those that are not there.
    static void multiply(const std::uint32_t* panel, std::size_t n, const std::uint32_t* rows, std::size_t t,
                         std::size_t tokens, float* sums) noexcept {
        constexpr std::size_t at_once = 8;
        const std::uint32_t* x[at_once];
        Lanes::Floats y[panels][at_once];
        DECANT_UNROLL
        for (std::size_t i = 0; i < at_once; ++i) {
            x[i] = rows + (t + i < tokens ? t + i : tokens - 1) * (piece / 2);
            DECANT_UNROLL
            for (std::size_t p = 0; p < panels; ++p)
                y[p][i] = Lanes::load_floats(sums + i * tile_rows + p * panel_rows);
        }
        for (std::size_t c = 0; c < (n + 1) / 2; ++c, panel += panel_rows) {
            Lanes::Words w[panels];
            DECANT_UNROLL
            for (std::size_t p = 0; p < panels; ++p) w[p] = Lanes::load(panel + p * panel_words);
            DECANT_UNROLL
            for (std::size_t i = 0; i < at_once; ++i) {
                DECANT_UNROLL
                for (std::size_t p = 0; p < panels; ++p) y[p][i] = add(y[p][i], w[p], x[i] + c);
            }
        }
        DECANT_UNROLL
        for (std::size_t i = 0; i < at_once; ++i) {
            DECANT_UNROLL
            for (std::size_t p = 0; p < panels; ++p)
                Lanes::store_floats(sums + i * tile_rows + p * panel_rows, y[p][i]);
        }
    }

    DECANT_ALWAYS_INLINE static Lanes::Floats add(Lanes::Floats y, Lanes::Words w, const std::uint32_t* x) noexcept {
        return _mm512_dpbf16_ps(y, __builtin_bit_cast(__m512bh, w), __builtin_bit_cast(__m512bh, Lanes::broadcast(x)));
    }
};

}  // namespace avx512_bf16

DECANT_TARGET_END

/// AVX-512 VNNI, but for products of BF16 weights.
struct Avx512Bf16 : Avx512Vnni {
    static constexpr Isa isa = Isa::avx512_bf16;

    template <class Format, class X>
    static void multiply(const WeightRows& w, const X* const* x, std::size_t tokens, float* sums,
                         std::byte* scratch) noexcept {
        if constexpr (std::is_same_v<Format, BF16>)
            avx512_bf16::Products::run(w, x, tokens, sums, scratch);
        else
            Avx512Vnni::multiply<Format>(w, x, tokens, sums, scratch);
    }
};

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

#endif  // DECANT_X86

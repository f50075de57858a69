// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Simd`: the CPU backend. Reads the file's blocks where they lie: a tile of 16 output columns is unpacked into a
/// panel that stays in the cache and is multiplied by all tokens of the pass, activations in 8 bits for block formats
/// and in F32 for F32, F16 and BF16 weights.

#include <decant/backend/host/backend.hpp>
#include <decant/backend/host/ops.hpp>
#include <decant/backend/simd/avx2.hpp>
#include <decant/backend/simd/avx512.hpp>
#include <decant/backend/simd/portable.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/backend/simd/vector_math.hpp>
#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>
#include <decant/quant/formats.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace decant::inline DECANT_ABI {
namespace simd {

/// The operations in terms of a set's kernels.
template <class Set>
struct Operations {
    static constexpr std::size_t piece = 2048;  // columns of a panel at a time, a multiple of every block

    /// A participant's memory for one tile.
    struct Scratch {
        // A piece of a panel, as codes with their scales or as floats, and the sums of its 16 columns for every token.
        static constexpr std::size_t code_bytes = piece * panel_rows;
        static constexpr std::size_t scale_bytes = piece / activation_half * panel_rows * sizeof(float);
        static constexpr std::size_t panel_bytes = piece * panel_rows * sizeof(float);
        static_assert(code_bytes + 2 * scale_bytes <= panel_bytes);

        /// `columns`: the widest row that the pass handles.
        static std::size_t bytes(const PassShape& shape, std::size_t columns) {
            return panel_bytes + (std::max)(shape.rows * panel_rows, columns) * sizeof(float);
        }
        std::byte* memory;
        [[nodiscard]] CodePanel codes() const noexcept {
            return {reinterpret_cast<std::uint8_t*>(memory), reinterpret_cast<float*>(memory + code_bytes),
                    reinterpret_cast<float*>(memory + code_bytes + scale_bytes)};
        }
        [[nodiscard]] FloatPanel floats() const noexcept { return {reinterpret_cast<float*>(memory)}; }
        [[nodiscard]] float* sums() const noexcept { return reinterpret_cast<float*>(memory + panel_bytes); }
        [[nodiscard]] float* row() const noexcept { return sums(); }
    };

    static void run(const host::Embed& op, const host::Frame& f, std::uint32_t t, Scratch, Activations) {
        const auto token = static_cast<std::size_t>(f.inputs.tokens[t]);
        float* x = op.x.row(t);
        dequantize_row(op.table->dtype, op.table->row(token), op.x.columns, x);
        if (op.scale != 1.0f) scale(x, op.scale, x, op.x.columns);
    }

    static void run(const host::Norm& op, const host::Frame&, std::uint32_t t, Scratch scratch, Activations) {
        const std::size_t n = op.weight->columns;
        dequantize_row(op.weight->dtype, op.weight->data, n, scratch.row());
        for (std::size_t group = 0; group < op.x.columns; group += n) {
            const float* x = op.x.row(t) + group;
            float* y = op.y.row(t) + group;
            const float factor = 1.0f / std::sqrt(Set::dot(x, x, n) / static_cast<float>(n) + op.spec.epsilon);
            if (op.accumulate) {
                add_scaled_by(x, factor, scratch.row(), y, n);
            } else {
                scale_by(x, factor, scratch.row(), y, n);
            }
        }
    }

    static void run(const host::Prepare& op, const host::Frame&, std::uint32_t t, Scratch, Activations prepared) {
        Set::quantize(op.x.row(t), op.x.columns, prepared.from(t, 0));
    }

    static void run(const host::Linear& op, const host::Frame& f, std::uint32_t tile, Scratch scratch,
                    Activations prepared) {
        const host::Linear::Place place = op.place(tile);
        const host::LinearTarget& target = *place.target;
        const std::size_t first = place.column;
        const std::size_t columns = place.columns;
        const host::Weight& w = *target.weight;
        const std::size_t rows = f.rows(op.x.rows);
        float* const sums = scratch.sums();
        std::fill_n(sums, rows * panel_rows, 0.0f);
        visit_format(w.dtype, [&]<class Format>(Format) {
            for (std::size_t k = 0; k < w.columns; k += piece) {  // pieces in order
                const std::size_t n = (std::min)(piece, w.columns - k);
                if constexpr (CodeFormat<Format>) {
                    const CodePanel panel = scratch.codes();
                    Format::unpack(w.row(first), w.row_bytes, columns, k, n, panel);
                    Set::template multiply<Format::panel_block, Format::has_offset, (Format::code_bits > 7)>(
                        panel, Format::bias, n, prepared.from(0, k), rows, sums);
                } else {
                    const FloatPanel panel = scratch.floats();
                    Format::unpack(w.row(first), w.row_bytes, columns, k, n, panel);
                    Set::multiply(panel, n, op.x.row(0) + k, op.x.columns, rows, sums);
                }
            }
        });
        float bias[panel_rows] = {};
        if (target.bias != nullptr) {
            const host::Weight& b = *target.bias;
            dequantize_row(b.dtype, b.data + row_bytes(b.dtype, first), columns, bias);
        }
        for (std::size_t t = 0; t < rows; ++t) {
            float* y = target.out.row(t) + first;
            for (std::size_t r = 0; r < columns; ++r)
                y[r] = (target.accumulate ? y[r] : 0.0f) + (sums[t * panel_rows + r] + bias[r]);
        }
    }

    static void run(const host::Angles& op, const host::Frame& f, std::uint32_t t, Scratch, Activations) {
        op.compute(f, t);
    }

    static void run(const host::Rope& op, const host::Frame&, std::uint32_t t, Scratch, Activations) {
        for (std::uint32_t head = 0; head < op.x.columns; head += op.spec.head_dim)
            turn(op.spec, op.x.row(t) + head, op.angles.row(t));
    }

    static void run(const host::Store& op, const host::Frame& f, std::uint32_t t, Scratch, Activations) {
        std::byte* key = f.cache.key(op.layer, static_cast<std::size_t>(f.inputs.cache_slots[t]));
        write(op.k.row(t), op.k.columns, f.cache.shape->dtype, key);
        write(op.v.row(t), op.v.columns, f.cache.shape->dtype, key + f.cache.to_value(op.layer));
    }

    static void run(const host::Attend& op, const host::Frame& f, std::uint32_t tile, Scratch scratch, Activations) {
        constexpr std::size_t most = 8;  // query heads that share a key head, at a time
        constexpr std::size_t span = host::attention_tile;
        const host::AttentionTile work(op, f, tile);
        const bool plain = f.cache.shape->dtype == DType::f32;
        const std::size_t dim = op.spec.head_dim;
        const auto entry = [&](const std::byte* from) -> const float* {
            if (plain) return reinterpret_cast<const float*>(from);
            Set::from_half(from, scratch.row(), dim);
            return scratch.row();
        };
        for (std::size_t h = 0; h < work.heads; h += most) {
            const std::size_t heads = (std::min)(most, work.heads - h);
            const float* q = op.q.row(work.row) + (work.first_head + h) * dim;
            float* y = op.y.row(work.row) + (work.first_head + h) * dim;
            std::fill_n(y, heads * dim, 0.0f);
            float highest[most];
            float total[most] = {};
            float scores[most][span];
            std::fill_n(highest, most, -std::numeric_limits<float>::infinity());
            for (std::size_t first = work.begin, count; first < work.length; first += count) {
                count = work.count(first);
                const std::byte* keys[span];
                work.keys(first, count, keys);
                for (std::size_t j = 0; j < count; ++j) {
                    const float* k = entry(keys[j]);
                    for (std::size_t i = 0; i < heads; ++i)
                        scores[i][j] = op.spec.scale * Set::dot(q + i * dim, k, dim);
                }
                for (std::size_t i = 0; i < heads; ++i) {
                    float peak = highest[i];
                    for (std::size_t j = 0; j < count; ++j) peak = (std::max)(peak, scores[i][j]);
                    const float keep = std::exp(highest[i] - peak);  // 0 in the first tile
                    highest[i] = peak;
                    exp_shifted(scores[i], -peak, scores[i], count);
                    total[i] *= keep;
                    for (std::size_t j = 0; j < count; ++j) total[i] += scores[i][j];
                    scale(y + i * dim, keep, y + i * dim, dim);
                }
                for (std::size_t j = 0; j < count; ++j) {
                    const float* v = entry(keys[j] + work.to_value);
                    for (std::size_t i = 0; i < heads; ++i) Set::axpy(scores[i][j], v, y + i * dim, dim);
                }
            }
            for (std::size_t i = 0; i < heads; ++i) scale(y + i * dim, 1.0f / total[i], y + i * dim, dim);
        }
    }

    static void run(const host::Gate& op, const host::Frame&, std::uint32_t t, Scratch, Activations) {
        switch (op.activation) {
            case Activation::silu: return silu_gate(op.gate.row(t), op.up.row(t), op.y.row(t), op.y.columns);
            case Activation::gelu_tanh: return gelu_gate(op.gate.row(t), op.up.row(t), op.y.row(t), op.y.columns);
        }
    }

    static void run(const host::Gather& op, const host::Frame& f, std::uint32_t i, Scratch, Activations) {
        std::copy_n(op.x.row(static_cast<std::size_t>(f.inputs.wanted[i])), op.x.columns, op.y.row(i));
    }

    static void run(const host::Pick& op, const host::Frame& f, std::uint32_t i, Scratch scratch, Activations) {
        float* const values = scratch.floats().values;
        float* const exps = values + host::Pick::piece;
        static_assert(Scratch::panel_bytes >= 2 * host::Pick::piece * sizeof(float));
        op.compute(f, i, values, [&](const float* x, std::size_t n, float shift) {
            exp_shifted(x, shift, exps, n);
            double sum = 0.0;
            for (std::size_t j = 0; j < n; ++j) sum += exps[j];
            return sum;
        });
    }

    static void run(const host::Move& op, const host::Frame& f, std::uint32_t tile, Scratch scratch, Activations) {
        op.compute(
            f, tile, scratch.row(), [&](float* head, const float* angles) { turn(op.spec, head, angles); },
            [&](const float* head, DType dtype, std::byte* to) { write(head, op.spec.head_dim, dtype, to); });
    }

 private:
    /// Turns the pairs of one head.
    static void turn(const RopeSpec& spec, float* x, const float* angles) {
        const std::uint32_t half = spec.dim / 2;
        const bool halves = spec.layout == RopeLayout::halves;
        const std::uint32_t step = halves ? 1 : 2;
        const std::uint32_t distance = halves ? half : 1;
        for (std::uint32_t i = 0; i < half; ++i, x += step) {
            const float a = x[0];
            const float b = x[distance];
            x[0] = a * angles[i] - b * angles[half + i];
            x[distance] = b * angles[i] + a * angles[half + i];
        }
    }

    static void write(const float* from, std::size_t n, DType dtype, std::byte* to) {
        if (dtype == DType::f16) {
            Set::to_half(from, to, n);
        } else {
            std::memcpy(to, from, n * sizeof(float));
        }
    }
};

/// Kernels of several sets, one of which runs.
template <class... Sets>
class Kernels {
 public:
    /// The best of the sets that this machine runs; it must run one of them.
    Kernels() noexcept {
        DECANT_ASSERT((supported(Sets::isa) || ...));
        ((isa_ = supported(Sets::isa) ? (std::max)(isa_, Sets::isa) : isa_), ...);
    }

    [[nodiscard]] Isa isa() const noexcept { return isa_; }

    /// Block formats are multiplied in integers and need quantized activations.
    static bool prepares(const host::Weight& weight) noexcept { return traits(weight.dtype).block_elements > 1; }
    static std::size_t scratch_bytes(const PassShape& shape, std::uint32_t columns) noexcept {
        return Operations<Portable>::Scratch::bytes(shape, columns);
    }
    static std::size_t prepared_bytes(const PassShape& shape, std::uint32_t columns) noexcept {
        const std::size_t codes = shape.rows * stride(columns);
        return codes + codes / activation_block * sizeof(float) + codes / activation_half * sizeof(std::int32_t);
    }
    void use_prepared(std::byte* memory, const PassShape& shape, std::uint32_t columns) noexcept {
        const std::size_t codes = shape.rows * stride(columns);
        prepared_ = {reinterpret_cast<std::int8_t*>(memory), reinterpret_cast<float*>(memory + codes),
                     reinterpret_cast<std::int32_t*>(memory + codes + codes / activation_block * sizeof(float)),
                     stride(columns)};
    }

    template <class Op>
    void run(const Op& op, const host::Frame& frame, std::uint32_t tile, std::byte* scratch) const {
        static_cast<void>(
            ((isa_ == Sets::isa && (Operations<Sets>::run(op, frame, tile, {scratch}, prepared_), true)) || ...));
    }

 private:
    static std::size_t stride(std::size_t columns) noexcept {
        return (columns + activation_block - 1) / activation_block * activation_block;
    }

    Isa isa_ = Isa::portable;
    Activations prepared_;
};

}  // namespace simd

/// A CPU backend for a choice of instruction sets, from which the best that the machine runs is taken at run time.
template <class... Sets>
using BasicSimd = HostBackend<simd::Kernels<Sets...>>;

/// The CPU backend: every instruction set that the library knows for this processor family.
#if DECANT_X86
using Simd = BasicSimd<simd::Portable, simd::Avx2, simd::Avx512Vnni>;
#else
using Simd = BasicSimd<simd::Portable>;
#endif

}  // namespace decant::inline DECANT_ABI

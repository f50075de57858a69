// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Simd`: the CPU backend. Reads the file's blocks where they lie: a tile of 16 output columns is unpacked into a
/// panel that stays in the cache and is multiplied by all tokens of the pass, activations in 8 bits for block formats
/// and in F32 for F32, F16 and BF16 weights.

#include <decant/backend/host/backend.hpp>
#include <decant/backend/host/ops.hpp>
#include <decant/backend/simd/attention.hpp>
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
            return panel_bytes + (std::max)(shape.rows * panel_rows, 2 * columns) * sizeof(float);
        }
        std::byte* memory;
        [[nodiscard]] CodePanel codes() const noexcept {
            return {reinterpret_cast<std::uint8_t*>(memory), reinterpret_cast<float*>(memory + code_bytes),
                    reinterpret_cast<float*>(memory + code_bytes + scale_bytes)};
        }
        [[nodiscard]] FloatPanel floats() const noexcept { return {reinterpret_cast<float*>(memory)}; }
        [[nodiscard]] float* sums() const noexcept { return reinterpret_cast<float*>(memory + panel_bytes); }
        [[nodiscard]] float* row() const noexcept { return sums(); }
        /// A second row, after a first one of n floats.
        [[nodiscard]] float* row_after(std::size_t n) const noexcept { return sums() + n; }
    };

    static void run(const host::Embed& op, const host::Frame& f, std::uint32_t t, Scratch, Activations) {
        const auto token = static_cast<std::size_t>(f.inputs.tokens[t]);
        float* x = op.x.row(t);
        dequantize_row(op.table->dtype, op.table->row(token), op.x.columns, x);
        if (op.scale != 1.0f) scale(x, op.scale, x, op.x.columns);
    }

    static void run(const host::Norm& op, const host::Frame&, std::uint32_t t, Scratch scratch, Activations) {
        const std::uint32_t n = op.x.columns / op.groups;
        const bool shared = op.weight->columns == n;  // by all groups
        float* const second = scratch.row_after(n);
        if (shared) op.load(*op.weight, 0, scratch.row(), op.spec.offset);
        for (std::uint32_t g = 0; g < op.groups; ++g) {
            if (!shared) op.load(*op.weight, g, scratch.row(), op.spec.offset);
            const float* x = op.x.row(t) + g * n;
            float* y = op.y.row(t) + g * n;
            if (op.spec.centered) {
                subtract(x, Set::sum(x, n) / static_cast<float>(n), second, n);
                x = second;
            }
            const float factor = 1.0f / std::sqrt(Set::dot(x, x, n) / static_cast<float>(n) + op.spec.epsilon);
            if (op.accumulate) {
                add_scaled_by(x, factor, scratch.row(), y, n);
            } else {
                scale_by(x, factor, scratch.row(), y, n);
            }
            if (op.bias == nullptr) continue;
            op.load(*op.bias, g, second, 0.0f);
            add(y, second, y, n);
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
        each_panel(w, first, columns, scratch, [&](std::size_t k, auto multiply) {
            multiply(prepared.from(0, place.from + k), op.x.row(0) + place.from + k, op.x.columns, rows, sums);
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

    static void run(const host::Experts& op, const host::Frame& f, std::uint32_t tile, Scratch scratch,
                    Activations prepared) {
        const host::Experts::Place place = op.place(tile);
        const host::Weight& w = op.weights[place.expert];
        float* const sums = scratch.sums();  // of the rows that chose the expert, which choose it once
        std::size_t chosen = 0;
        op.rows(f, place.expert, [&](std::uint32_t, std::uint32_t, std::uint32_t) { ++chosen; });
        if (chosen == 0) return;
        std::fill_n(sums, chosen * panel_rows, 0.0f);
        each_panel(w, place.column, place.columns, scratch, [&](std::size_t k, auto multiply) {
            float* sum = sums;
            op.rows(f, place.expert, [&](std::uint32_t t, std::uint32_t, std::uint32_t from) {
                multiply(prepared.from(t, from + k), op.x.row(t) + from + k, op.x.columns, 1, sum);
                sum += panel_rows;
            });
        });
        float bias[panel_rows];
        op.load_bias({place.expert, place.column, place.columns}, bias);
        const float* sum = sums;
        op.rows(f, place.expert, [&](std::uint32_t t, std::uint32_t c, std::uint32_t) {
            float* y = op.out.row(t) + c * op.columns() + place.column;
            for (std::uint32_t r = 0; r < place.columns; ++r) y[r] = sum[r] + bias[r];
            sum += panel_rows;
        });
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
        if (f.cache.shape->layers[op.layer].latent) return;
        write(op.v.row(t), op.v.columns, f.cache.shape->dtype, key + f.cache.to_value(op.layer));
    }

    static void run(const host::Attend& op, const host::Frame& f, std::uint32_t tile, Scratch scratch, Activations) {
        static_assert(Attention<Set>::bytes <= Scratch::panel_bytes);
        Attention<Set> attention(op, f, scratch.floats().values);
        op.runs(f, tile, [&](std::uint32_t first, std::uint32_t last, std::uint32_t kv_head) {
            attention.run(f, first, last, kv_head);
        });
    }

    static void run(const host::Gate& op, const host::Frame&, std::uint32_t t, Scratch, Activations) {
        const float* up = op.up.data == nullptr ? nullptr : op.up.row(t);
        gate_rows(op.spec, op.gate.row(t), up, op.y.row(t), op.y.columns);
    }

    static void run(const host::Softcap& op, const host::Frame&, std::uint32_t t, Scratch, Activations) {
        soft_cap(op.x.row(t), op.cap, op.x.row(t), op.x.columns);
    }

    static void run(const host::Copy& op, const host::Frame&, std::uint32_t t, Scratch, Activations) { op.compute(t); }

    static void run(const host::Route& op, const host::Frame&, std::uint32_t t, Scratch, Activations) { op.compute(t); }

    static void run(const host::Mix& op, const host::Frame&, std::uint32_t t, Scratch, Activations) { op.compute(t); }

    static void run(const host::Convolve& op, const host::Frame& f, std::uint32_t t, Scratch scratch, Activations) {
        op.compute(f, t, scratch.row());
    }

    static void run(const host::Scan& op, const host::Frame& f, std::uint32_t tile, Scratch, Activations) {
        op.compute(f, tile, [&](float decay, float input, const float* b, const float* c, float* state) {
            scale(state, decay, state, op.spec.size);
            Set::axpy(input, b, state, op.spec.size);
            return Set::dot(state, c, op.spec.size);
        });
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
    /// Unpacks rows [first, first + rows) of a weight piece by piece, in order, and calls `use(k, multiply)` for each:
    /// `multiply(prepared, x, stride, tokens, sums)` adds its products with columns k... of the tokens' rows.
    template <class Use>
    static void each_panel(const host::Weight& w, std::size_t first, std::size_t rows, Scratch scratch, Use use) {
        visit_format(w.dtype, [&]<class Format>(Format) {
            for (std::size_t k = 0; k < w.columns; k += piece) {
                const std::size_t n = (std::min)(piece, w.columns - k);
                if constexpr (CodeFormat<Format>) {
                    const CodePanel panel = scratch.codes();
                    Format::unpack(w.row(first), w.row_bytes, rows, k, n, panel);
                    use(k, [&](Activations a, const float*, std::size_t, std::size_t tokens, float* sums) {
                        Set::template multiply<Format::panel_block, Format::has_offset, (Format::code_bits > 7)>(
                            panel, Format::bias, n, a, tokens, sums);
                    });
                } else {
                    const FloatPanel panel = scratch.floats();
                    Format::unpack(w.row(first), w.row_bytes, rows, k, n, panel);
                    use(k, [&](Activations, const float* x, std::size_t stride, std::size_t tokens, float* sums) {
                        Set::multiply(panel, n, x, stride, tokens, sums);
                    });
                }
            }
        });
    }

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

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Simd`: the CPU backend. Reads the file's blocks where they lie: a tile of output columns is unpacked into panels
/// that stay in the cache and are multiplied by all tokens of the pass, or, for few tokens, in registers; activations
/// in 8 bits for block formats and in F32 for F32, F16 and BF16 weights.

#include <decant/backend/host/backend.hpp>
#include <decant/backend/host/ops.hpp>
#include <decant/backend/simd/amx.hpp>
#include <decant/backend/simd/attention.hpp>
#include <decant/backend/simd/avx2.hpp>
#include <decant/backend/simd/avx512.hpp>
#include <decant/backend/simd/avx512_bf16.hpp>
#include <decant/backend/simd/lanes.hpp>
#include <decant/backend/simd/neon.hpp>
#include <decant/backend/simd/portable.hpp>
#include <decant/backend/simd/target.hpp>
#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>
#include <decant/quant/formats.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace decant::inline DECANT_ABI {
namespace simd {

/// Two sets of rows of activations as products read them: those that a product reads, and those that it writes.
struct Prepared {
    std::byte* blocks = nullptr;
    std::size_t rows = 0;    // of a slot
    std::size_t stride = 0;  // blocks of a row, one of them empty: rows of a power of two would share cache sets

    static std::size_t stride_of(std::size_t columns) noexcept {
        return (columns + activation_block - 1) / activation_block + 1;
    }
    /// The whole of it as floats, between a product's reading it and the next writing it.
    [[nodiscard]] float* floats() const noexcept { return reinterpret_cast<float*>(blocks); }
    template <class Block>
    [[nodiscard]] Block* row(std::uint32_t slot, std::size_t t) const noexcept {
        return reinterpret_cast<Block*>(blocks) + (slot * rows + t) * stride;
    }
};

/// The operations in terms of a set's kernels.
template <class Set>
struct Operations {
    using Activations = typename Set::Activations;

    /// A participant's memory for one tile.
    struct Scratch {
        /// `columns`: the widest row that the pass handles.
        static std::size_t bytes(const PassShape& shape, std::size_t columns) noexcept {
            return (std::max)(row_at(shape) + (std::max)(2 * columns, least_row) * sizeof(float),
                              Attention<Set>::bytes(columns));
        }
        std::byte* memory;
        const PassShape& shape;

        /// Addresses of a tile's rows of activations.
        template <class T>
        [[nodiscard]] const T** rows() const noexcept {
            return reinterpret_cast<const T**>(memory + product_bytes);
        }
        /// Results of a tile, [rows][Set::most_rows(rows)]; and those of the other half of a gate.
        [[nodiscard]] float* sums() const noexcept { return reinterpret_cast<float*>(memory + sums_at(shape)); }
        [[nodiscard]] float* other_sums() const noexcept { return sums() + sum_floats(shape); }
        /// A row, and a second one after a first of n floats.
        [[nodiscard]] float* row() const noexcept { return reinterpret_cast<float*>(memory + row_at(shape)); }
        [[nodiscard]] float* row_after(std::size_t n) const noexcept { return row() + n; }

     private:
        static constexpr std::size_t least_row = 2 * host::Pick::piece;
        static std::size_t sum_floats(const PassShape& shape) noexcept {
            return (std::max)((std::size_t{shape.rows} + spare_rows) * tile_rows, host::few_rows * wide_tile_rows);
        }
        static std::size_t sums_at(const PassShape& shape) noexcept {
            return product_bytes + (shape.rows + spare_rows) * sizeof(void*);
        }
        static std::size_t row_at(const PassShape& shape) noexcept {
            return sums_at(shape) + 2 * sum_floats(shape) * sizeof(float);
        }
    };

    static void run(const host::Embed& op, const host::Frame& f, std::uint32_t t, Scratch, const Prepared&) {
        const auto token = static_cast<std::size_t>(f.inputs.tokens[t]);
        float* x = op.x.row(t);
        dequantize_row(op.table->dtype, op.table->row(token), op.x.columns, x);
        if (op.scale != 1.0f) Set::scale(x, op.scale, x, op.x.columns);
    }

    static void run(const host::Norm& op, const host::Frame&, std::uint32_t t, Scratch scratch, const Prepared&) {
        const std::uint32_t n = op.x.columns / op.groups;
        const bool shared = op.weight->columns == n;  // by all groups
        float* const second = scratch.row_after(n);
        const float* weights = nullptr;
        for (std::uint32_t g = 0; g < op.groups; ++g) {
            if (g == 0 || !shared) weights = op.weights(g, scratch.row());
            const float* x = op.x.row(t) + g * n;
            float* y = op.y.row(t) + g * n;
            if (op.spec.centered) {
                Set::subtract(x, Set::sum(x, n) / static_cast<float>(n), second, n);
                x = second;
            }
            const float factor = 1.0f / std::sqrt(Set::dot(x, x, n) / static_cast<float>(n) + op.spec.epsilon);
            Set::weigh(x, factor, weights, y, n, op.accumulate);
            if (op.bias == nullptr) continue;
            op.load(*op.bias, g, second, 0.0f);
            Set::add(y, second, y, n);
        }
    }

    static void run(const host::Prepare& op, const host::Frame&, std::uint32_t t, Scratch, const Prepared& prepared) {
        Set::quantize(op.x.row(t), op.x.columns, prepared.row<Activations>(op.slot, t));
    }

    static void run(const host::Linear& op, const host::Frame& f, std::uint32_t tile, Scratch scratch,
                    const Prepared& prepared) {
        const host::Linear::Place place = op.place(tile, f);
        const auto rows_of = [&]<class T>(const T** rows) {
            for (std::uint32_t t = 0; t < place.rows; ++t) {
                if constexpr (std::same_as<T, float>) {
                    rows[t] = op.x.row(place.row + t) + place.from;
                } else {
                    rows[t] = prepared.row<Activations>(op.reads, place.row + t) + place.from / activation_block;
                }
            }
        };
        each_part(place.column, place.columns, place.rows, [&](std::uint32_t column, std::uint32_t columns) {
            part(op, place, column, columns, rows_of, scratch, prepared);
        });
    }

    static void run(const host::Experts& op, const host::Frame& f, std::uint32_t tile, Scratch scratch,
                    const Prepared& prepared) {
        const host::Experts::Place place = op.place(tile, f);
        const host::Weight& w = op.weights[place.expert];
        std::uint32_t chosen = 0;  // rows that chose the expert, which choose it once
        op.rows(f, place.expert, [&](std::uint32_t, std::uint32_t, std::uint32_t) { ++chosen; });
        if (chosen == 0) return;
        float* const sums = scratch.sums();
        const auto rows_of = [&]<class T>(const T** rows) {
            op.rows(f, place.expert, [&](std::uint32_t t, std::uint32_t, std::uint32_t from) {
                if constexpr (std::same_as<T, float>) {
                    *rows++ = op.x.row(t) + from;
                } else {
                    *rows++ = prepared.row<Activations>(0, t) + from / activation_block;
                }
            });
        };
        each_part(place.column, place.columns, chosen, [&](std::uint32_t column, std::uint32_t columns) {
            multiply(w, column, columns, chosen, rows_of, sums, scratch);
            float bias[host::widest_tile];
            op.load_bias({place.expert, column, columns}, bias);
            const float* sum = sums;
            op.rows(f, place.expert, [&](std::uint32_t t, std::uint32_t c, std::uint32_t) {
                Set::add(sum, bias, op.out.row(t) + c * op.columns() + column, columns);
                sum += Set::most_rows(chosen);
            });
        });
    }

    static void run(const host::Angles& op, const host::Frame& f, std::uint32_t t, Scratch, const Prepared&) {
        op.compute(f, t);
    }

    static void run(const host::Rope& op, const host::Frame&, std::uint32_t t, Scratch scratch, const Prepared&) {
        const float* const angles = turning(op.spec, op.angles.row(t), scratch.row());
        for (std::uint32_t head = 0; head < op.x.columns; head += op.spec.head_dim)
            turn(op.spec, op.x.row(t) + head, angles);
    }

    static void run(const host::Store& op, const host::Frame& f, std::uint32_t t, Scratch scratch, const Prepared&) {
        op.compute(f, t, scratch.row(), write);
    }

    static void run(const host::Attend& op, const host::Frame& f, std::uint32_t tile, Scratch scratch,
                    const Prepared& prepared) {
        Attention<Set>::run(op, f, tile, scratch.memory, prepared.floats());
    }

    static void run(const host::Combine& op, const host::Frame& f, std::uint32_t tile, Scratch scratch,
                    const Prepared& prepared) {
        Attention<Set>::run(op, f, tile, scratch.memory, prepared.floats());
    }

    static void run(const host::Gate& op, const host::Frame&, std::uint32_t t, Scratch, const Prepared&) {
        const float* up = op.up.data == nullptr ? nullptr : op.up.row(t);
        Set::gate(op.spec, op.gate.row(t), up, op.y.row(t), op.y.columns);
    }

    static void run(const host::Softcap& op, const host::Frame&, std::uint32_t t, Scratch, const Prepared&) {
        Set::soft_cap(op.x.row(t), op.cap, op.x.row(t), op.x.columns);
    }

    static void run(const host::Copy& op, const host::Frame&, std::uint32_t t, Scratch, const Prepared&) {
        op.compute(t);
    }

    static void run(const host::Route& op, const host::Frame&, std::uint32_t t, Scratch, const Prepared&) {
        op.compute(t);
    }

    static void run(const host::Mix& op, const host::Frame&, std::uint32_t t, Scratch, const Prepared&) {
        op.compute(t);
    }

    static void run(const host::Convolve& op, const host::Frame& f, std::uint32_t t, Scratch scratch, const Prepared&) {
        op.compute(f, t, scratch.row());
    }

    static void run(const host::Scan& op, const host::Frame& f, std::uint32_t tile, Scratch, const Prepared&) {
        op.compute(f, tile, [&](float decay, float input, const float* b, const float* c, float* state) {
            return Set::advance_state(decay, input, b, c, state, op.spec.size);
        });
    }

    static void run(const host::Gather& op, const host::Frame& f, std::uint32_t i, Scratch, const Prepared&) {
        std::copy_n(op.x.row(static_cast<std::size_t>(f.inputs.wanted[i])), op.x.columns, op.y.row(i));
    }

    static void run(const host::Pick& op, const host::Frame& f, std::uint32_t i, Scratch scratch, const Prepared&) {
        op.compute(f, i, scratch.row(),
                   [&](const float* x, std::size_t n, float shift) { return Set::exp_sum(x, n, shift); });
    }

    static void run(const host::Move& op, const host::Frame& f, std::uint32_t tile, Scratch scratch, const Prepared&) {
        float* const room = scratch.row_after(op.spec.head_dim);
        op.compute(
            f, tile, scratch.row(),
            [&](float* head, const float* angles) { turn(op.spec, head, turning(op.spec, angles, room)); }, write);
    }

 private:
    /// Calls `use(column, columns)` for the parts of a tile that the set multiplies at once.
    template <class Use>
    static void each_part(std::uint32_t first, std::uint32_t count, std::uint32_t rows, Use use) {
        const auto most = static_cast<std::uint32_t>(Set::most_rows(rows));
        for (std::uint32_t at = 0; at < count; at += most) use(first + at, (std::min)(most, count - at));
    }

    /// Some columns of a tile.
    template <class RowsOf>
    static void part(const host::Linear& op, const host::Linear::Place& place, std::uint32_t column,
                     std::uint32_t columns, RowsOf rows_of, Scratch scratch, const Prepared& prepared) {
        const host::LinearTarget& target = *place.target;
        const std::size_t stride = Set::most_rows(place.rows);
        float* const sums = scratch.sums();
        float room[host::widest_tile];
        if (!op.gated) {
            multiply(*target.weight, column, columns, place.rows, rows_of, sums, scratch);
            Set::finish(sums, stride, place.rows, columns, bias_of(target, column, columns, room), target.accumulate,
                        target.out.row(place.row) + column, target.out.columns);
            return;
        }
        const host::LinearTarget& up = op.targets[1];
        float* const others = scratch.other_sums();
        multiply(*target.weight, column, columns, place.rows, rows_of, sums, scratch, up.weight->row(column));
        multiply(*up.weight, column, columns, place.rows, rows_of, others, scratch,
                 target.weight->row(column + columns));
        for (const bool second : {false, true}) {
            float* const all = second ? others : sums;
            const float* const bias = bias_of(second ? up : target, column, columns, room);
            if (bias != nullptr) Set::finish(all, stride, place.rows, columns, bias, false, all, stride);
        }
        for (std::uint32_t t = 0; t < place.rows; ++t) {
            float* const sum = sums + t * stride;
            float* const y = op.prepares ? sum : op.y.row(place.row + t) + column;
            Set::gate(op.gate, sum, others + t * stride, y, columns);
            if (op.prepares)
                Set::quantize(y, columns,
                              prepared.row<Activations>(1 - op.reads, place.row + t) + column / activation_block);
        }
    }

    /// sums = products of rows [first, first + count) of a weight with as many rows of activations, whose addresses
    /// `rows_of` writes. `next` is read next; null: what follows.
    template <class RowsOf>
    static void multiply(const host::Weight& w, std::size_t first, std::size_t count, std::size_t tokens,
                         RowsOf rows_of, float* sums, Scratch scratch, const std::byte* next = nullptr) {
        const WeightRows tile{w.row(first), w.row_bytes, count, w.columns, first + count < w.rows, next};
        visit_format(w.dtype, [&]<class Format>(Format) {
            using X = std::conditional_t<CodeFormat<Format>, Activations, float>;
            rows_of(scratch.template rows<X>());
            Set::template multiply<Format>(tile, scratch.template rows<X>(), tokens, sums, scratch.memory);
        });
    }

    /// The biases of some columns, or null; `room` is for as many.
    static const float* bias_of(const host::LinearTarget& target, std::uint32_t column, std::uint32_t columns,
                                float* room) {
        if (target.bias == nullptr) return nullptr;
        const host::Weight& b = *target.bias;
        dequantize_row(b.dtype, b.data + row_bytes(b.dtype, column), columns, room);
        return room;
    }

    /// A row's angles as `turn` reads them; `room` is for 2 * dim floats.
    static const float* turning(const RopeSpec& spec, const float* angles, float* room) {
        if (spec.layout == RopeLayout::halves) return angles;
        Set::spread_angles(angles, spec.dim, room);
        return room;
    }
    /// Turns the pairs of one head.
    static void turn(const RopeSpec& spec, float* x, const float* angles) {
        if (spec.layout == RopeLayout::halves) {
            Set::turn_halves(x, angles, spec.dim / 2);
        } else {
            Set::turn_pairs(x, angles, spec.dim);
        }
    }

    static void write(const float* from, std::size_t n, DType dtype, std::byte* to) {
        if (dtype == DType::f16) {
            Set::to_half(from, to, n);
        } else {
            quantize_row(dtype, from, n, to);
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

    /// One of the sets, which this machine must run: `Simd{SimdKernels{Isa::avx2}}`. The only way to `avx512_bf16` and
    /// `amx`.
    explicit Kernels(Isa isa) noexcept : isa_(isa) { DECANT_ASSERT(supported(isa) && ((Sets::isa == isa) || ...)); }

    [[nodiscard]] Isa isa() const noexcept { return isa_; }

    static constexpr bool fuses = true;
    /// Block formats are multiplied by activations in 8 bits or in pairs of BF16.
    static bool prepares(const host::Weight& weight) noexcept { return traits(weight.dtype).block_elements > 1; }
    static std::size_t scratch_bytes(const PassShape& shape, std::uint32_t columns) noexcept {
        return (std::max)({Operations<Sets>::Scratch::bytes(shape, columns)...});
    }
    static std::size_t prepared_bytes(const PassShape& shape, std::uint32_t columns) noexcept {
        return (std::max)(
            2 * shape.rows * Prepared::stride_of(columns) * (std::max)({sizeof(typename Sets::Activations)...}),
            least_pieces * 2 * columns * sizeof(float));
    }
    void use_prepared(std::byte* memory, const PassShape& shape, std::uint32_t columns) noexcept {
        prepared_ = {memory, shape.rows, Prepared::stride_of(columns)};
        floats_ = prepared_bytes(shape, columns) / sizeof(float);
    }

    static constexpr std::uint32_t attention_piece = simd::attention_piece;
    /// Partial results of attention that there is room for.
    [[nodiscard]] std::size_t partial_results(const AttentionSpec& spec) const noexcept {
        return floats_ / partial_floats(spec.value_dim());
    }

    template <class Op>
    void run(const Op& op, const host::Frame& frame, std::uint32_t tile, std::byte* scratch) const;

 private:
    static constexpr std::size_t least_pieces = 32;  // that a single row can be cut into
    Isa isa_ = Isa::portable;
    Prepared prepared_;
    std::size_t floats_ = 0;  // that it has room for
};

// Not in the class: what stands there is inline, and compilers would generate it also where it is declared `extern`.
template <class... Sets>
template <class Op>
void Kernels<Sets...>::run(const Op& op, const host::Frame& frame, std::uint32_t tile, std::byte* scratch) const {
    static_cast<void>(
        ((isa_ == Sets::isa && (Operations<Sets>::run(op, frame, tile, {scratch, frame.shape}, prepared_), true)) ||
         ...));
}

}  // namespace simd

/// A CPU backend for a choice of instruction sets, from which the best that the machine runs is taken at run time.
template <class... Sets>
using BasicSimd = HostBackend<simd::Kernels<Sets...>>;

/// The kernels of every instruction set that the library knows for this processor family.
#if DECANT_AMX
using SimdKernels =
    simd::Kernels<simd::Portable, simd::Avx2, simd::AvxVnni, simd::Avx512Vnni, simd::Avx512Bf16, simd::Amx>;
#elif DECANT_X86
using SimdKernels = simd::Kernels<simd::Portable, simd::Avx2, simd::AvxVnni, simd::Avx512Vnni, simd::Avx512Bf16>;
#elif DECANT_ARM64
using SimdKernels = simd::Kernels<simd::Neon, simd::NeonDotprod>;
#else
using SimdKernels = simd::Kernels<simd::Portable>;
#endif

/// The CPU backend.
using Simd = HostBackend<SimdKernels>;

// Kernels take most of the time that a file with a model takes to compile. A host that defines DECANT_SEPARATE_KERNELS
// for all its files, and DECANT_KERNELS_HERE in one of them, compiles them once; the same goes for the parser of
// json.hpp.
#if defined(DECANT_SEPARATE_KERNELS)
#if defined(DECANT_KERNELS_HERE)
#define DECANT_DETAIL_INSTANTIATE template
#else
#define DECANT_DETAIL_INSTANTIATE extern template
#endif
#define DECANT_DETAIL_KERNEL(Kernels, Op)                                                                     \
    DECANT_DETAIL_INSTANTIATE void Kernels::run<host::Op>(const host::Op&, const host::Frame&, std::uint32_t, \
                                                          std::byte*) const;
#define DECANT_DETAIL_KERNELS(Kernels)      \
    DECANT_DETAIL_KERNEL(Kernels, Embed)    \
    DECANT_DETAIL_KERNEL(Kernels, Norm)     \
    DECANT_DETAIL_KERNEL(Kernels, Prepare)  \
    DECANT_DETAIL_KERNEL(Kernels, Linear)   \
    DECANT_DETAIL_KERNEL(Kernels, Angles)   \
    DECANT_DETAIL_KERNEL(Kernels, Rope)     \
    DECANT_DETAIL_KERNEL(Kernels, Store)    \
    DECANT_DETAIL_KERNEL(Kernels, Attend)   \
    DECANT_DETAIL_KERNEL(Kernels, Combine)  \
    DECANT_DETAIL_KERNEL(Kernels, Gate)     \
    DECANT_DETAIL_KERNEL(Kernels, Softcap)  \
    DECANT_DETAIL_KERNEL(Kernels, Copy)     \
    DECANT_DETAIL_KERNEL(Kernels, Route)    \
    DECANT_DETAIL_KERNEL(Kernels, Experts)  \
    DECANT_DETAIL_KERNEL(Kernels, Mix)      \
    DECANT_DETAIL_KERNEL(Kernels, Convolve) \
    DECANT_DETAIL_KERNEL(Kernels, Scan)     \
    DECANT_DETAIL_KERNEL(Kernels, Gather)   \
    DECANT_DETAIL_KERNEL(Kernels, Pick)     \
    DECANT_DETAIL_KERNEL(Kernels, Move)
DECANT_DETAIL_KERNELS(SimdKernels)
#endif

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Eigen`: the executable specification. Every operation in a few lines, every sum in one fixed order, whatever the
/// number of rows in a pass. Other backends are held to it by one test suite.
///
/// Array expressions are used only where an element's result is one rounding or the shape is fixed: in a longer
/// expression Eigen computes the elements before an aligned address with other instructions than the rest.
///
/// Eigen's own templates compile to different code under different flags with the same symbols: build all translation
/// units that use this backend with one set of flags.

#include <decant/backend/host/backend.hpp>
#include <decant/backend/host/ops.hpp>
#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>
#include <decant/quant/formats.hpp>
#include <decant/quant/hadamard.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace decant::inline DECANT_ABI {

struct EigenKernels {
    using Row = ::Eigen::Map<::Eigen::ArrayXf>;

    static constexpr bool fuses = false;
    static bool prepares(const host::Weight&) noexcept { return false; }
    static std::size_t prepared_bytes(const PassShape&, std::uint32_t) noexcept { return 0; }
    void use_prepared(std::byte*, const PassShape&, std::uint32_t) noexcept {}
    /// One dequantized row of a weight at a time, in pieces.
    static std::size_t scratch_bytes(const PassShape& shape, std::uint32_t) noexcept {
        return (piece + std::size_t{shape.rows}) * sizeof(float);
    }

    /// Sum over i of a[i] b[i]: 16 partial sums over i mod 16, then their sum, then the rest in order.
    static float dot(const float* a, const float* b, std::size_t n) {
        constexpr int lanes = 16;
        using Lanes = ::Eigen::Array<float, lanes, 1>;
        Lanes partial = Lanes::Zero();
        std::size_t i = 0;
        for (; i + lanes <= n; i += lanes)
            partial += ::Eigen::Map<const Lanes>(a + i) * ::Eigen::Map<const Lanes>(b + i);
        float sum = partial.sum();
        for (; i < n; ++i) sum += a[i] * b[i];
        return sum;
    }
    /// Sum over i of a[i], in order.
    static float sum(const float* a, std::size_t n) {
        float sum = 0.0f;
        for (std::size_t i = 0; i < n; ++i) sum += a[i];
        return sum;
    }

    static Row row(const host::View& view, std::size_t r) {
        return {view.row(r), static_cast<::Eigen::Index>(view.columns)};
    }

    static void run(const host::Embed& op, const host::Frame& f, std::uint32_t t, std::byte*) {
        const auto token = static_cast<std::size_t>(f.inputs.tokens[t]);
        dequantize_row(op.table->dtype, op.table->row(token), op.x.columns, op.x.row(t));
        row(op.x, t) *= op.scale;
    }

    static void run(const host::Norm& op, const host::Frame&, std::uint32_t t, std::byte*) {
        const std::uint32_t n = op.x.columns / op.groups;
        ::Eigen::ArrayXf weight(static_cast<::Eigen::Index>(n)), bias(static_cast<::Eigen::Index>(n)), x(bias);
        for (std::uint32_t g = 0; g < op.groups; ++g) {
            op.load(*op.weight, g, weight.data(), op.spec.offset);
            bias.setZero();
            if (op.bias != nullptr) op.load(*op.bias, g, bias.data(), 0.0f);
            std::copy_n(op.x.row(t) + g * n, n, x.data());
            if (op.spec.centered) x -= sum(x.data(), n) / static_cast<float>(n);
            float* y = op.y.row(t) + g * n;
            const float scale = 1.0f / std::sqrt(dot(x.data(), x.data(), n) / static_cast<float>(n) + op.spec.epsilon);
            for (std::uint32_t i = 0; i < n; ++i) {
                const float value = weight[i] * (x[i] * scale) + bias[i];
                y[i] = op.accumulate ? y[i] + value : value;
            }
        }
    }

    static void run(const host::Prepare&, const host::Frame&, std::uint32_t, std::byte*) {}

    static void run(const host::Linear& op, const host::Frame& f, std::uint32_t tile, std::byte* scratch) {
        const auto [target, first, columns, from, begin, rows] = op.place(tile, f);
        const host::Weight& w = *target->weight;
        float* const values = reinterpret_cast<float*>(scratch);
        float* const sums = values + piece;
        const DTypeTraits layout = traits(w.dtype);
        for (std::uint32_t o = first; o < first + columns; ++o) {
            std::fill_n(sums, rows, 0.0f);
            for (std::size_t k = 0; k < w.columns; k += piece) {  // pieces in order
                const std::size_t n = (std::min)(piece, w.columns - k);
                dequantize_row(w.dtype, w.row(o) + k / layout.block_elements * layout.block_bytes, n, values);
                for (std::uint32_t t = 0; t < rows; ++t) sums[t] += dot(op.x.row(begin + t) + from + k, values, n);
            }
            float bias = 0.0f;
            if (target->bias != nullptr) {
                const DTypeTraits one = traits(target->bias->dtype);
                dequantize_row(target->bias->dtype, target->bias->data + o * one.block_bytes, 1, &bias);
            }
            for (std::uint32_t t = 0; t < rows; ++t) {
                float& y = target->out.row(begin + t)[o];
                y = (target->accumulate ? y : 0.0f) + (sums[t] + bias);
            }
        }
    }

    static void run(const host::Angles& op, const host::Frame& f, std::uint32_t t, std::byte*) { op.compute(f, t); }

    static void run(const host::Rope& op, const host::Frame&, std::uint32_t t, std::byte*) {
        for (std::uint32_t head = 0; head < op.x.columns; head += op.spec.head_dim)
            turn(op.spec, op.x.row(t) + head, op.angles.row(t));
    }

    static void run(const host::Store& op, const host::Frame& f, std::uint32_t t, std::byte* scratch) {
        op.compute(f, t, reinterpret_cast<float*>(scratch), write);
    }

    static void run(const host::Combine&, const host::Frame&, std::uint32_t, std::byte*) {}  // rows are computed whole
    static void run(const host::Attend& op, const host::Frame& f, std::uint32_t tile, std::byte*) {
        op.runs(f, tile, [&](std::uint32_t first, std::uint32_t last, std::uint32_t kv_head) {
            for (std::uint32_t row = first; row < last; ++row) attend(op, f, {op, f, row, kv_head});
        });
    }

    static void attend(const host::Attend& op, const host::Frame& f, const host::AttentionTile& work) {
        const DType dtype = f.cache.shape->dtype;
        const std::size_t dim = op.spec.head_dim;
        const std::size_t value_dim = op.spec.value_dim();
        const std::size_t rotation = f.cache.shape->rotation(op.layer);
        ::Eigen::ArrayXf q(static_cast<::Eigen::Index>(dim)), cached(q);
        for (std::size_t h = work.first_head; h < work.first_head + work.heads; ++h) {
            std::copy_n(op.q.row(work.row) + h * dim, dim, q.data());
            hadamard(q.data(), dim, rotation);
            float* const y_data = op.y.row(work.row) + h * value_dim;
            Row y(y_data, static_cast<::Eigen::Index>(value_dim));
            y.setZero();
            auto [highest, total] = op.start(h);
            for (std::size_t first = work.begin, count; first < work.length; first += count) {
                count = work.count(first);
                const std::byte* keys[host::attention_tile];
                work.keys(first, count, keys);
                float scores[host::attention_tile];
                float peak = highest;
                for (std::size_t j = 0; j < count; ++j) {
                    dequantize_row(dtype, keys[j], dim, cached.data());
                    scores[j] = op.spec.scale * dot(q.data(), cached.data(), dim);
                    if (op.spec.softcap > 0.0f) scores[j] = op.spec.softcap * std::tanh(scores[j] / op.spec.softcap);
                    peak = (std::max)(peak, scores[j]);
                }
                const float keep = std::exp(highest - peak);  // 0 in the first tile
                highest = peak;
                total *= keep;
                y *= keep;
                for (std::size_t j = 0; j < count; ++j) {
                    const float p = std::exp(scores[j] - peak);
                    total += p;
                    dequantize_row(dtype, keys[j] + work.to_value, value_dim, cached.data());
                    for (std::size_t i = 0; i < value_dim; ++i) y_data[i] += p * cached[static_cast<::Eigen::Index>(i)];
                }
            }
            y /= total;
            hadamard(y_data, value_dim, rotation);
        }
    }

    static void run(const host::Gate& op, const host::Frame&, std::uint32_t t, std::byte*) {
        const auto [f, alpha, limit] = op.spec;
        for (std::uint32_t i = 0; i < op.y.columns; ++i) {
            float g = op.gate.row(t)[i];
            float u = op.up.data == nullptr ? 1.0f : op.up.row(t)[i];
            if (limit > 0.0f) {
                g = (std::min)(g, limit);
                u = std::clamp(u, -limit, limit) + 1.0f;
            }
            op.y.row(t)[i] = activate(f, alpha * g) / alpha * u;
        }
    }

    static float activate(Activation activation, float x) {
        switch (activation) {
            case Activation::silu: return x / (1.0f + std::exp(-x));
            case Activation::gelu_tanh: {
                constexpr float root = 0.7978845608028654f;  // sqrt(2 / pi)
                return 0.5f * x * (1.0f + std::tanh(root * (x + 0.044715f * x * x * x)));
            }
            case Activation::gelu: return 0.5f * x * (1.0f + std::erf(x * 0.7071067811865476f));  // x / sqrt(2)
        }
        return x;
    }

    static void run(const host::Softcap& op, const host::Frame&, std::uint32_t t, std::byte*) {
        for (std::uint32_t i = 0; i < op.x.columns; ++i) op.x.row(t)[i] = op.cap * std::tanh(op.x.row(t)[i] / op.cap);
    }

    static void run(const host::Copy& op, const host::Frame&, std::uint32_t t, std::byte*) { op.compute(t); }

    static void run(const host::Route& op, const host::Frame&, std::uint32_t t, std::byte*) { op.compute(t); }

    static void run(const host::Experts& op, const host::Frame& f, std::uint32_t tile, std::byte* scratch) {
        const host::Experts::Place place = op.place(tile, f);
        const host::Weight& w = op.weights[place.expert];
        const DTypeTraits layout = traits(w.dtype);
        float* const values = reinterpret_cast<float*>(scratch);
        float bias[host::widest_tile];
        op.load_bias(place, bias);
        op.rows(f, place.expert, [&](std::uint32_t t, std::uint32_t c, std::uint32_t from) {
            for (std::uint32_t o = 0; o < place.columns; ++o) {
                float sum = 0.0f;
                for (std::size_t k = 0; k < w.columns; k += piece) {
                    const std::size_t n = (std::min)(piece, w.columns - k);
                    dequantize_row(w.dtype, w.row(place.column + o) + k / layout.block_elements * layout.block_bytes, n,
                                   values);
                    sum += dot(op.x.row(t) + from + k, values, n);
                }
                op.out.row(t)[c * op.columns() + place.column + o] = sum + bias[o];
            }
        });
    }

    static void run(const host::Mix& op, const host::Frame&, std::uint32_t t, std::byte*) { op.compute(t); }

    static void run(const host::Convolve& op, const host::Frame& f, std::uint32_t t, std::byte* scratch) {
        op.compute(f, t, reinterpret_cast<float*>(scratch));
    }

    static void run(const host::Scan& op, const host::Frame& f, std::uint32_t tile, std::byte*) {
        op.compute(f, tile, [&](float decay, float input, const float* b, const float* c, float* state) {
            for (std::uint32_t n = 0; n < op.spec.size; ++n) state[n] = decay * state[n] + input * b[n];
            return dot(state, c, op.spec.size);
        });
    }

    static void run(const host::Gather& op, const host::Frame& f, std::uint32_t i, std::byte*) {
        row(op.y, i) = row(op.x, static_cast<std::size_t>(f.inputs.wanted[i]));
    }

    static void run(const host::Pick& op, const host::Frame& f, std::uint32_t i, std::byte* scratch) {
        static_assert(piece >= host::Pick::piece);
        op.compute(f, i, reinterpret_cast<float*>(scratch), [](const float* values, std::size_t n, float shift) {
            double sum = 0.0;
            for (std::size_t j = 0; j < n; ++j) sum += std::exp(static_cast<double>(values[j]) + shift);
            return sum;
        });
    }

    static void run(const host::Move& op, const host::Frame& f, std::uint32_t tile, std::byte* scratch) {
        op.compute(
            f, tile, reinterpret_cast<float*>(scratch),
            [&](float* head, const float* angles) { turn(op.spec, head, angles); }, write);
    }

 private:
    /// Turns the pairs of one head.
    static void turn(const RopeSpec& spec, float* x, const float* angles) {
        const std::uint32_t half = spec.dim / 2;
        const bool halves = spec.layout == RopeLayout::halves;
        for (std::uint32_t i = 0; i < half; ++i) {
            float& a = x[halves ? i : 2 * i];
            float& b = x[halves ? i + half : 2 * i + 1];
            const float turned = a * angles[i] - b * angles[half + i];
            b = b * angles[i] + a * angles[half + i];
            a = turned;
        }
    }

    static constexpr std::size_t piece = 4096;  // columns of a weight row in scratch, a multiple of every block

    static void write(const float* from, std::size_t n, DType dtype, std::byte* to) {
        quantize_row(dtype, from, n, to);
    }
};

/// The reference backend: portable, readable, slow.
using Eigen = HostBackend<EigenKernels>;

}  // namespace decant::inline DECANT_ABI

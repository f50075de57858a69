// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Element-wise functions on rows by xsimd, for whatever the host compiles for. The architecture tag is part of every
/// symbol's name. An element's result does not depend on its place in the row: the rest after the last full batch is
/// computed in a padded batch.

#include <decant/core/config.hpp>
#include <decant/core/specs.hpp>

#include <xsimd/xsimd.hpp>

#include <algorithm>
#include <cstddef>

// The AVX-512 headers of g++ 12 pass on a register that they leave undefined on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace decant::inline DECANT_ABI {
namespace simd {

/// Calls `f(batches of inputs...)` over rows of n floats and writes its result to `y`. Inputs may be `y` itself.
template <class Arch = xsimd::default_arch, class F, class... Inputs>
void map_rows(float* y, std::size_t n, F f, const Inputs*... inputs) {
    using Batch = xsimd::batch<float, Arch>;
    constexpr std::size_t lanes = Batch::size;
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) f(Batch::load_unaligned(inputs + i)...).store_unaligned(y + i);
    if (i == n) return;
    const auto padded = [&](const float* input) {
        float values[lanes] = {};
        std::copy(input + i, input + n, values);
        return Batch::load_unaligned(values);
    };
    float values[lanes];
    f(padded(inputs)...).store_unaligned(values);
    std::copy(values, values + (n - i), y + i);
}

/// y[i] = exp(x[i] + shift)
template <class Arch = xsimd::default_arch>
void exp_shifted(const float* x, float shift, float* y, std::size_t n) {
    using Batch = xsimd::batch<float, Arch>;
    map_rows<Arch>(
        y, n, [shift](Batch v) { return xsimd::exp(v + Batch(shift)); }, x);
}

/// y[i] = x[i] factor
template <class Arch = xsimd::default_arch>
void scale(const float* x, float factor, float* y, std::size_t n) {
    using Batch = xsimd::batch<float, Arch>;
    map_rows<Arch>(
        y, n, [factor](Batch v) { return v * Batch(factor); }, x);
}

/// y[i] = x[i] factor w[i]
template <class Arch = xsimd::default_arch>
void scale_by(const float* x, float factor, const float* w, float* y, std::size_t n) {
    using Batch = xsimd::batch<float, Arch>;
    map_rows<Arch>(
        y, n, [factor](Batch v, Batch weight) { return v * Batch(factor) * weight; }, x, w);
}

/// y[i] += x[i] factor w[i]
template <class Arch = xsimd::default_arch>
void add_scaled_by(const float* x, float factor, const float* w, float* y, std::size_t n) {
    using Batch = xsimd::batch<float, Arch>;
    map_rows<Arch>(
        y, n, [factor](Batch v, Batch weight, Batch sum) { return sum + v * Batch(factor) * weight; }, x, w,
        static_cast<const float*>(y));
}

/// y[i] = x[i] + z[i]
template <class Arch = xsimd::default_arch>
void add(const float* x, const float* z, float* y, std::size_t n) {
    using Batch = xsimd::batch<float, Arch>;
    map_rows<Arch>(
        y, n, [](Batch v, Batch w) { return v + w; }, x, z);
}

/// y[i] = x[i] - a
template <class Arch = xsimd::default_arch>
void subtract(const float* x, float a, float* y, std::size_t n) {
    using Batch = xsimd::batch<float, Arch>;
    map_rows<Arch>(
        y, n, [a](Batch v) { return v - Batch(a); }, x);
}

/// y[i] = cap tanh(x[i] / cap)
template <class Arch = xsimd::default_arch>
void soft_cap(const float* x, float cap, float* y, std::size_t n) {
    using Batch = xsimd::batch<float, Arch>;
    map_rows<Arch>(
        y, n, [cap](Batch v) { return Batch(cap) * xsimd::tanh(v / Batch(cap)); }, x);
}

/// The f of a gate. gelu_tanh: with a = 2 sqrt(2/pi) (x + 0.044715 x^3) it is x / (1 + exp(-a)).
template <class Batch>
Batch activate(Activation activation, Batch x) {
    switch (activation) {
        case Activation::silu: return x / (Batch(1.0f) + xsimd::exp(-x));
        case Activation::gelu_tanh: {
            const Batch a = Batch(1.5957691216057308f) * (x + Batch(0.044715f) * x * x * x);
            return x / (Batch(1.0f) + xsimd::exp(-a));
        }
        case Activation::gelu: return Batch(0.5f) * x * (Batch(1.0f) + xsimd::erf(x * Batch(0.7071067811865476f)));
    }
    return x;
}

/// y[i] = f(g[i]) u[i] as `GateSpec` says; u may be null.
template <class Arch = xsimd::default_arch>
void gate_rows(const GateSpec& spec, const float* g, const float* u, float* y, std::size_t n) {
    using Batch = xsimd::batch<float, Arch>;
    const auto f = [&](Batch x) {
        if (spec.alpha == 1.0f) return activate(spec.activation, x);
        return activate(spec.activation, x * Batch(spec.alpha)) / Batch(spec.alpha);
    };
    if (u == nullptr) return map_rows<Arch>(y, n, f, g);
    if (spec.limit == 0.0f) {
        return map_rows<Arch>(
            y, n, [&](Batch gate, Batch up) { return f(gate) * up; }, g, u);
    }
    const Batch limit(spec.limit);
    map_rows<Arch>(
        y, n,
        [&](Batch gate, Batch up) {
            // A NaN is not compared away.
            const Batch high = xsimd::select(up > limit, limit, up);
            return f(xsimd::select(gate > limit, limit, gate)) *
                   (xsimd::select(high < -limit, -limit, high) + Batch(1.0f));
        },
        g, u);
}

}  // namespace simd
}  // namespace decant::inline DECANT_ABI

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

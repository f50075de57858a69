// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Rotary frequencies and the rules that stretch them over longer contexts.

#include <decant/core/config.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {

/// theta^(-2i / dim) for i in [0, dim / 2) (Su et al. 2021).
[[nodiscard]] inline std::vector<float> rope_frequencies(std::uint32_t dim, double theta) {
    std::vector<float> frequencies(dim / 2);
    for (std::size_t i = 0; i < frequencies.size(); ++i)
        frequencies[i] = static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(i) / dim));
    return frequencies;
}

/// Positional interpolation (Chen et al. 2023): every frequency divided by `factor`.
inline void scale_linear(std::span<float> frequencies, double factor) {
    for (float& frequency : frequencies) frequency = static_cast<float>(frequency / factor);
}

/// Frequencies divided by one factor each (Llama 3.1 and LongRoPE files carry them as a tensor).
inline void scale_by_factors(std::span<float> frequencies, std::span<const float> factors) {
    for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
}

/// YaRN's parameters (Peng et al. 2023); `betas` are rotations over the original context.
struct YarnScaling {
    double factor = 1.0;
    double original_context = 0.0;
    double beta_fast = 32.0;
    double beta_slow = 1.0;

    /// Factor on cos and sin, 0.1 ln(factor) + 1.
    [[nodiscard]] float magnitude() const {
        return factor <= 1.0 ? 1.0f : static_cast<float>(0.1 * std::log(factor) + 1.0);
    }
};

/// YaRN (Peng et al. 2023, "NTK-by-parts"): fast dimensions keep their frequency, slow ones are divided by the factor,
/// with a linear ramp between the dimensions that turn `beta_fast` and `beta_slow` times over the original context.
inline void scale_yarn(std::span<float> frequencies, double theta, const YarnScaling& yarn) {
    const double dim = 2.0 * static_cast<double>(frequencies.size());
    const auto dimension = [&](double rotations) {
        return dim * std::log(yarn.original_context / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
    };
    const double low = (std::max)(std::floor(dimension(yarn.beta_fast)), 0.0);
    double high = (std::min)(std::ceil(dimension(yarn.beta_slow)), dim - 1.0);
    if (high <= low) high = low + 0.001;
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        const double scaled = frequencies[i] / yarn.factor * ramp + frequencies[i] * (1.0 - ramp);
        frequencies[i] = static_cast<float>(scaled);
    }
}

}  // namespace decant::inline DECANT_ABI

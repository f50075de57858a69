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

/// Llama 3.1's parameters: `low` and `high` are rotations over the original context.
struct Llama3Scaling {
    double factor = 1.0;
    double low = 1.0;
    double high = 4.0;
    double original_context = 0.0;
};

/// Llama 3.1 (Meta 2024): dimensions that turn more than `high` times over the original context keep their frequency,
/// those that turn less than `low` times are divided by the factor, with a ramp in between that is linear in the
/// rotations.
inline void scale_llama3(std::span<float> frequencies, const Llama3Scaling& llama) {
    for (float& frequency : frequencies) {
        const double rotations = llama.original_context * static_cast<double>(frequency) / (2.0 * std::numbers::pi);
        const double keep = std::clamp((rotations - llama.low) / (llama.high - llama.low), 0.0, 1.0);
        frequency = static_cast<float>((1.0 - keep) * frequency / llama.factor + keep * frequency);
    }
}

/// YaRN's parameters (Peng et al. 2023); `betas` are rotations over the original context.
struct YarnScaling {
    double factor = 1.0;
    double original_context = 0.0;
    double beta_fast = 32.0;
    double beta_slow = 1.0;
    bool truncate = true;  ///< whether the ramp begins and ends at whole dimensions

    /// Factor on cos and sin, 0.1 m ln(factor) + 1.
    [[nodiscard]] float magnitude(double m = 1.0) const {
        return factor <= 1.0 ? 1.0f : static_cast<float>(0.1 * m * std::log(factor) + 1.0);
    }
};

/// YaRN (Peng et al. 2023, "NTK-by-parts"): fast dimensions keep their frequency, slow ones are divided by the factor,
/// with a linear ramp between the dimensions that turn `beta_fast` and `beta_slow` times over the original context.
inline void scale_yarn(std::span<float> frequencies, double theta, const YarnScaling& yarn) {
    const double dim = 2.0 * static_cast<double>(frequencies.size());
    const auto dimension = [&](double rotations) {
        return dim * std::log(yarn.original_context / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
    };
    const double first = dimension(yarn.beta_fast), last = dimension(yarn.beta_slow);
    const double low = (std::max)(yarn.truncate ? std::floor(first) : first, 0.0);
    double high = (std::min)(yarn.truncate ? std::ceil(last) : last, dim - 1.0);
    if (high <= low) high = low + 0.001;
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        const double scaled = frequencies[i] / yarn.factor * ramp + frequencies[i] * (1.0 - ramp);
        frequencies[i] = static_cast<float>(scaled);
    }
}

}  // namespace decant::inline DECANT_ABI

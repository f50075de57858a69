// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The rotation that spreads what is large in a few numbers over all of a block, so that 4 bits hold it better (QuaRot:
/// Ashkboos et al. 2024).

#include <decant/core/config.hpp>

#include <cmath>
#include <cstddef>

namespace decant::inline DECANT_ABI {

/// Multiplies each `block` numbers of x, a power of two that divides n, by the Hadamard matrix of that size over the
/// root of it (fast Walsh-Hadamard transform). The matrix is orthonormal and symmetric: a second time undoes it, and
/// products of two vectors stay what they are. A block of 0 leaves x as it is.
inline void hadamard(float* x, std::size_t n, std::size_t block) noexcept {
    if (block == 0) return;
    for (std::size_t half = 1; half < block; half *= 2) {
        for (std::size_t first = 0; first < n; first += 2 * half) {
            for (std::size_t i = first; i < first + half; ++i) {
                const float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
        }
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(block));
    for (std::size_t i = 0; i < n; ++i) x[i] *= scale;
}

}  // namespace decant::inline DECANT_ABI

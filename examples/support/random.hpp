// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Random numbers that are the same on every system, which those of <random> are not.

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace examples {

/// SplitMix64 (Steele, Lea and Flood 2014).
class Random {
 public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    /// In [0, 1).
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    /// In [0, n), n > 0.
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(uniform() * static_cast<double>(n)); }
    /// Exponentially distributed, with this mean.
    double exponential(double mean) { return -mean * std::log(1.0 - uniform()); }
    /// In [-1, 1).
    float symmetric() { return static_cast<float>(2.0 * uniform() - 1.0); }

 private:
    std::uint64_t state_;
};

}  // namespace examples

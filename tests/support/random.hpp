// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Random numbers that are the same on every machine and standard library.

#include <cstddef>
#include <cstdint>

namespace decant_test {

/// splitmix64 (Steele, Lea and Flood 2014): a fixed sequence everywhere.
struct Random {
    std::uint64_t state;
    std::uint64_t next() {
        std::uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    std::size_t below(std::size_t end) { return static_cast<std::size_t>(next() % end); }
    /// Uniform in [-1, 1).
    float number() { return static_cast<float>(static_cast<std::int64_t>(next())) * 0x1.0p-63f; }
};

}  // namespace decant_test

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Counter-based randomness: the number at (seed, position, lane) is a function of the three, so that a run can be
/// replayed, forked and rolled back.

#include <decant/core/config.hpp>

#include <array>
#include <cstdint>

namespace decant::inline DECANT_ABI {

/// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                            std::array<std::uint32_t, 2> key) noexcept {
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
        const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
        counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
                   static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

/// Uniform in [0, 1), 53 bits, at a position of the stream that `seed` names. A position has independent numbers by
/// lane, one for each purpose, so that using one of them never shifts another.
[[nodiscard]] constexpr double uniform(std::uint64_t seed, std::uint64_t position, std::uint32_t lane = 0) noexcept {
    const auto words =
        philox({static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), lane, 0},
               {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
    return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace decant::inline DECANT_ABI

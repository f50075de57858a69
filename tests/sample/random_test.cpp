// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/sample/random.hpp>

#include "support/catch.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

using decant::philox;
using decant::uniform;
using Words = std::array<std::uint32_t, 4>;

// The known answers of the authors' distribution (Random123, tests/kat_vectors, "philox4x32 10").
TEST_CASE("Philox gives the published answers", "[sample]") {
    STATIC_REQUIRE(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    constexpr std::uint32_t ones = 0xffffffff;
    STATIC_REQUIRE(philox({ones, ones, ones, ones}, {ones, ones}) ==
                   Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    STATIC_REQUIRE(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
                   Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("uniform numbers lie in [0, 1) and are the published words", "[sample]") {
    // The first 53 of the bits 6627e8d5 e169c58d.
    CHECK(uniform(0, 0) == std::ldexp(static_cast<double>(0x6627e8d5e169c58du >> 11), -53));
    for (std::uint64_t position = 0; position < 10'000; ++position) {
        const double u = uniform(0x123456789abcdef0u, position);
        if (!(u >= 0.0 && u < 1.0)) FAIL("position " << position << " gives " << u);
    }
}

TEST_CASE("uniform numbers use all bits of seed and position", "[sample]") {
    const double base = uniform(1, 1);
    for (int bit = 0; bit < 64; ++bit) {
        CHECK(uniform(1u ^ std::uint64_t{1} << bit, 1) != base);
        CHECK(uniform(1, 1u ^ std::uint64_t{1} << bit) != base);
    }
}

TEST_CASE("lanes of a position are numbers of their own", "[sample]") {
    CHECK(uniform(5, 9, 0) == uniform(5, 9));
    for (int bit = 0; bit < 32; ++bit) CHECK(uniform(5, 9, std::uint32_t{1} << bit) != uniform(5, 9));
    // Lane 1 says nothing of lane 0: the product of the deviations has a mean of 0 and a deviation of 1/12.
    double sum = 0.0;
    constexpr int draws = 10'000;
    for (std::uint64_t position = 0; position < draws; ++position)
        sum += (uniform(5, position, 0) - 0.5) * (uniform(5, position, 1) - 0.5);
    CHECK(std::fabs(sum) < 4 * std::sqrt(static_cast<double>(draws)) / 12);
}

TEST_CASE("uniform numbers fill the interval evenly, along positions and along seeds", "[sample]") {
    constexpr std::size_t bins = 64;
    constexpr std::size_t draws = 64'000;
    for (const bool along_seeds : {false, true}) {
        std::vector<double> counts(bins);
        for (std::uint64_t i = 0; i < draws; ++i)
            counts[static_cast<std::size_t>((along_seeds ? uniform(i, 7) : uniform(7, i)) * bins)] += 1.0;
        double chi = 0.0;
        const double expected = static_cast<double>(draws) / bins;
        for (const double count : counts) chi += (count - expected) * (count - expected) / expected;
        // 63 degrees of freedom: mean 63, deviation 11.2; both tails at more than four deviations.
        CHECK(chi < 63 + 4 * 11.3);
        CHECK(chi > 63 - 4 * 11.3);
    }
}

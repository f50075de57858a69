// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/sample/row_kernels.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

using decant::detail::portable_row_kernels;
using decant::detail::row_block;
using decant::detail::row_kernels;
using decant::detail::RowBlock;

namespace {
using decant_test::infinity;
}

TEST_CASE("the highest of every block", "[sample]") {
    decant_test::Random random{1};
    for (const auto* kernels : {&portable_row_kernels, &row_kernels()}) {
        for (const std::size_t block : {row_block, 2 * row_block, 5 * row_block}) {
            const std::size_t blocks = 1 + random.below(9);
            std::vector<float> row(blocks * block);
            for (float& x : row) x = random.below(50) == 0 ? -infinity : 100.0f * random.number();
            std::fill(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(block), -infinity);
            std::vector<float> maxima(blocks);
            CHECK(kernels->survey(row.data(), blocks, block, maxima.data()));
            for (std::size_t b = 0; b < blocks; ++b) {
                const auto begin = row.begin() + static_cast<std::ptrdiff_t>(b * block);
                CHECK(maxima[b] == *std::max_element(begin, begin + static_cast<std::ptrdiff_t>(block)));
            }
            for (std::size_t at = 0; at < row.size(); ++at) {
                const float before = row[at];
                for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0xffffffffu}) {
                    row[at] = std::bit_cast<float>(nan);
                    REQUIRE_FALSE(kernels->survey(row.data(), blocks, block, maxima.data()));
                }
                row[at] = before;
            }
        }
    }
}

// Where the host allows fused multiply-add, compilers choose where to use it.
#if !defined(__FMA__)
TEST_CASE("every instruction set gives the same weights", "[sample]") {
    decant_test::Random random{2};
    for (int round = 0; round < 20'000; ++round) {
        RowBlock row;
        const float range = round % 3 == 0 ? 1e-3f : round % 3 == 1 ? 10.0f : 200.0f;
        for (float& x : row) x = random.below(40) == 0 ? -infinity : range * random.number();
        row[random.below(row_block)] = range;
        const float inverse = 0.1f + static_cast<float>(random.below(30));
        RowBlock exponents, weights, other_exponents, other_weights;
        const double sum = portable_row_kernels.weigh(row.data(), range, inverse, exponents.data(), weights.data());
        const double other =
            row_kernels().weigh(row.data(), range, inverse, other_exponents.data(), other_weights.data());
        REQUIRE(sum == other);
        REQUIRE(exponents == other_exponents);
        REQUIRE(weights == other_weights);
        REQUIRE(sum == Approx(std::accumulate(weights.begin(), weights.end(), 0.0)).epsilon(1e-6));
        REQUIRE(*std::max_element(weights.begin(), weights.end()) == 1.0f);
    }
}
#endif

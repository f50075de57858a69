// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/hadamard.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <vector>

using decant::hadamard;
using decant_test::Random;

namespace {

std::vector<float> numbers(Random& random, std::size_t count) {
    std::vector<float> all(count);
    for (float& number : all) number = random.number();
    return all;
}

}  // namespace

TEST_CASE("hadamard: each block is multiplied by the matrix, by its definition") {
    Random random{1};
    for (const std::size_t block : {1u, 2u, 32u, 64u, 128u, 256u}) {
        for (const std::size_t blocks : {1u, 3u}) {
            const std::vector<float> x = numbers(random, blocks * block);
            std::vector<float> y = x;
            hadamard(y.data(), y.size(), block);
            const double scale = 1.0 / std::sqrt(static_cast<double>(block));
            double worst = 0.0;
            for (std::size_t i = 0; i < y.size(); ++i) {
                const std::size_t first = i / block * block;
                double expected = 0.0;
                for (std::size_t j = 0; j < block; ++j)
                    expected += (std::popcount((i - first) & j) % 2 == 0 ? scale : -scale) * double{x[first + j]};
                worst = std::fmax(worst, std::abs(expected - double{y[i]}));
            }
            CAPTURE(block, blocks);
            CHECK(worst < 1e-5);
        }
    }
}

TEST_CASE("hadamard: a second time undoes it, products stay, a block of 0 is none") {
    Random random{2};
    const std::vector<float> x = numbers(random, 192), other = numbers(random, 192);
    std::vector<float> y = x, z = other;
    hadamard(y.data(), y.size(), 0);
    CHECK(y == x);
    hadamard(y.data(), y.size(), 64);
    hadamard(z.data(), z.size(), 64);
    CHECK(y != x);
    double before = 0.0, after = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        before += double{x[i]} * double{other[i]};
        after += double{y[i]} * double{z[i]};
    }
    CHECK(std::abs(before - after) < 1e-4);
    hadamard(y.data(), y.size(), 64);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(y[i] - x[i]) < 1e-6f);
}

TEST_CASE("hadamard: an outlier becomes as large as all others") {
    std::vector<float> x(128, 0.0f);
    x[77] = 16.0f;
    hadamard(x.data(), x.size(), 64);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i]) == (i < 64 ? 0.0f : 2.0f));
}

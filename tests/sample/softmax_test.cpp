// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/sample/softmax.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"
#include "support/random.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using decant::log_sum_exp;
using decant::detail::exp_nonpositive;

namespace {
using decant_test::infinity;
}

TEST_CASE("exp of what is not positive is that of the library", "[sample]") {
    CHECK(exp_nonpositive(0.0f) == 1.0f);
    CHECK(exp_nonpositive(-0.0f) == 1.0f);
    CHECK(exp_nonpositive(-1e-30f) == 1.0f);
    CHECK(exp_nonpositive(-88.0f) == 0.0f);
    decant::detail::RowBlock row{};
    row[0] = -infinity;
    row[1] = -std::numeric_limits<float>::max();
    row[2] = -1000.0f;
    decant::detail::RowBlock weights;
    decant::detail::weigh_block(row.data(), 1.0f, 1e30f, weights);
    CHECK(weights == decant::detail::RowBlock{});
    decant::detail::weigh_block(row.data(), 0.0f, 1e-30f, weights);
    CHECK(weights[0] == 0.0f);
    CHECK(weights[2] == 1.0f);
    double worst = 0.0;
    for (int i = 0; i < 870'000; ++i) {
        const float x = -1e-4f * static_cast<float>(i);
        const double expected = std::exp(static_cast<double>(x));
        worst = (std::max)(worst, std::fabs(static_cast<double>(exp_nonpositive(x)) / expected - 1.0));
    }
    CHECK(worst < 3e-7);
    CHECK(worst > 0.0);
}

TEST_CASE("log-sum-exp is that of double precision, for every length", "[sample]") {
    decant_test::Random random{1};
    for (const std::size_t size : {1u, 2u, 63u, 64u, 65u, 127u, 128u, 1000u, 50'000u}) {
        std::vector<float> row(size);
        for (float& x : row) x = 20.0f * random.number();
        double sum = 0.0;
        for (const float x : row) sum += std::exp(static_cast<double>(x));
        CHECK(static_cast<double>(log_sum_exp(row)) == Approx(std::log(sum)).margin(2e-6));
        for (float& x : row) x += 1000.0f;  // exp() of these overflows
        CHECK(static_cast<double>(log_sum_exp(row)) == Approx(std::log(sum) + 1000.0).margin(2e-4));
    }
    CHECK(log_sum_exp(std::vector<float>{}) == -infinity);
    CHECK(log_sum_exp(std::vector<float>(100, -infinity)) == -infinity);
    CHECK(log_sum_exp(std::vector<float>{-infinity, 3.5f, -infinity}) == 3.5f);
    CHECK(log_sum_exp(std::vector<float>{3e38f, -3e38f}) == 3e38f);
}

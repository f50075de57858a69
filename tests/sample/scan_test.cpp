// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/sample/scan.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

using decant::Candidate;
using decant::LogitAdjustment;
using decant::Token;
using decant::detail::best_of;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// The k best by sorting everything.
std::vector<Candidate> sorted_best(const std::vector<float>& row, const std::vector<LogitAdjustment>& adjustments,
                                   std::size_t k) {
    std::map<std::int32_t, LogitAdjustment> by_token;
    for (const LogitAdjustment& adjustment : adjustments) by_token[id(adjustment.token)] = adjustment;
    std::vector<Candidate> all;
    for (std::size_t i = 0; i < row.size(); ++i) {
        const auto token = static_cast<std::int32_t>(i);
        const auto found = by_token.find(token);
        const float logit = found == by_token.end() ? row[i] : decant::apply(found->second, row[i]);
        if (logit > -infinity) all.push_back({Token{token}, logit, 0.0f});
    }
    std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
    all.resize((std::min)(k, all.size()));
    return all;
}

}  // namespace

TEST_CASE("the adjusted logit", "[sample]") {
    constexpr float largest = std::numeric_limits<float>::max();
    CHECK(decant::apply({Token{0}, 2.0f, 1.0f}, 3.0f) == 2.5f);
    CHECK(decant::apply({Token{0}, 2.0f, 1.0f}, -3.0f) == -5.0f);
    CHECK(decant::apply({Token{0}, 0.5f, 0.0f}, -3.0f) == -1.5f);
    CHECK(decant::apply({Token{0}, 1.0f, -infinity}, largest) == -infinity);
    CHECK(decant::apply({Token{0}, 1e-30f, 0.0f}, 1e30f) == largest);
    CHECK(decant::apply({Token{0}, 1e-30f, -infinity}, 1e30f) == -infinity);
    CHECK(decant::apply({Token{0}, 1.0f, largest}, largest) == largest);
    CHECK(decant::apply({Token{0}, 1e30f, 5.0f}, -infinity) == -infinity);
}

TEST_CASE("the k best are those of a full sort", "[sample]") {
    decant_test::Random random{7};
    std::vector<Candidate> best;
    for (int round = 0; round < 3000; ++round) {
        std::vector<float> row(1 + random.below(round % 10 == 0 ? 5000 : 300));
        const std::size_t grid = 1 + random.below(round % 3 == 0 ? 5 : 5000);  // few values: many ties
        for (float& x : row) {
            x = static_cast<float>(random.below(grid)) * 0.01f - 1.0f;
            if (random.below(20) == 0) x = -infinity;
        }
        if (round % 5 == 0) std::sort(row.begin(), row.end());                         // every one is a new best
        if (round % 5 == 1) std::sort(row.begin(), row.end(), std::greater<float>());  // the first are the best
        std::vector<LogitAdjustment> adjustments;
        for (std::size_t i = random.below(8); i < row.size() + 10 && round % 2 == 0; i += 1 + random.below(60)) {
            const float bias = random.below(4) == 0 ? -infinity : static_cast<float>(random.below(5)) - 2.0f;
            adjustments.push_back({Token{static_cast<std::int32_t>(i)}, random.below(2) == 0 ? 1.0f : 1.5f, bias});
        }
        const std::size_t k = 1 + random.below(round % 7 == 0 ? 2 * row.size() : 50);
        const std::vector<Candidate> expected = sorted_best(row, adjustments, k);
        const auto found = best_of(row, adjustments, k, best);
        INFO("round " << round << ", " << row.size() << " logits, k " << k);
        REQUIRE(found.has_value() == !expected.empty());
        if (found && best != expected) FAIL("other candidates");
    }
}

TEST_CASE("a bad logit is named wherever it stands", "[sample]") {
    std::vector<Candidate> best;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity}) {
        for (std::size_t at = 0; at < 200; ++at) {
            std::vector<float> row(200, 1.0f);
            row[0] = 9.0f;
            row[at] = bad;
            row[199] = infinity;
            // An adjustment of the token does not hide it.
            const std::vector<LogitAdjustment> adjustments{{Token{static_cast<std::int32_t>(at)}, 1.0f, -infinity}};
            const auto found = best_of(row, adjustments, 3, best);
            REQUIRE_FALSE(found);
            CHECK(found.error().what.find("token " + std::to_string(at)) != std::string::npos);
        }
    }
}

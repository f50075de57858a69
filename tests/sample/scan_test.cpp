// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/sample/scan.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

using decant::Candidate;
using decant::LogitAdjustment;
using decant::Token;
using decant::detail::best_of;

namespace {

using decant_test::infinity;

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

TEST_CASE("the k best do not depend on how a row is ordered", "[sample]") {
    decant_test::Random random{23};
    std::vector<std::size_t> sizes;
    for (std::size_t size = 1; size <= 70; ++size) sizes.push_back(size);
    for (const std::size_t size : {127u, 128u, 129u, 1000u, 4096u, 140'007u, 300'000u}) sizes.push_back(size);
    std::vector<Candidate> best;
    for (const std::size_t size : sizes) {
        for (int kind = 0; kind < 8; ++kind) {
            std::vector<float> row(size);
            for (float& x : row) x = random.number();
            if (kind == 0) std::sort(row.begin(), row.end());
            if (kind == 1) std::sort(row.begin(), row.end(), std::greater<float>());
            if (kind == 2) std::fill(row.begin(), row.end(), -3.0f);
            if (kind == 3)  // ties at the k-th place, whatever k
                for (float& x : row) x = static_cast<float>(random.below(3));
            if (kind == 4)  // a single number among what is forbidden
                for (std::size_t i = 0; i < size; ++i) row[i] = i == size / 2 ? -7.0f : -infinity;
            if (kind == 5)  // zeros of both signs are equal
                for (float& x : row) x = random.below(2) == 0 ? 0.0f : -0.0f;
            if (kind == 6)
                for (float& x : row) x *= std::numeric_limits<float>::max();
            std::vector<LogitAdjustment> adjustments;
            if (kind == 7) {  // the best are lowered, so that no maximum of the raw row counts
                std::vector<float> sorted = row;
                std::sort(sorted.begin(), sorted.end(), std::greater<float>());
                const float high = sorted[(std::min)(size - 1, std::size_t{300})];
                for (std::size_t i = 0; i < size; ++i) {
                    if (row[i] >= high)
                        adjustments.push_back({Token{static_cast<std::int32_t>(i)}, 1.0f,
                                               random.below(3) == 0 ? -infinity : random.number() - 1.0f});
                }
                if (size < 302) adjustments.resize(size / 2);
            }
            for (const std::size_t k : {std::size_t{1}, std::size_t{2}, std::size_t{40}, size, size + 3}) {
                if (k > 5000 && kind > 1) continue;
                const std::vector<Candidate> expected = sorted_best(row, adjustments, k);
                const auto found = best_of(row, adjustments, k, best);
                INFO(size << " logits, kind " << kind << ", k " << k);
                REQUIRE(found.has_value() == !expected.empty());
                if (found && best != expected) FAIL("other candidates");
            }
        }
    }
    CHECK_FALSE(best_of({}, {}, 1, best));
}

TEST_CASE("a bad logit is named in a row of any length", "[sample]") {
    std::vector<Candidate> best;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (std::size_t size = 1; size <= 200; ++size) {
        for (const float bad : {nan, -nan, infinity}) {
            for (const std::size_t at : {std::size_t{0}, size / 3, size - 1}) {
                std::vector<float> row(size, -infinity);
                row[at] = bad;
                const auto found = best_of(row, {}, 40, best);
                REQUIRE_FALSE(found);
                CHECK(found.error().what.find("token " + std::to_string(at) + " ") != std::string::npos);
            }
        }
    }
    std::vector<float> row(200'000, 1.0f);
    row[150'001] = -nan;
    row[199'999] = infinity;
    CHECK(best_of(row, {}, 1, best).error().what.find("token 150001 ") != std::string::npos);
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

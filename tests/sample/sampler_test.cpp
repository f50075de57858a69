// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/sample/sampler.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

using decant::ErrorCode;
using decant::Sampler;
using decant::Token;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// The token at the position given by a history of `position` tokens.
std::int32_t pick(const Sampler& sampler, const std::vector<float>& logits, std::size_t position = 0) {
    const std::vector<Token> history(position);
    const auto token = sampler.pick(logits, history);
    INFO((token ? std::string() : token.error().message()));
    REQUIRE(token);
    return decant::id(*token);
}

void refuses(const Sampler& sampler, const std::vector<float>& logits, std::string_view part) {
    const auto token = sampler.pick(logits, {});
    REQUIRE_FALSE(token);
    CHECK(token.error().code == ErrorCode::invalid_argument);
    INFO(token.error().message());
    CHECK(token.error().message().find(part) != std::string::npos);
}

/// Counts over `draws` positions against softmax(logits / temperature): Pearson's chi-square.
double chi_square(const std::vector<float>& logits, float temperature, std::size_t draws) {
    const Sampler sampler({.temperature = temperature, .seed = 42});
    std::vector<double> counts(logits.size());
    for (std::size_t position = 0; position < draws; ++position)
        counts[static_cast<std::size_t>(pick(sampler, logits, position))] += 1.0;
    std::vector<double> shares;
    for (const float logit : logits) shares.push_back(std::exp(static_cast<double>(logit) / temperature));
    const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
    double chi = 0.0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const double expected = shares[i] / total * static_cast<double>(draws);
        if (expected == 0.0) {
            CHECK(counts[i] == 0.0);
            continue;
        }
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return chi;
}

}  // namespace

TEST_CASE("greedy takes the highest logit, the lower id among equals", "[sample]") {
    const Sampler greedy;
    CHECK(pick(greedy, {0.0f, 3.0f, 2.0f}) == 1);
    CHECK(pick(greedy, {3.0f, 1.0f, 3.0f}) == 0);
    CHECK(pick(greedy, {-0.0f, 0.0f}) == 0);
    CHECK(pick(greedy, {-infinity, -5.0f, -infinity}) == 1);
    CHECK(pick(greedy, {-std::numeric_limits<float>::max()}) == 0);
    CHECK(pick(greedy, {1.0f, std::numeric_limits<float>::max()}, 17) == 1);
}

TEST_CASE("logits that no token can be picked from are errors", "[sample]") {
    for (const float temperature : {0.0f, 0.8f}) {
        const Sampler sampler({.temperature = temperature});
        refuses(sampler, {}, "0 logits");
        refuses(sampler, {1.0f, not_a_number, 2.0f}, "token 1");
        refuses(sampler, {1.0f, 2.0f, infinity}, "token 2");
        refuses(sampler, {-infinity, -infinity}, "2 logits");
        refuses(sampler, {-not_a_number}, "token 0");
    }
}

TEST_CASE("temperatures that are no temperature are errors", "[sample]") {
    for (const float temperature : {-0.5f, not_a_number, infinity, -infinity})
        refuses(Sampler({.temperature = temperature}), {1.0f, 2.0f}, "temperature");
}

TEST_CASE("temperature sampling follows the softmax", "[sample]") {
    const std::vector<float> logits{1.0f, 0.0f, -1.0f, 2.0f, 0.5f, -2.0f, 1.5f, -infinity, -0.5f};
    // Seven degrees of freedom (eight possible tokens): 24.3 is exceeded once in a thousand runs, and the run is fixed.
    for (const float temperature : {0.3f, 0.7f, 1.0f, 2.5f}) CHECK(chi_square(logits, temperature, 20'000) < 24.3);
    // A shift of all logits changes nothing, also where exp() of a logit would overflow.
    std::vector<float> high = logits;
    for (float& logit : high) logit += 512.0f;
    const Sampler sampler({.temperature = 0.7f, .seed = 3});
    for (std::size_t position = 0; position < 500; ++position)
        CHECK(pick(sampler, high, position) == pick(sampler, logits, position));
}

TEST_CASE("a token without probability is never picked", "[sample]") {
    const Sampler sampler({.temperature = 1.0f, .seed = 5});
    for (std::size_t position = 0; position < 2'000; ++position) {
        CHECK(pick(sampler, {-infinity, 0.0f, -infinity, 0.0f, -infinity}, position) % 2 == 1);
        CHECK(pick(sampler, {-1e30f, 7.0f, -1e30f}, position) == 1);
    }
}

TEST_CASE("a low temperature is greedy, a high one nearly uniform", "[sample]") {
    const std::vector<float> logits{0.0f, 1.0f, 2.0f, 1.9f};
    const Sampler cold({.temperature = 1e-4f});
    const Sampler tiny({.temperature = std::numeric_limits<float>::denorm_min()});
    for (std::size_t position = 0; position < 200; ++position) {
        CHECK(pick(cold, logits, position) == 2);
        CHECK(pick(tiny, logits, position) == 2);
    }
    // 3 degrees of freedom, against the uniform distribution: one in a thousand exceeds 16.3.
    const Sampler hot({.temperature = std::numeric_limits<float>::max()});
    std::vector<double> counts(4);
    for (std::size_t position = 0; position < 8'000; ++position)
        counts[static_cast<std::size_t>(pick(hot, logits, position))] += 1.0;
    double chi = 0.0;
    for (const double count : counts) chi += (count - 2'000) * (count - 2'000) / 2'000;
    CHECK(chi < 16.3);
}

TEST_CASE("seed and position decide the token, nothing else", "[sample]") {
    std::vector<float> logits(100);
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 0.01f * static_cast<float>(i);
    const Sampler sampler({.temperature = 1.0f, .seed = 9});
    const Sampler same = sampler;
    const Sampler other({.temperature = 1.0f, .seed = 10});
    std::vector<std::int32_t> tokens;
    std::size_t differ = 0;
    for (std::size_t position = 0; position < 200; ++position) {
        tokens.push_back(pick(sampler, logits, position));
        CHECK(pick(same, logits, position) == tokens.back());
        differ += pick(other, logits, position) != tokens.back();
    }
    CHECK(differ > 150);
    for (std::size_t position = 200; position-- > 0;)  // in any order, and whatever the history holds
        CHECK(decant::id(*sampler.pick(logits, std::vector<Token>(position, Token{77}))) == tokens[position]);
}

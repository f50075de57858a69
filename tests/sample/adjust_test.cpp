// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/sample/adjust.hpp>
#include <decant/sample/sampler.hpp>

#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/numbers.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <vector>

using decant::Dry;
using decant::LogitAdjustment;
using decant::LogitBias;
using decant::Penalties;
using decant::Sampler;
using decant::SamplerStep;
using decant::Token;

namespace {

using decant_test::infinity;

std::vector<Token> tokens(const std::vector<int>& ids) {
    std::vector<Token> out;
    for (const int i : ids) out.push_back(Token{i});
    return out;
}

std::vector<LogitAdjustment> adjustments(std::vector<SamplerStep> steps, const std::vector<int>& history) {
    auto sampler = Sampler::chain(std::move(steps)).value();
    std::vector<LogitAdjustment> out{{Token{99}, 9.0f, 9.0f}};  // what was there goes
    sampler.adjustments(tokens(history), out);
    return out;
}

/// Logits after the steps, by way of the distribution: every candidate is left.
std::vector<float> adjusted(std::vector<SamplerStep> steps, const std::vector<float>& logits,
                            const std::vector<int>& history) {
    auto sampler = Sampler::chain(std::move(steps)).value();
    std::vector<float> out(logits.size(), -infinity);
    for (const auto& candidate : sampler.distribution(logits, tokens(history)).value())
        out[static_cast<std::size_t>(id(candidate.token))] = candidate.logit;
    return out;
}

/// DRY by trying every earlier place and comparing backwards.
std::map<int, double> dry_by_hand(const Dry& dry, std::vector<int> history) {
    if (dry.last_n >= 0 && history.size() > static_cast<std::size_t>(dry.last_n))
        history.erase(history.begin(), history.end() - dry.last_n);
    const auto breaks = [&](int i) {
        return std::find(dry.breakers.begin(), dry.breakers.end(), Token{i}) != dry.breakers.end();
    };
    std::map<int, int> lengths;
    const int size = static_cast<int>(history.size());
    const auto at = [&](int i) { return history[static_cast<std::size_t>(i)]; };
    for (int end = 0; end + 1 < size; ++end) {
        int length = 0;
        while (end - length >= 0 && at(end - length) == at(size - 1 - length) && !breaks(at(end - length))) ++length;
        if (!breaks(at(end + 1)) && length >= dry.allowed_length)
            lengths[at(end + 1)] = (std::max)(lengths[at(end + 1)], length);
    }
    std::map<int, double> penalties;
    for (const auto& [token, length] : lengths)
        penalties[token] = static_cast<double>(dry.multiplier) * std::pow(dry.base, length - dry.allowed_length);
    return penalties;
}

}  // namespace

TEST_CASE("penalties equal the table", "[sample]") {
    const auto path = decant_test::shared("cases/files/SA-05.json");
    if (!std::filesystem::exists(path)) DECANT_SKIP("../shared/cases is absent");
    const auto table = decant_test::read_json(path);
    const auto logits = table["logits"].get<std::vector<float>>();
    const auto history = table["history"].get<std::vector<int>>();
    REQUIRE(table["cases"].size() == 10);
    for (const auto& row : table["cases"]) {
        const Penalties penalties{.repetition = row.value("rp", 1.0f),
                                  .frequency = row.value("fp", 0.0f),
                                  .presence = row.value("pp", 0.0f),
                                  .last_n = row.value("last_n", 64)};
        const auto out = adjusted({penalties}, logits, history);
        const auto expected = row["expect"].get<std::vector<double>>();
        INFO(row.dump());
        for (std::size_t i = 0; i < logits.size(); ++i)
            CHECK(static_cast<double>(out[i]) == Approx(expected[i]).margin(1e-6));
    }
}

TEST_CASE("each token is adjusted once, in order of ids", "[sample]") {
    using List = std::vector<LogitAdjustment>;
    CHECK(adjustments({Penalties{.repetition = 2.0f}}, {}).empty());
    CHECK(adjustments({Penalties{.repetition = 2.0f}}, {7, 3, 7, 5, 3, 7}) ==
          List{{Token{3}, 2.0f, 0.0f}, {Token{5}, 2.0f, 0.0f}, {Token{7}, 2.0f, 0.0f}});
    CHECK(adjustments(
              {Penalties{.repetition = 2.0f, .presence = 1.0f}, LogitBias{{{Token{5}, 3.0f}, {Token{1}, -infinity}}}},
              {7, 5, -1}) == List{{Token{1}, 1.0f, -infinity}, {Token{5}, 2.0f, 2.0f}, {Token{7}, 2.0f, -1.0f}});
    // A token named twice gets the sum; forbidden it stays.
    CHECK(adjustments({LogitBias{{{Token{4}, 1.0f}, {Token{2}, -infinity}, {Token{4}, 2.0f}, {Token{2}, 8.0f}}}}, {}) ==
          List{{Token{2}, 1.0f, -infinity}, {Token{4}, 1.0f, 3.0f}});
    // Two windows of repetition multiply.
    CHECK(adjustments({Penalties{.repetition = 2.0f, .last_n = -1}, Penalties{.repetition = 3.0f, .last_n = 1}},
                      {1, 2}) == List{{Token{1}, 2.0f, 0.0f}, {Token{2}, 6.0f, 0.0f}});
    // Overflow saturates.
    CHECK(adjustments({Penalties{.frequency = -3e38f}}, {1, 1, 1}) ==
          List{{Token{1}, 1.0f, std::numeric_limits<float>::max()}});
}

TEST_CASE("long histories are counted as short ones", "[sample]") {
    decant_test::Random random{3};
    for (const std::size_t vocabulary : {3u, 300u, 70'000u, 1u << 30}) {
        std::vector<int> history(3000);
        for (int& token : history) token = static_cast<int>(random.below(vocabulary));
        std::map<int, int> counts;
        for (const int token : history) ++counts[token];
        std::vector<LogitAdjustment> expected;
        for (const auto& [token, count] : counts)
            expected.push_back({Token{token}, 1.0f, -0.5f * static_cast<float>(count)});
        CHECK(adjustments({Penalties{.frequency = 0.5f, .last_n = -1}}, history) == expected);
    }
}

TEST_CASE("DRY penalizes what prolongs a repetition", "[sample]") {
    using List = std::vector<LogitAdjustment>;
    const Dry dry{.multiplier = 1.0f, .base = 2.0f, .allowed_length = 2};
    // "1 2 3 ... 1 2": 3 would go on; length 2, exponent 0.
    CHECK(adjustments({dry}, {1, 2, 3, 9, 1, 2}) == List{{Token{3}, 1.0f, -1.0f}});
    // "8 1 2 3 ... 8 1 2": length 3, exponent 1.
    CHECK(adjustments({dry}, {8, 1, 2, 3, 9, 8, 1, 2}) == List{{Token{3}, 1.0f, -2.0f}});
    // The longest repetition counts, and every continuation.
    CHECK(adjustments({dry}, {8, 1, 2, 3, 1, 2, 3, 1, 2, 4, 8, 1, 2}) ==
          List{{Token{3}, 1.0f, -2.0f}, {Token{4}, 1.0f, -1.0f}});
    CHECK(adjustments({dry}, {1, 3, 9, 1}).empty());  // too short
    CHECK(adjustments({dry}, {}).empty());
    CHECK(adjustments({dry}, {1}).empty());
    // A run overlaps itself: four of the five equal tokens precede the end.
    CHECK(adjustments({dry}, {5, 5, 5, 5, 5}) == List{{Token{5}, 1.0f, -4.0f}});
    // Breakers: the match stops there, they cannot be penalized, and after one nothing is.
    Dry broken = dry;
    broken.breakers = {Token{8}, Token{1}};
    CHECK(adjustments({broken}, {8, 1, 2, 3, 9, 8, 1, 2}).empty());
    broken.breakers = {Token{8}};
    CHECK(adjustments({broken}, {8, 1, 2, 3, 9, 8, 1, 2}) == List{{Token{3}, 1.0f, -1.0f}});
    broken.breakers = {Token{3}};
    CHECK(adjustments({broken}, {1, 2, 3, 9, 1, 2}).empty());
    broken.breakers = {Token{2}};
    CHECK(adjustments({broken}, {1, 2, 3, 9, 1, 2}).empty());
    // The window.
    Dry near = dry;
    near.last_n = 5;
    CHECK(adjustments({near}, {1, 2, 3, 9, 1, 2}).empty());
    near.last_n = 6;
    CHECK(adjustments({near}, {1, 2, 3, 9, 1, 2}).size() == 1);
    // However long the repetition, the penalty is a number, and the time is linear.
    CHECK(adjustments({dry}, std::vector<int>(200'000, 5)) ==
          List{{Token{5}, 1.0f, -std::numeric_limits<float>::max()}});
}

TEST_CASE("DRY equals the search by hand", "[sample]") {
    decant_test::Random random{11};
    std::size_t penalized = 0;
    for (int round = 0; round < 2000; ++round) {
        std::vector<int> history(random.below(120));
        const std::size_t vocabulary = 1 + random.below(6);
        for (int& token : history) token = static_cast<int>(random.below(vocabulary));
        Dry dry{
            .multiplier = 0.8f, .base = 1.25f, .allowed_length = 1 + static_cast<int>(random.below(4)), .last_n = -1};
        if (random.below(3) == 0) dry.last_n = 1 + static_cast<int>(random.below(100));
        for (std::size_t i = random.below(3); i > 0; --i)
            dry.breakers.push_back(Token{static_cast<int>(random.below(6))});
        const std::vector<LogitAdjustment> list = adjustments({dry}, history);
        const std::map<int, double> expected = dry_by_hand(dry, history);
        INFO("round " << round);
        REQUIRE(list.size() == expected.size());
        std::size_t i = 0;
        for (const auto& [token, penalty] : expected) {
            REQUIRE(id(list[i].token) == token);
            REQUIRE(static_cast<double>(-list[i++].bias) == Approx(penalty).epsilon(1e-6));
        }
        penalized += list.size();
    }
    CHECK(penalized > 2000);
}

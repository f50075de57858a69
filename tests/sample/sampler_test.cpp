// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/best.hpp>
#include <decant/sample/sampler.hpp>
#include <decant/sample/scan.hpp>
#include <decant/sample/softmax.hpp>

#include "sample/reference.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/numbers.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using decant::ErrorCode;
using decant::LogitAdjustment;
using decant::LogitBias;
using decant::MinP;
using decant::Mirostat;
using decant::Penalties;
using decant::Sampler;
using decant::SamplerStep;
using decant::Temperature;
using decant::Token;
using decant::TopK;
using decant::TopP;
using decant::Xtc;

namespace {

using decant_test::infinity;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// The token at the position given by a history of `position` tokens.
std::int32_t pick(Sampler& sampler, const std::vector<float>& logits, std::size_t position = 0) {
    const std::vector<Token> history(position);
    const auto token = sampler.pick(logits, history);
    INFO((token ? std::string() : token.error().message()));
    REQUIRE(token);
    return decant::id(*token);
}

void refuses(Sampler sampler, const std::vector<float>& logits, std::string_view part) {
    const auto token = sampler.pick(logits, {});
    REQUIRE_FALSE(token);
    CHECK(token.error().code == ErrorCode::invalid_argument);
    INFO(token.error().message());
    CHECK(token.error().message().find(part) != std::string::npos);
}

Sampler chain(std::vector<SamplerStep> steps, std::uint64_t seed = 0) {
    return Sampler::chain(std::move(steps), seed).value();
}

/// A row of k best tokens as a backend hands it over, found by sorting everything.
std::vector<float> best_row(const std::vector<float>& logits, const std::vector<LogitAdjustment>& adjustments,
                            std::size_t k) {
    std::vector<float> row = logits;
    for (const LogitAdjustment& adjustment : adjustments) {
        float& logit = row[static_cast<std::size_t>(id(adjustment.token))];
        logit = decant::apply(adjustment, logit);
    }
    std::vector<std::int32_t> ids(row.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::erase_if(ids, [&](std::int32_t i) { return row[static_cast<std::size_t>(i)] == -infinity; });
    std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
        return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
    });
    std::vector<float> out(2 * k + 2, std::bit_cast<float>(std::int32_t{-1}));
    for (std::size_t i = 0; i < (std::min)(k, ids.size()); ++i) {
        out[i] = row[static_cast<std::size_t>(ids[i])];
        out[k + i] = std::bit_cast<float>(ids[i]);
    }
    out[2 * k] = decant::log_sum_exp(row);
    return out;
}

/// Counts over `draws` positions against softmax(logits / temperature): Pearson's chi-square.
double chi_square(const std::vector<float>& logits, float temperature, std::size_t draws) {
    Sampler sampler({.temperature = temperature, .seed = 42});
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
    Sampler greedy;
    CHECK(pick(greedy, {0.0f, 3.0f, 2.0f}) == 1);
    CHECK(pick(greedy, {3.0f, 1.0f, 3.0f}) == 0);
    CHECK(pick(greedy, {-0.0f, 0.0f}) == 0);
    CHECK(pick(greedy, {-infinity, -5.0f, -infinity}) == 1);
    CHECK(pick(greedy, {-std::numeric_limits<float>::max()}) == 0);
    CHECK(pick(greedy, {1.0f, std::numeric_limits<float>::max()}, 17) == 1);
}

TEST_CASE("logits that no token can be picked from are errors", "[sample]") {
    for (const float temperature : {0.0f, 0.8f}) {
        Sampler sampler({.temperature = temperature});
        refuses(sampler, {}, "0 logits");
        refuses(sampler, {1.0f, not_a_number, 2.0f}, "token 1 ");
        refuses(sampler, {1.0f, 2.0f, infinity}, "token 2");
        refuses(sampler, {-infinity, -infinity}, "2 logits");
        refuses(sampler, {-not_a_number}, "token 0");
    }
}

TEST_CASE("temperatures that are no temperature are errors", "[sample]") {
    for (const float temperature : {-0.5f, not_a_number, infinity, -infinity})
        refuses(Sampler({.temperature = temperature}), {1.0f, 2.0f}, "Temperature");
}

TEST_CASE("temperature sampling follows the softmax", "[sample]") {
    const std::vector<float> logits{1.0f, 0.0f, -1.0f, 2.0f, 0.5f, -2.0f, 1.5f, -infinity, -0.5f};
    // Seven degrees of freedom (eight possible tokens): 24.3 is exceeded once in a thousand runs, and the run is fixed.
    for (const float temperature : {0.3f, 0.7f, 1.0f, 2.5f}) CHECK(chi_square(logits, temperature, 20'000) < 24.3);
    // A shift of all logits changes nothing, also where exp() of a logit would overflow.
    std::vector<float> high = logits;
    for (float& logit : high) logit += 512.0f;
    Sampler sampler({.temperature = 0.7f, .seed = 3});
    for (std::size_t position = 0; position < 500; ++position)
        CHECK(pick(sampler, high, position) == pick(sampler, logits, position));
}

TEST_CASE("a token without probability is never picked", "[sample]") {
    Sampler sampler({.temperature = 1.0f, .seed = 5});
    for (std::size_t position = 0; position < 2'000; ++position) {
        CHECK(pick(sampler, {-infinity, 0.0f, -infinity, 0.0f, -infinity}, position) % 2 == 1);
        CHECK(pick(sampler, {-1e30f, 7.0f, -1e30f}, position) == 1);
    }
}

TEST_CASE("a low temperature is greedy, a high one nearly uniform", "[sample]") {
    const std::vector<float> logits{0.0f, 1.0f, 2.0f, 1.9f};
    Sampler cold({.temperature = 1e-4f});
    Sampler tiny({.temperature = std::numeric_limits<float>::denorm_min()});
    for (std::size_t position = 0; position < 200; ++position) {
        CHECK(pick(cold, logits, position) == 2);
        CHECK(pick(tiny, logits, position) == 2);
    }
    // 3 degrees of freedom, against the uniform distribution: one in a thousand exceeds 16.3.
    Sampler hot({.temperature = std::numeric_limits<float>::max()});
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
    Sampler sampler({.temperature = 1.0f, .seed = 9});
    Sampler same = sampler;
    Sampler other({.temperature = 1.0f, .seed = 10});
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

TEST_CASE("temperature 0 is greedy, and what adjusts logits still acts", "[sample]") {
    const std::vector<float> logits{0.0f, 3.0f, 3.0f, -1.0f};
    const std::vector<Token> history{Token{1}};
    const auto picked = [&](const std::vector<SamplerStep>& before, float t, const std::vector<float>& row) {
        std::vector<std::int32_t> tokens;
        for (const std::uint64_t seed : {0u, 1u, 77u}) {
            std::vector<SamplerStep> steps = before;
            steps.push_back(Temperature{t});
            tokens.push_back(id(chain(steps, seed).pick(row, history).value()));
        }
        CHECK(tokens == std::vector<std::int32_t>(3, tokens[0]));
        return tokens[0];
    };
    for (const float t : {0.0f, -0.0f}) {
        CHECK(picked({}, t, logits) == 1);
        CHECK(id(Sampler({.temperature = t, .seed = 5}).pick(logits, history).value()) == 1);
        CHECK(picked({TopK{1}}, t, logits) == 1);
        CHECK(picked({TopP{0.0f}}, t, logits) == 1);
        CHECK(picked({Xtc{1.0f, 0.1f}}, t, logits) == 1);
        CHECK(picked({Penalties{.repetition = 2.0f}}, t, logits) == 2);
        CHECK(picked({LogitBias{{{Token{1}, -infinity}, {Token{2}, -infinity}}}}, t, logits) == 0);
        CHECK(picked({}, t, {0.0f, -infinity, -infinity, -1.0f}) == 0);  // a mask of a grammar
        CHECK(picked({LogitBias{{{Token{3}, 9.0f}}}}, t, logits) == 3);
    }
    for (const float t : {1e-12f, 1e-38f}) {
        // Two tokens are equally likely at any temperature above 0.
        CHECK(picked({TopK{1}}, t, logits) == 1);
        CHECK(picked({}, t, {0.0f, 3.0f, 2.9f, -1.0f}) == 1);
        auto sampler = chain({Temperature{t}});
        const auto distribution = sampler.distribution(logits, history).value();
        REQUIRE(distribution.size() == 2);
        CHECK(distribution[0].probability == 0.5f);
        CHECK(distribution[1].probability == 0.5f);
    }
}

TEST_CASE("bad logits are errors or not as the table says", "[sample]") {
    const auto path = decant_test::shared("cases/files/SA-04.json");
    if (!std::filesystem::exists(path)) DECANT_SKIP("../shared/cases is absent");
    const auto table = decant_test::read_json(path);
    REQUIRE(table["cases"].size() == 8);
    for (const auto& row : table["cases"]) {
        std::vector<float> logits;
        for (const auto& x : row["logits"]) {
            if (!x.is_string()) {
                logits.push_back(x.get<float>());
            } else {
                logits.push_back(x == "nan" ? not_a_number : x == "inf" ? infinity : -infinity);
            }
        }
        const auto expected = row["expect"].get<std::string>();
        for (const auto& steps : std::vector<std::vector<SamplerStep>>{
                 {}, {Temperature{0.0f}}, {TopK{3}}, {TopP{0.9f}}, {MinP{0.1f}, Temperature{0.3f}}, {Mirostat{}}}) {
            INFO(row.dump() << decant_test::describe(steps));
            auto sampler = chain(steps);
            const auto token = sampler.pick(logits, {});
            REQUIRE(token.has_value() == (expected.find("error") == std::string::npos));
            if (!token) {
                CHECK(token.error().code == ErrorCode::invalid_argument);
                continue;
            }
            CHECK(expected.find("token " + std::to_string(id(*token))) == 0);
            const auto distribution = sampler.distribution(logits, {}).value();
            REQUIRE(distribution.size() == 1);
            CHECK(distribution[0].probability == 1.0f);
        }
    }
}

TEST_CASE("nothing is left when all is forbidden", "[sample]") {
    const LogitBias forbid{{{Token{0}, -infinity}, {Token{1}, -infinity}}};
    refuses(chain({forbid}), {1.0f, 2.0f}, "2 logits");
    refuses(chain({forbid, TopK{1}}), {1.0f, 2.0f}, "2 logits");
    refuses(chain({TopP{0.5f}, forbid}), {1.0f, 9.0f, 2.0f}, "no token");
    refuses(chain({Temperature{0.5f}, forbid}), {1.0f, 9.0f}, "no token");
    refuses(chain({LogitBias{{{Token{2}, 1.0f}}}}), {1.0f, 9.0f}, "token 2");
    CHECK(id(chain({forbid}).pick(std::vector<float>{1.0f, 9.0f, -300.0f}, {}).value()) == 2);
}

TEST_CASE("Mirostat follows the published rule", "[sample]") {
    const auto path = decant_test::shared("cases/files/SA-08.json");
    if (!std::filesystem::exists(path)) DECANT_SKIP("../shared/cases is absent");
    const auto table = decant_test::read_json(path);
    const auto logits = table["logits"].get<std::vector<float>>();
    auto sampler = chain({Mirostat{table["tau"].get<float>(), table["eta"].get<float>()}});
    CHECK(sampler.state().mu == table["mu0"].get<double>());
    REQUIRE(table["steps"].size() == 5);
    std::vector<Token> history;
    for (const auto& step : table["steps"]) {
        const auto list = sampler.distribution(logits, history).value();
        std::vector<std::int32_t> allowed;
        double surprise = 0.0;
        const Token token{step["token"].get<std::int32_t>()};
        for (const auto& candidate : list) {
            allowed.push_back(id(candidate.token));
            if (candidate.token == token) surprise = -std::log2(static_cast<double>(candidate.probability));
        }
        CHECK(allowed == step["allowed"].get<std::vector<std::int32_t>>());
        CHECK(surprise == Approx(step["observed_surprise"].get<double>()).margin(1e-6));
        const auto before = sampler.state();
        sampler.accept(Token{1000});  // was no candidate
        CHECK(sampler.state() == before);
        const Sampler fork = sampler;
        sampler.accept(token);
        CHECK(sampler.state().mu == Approx(step["mu_after"].get<double>()).margin(1e-6));
        CHECK(fork.state() == before);
        history.push_back(token);
    }
}

TEST_CASE("a restored state replays the tokens", "[sample]") {
    STATIC_REQUIRE(std::is_trivially_copyable_v<decant::SamplerState>);
    decant_test::Random random{8};
    std::vector<std::vector<float>> rows(40, std::vector<float>(500));
    for (auto& row : rows)
        for (float& x : row) x = 4.0f * random.number();
    const auto run = [&](Sampler& sampler, std::vector<Token>& history, std::size_t end) {
        while (history.size() < end) history.push_back(sampler.pick(rows[history.size()], history).value());
    };
    auto sampler = chain({Penalties{.repetition = 1.2f}, Temperature{0.9f}, Mirostat{4.0f, 0.3f}}, 42);
    std::vector<Token> history;
    run(sampler, history, 15);
    const auto saved = sampler.state();
    const std::vector<Token> prompt = history;
    run(sampler, history, 40);
    CHECK(sampler.state() != saved);
    const auto final = sampler.state();

    auto fork = sampler;  // rolled back in a copy
    fork.restore(saved);
    std::vector<Token> again = prompt;
    run(fork, again, 40);
    CHECK(again == history);
    CHECK(fork.state() == final);

    // The state matters: without it, the run goes another way.
    auto fresh = chain({Penalties{.repetition = 1.2f}, Temperature{0.9f}, Mirostat{4.0f, 0.3f}}, 42);
    again = prompt;
    run(fresh, again, 40);
    CHECK(fresh.state() != final);
}

TEST_CASE("the draws of a request do not depend on its neighbours", "[sample]") {
    decant_test::Random random{9};
    std::vector<std::vector<float>> rows(16, std::vector<float>(300));
    for (auto& row : rows)
        for (float& x : row) x = 3.0f * random.number();
    const std::vector<SamplerStep> steps{Penalties{.presence = 0.5f}, TopK{50}, Xtc{0.5f, 0.02f}, Temperature{0.8f}};
    auto alone = chain(steps, 42);
    CHECK(alone.seed() == 42);
    std::vector<Token> expected;
    for (const auto& row : rows) expected.push_back(alone.pick(row, expected).value());

    // B, with a seed or the default, comes first, last or in the middle, goes away at step 8; A is made anew at step 6.
    for (const std::uint64_t seed : {0u, 7u, 42u}) {
        for (const std::size_t admitted : {0u, 5u, 15u}) {
            auto a = chain(steps, 42);
            auto b = chain(steps, seed);
            std::vector<Token> history, neighbour;
            for (std::size_t step = 0; step < rows.size(); ++step) {
                if (step >= admitted && step < admitted + 8)
                    neighbour.push_back(b.pick(rows[(step + 3) % 16], neighbour).value());
                if (step == 6) {
                    const auto state = a.state();
                    a = chain(steps, 42);
                    a.restore(state);
                }
                history.push_back(a.pick(rows[step], history).value());
            }
            CHECK(history == expected);
        }
    }
}

TEST_CASE("pick is distribution, draw and accept", "[sample]") {
    decant_test::Random random{31};
    for (int round = 0; round < 2000; ++round) {
        const auto logits = decant_test::random_logits(random, round % 20 == 0 ? 3000 : 200);
        const auto history = decant_test::random_history(random, logits.size());
        const auto steps = decant_test::random_steps(random, logits.size(), round % 2 == 0);
        auto one = chain(steps, 3);
        auto other = chain(steps, 3);
        const auto token = one.pick(logits, history);
        const auto list = other.distribution(logits, history);
        INFO("round " << round << decant_test::describe(steps));
        REQUIRE(token.has_value() == list.has_value());
        if (!token) continue;
        const Token drawn = other.draw(history.size());
        other.accept(drawn);
        REQUIRE(drawn == *token);
        REQUIRE(one.state() == other.state());
        REQUIRE(std::any_of(list->begin(), list->end(), [&](const auto& c) { return c.token == drawn; }));
    }
}

TEST_CASE("the k best give the same token as all logits", "[sample]") {
    decant_test::Random random{13};
    std::size_t compared = 0;
    std::size_t greedy = 0;
    for (int round = 0; round < 10'000; ++round) {
        const auto logits = decant_test::random_logits(random, round % 40 == 0 ? 3000 : 200);
        const auto history = decant_test::random_history(random, logits.size());
        auto sampler = chain(decant_test::random_steps(random, logits.size(), round % 4 != 0), random.next());
        if (round % 11 == 0) sampler = Sampler({.temperature = 0.0f});
        if (sampler.best() == 0) continue;
        std::vector<LogitAdjustment> adjustments;
        sampler.adjustments(history, adjustments);
        const std::size_t k = sampler.best() + (round % 3 == 0 ? 5 : 0);  // more than needed does no harm
        const std::vector<float> row = best_row(logits, adjustments, k);
        Sampler device = sampler;
        const auto expected = sampler.pick(logits, history);
        const auto token = device.pick(decant::BestTokens(row), history);
        INFO("round " << round);
        REQUIRE(token.has_value() == expected.has_value());
        if (token) REQUIRE(*token == *expected);
        ++compared;
        greedy += sampler.best() == 1;
    }
    CHECK(compared > 5000);
    CHECK(greedy > 500);
}

TEST_CASE("k best that do not suffice are errors", "[sample]") {
    const auto refuses_best = [](Sampler sampler, const std::vector<float>& row, std::string_view part) {
        const auto token = sampler.pick(decant::BestTokens(row), {});
        REQUIRE_FALSE(token);
        INFO(token.error().message());
        CHECK(token.error().message().find(part) != std::string::npos);
    };
    std::vector<float> row = best_row({1.0f, 3.0f, 2.0f}, {}, 2);
    CHECK(id(chain({TopK{2}, Temperature{0.01f}}).pick(decant::BestTokens(row), {}).value()) == 1);
    refuses_best(chain({TopK{3}}), row, "best 2");
    refuses_best(chain({TopP{0.5f}}), row, "all logits");
    refuses_best(chain({TopK{2}}), best_row({-infinity, -infinity}, {}, 2), "no token");
    refuses_best(Sampler({.temperature = -1.0f}), row, "Temperature");
    row.back() = std::bit_cast<float>(std::int32_t{7});
    refuses_best(chain({TopK{2}}), row, "token 7");
}

TEST_CASE("draws of a chain follow its distribution", "[sample]") {
    decant_test::Random random{17};
    std::vector<float> logits(300);
    for (float& x : logits) x = 2.0f * random.number();
    for (const auto& steps : std::vector<std::vector<SamplerStep>>{
             {Temperature{0.4f}}, {TopK{20}, Temperature{1.5f}}, {TopP{0.3f}}, {MinP{0.5f}, Temperature{2.0f}}}) {
        auto sampler = chain(steps, 23);
        const auto list = sampler.distribution(logits, {}).value();
        const std::vector<decant::Candidate> expected(list.begin(), list.end());
        std::vector<double> counts(logits.size());
        constexpr std::size_t draws = 100'000;
        for (std::size_t position = 0; position < draws; ++position)
            counts[static_cast<std::size_t>(id(sampler.draw(position)))] += 1.0;
        double chi = 0.0;
        double drawn = 0.0;
        double cells = -1.0;
        for (const auto& candidate : expected) {
            const double share = static_cast<double>(candidate.probability) * draws;
            const double count = counts[static_cast<std::size_t>(id(candidate.token))];
            drawn += count;
            if (share < 5.0) continue;
            chi += (count - share) * (count - share) / share;
            cells += 1.0;
        }
        CHECK(drawn == draws);
        INFO(chi << " for " << cells << decant_test::describe(steps));
        CHECK(chi < cells + 4.0 * std::sqrt(2.0 * cells) + 4.0);
    }
}

TEST_CASE("memory is kept from pick to pick", "[sample]") {
    decant_test::Random random{19};
    std::vector<float> logits(5000);
    std::vector<Token> history(10);
    for (const auto& steps : std::vector<std::vector<SamplerStep>>{
             {TopP{0.9f}}, {Penalties{.presence = 0.1f}, TopK{40}, TopP{0.9f}}, {decant::Typical{0.5f}}}) {
        auto sampler = chain(steps, 1);
        sampler.reserve(logits.size(), 100);
        const decant::Candidate* place = nullptr;
        for (int round = 0; round < 200; ++round) {
            const float scale = 0.1f * static_cast<float>(round % 50);  // the flatter, the more candidates
            for (float& x : logits) x = scale * random.number();
            const auto* data = sampler.distribution(logits, history).value().data();
            if (place == nullptr) place = data;
            REQUIRE(data == place);
        }
    }
}

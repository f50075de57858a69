// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/sample/filters.hpp>
#include <decant/sample/sampler.hpp>

#include "sample/reference.hpp"
#include "support/catch.hpp"
#include "support/data.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <numeric>
#include <vector>

using decant::Sampler;
using decant::SamplerStep;
using decant::Token;
using namespace decant_test;

namespace {

using Ids = std::vector<std::int32_t>;

Ids kept(std::vector<SamplerStep> steps, const std::vector<float>& logits, std::uint64_t seed = 0) {
    auto sampler = Sampler::chain(std::move(steps), seed).value();
    Ids ids;
    for (const auto& candidate : sampler.distribution(logits, {}).value()) ids.push_back(id(candidate.token));
    return ids;
}

/// The same filter on a short list: after a top-k that keeps everything but can be seen to act.
Ids kept_of_list(const SamplerStep& step, std::vector<float> logits, std::uint64_t seed = 0) {
    const auto size = static_cast<int>(logits.size());
    logits.push_back(-30.0f);
    return kept({decant::TopK{size}, step}, logits, seed);
}

std::vector<float> logs(std::vector<float> probabilities) {
    for (float& p : probabilities) p = std::log(p);
    return probabilities;
}

}  // namespace

TEST_CASE("the limits of top-k, top-p and min-p equal the table", "[sample]") {
    const auto path = shared("cases/files/SA-01.json");
    if (!std::filesystem::exists(path)) DECANT_SKIP("../shared/cases is absent");
    const auto table = read_json(path);
    const auto logits = table["logits"].get<std::vector<float>>();
    REQUIRE(table["cases"].size() == 12);
    for (const auto& row : table["cases"]) {
        INFO(row.dump());
        const auto& parameters = row["params"];
        SamplerStep step;
        if (parameters.contains("top_p")) step = decant::TopP{parameters["top_p"].get<float>()};
        if (parameters.contains("top_k")) step = decant::TopK{parameters["top_k"].get<int>()};
        if (parameters.contains("min_p")) step = decant::MinP{parameters["min_p"].get<float>()};
        CHECK(kept({step}, logits) == row["kept"].get<Ids>());
        CHECK(kept_of_list(step, logits) == row["kept"].get<Ids>());
    }
    const auto& tie = table["tie"];
    CHECK(kept({decant::TopK{tie["top_k"].get<int>()}}, tie["logits"].get<std::vector<float>>()) ==
          tie["kept"].get<Ids>());

    auto all = Sampler::chain({}).value();
    const auto distribution = all.distribution(logits, {}).value();
    for (std::size_t i = 0; i < logits.size(); ++i)
        CHECK(distribution[i].probability == Approx(table["probs"][i].get<float>()).margin(1e-7));
}

TEST_CASE("typical keeps the surprises nearest to the entropy", "[sample]") {
    // Entropy of (.5, .2, .1, .1, .1): 1.359 nats; surprises .693, 1.609, 2.303: nearest first: .2, .5, then the .1.
    const std::vector<float> logits = logs({0.5f, 0.2f, 0.1f, 0.1f, 0.1f});
    for (const auto& filter : {&kept_of_list}) {
        CHECK(filter(decant::Typical{0.0f}, logits, 0) == Ids{1});
        CHECK(filter(decant::Typical{0.19f}, logits, 0) == Ids{1});
        CHECK(filter(decant::Typical{0.21f}, logits, 0) == Ids{0, 1});
        CHECK(filter(decant::Typical{0.75f}, logits, 0) == Ids{0, 1, 2});
        CHECK(filter(decant::Typical{1.0f}, logits, 0) == Ids{0, 1, 2, 3, 4});
    }
    CHECK(kept({decant::Typical{0.19f}}, logits) == Ids{1});
    CHECK(kept({decant::Typical{0.75f}}, logits) == Ids{0, 1, 2});
}

TEST_CASE("XTC leaves the least likely of the likely", "[sample]") {
    const std::vector<float> logits = logs({0.3f, 0.1f, 0.25f, 0.2f, 0.15f});
    CHECK(kept({decant::Xtc{1.0f, 0.18f}}, logits) == Ids{3, 4, 1});
    CHECK(kept_of_list(decant::Xtc{1.0f, 0.18f}, logits) == Ids{3, 4, 1});
    CHECK(kept({decant::Xtc{1.0f, 0.28f}}, logits) == Ids{0, 2, 3, 4, 1});  // one alone stays
    CHECK(kept({decant::Xtc{1.0f, 0.4f}}, logits) == Ids{0, 2, 3, 4, 1});
    CHECK(kept({decant::Xtc{1.0f, 0.0f}}, logits) == Ids{1});
    CHECK(kept({decant::Xtc{0.0f, 0.1f}}, logits) == Ids{0, 2, 3, 4, 1});
    CHECK(kept({decant::Xtc{1.0f, 0.51f}}, logs({0.9f, 0.1f})) == Ids{0, 1});
    CHECK(kept({decant::Xtc{1.0f, 0.4f}}, std::vector<float>{1.0f, 1.0f}) == Ids{1});
    // With a probability of .3, it acts on three of ten seeds: 2,000 draws, four deviations.
    int acted = 0;
    for (std::uint64_t seed = 0; seed < 2000; ++seed)
        acted += kept({decant::Xtc{0.3f, 0.18f}}, logits, seed).size() == 3;
    CHECK(acted > 600 - 82);
    CHECK(acted < 600 + 82);
}

TEST_CASE("top-n-sigma counts in deviations from the highest", "[sample]") {
    // Mean 4, variance 52 / 6, deviation 2.944: the others lie 1.02, 1.36, 2.38 and 2.72 deviations below.
    const std::vector<float> logits{9.0f, 1.0f, 5.0f, 1.0f, 6.0f, 2.0f};
    CHECK(kept({decant::TopNSigma{1.0f}}, logits) == Ids{0});
    CHECK(kept({decant::TopNSigma{1.1f}}, logits) == Ids{0, 4});
    CHECK(kept({decant::TopNSigma{1.4f}}, logits) == Ids{0, 4, 2});
    CHECK(kept({decant::TopNSigma{0.0f}}, logits).size() == 6);
    CHECK(kept({decant::TopNSigma{1.0f}}, std::vector<float>(100, 3.0f)).size() == 100);
}

TEST_CASE("a dynamic temperature follows the entropy", "[sample]") {
    const std::vector<float> logits = logs({0.5f, 0.25f, 0.125f, 0.125f});  // 1.75 bits of 2
    const auto first = [&](const SamplerStep& step) {
        auto sampler = Sampler::chain({step}).value();
        return static_cast<double>(sampler.distribution(logits, {}).value()[0].probability);
    };
    for (const double exponent : {0.0, 1.0, 2.5}) {
        const double t = 0.5 + 1.5 * std::pow(0.875, exponent);
        const double sum = std::pow(0.5, 1 / t) + std::pow(0.25, 1 / t) + 2 * std::pow(0.125, 1 / t);
        CHECK(first(decant::DynamicTemperature{0.5f, 2.0f, static_cast<float>(exponent)}) ==
              Approx(std::pow(0.5, 1 / t) / sum).epsilon(1e-6));
    }
    CHECK(first(decant::DynamicTemperature{0.7f, 0.7f, 1.0f}) ==
          Approx(first(decant::Temperature{0.7f})).epsilon(1e-6));
    // No entropy and a lowest temperature of 0: greedy.
    CHECK(kept({decant::DynamicTemperature{0.0f, 1.0f, 1.0f}}, {1.0f, 300.0f, 2.0f}) == Ids{1});
    CHECK(kept({decant::DynamicTemperature{0.0f, 0.0f, 1.0f}}, {1.0f, 2.0f, 2.0f}) == Ids{1});
}

TEST_CASE("random chains equal the plain computation in double precision", "[sample]") {
    Random random{21};
    std::size_t lengths = 0;
    for (int round = 0; round < 6000; ++round) {
        const std::vector<float> logits = random_logits(random, round % 40 == 0 ? 3000 : 200);
        const std::vector<Token> history = random_history(random, logits.size());
        const std::vector<SamplerStep> steps = random_steps(random, logits.size(), round % 2 == 0);
        const std::uint64_t seed = random.next();
        auto sampler = Sampler::chain(steps, seed).value();
        const std::vector<Reference> expected = reference_distribution(steps, logits, history, seed);
        auto result = sampler.distribution(logits, history);
        INFO("round " << round << ": " << describe(steps) << ", " << logits.size() << " logits");
        REQUIRE(result.has_value() == !expected.empty());
        if (!result) continue;
        while (static_cast<double>(result->back().probability) < negligible)
            *result = result->first(result->size() - 1);
        REQUIRE(result->size() == expected.size());
        double sum = 0.0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            const auto& candidate = (*result)[i];
            if (id(candidate.token) != expected[i].id) FAIL("place " << i);
            if (std::fabs(static_cast<double>(candidate.probability) - expected[i].probability) > 2e-5) {
                FAIL("place " << i << ": " << candidate.probability << " for " << expected[i].probability);
            }
            if (i > 0 && !likelier((*result)[i - 1], candidate)) FAIL("not sorted at " << i);
            sum += static_cast<double>(candidate.probability);
        }
        REQUIRE(sum == Approx(1.0).margin(1e-5));
        lengths += expected.size();
    }
    CHECK(lengths > 20'000);
}

TEST_CASE("filters that leave many equal the plain computation", "[sample]") {
    Random random{77};
    constexpr std::size_t most_lists = decant::detail::CandidateSet::few;
    std::size_t rows = 0;
    for (int round = 0; round < 60; ++round) {
        std::vector<float> logits(20'000 + random.below(100));
        for (float& x : logits) {
            x = random.number() + random.number() + random.number();
            if (round % 3 == 1) x = 0.25f * static_cast<float>(static_cast<int>(4.0f * x));  // many ties
            if (random.below(50) == 0) x = -std::numeric_limits<float>::infinity();
        }
        if (round % 3 == 2) std::sort(logits.begin(), logits.end());
        const float p = round % 10 == 0 ? 0.001f : round % 10 == 1 ? 0.9999f : share(random);
        const std::vector<SamplerStep> filters{decant::TopP{p}, decant::Typical{p}, decant::MinP{0.05f * p},
                                               decant::TopNSigma{2.1f * p}, decant::TopP{0.9f}};
        std::vector<SamplerStep> steps{filters[static_cast<std::size_t>(round) % filters.size()]};
        if (round % 2 == 0) steps.insert(steps.begin(), decant::Temperature{0.4f + share(random)});
        if (round % 4 == 3) steps.push_back(filters[random.below(filters.size())]);
        steps.push_back(decant::Temperature{0.9f});
        auto sampler = Sampler::chain(steps, 1).value();
        const auto found = sampler.distribution(logits, {}).value();
        const std::vector<Reference> expected = reference_distribution(steps, logits, {}, 1);
        INFO("round " << round << ": " << describe(steps) << ", " << expected.size() << " of " << logits.size());
        // Weights in single precision move the limits by a candidate per filter and end.
        const std::size_t tolerance = 2 * steps.size();
        REQUIRE(found.size() <= expected.size() + tolerance);
        REQUIRE(expected.size() <= found.size() + tolerance);
        std::vector<double> probabilities(logits.size());
        for (const Reference& one : expected) probabilities[static_cast<std::size_t>(one.id)] = one.probability;
        std::size_t missing = 0;
        double sum = 0.0;
        for (std::size_t i = 0; i < found.size(); ++i) {
            const double wanted = probabilities[static_cast<std::size_t>(id(found[i].token))];
            missing += wanted == 0.0;
            sum += static_cast<double>(found[i].probability);
            if (i > 0 && !likelier(found[i - 1], found[i])) FAIL("not sorted at " << i);
            if (wanted > 0.0 && std::fabs(static_cast<double>(found[i].probability) / wanted - 1.0) > 1e-3)
                FAIL("place " << i << ": " << found[i].probability << " for " << wanted);
        }
        CHECK(missing <= tolerance);
        CHECK(sum == Approx(1.0).margin(1e-5));
        rows += found.size() > most_lists;
        // A pick is a draw from this distribution.
        auto other = Sampler::chain(steps, 1).value();
        for (std::size_t position = 0; position < 3; ++position) {
            const auto picked = other.pick(logits, std::vector<Token>(position)).value();
            CHECK(picked == sampler.draw(position));
        }
    }
    CHECK(rows > 30);
}

TEST_CASE("equals are dropped from the highest id down", "[sample]") {
    for (const std::size_t size : {600u, 5000u, 150'000u}) {
        const std::vector<float> logits(size, -2.0f);
        for (const SamplerStep& step : {SamplerStep(decant::TopP{0.75f}), SamplerStep(decant::Typical{0.75f})}) {
            const Ids ids = kept({step}, logits);
            CHECK(ids.size() == size / 4 * 3);
            CHECK(ids.back() == static_cast<std::int32_t>(ids.size() - 1));
        }
        CHECK(kept({decant::TopP{0.0f}}, logits) == Ids{0});
        CHECK(kept({decant::Typical{0.0f}}, logits) == Ids{0});
    }
}

TEST_CASE("draws out of many candidates follow the distribution", "[sample]") {
    Random random{9};
    std::vector<float> logits(8000);
    for (float& x : logits) x = random.number();
    auto sampler = Sampler::chain({decant::TopP{0.6f}, decant::MinP{0.3f}}, 5).value();
    const auto list = sampler.distribution(logits, {}).value();
    REQUIRE(list.size() > decant::detail::CandidateSet::few);
    std::vector<std::size_t> group(logits.size(), 100);  // 64 groups of neighbours in the order of likelihood
    std::vector<double> shares(64);
    for (std::size_t i = 0; i < list.size(); ++i) {
        group[static_cast<std::size_t>(id(list[i].token))] = i * 64 / list.size();
        shares[i * 64 / list.size()] += static_cast<double>(list[i].probability);
    }
    std::vector<double> counts(101);
    constexpr std::size_t draws = 50'000;
    for (std::size_t position = 0; position < draws; ++position)
        counts[group[static_cast<std::size_t>(id(sampler.draw(position)))]] += 1.0;
    CHECK(counts[100] == 0.0);
    double chi = 0.0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
        const double expected = shares[i] * draws;
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    CHECK(chi < 63.0 + 4.0 * std::sqrt(2.0 * 63.0));
}

TEST_CASE("without ties, the order of the vocabulary does not matter", "[sample]") {
    Random random{5};
    for (int round = 0; round < 300; ++round) {
        const std::size_t size = 2 + random.below(400);
        std::vector<float> logits(size);
        for (float& x : logits) x = 6.0f * random.number();
        std::vector<std::size_t> places(size);
        std::iota(places.begin(), places.end(), std::size_t{0});
        for (std::size_t i = size; i > 1; --i) std::swap(places[i - 1], places[random.below(i)]);
        std::vector<float> moved(size);
        for (std::size_t i = 0; i < size; ++i) moved[places[i]] = logits[i];
        auto steps = random_steps(random, size, round % 2 == 0);
        std::erase_if(steps, [](const SamplerStep& step) { return decant::detail::is_adjusting(step); });
        auto one = Sampler::chain(steps, 4).value();
        auto other = Sampler::chain(steps, 4).value();
        const auto a = one.distribution(logits, {}).value();
        const auto b = other.distribution(moved, {}).value();
        INFO("round " << round << ": " << describe(steps));
        REQUIRE(a.size() == b.size());
        for (std::size_t i = 0; i < a.size(); ++i)
            REQUIRE(places[static_cast<std::size_t>(id(a[i].token))] == static_cast<std::size_t>(id(b[i].token)));
    }
}

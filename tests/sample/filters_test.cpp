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

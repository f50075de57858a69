// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/sample/plan.hpp>
#include <decant/sample/sampler.hpp>

#include "support/catch.hpp"
#include "support/numbers.hpp"

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

using decant::Dry;
using decant::DynamicTemperature;
using decant::ErrorCode;
using decant::LogitBias;
using decant::MinP;
using decant::Mirostat;
using decant::Penalties;
using decant::Sampler;
using decant::SamplerStep;
using decant::Temperature;
using decant::Token;
using decant::TopK;
using decant::TopNSigma;
using decant::TopP;
using decant::Typical;
using decant::Xtc;

namespace {

using decant_test::infinity;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

void refuses(std::vector<SamplerStep> steps, std::string_view part) {
    const auto sampler = Sampler::chain(std::move(steps));
    REQUIRE_FALSE(sampler);
    CHECK(sampler.error().code == ErrorCode::invalid_argument);
    INFO(sampler.error().message());
    CHECK(sampler.error().message().find(part) != std::string::npos);
}
std::size_t best(std::vector<SamplerStep> steps) { return Sampler::chain(std::move(steps)).value().best(); }

}  // namespace

TEST_CASE("nothing is adjusted once a temperature of 0 has left one token", "[sample]") {
    refuses({Temperature{0.0f}, LogitBias{{{Token{1}, -infinity}}}}, "put penalties and biases first");
    refuses({TopK{5}, Temperature{0.0f}, Penalties{.repetition = 2.0f}}, "step 2 (Penalties)");
    CHECK(Sampler::chain({Temperature{0.0f}, Penalties{}}));  // which does nothing
}

TEST_CASE("numbers that a step cannot use are refused at set-up", "[sample]") {
    refuses({TopK{5}, Temperature{-1.0f}}, "step 1 (Temperature)");
    for (const float bad : {not_a_number, -1.0f, infinity, -infinity}) {
        refuses({Temperature{bad}}, "Temperature");
        refuses({DynamicTemperature{bad, 1.0f, 1.0f}}, "DynamicTemperature");
        refuses({DynamicTemperature{0.0f, bad, 1.0f}}, "DynamicTemperature");
        refuses({DynamicTemperature{0.0f, 1.0f, bad}}, "DynamicTemperature");
        refuses({Penalties{.repetition = bad}}, "Penalties");
        refuses({Dry{.multiplier = bad}}, "Dry");
        refuses({Dry{.multiplier = 1.0f, .base = bad}}, "Dry");
        refuses({Xtc{bad, 0.1f}}, "Xtc");
        refuses({Mirostat{bad, 0.1f}}, "Mirostat");
        refuses({Mirostat{3.0f, bad}}, "Mirostat");
    }
    for (const float bad : {not_a_number, -0.1f}) {
        refuses({TopP{bad}}, "TopP");
        refuses({MinP{bad}}, "MinP");
        refuses({Typical{bad}}, "Typical");
        refuses({Xtc{0.5f, bad}}, "Xtc");
    }
    for (const float bad : {not_a_number, infinity, -infinity}) {
        refuses({Penalties{.frequency = bad}}, "Penalties");
        refuses({Penalties{.presence = bad}}, "Penalties");
        refuses({TopNSigma{bad}}, "TopNSigma");
    }
    refuses({Penalties{.repetition = 0.0f}}, "repetition");
    refuses({Penalties{.repetition = 1.0f, .last_n = -2}}, "last_n");  // also where the step would do nothing
    refuses({Dry{.multiplier = 1.0f, .allowed_length = 0}}, "allowed_length");
    refuses({Dry{.multiplier = 1.0f, .last_n = -2}}, "last_n");
    refuses({Dry{.multiplier = 1.0f, .base = 0.9f}}, "base");
    refuses({DynamicTemperature{1.0f, 0.5f, 1.0f}}, "min <= max");
    refuses({Xtc{1.5f, 0.1f}}, "probability");
    refuses({LogitBias{{{Token{3}, 1.0f}, {Token{4}, not_a_number}}}}, "LogitBias");
    refuses({LogitBias{{{Token{3}, infinity}}}}, "LogitBias");
    refuses({LogitBias{{{Token{-1}, 1.0f}}}}, "LogitBias");
}

TEST_CASE("Mirostat is last and alone among filters", "[sample]") {
    refuses({Mirostat{}, Temperature{0.5f}}, "must be last");
    refuses({Mirostat{}, Mirostat{}}, "must be last");
    for (const SamplerStep& filter :
         std::vector<SamplerStep>{TopK{5}, TopP{0.5f}, MinP{0.5f}, Typical{0.5f}, TopNSigma{1.0f}, Xtc{0.5f, 0.1f}})
        refuses({filter, Mirostat{}}, "filter");
    CHECK(Sampler::chain({Penalties{.repetition = 1.1f}, Temperature{0.5f}, Mirostat{}}));
    CHECK(Sampler::chain({TopK{0}, TopP{1.0f}, MinP{0.0f}, Xtc{0.0f, 0.1f}, Mirostat{}}));  // those are off
    CHECK(Sampler::chain({Mirostat{}, TopP{1.0f}}));
}

TEST_CASE("how many of the best a chain needs", "[sample]") {
    const Penalties repetition{.repetition = 1.1f};
    const Penalties presence{.presence = 0.5f};
    const LogitBias bias{{{Token{1}, 2.0f}}};
    const Dry dry{.multiplier = 0.5f};
    CHECK(Sampler().best() == 1);
    CHECK(Sampler({.temperature = 0.7f}).best() == 0);
    CHECK(best({}) == 0);
    CHECK(best({TopK{40}}) == 40);
    CHECK(best({repetition, dry, bias, TopK{40}, TopP{0.9f}, Temperature{0.7f}}) == 40);
    CHECK(best({TopP{1.0f}, MinP{0.0f}, Temperature{1.0f}, TopK{7}}) == 7);  // what is off is not there
    CHECK(best({TopP{0.9f}, TopK{40}}) == 0);
    CHECK(best({Temperature{0.7f}, TopK{40}}) == 0);
    CHECK(best({TopK{0}}) == 0);
    // Not one adjustment per token: a repetition penalty after a bias.
    CHECK(best({bias, repetition, TopK{40}}) == 0);
    CHECK(best({presence, repetition, TopK{40}}) == 0);
    CHECK(best({bias, presence, dry, TopK{40}}) == 40);
    CHECK(best({repetition, repetition, TopK{40}}) == 40);
    // Greedy.
    CHECK(best({Temperature{0.0f}}) == 1);
    CHECK(best({Temperature{-0.0f}}) == 1);
    CHECK(best({repetition, TopK{40}, TopP{0.5f}, MinP{0.1f}, Xtc{1.0f, 0.1f}, Temperature{0.5f}, Temperature{0.0f}}) ==
          1);
    CHECK(best({Temperature{0.0f}, Mirostat{}}) == 1);
    CHECK(best({TopK{40}, repetition, Temperature{0.0f}}) == 40);  // the penalty acts among the 40
    CHECK(best({Typical{0.5f}, Temperature{0.0f}}) == 0);          // typical may drop the likeliest
    CHECK(best({bias, repetition, Temperature{0.0f}}) == 0);
}

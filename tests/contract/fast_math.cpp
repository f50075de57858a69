// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// A host compiled with -ffast-math, whose compiler may assume that there is no NaN: damaged logits and numbers are
// still refused.
#include <decant/sample/sampler.hpp>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

}  // namespace

int main(int count, char**) {
    // Not known to the compiler.
    const float nan = from_bits(0x7fc00000u + static_cast<std::uint32_t>(count));
    const float infinity = from_bits(0x7f800000u - 1u + static_cast<std::uint32_t>(count));
    int failures = 0;
    const auto check = [&](bool good, const char* what) {
        if (!good) std::printf("FAILED: %s\n", what);
        failures += good ? 0 : 1;
    };
    const std::vector<std::vector<decant::SamplerStep>> chains{{decant::Temperature{0.0f}},
                                                               {},
                                                               {decant::TopK{3}, decant::Temperature{0.5f}},
                                                               {decant::TopP{0.9f}},
                                                               {decant::Mirostat{}}};
    for (const auto& chain : chains) {
        for (const float bad : {nan, infinity}) {
            for (const std::size_t place : {0u, 77u, 149u}) {
                std::vector<float> logits(150, 1.0f);
                auto sampler = *decant::Sampler::chain(chain);
                check(sampler.pick(logits, {}).has_value(), "good logits were refused");
                logits[place] = bad;
                check(!sampler.pick(logits, {}).has_value(), "a NaN or infinity was not seen");
            }
        }
    }
    for (const float bad : {nan, infinity, -infinity}) {
        check(!decant::Sampler::chain({decant::Temperature{bad}}).has_value(), "a temperature");
        check(!decant::Sampler::chain({decant::Penalties{.repetition = bad}}).has_value(), "a penalty");
    }
    check(!decant::Sampler::chain({decant::TopP{nan}}).has_value(), "top-p of NaN");
    check(!decant::Sampler::chain({decant::LogitBias{{{decant::Token{1}, nan}}}}).has_value(), "a bias of NaN");
    return failures == 0 ? 0 : 1;
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/model/rope_scaling.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

using decant::rope_frequencies;
using decant::YarnScaling;

namespace {

void close(const std::vector<float>& found, const std::vector<double>& expected) {
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        INFO("frequency " << i);
        CHECK(found[i] == Approx(expected[i]).epsilon(1e-6));
    }
}

}  // namespace

TEST_CASE("rotary frequencies are powers of theta", "[model]") {
    // 10000^(-2i/8) in closed form.
    close(rope_frequencies(8, 10000.0), {1.0, 0.1, 0.01, 0.001});
    const auto frequencies = rope_frequencies(128, 500000.0);
    REQUIRE(frequencies.size() == 64);
    CHECK(frequencies[0] == 1.0f);
    CHECK(frequencies[32] == Approx(1.0 / std::sqrt(500000.0)).epsilon(1e-6));
    for (std::size_t i = 1; i < 64; ++i)  // a geometric sequence
        CHECK(frequencies[i] / frequencies[i - 1] == Approx(std::exp(-std::log(500000.0) / 64)).epsilon(1e-5));
    CHECK(rope_frequencies(0, 10000.0).empty());
}

TEST_CASE("linear scaling stretches every wavelength alike", "[model]") {
    auto frequencies = rope_frequencies(8, 10000.0);
    decant::scale_linear(frequencies, 4.0);
    close(frequencies, {0.25, 0.025, 0.0025, 0.00025});
}

TEST_CASE("factors of a file divide one frequency each", "[model]") {
    auto frequencies = rope_frequencies(8, 10000.0);
    const std::vector<float> factors{1.0f, 2.0f, 4.0f, 8.0f};
    decant::scale_by_factors(frequencies, factors);
    close(frequencies, {1.0, 0.05, 0.0025, 0.000125});
}

// Expected: the formulas of the YaRN paper (Peng et al. 2023, section 3.2 and appendix B.1) in double precision,
// evaluated by another program. The tiny model llama_yarn holds the whole against transformers (reference_test.cpp).
TEST_CASE("YaRN's frequencies by the paper's formula", "[model]") {
    {
        auto frequencies = rope_frequencies(16, 10000.0);
        decant::scale_yarn(frequencies, 10000.0, {.factor = 4.0, .original_context = 64.0});
        close(frequencies, {1.0, 0.23717082451262847, 0.05, 0.007905694150420948, 0.0025, 0.0007905694150420948,
                            0.00025, 7.905694150420948e-05});
    }
    {
        auto frequencies = rope_frequencies(16, 10000.0);
        decant::scale_yarn(frequencies, 10000.0, {.factor = 4.0, .original_context = 4096.0});
        close(frequencies, {1.0, 0.31622776601683794, 0.1, 0.02569350598886808, 0.00625, 0.001383496476323666, 0.00025,
                            7.905694150420948e-05});
    }
}

TEST_CASE("YaRN leaves fast dimensions, divides slow ones, and goes from one to the other steadily", "[model]") {
    for (const double factor : {2.0, 8.0, 40.0}) {
        for (const double context : {512.0, 4096.0, 32768.0}) {
            const auto plain = rope_frequencies(128, 500000.0);
            auto scaled = plain;
            const YarnScaling yarn{.factor = factor, .original_context = context, .beta_fast = 32.0, .beta_slow = 1.0};
            decant::scale_yarn(scaled, 500000.0, yarn);
            double previous = 1.0;
            for (std::size_t i = 0; i < plain.size(); ++i) {
                const double kept = scaled[i] / static_cast<double>(plain[i]);
                // Rotations of this dimension over the original context, and of its neighbours: the ramp's ends are
                // rounded outwards to whole dimensions.
                const auto rotations = [&](double at) {
                    return context * std::pow(500000.0, -2.0 * at / 128.0) / (2.0 * std::numbers::pi);
                };
                const auto at = static_cast<double>(i);
                INFO("factor " << factor << ", context " << context << ", dimension " << i << ", kept " << kept);
                if (rotations(at + 1.0) > yarn.beta_fast) CHECK(scaled[i] == plain[i]);
                if (rotations(at - 1.0) < yarn.beta_slow) CHECK(kept == Approx(1.0 / factor).epsilon(1e-6));
                CHECK(kept <= previous * (1.0 + 1e-6));
                CHECK(kept >= 1.0 / factor * (1.0 - 1e-6));
                previous = kept;
            }
        }
    }
}

TEST_CASE("YaRN's attention factor is 0.1 ln(s) + 1", "[model]") {
    CHECK(YarnScaling{.factor = 4.0}.magnitude() == Approx(1.138629436111989).epsilon(1e-6));
    CHECK(YarnScaling{.factor = 32.0}.magnitude() == Approx(1.3465735902799727).epsilon(1e-6));
    CHECK(YarnScaling{.factor = 1.0}.magnitude() == 1.0f);
    CHECK(YarnScaling{.factor = 0.5}.magnitude() == 1.0f);
}

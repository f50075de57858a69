// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/q4.hpp>

#include "quant/support.hpp"

TEST_CASE("q4: dequantization equals the reference bit for bit") {
    decant_test::check_reference<decant::Q4_0>();
    decant_test::check_reference<decant::Q4_1>();
}

TEST_CASE("q4: quantization equals the reference byte for byte, and errs by half a step") {
    decant_test::check_quantization<decant::Q4_0>();
    decant_test::check_quantization<decant::Q4_1>();
    // A whole step at the end that code 15 does not reach.
    decant_test::check_round_trip<decant::Q4_0>([](const std::vector<float>& numbers) {
        return decant_test::largest_magnitude(numbers) * (1.0f / 8.0f + 0x1p-11f);
    });
    // Half a step, and the rounding of offset and scale.
    decant_test::check_round_trip<decant::Q4_1>([](const std::vector<float>& numbers) {
        const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
        return (*high - *low) * (0.5f / 15.0f + 0x1p-11f) + std::fabs(*low) * 0x1p-11f;
    });
}

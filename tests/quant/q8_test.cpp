// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/q8.hpp>

#include "quant/support.hpp"

TEST_CASE("q8: dequantization equals the reference bit for bit") { decant_test::check_reference<decant::Q8_0>(); }

TEST_CASE("q8: quantization equals the reference byte for byte, and errs by half a step") {
    decant_test::check_quantization<decant::Q8_0>();
    // Half a step, and 127 times the rounding of the scale: to 11 bits, or to a subnormal number.
    decant_test::check_round_trip<decant::Q8_0>([](const std::vector<float>& numbers) {
        return decant_test::largest_magnitude(numbers) * (0.5f / 127.0f + 0x1p-11f) + 127.0f * 0x1p-25f;
    });
}

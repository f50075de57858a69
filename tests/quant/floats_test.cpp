// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/floats.hpp>

#include "quant/support.hpp"

TEST_CASE("floats: F16 and BF16 equal the reference bit for bit") {
    decant_test::check_reference<decant::F16>();
    decant_test::check_reference<decant::BF16>();
}

TEST_CASE("floats: F32 is taken as it is") {
    const float values[3] = {1.5f, -0.0f, 1e-40f};
    std::byte bytes[sizeof values + 1];
    std::memcpy(bytes + 1, values, sizeof values);
    float out[3];
    decant::dequantize_row(decant::DType::f32, bytes + 1, 3, out);
    CHECK(std::memcmp(out, values, sizeof values) == 0);
}

TEST_CASE("floats: quantization equals the reference byte for byte, and errs by half a place") {
    decant_test::check_quantization<decant::F16>();
    decant_test::check_quantization<decant::BF16>();
    decant_test::check_round_trip<decant::F16>(
        [](const std::vector<float>& numbers) { return (std::max)(std::fabs(numbers[0]) * 0x1p-11f, 0x1p-25f); });
    decant_test::check_round_trip<decant::BF16>(
        [](const std::vector<float>& numbers) { return std::fabs(numbers[0]) * 0x1p-8f; });
    decant_test::check_round_trip<decant::F32>([](const std::vector<float>&) { return 0.0f; });
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/floats.hpp>

#include "quant/support.hpp"

namespace {

template <class Format>
void check_float_panels() {
    using decant::panel_rows;
    std::mt19937 random(23);
    for (std::size_t rows = 1; rows <= panel_rows; ++rows) {
        const std::size_t columns = 1 + random() % 100;
        const decant_test::RandomRows<Format> in(random, rows, columns, {});
        CAPTURE(decant::name(Format::dtype), rows, columns);
        for (int piece = 0; piece < 5; ++piece) {
            const std::size_t first = piece == 0 ? 0 : random() % columns;
            const std::size_t count = piece == 0 ? columns : 1 + random() % (columns - first);
            CAPTURE(first, count);
            std::vector<float> values(count * panel_rows, -7.0f);
            Format::unpack(in.first(), in.stride, rows, first, count, decant::FloatPanel{values.data()});

            std::vector<float> expected(count * panel_rows, 0.0f);
            std::vector<float> row_values(columns);
            for (std::size_t row = 0; row < rows; ++row) {
                decant::dequantize_row(Format::dtype, in.first() + row * in.stride, columns, row_values.data());
                for (std::size_t column = 0; column < count; ++column)
                    expected[column * panel_rows + row] = row_values[first + column];
            }
            // Bytes, because random bits make NaNs too.
            CHECK(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)) == 0);
        }
    }
}

}  // namespace

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

TEST_CASE("floats: panels hold the numbers") {
    check_float_panels<decant::F32>();
    check_float_panels<decant::F16>();
    check_float_panels<decant::BF16>();
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

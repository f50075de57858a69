// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Checks that every block format must pass.

#include "support/catch.hpp"
#include "support/data.hpp"

#include <decant/quant/formats.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace decant_test {

/// Dequantization against tests/data/quant (see make.py there), bit for bit; blocks lie at odd addresses too.
template <class Format>
void check_reference() {
    constexpr decant::DTypeTraits layout = decant::traits(Format::dtype);
    const std::string name(layout.name);
    const std::vector<char> blocks = read_file(data("quant/" + name + ".blocks.bin"));
    const std::vector<char> expected = read_file(data("quant/" + name + ".f32.bin"));
    const std::size_t count = blocks.size() / layout.block_bytes;
    REQUIRE(count >= 16);
    REQUIRE(blocks.size() == count * layout.block_bytes);
    REQUIRE(expected.size() == count * layout.block_elements * sizeof(float));

    for (const std::size_t misalignment : {0u, 1u, 2u}) {
        std::vector<std::byte> copy(misalignment + blocks.size());
        std::memcpy(copy.data() + misalignment, blocks.data(), blocks.size());
        std::vector<float> values(count * layout.block_elements);
        decant::dequantize_row(Format::dtype, copy.data() + misalignment, values.size(), values.data());
        std::size_t different = 0;
        for (std::size_t i = 0; i < values.size(); ++i)
            different += std::memcmp(&values[i], expected.data() + i * sizeof(float), sizeof(float)) != 0;
        CHECK(different == 0);
    }
}

/// Quantization against tests/data/quant, byte for byte, at odd addresses too; and blocks with what is not finite are
/// NaN.
template <class Format>
void check_quantization() {
    constexpr decant::DTypeTraits layout = decant::traits(Format::dtype);
    static_assert(decant::can_quantize(Format::dtype));
    const std::string name(layout.name);
    const std::vector<char> numbers = read_file(data("quant/weights.f32.bin"));
    const std::vector<char> expected = read_file(data("quant/" + name + ".quantized.bin"));
    std::vector<float> values(numbers.size() / sizeof(float));
    std::memcpy(values.data(), numbers.data(), numbers.size());
    REQUIRE(values.size() == 2048);
    REQUIRE(expected.size() == decant::row_bytes(Format::dtype, values.size()));
    for (const std::size_t misalignment : {0u, 1u}) {
        std::vector<std::byte> made(misalignment + expected.size());
        decant::quantize_row(Format::dtype, values.data(), values.size(), made.data() + misalignment);
        std::size_t different = 0;
        for (std::size_t at = 0; at < expected.size(); at += layout.block_bytes)
            different += std::memcmp(made.data() + misalignment + at, expected.data() + at, layout.block_bytes) != 0;
        CHECK(different == 0);
    }

    std::mt19937 random(29);
    std::vector<std::byte> block(layout.block_bytes);
    std::size_t unseen = 0;
    for (const float odd : {NAN, -NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 3e-39f}) {
        for (int trial = 0; trial < 50; ++trial) {
            std::vector<float> odd_ones(values.begin(), values.begin() + layout.block_elements);
            for (float& value : odd_ones)
                if (random() % 4 == 0) value = random() % 3 == 0 ? -odd : odd;
            if (trial == 0) std::fill(odd_ones.begin(), odd_ones.end(), odd);
            const bool finite =
                std::all_of(odd_ones.begin(), odd_ones.end(), [](float value) { return std::isfinite(value); });
            Format::quantize(odd_ones.data(), block.data());
            Format::dequantize(block.data(), odd_ones.data());
            if (finite) continue;
            for (const float value : odd_ones) unseen += !std::isnan(value) && layout.block_elements > 1;
        }
    }
    CHECK(unseen == 0);
}

/// Numbers quantized and dequantized are off by no more than `error(block of numbers)`.
template <class Format, class Bound>
void check_round_trip(Bound bound) {
    constexpr std::size_t size = decant::traits(Format::dtype).block_elements;
    std::mt19937 random(31);
    std::vector<float> numbers(size);
    std::vector<float> back(size);
    std::vector<std::byte> block(decant::traits(Format::dtype).block_bytes);
    std::size_t beyond = 0;
    for (int trial = 0; trial < 2000; ++trial) {
        const float magnitude = std::ldexp(1.0f, static_cast<int>(random() % 16) - 10);
        for (float& number : numbers) number = magnitude * (static_cast<float>(random() % 20001) / 10000.0f - 1.0f);
        Format::quantize(numbers.data(), block.data());
        Format::dequantize(block.data(), back.data());
        const float allowed = bound(numbers);
        for (std::size_t i = 0; i < size; ++i) beyond += !(std::fabs(back[i] - numbers[i]) <= allowed);
    }
    CHECK(beyond == 0);
}

inline float largest_magnitude(const std::vector<float>& numbers) {
    float largest = 0.0f;
    for (const float number : numbers) largest = (std::max)(largest, std::fabs(number));
    return largest;
}

}  // namespace decant_test

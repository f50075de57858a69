// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/formats.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstring>
#include <vector>

using decant::DType;

TEST_CASE("formats: every dtype but other has its format") {
    int visited = 0;
    for (int value = 0; value < static_cast<int>(DType::other); ++value) {
        const auto dtype = static_cast<DType>(value);
        const bool known = decant::visit_format(dtype, [&](auto format) {
            using Format = decltype(format);
            static_assert(decant::CodeFormat<Format> != decant::FloatFormat<Format>);
            CHECK(Format::dtype == dtype);
            ++visited;
        });
        CHECK(known);
    }
    CHECK(visited == 9);
    CHECK_FALSE(decant::visit_format(DType::other, [&](auto) { ++visited; }));
    CHECK(visited == 9);
}

TEST_CASE("formats: a row is quantized block by block") {
    std::vector<float> numbers(96);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i * i % 37) - 18.0f;
    int written = 0;
    for (int value = 0; value <= static_cast<int>(DType::other); ++value) {
        const auto dtype = static_cast<DType>(value);
        if (!decant::can_quantize(dtype)) continue;
        ++written;
        CAPTURE(decant::name(dtype));
        std::vector<std::byte> row(decant::row_bytes(dtype, numbers.size()));
        decant::quantize_row(dtype, numbers.data(), numbers.size(), row.data());
        std::vector<std::byte> piece(decant::row_bytes(dtype, 32));
        for (std::size_t block = 0; block < 3; ++block) {
            decant::quantize_row(dtype, numbers.data() + 32 * block, 32, piece.data());
            CHECK(std::memcmp(piece.data(), row.data() + block * piece.size(), piece.size()) == 0);
        }
    }
    CHECK(written == 6);
    CHECK_FALSE(decant::can_quantize(DType::other));
    CHECK_FALSE(decant::can_quantize(DType::q6_k));
}

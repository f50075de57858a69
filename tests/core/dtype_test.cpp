// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/dtype.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <string_view>

using decant::DType;

TEST_CASE("dtype: layouts are those of the GGUF types") {
    // Name, numbers per block and bytes per block as published with the GGUF format.
    struct Row {
        DType dtype;
        std::string_view name;
        std::uint32_t elements;
        std::uint32_t bytes;
    };
    const Row rows[] = {
        {DType::f32, "F32", 1, 4},     {DType::f16, "F16", 1, 2},       {DType::bf16, "BF16", 1, 2},
        {DType::q4_0, "Q4_0", 32, 18}, {DType::q4_1, "Q4_1", 32, 20},   {DType::q5_0, "Q5_0", 32, 22},
        {DType::q8_0, "Q8_0", 32, 34}, {DType::q4_k, "Q4_K", 256, 144}, {DType::q6_k, "Q6_K", 256, 210},
    };
    CHECK(std::size(rows) == static_cast<std::size_t>(DType::other));
    for (const Row& row : rows) {
        CAPTURE(row.name);
        CHECK(decant::name(row.dtype) == row.name);
        CHECK(decant::traits(row.dtype).block_elements == row.elements);
        CHECK(decant::traits(row.dtype).block_bytes == row.bytes);
        CHECK(decant::row_bytes(row.dtype, 0) == 0);
        CHECK(decant::row_bytes(row.dtype, 768) == std::size_t{768} / row.elements * row.bytes);
    }
}

TEST_CASE("dtype: an unknown type has no size") {
    CHECK(decant::name(DType::other) == "other");
    CHECK(decant::row_bytes(DType::other, 256) == 0);
}

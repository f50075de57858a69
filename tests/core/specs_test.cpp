// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/specs.hpp>

#include "support/catch.hpp"

#include <cstddef>

using decant::CacheShape;
using decant::DType;

TEST_CASE("specs: a cache block holds K and V of every layer, one after another") {
    for (const DType dtype : {DType::f32, DType::f16}) {
        for (const std::uint32_t block_tokens : {1u, 3u, 16u, 64u}) {
            const CacheShape shape{{{3, 64}, {1, 7}, {8, 80}}, block_tokens, dtype};
            const std::size_t width = dtype == DType::f32 ? 4 : 2;
            std::size_t offset = 0;
            for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
                const std::size_t row =
                    std::size_t{shape.layers[layer].kv_heads} * shape.layers[layer].head_dim * width;
                CHECK(shape.row_bytes(layer) == row);
                CHECK(shape.layer_offset(layer) == offset);
                offset += 2 * row * block_tokens;
            }
            CHECK(shape.block_bytes() == offset);
        }
    }
}

TEST_CASE("specs: a cache without layers is empty") { CHECK(CacheShape{}.block_bytes() == 0); }

TEST_CASE("specs: shapes and specs compare by value") {
    CHECK(decant::PassShape{4, 2, 1, 8} == decant::PassShape{4, 2, 1, 8});
    CHECK(decant::PassShape{4, 2, 1, 8} != decant::PassShape{4, 2, 1, 9});
    const CacheShape shape{{{3, 64}}, 16, DType::f16};
    CacheShape other = shape;
    CHECK(shape == other);
    other.layers[0].head_dim = 65;
    CHECK(shape != other);
    CHECK(decant::RopeSpec{} != decant::RopeSpec{decant::RopeLayout::interleaved});
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/formats.hpp>

#include "support/catch.hpp"

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

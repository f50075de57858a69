// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/q4.hpp>

#include "quant/support.hpp"

TEST_CASE("q4: dequantization equals the reference bit for bit") {
    decant_test::check_reference<decant::Q4_0>();
    decant_test::check_reference<decant::Q4_1>();
}

TEST_CASE("q4: panels hold the dequantized weights") {
    decant_test::check_panels<decant::Q4_0>({0});
    decant_test::check_panels<decant::Q4_1>({0, 2});
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/k_quants.hpp>

#include "quant/support.hpp"

TEST_CASE("k_quants: dequantization equals the reference bit for bit") {
    decant_test::check_reference<decant::Q4_K>();
    decant_test::check_reference<decant::Q6_K>();
}

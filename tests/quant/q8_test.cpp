// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/q8.hpp>

#include "quant/support.hpp"

TEST_CASE("q8: dequantization equals the reference bit for bit") { decant_test::check_reference<decant::Q8_0>(); }

TEST_CASE("q8: panels hold the dequantized weights") { decant_test::check_panels<decant::Q8_0>({0}); }

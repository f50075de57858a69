// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/q5.hpp>

#include "quant/support.hpp"

TEST_CASE("q5: dequantization equals the reference bit for bit") { decant_test::check_reference<decant::Q5_0>(); }

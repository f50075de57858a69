// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

#include <limits>

namespace decant_test {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace decant_test

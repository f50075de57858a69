// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The kernels of single sets, compiled once for all suites.
#include <decant/backend/simd/simd.hpp>

#undef DECANT_DETAIL_INSTANTIATE
#define DECANT_DETAIL_INSTANTIATE template
#include "backend/support.hpp"

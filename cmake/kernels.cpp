// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The kernels of `Simd` and the JSON parser, compiled once for all programs of a build.
#define DECANT_KERNELS_HERE
#include <decant/backend/simd/simd.hpp>
#include <decant/files/json.hpp>

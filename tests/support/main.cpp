// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Entry point for Catch2 2.x; Catch2 3.x brings its own library with `main`.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

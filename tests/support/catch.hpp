// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Catch2 of either generation (2.13 or 3.x), and skipping with a reason that the continuous integration reads.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#include <cstdio>

/// Ends a test case because data is absent. The continuous integration fails on every such line that does not name
/// `../shared` (reference data that is not part of the repository).
#define DECANT_SKIP(reason)                     \
    do {                                        \
        std::printf("SKIPPED: %s\n", (reason)); \
        SUCCEED("skipped: " << (reason));       \
        return;                                 \
    } while (false)

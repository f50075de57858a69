// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The two limits that everything here runs into: arithmetic and read bandwidth, measured on the threads and with the
/// instruction set that the model gets.

#include "results.hpp"

#include <decant/backend/simd/target.hpp>
#include <decant/core/thread_pool.hpp>

#include <cstdint>

namespace experiment {

/// Measures for about `seconds` and raises the limits to what was reached; the best of many short rounds counts, since
/// a neighbour on the machine can only make one slower. Call it again later to catch a faster moment.
void raise_arithmetic_limits(Limits& limits, decant::ThreadPool& pool, decant::Isa isa, double seconds);

/// Bytes per second at which all threads together read a buffer of `bytes` bytes again and again: best round of about
/// `seconds`. 0 if the system refuses the memory.
[[nodiscard]] double read_speed(decant::ThreadPool& pool, decant::Isa isa, std::uint64_t bytes, double seconds);

}  // namespace experiment

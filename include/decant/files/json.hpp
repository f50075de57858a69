// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `parse_json`: JSON as a stream of events, with a depth limit and errors as values.

#include <decant/files/json_events.hpp>

// The parser takes longer to compile than all that calls it; see DECANT_SEPARATE_KERNELS in simd.hpp.
#if !defined(DECANT_SEPARATE_KERNELS) || defined(DECANT_KERNELS_HERE)
#include <decant/files/json_parser.hpp>
#endif

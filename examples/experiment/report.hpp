// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The files that the experiment leaves behind.

#include "results.hpp"

#include <string>

namespace experiment {

/// All numbers, with units in the names.
[[nodiscard]] std::string to_json(const Results& results);

/// One self-contained page: no script, no network, plots as inline SVG.
[[nodiscard]] std::string to_html(const Results& results);

}  // namespace experiment

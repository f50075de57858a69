// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the command line says.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace experiment {

struct Settings {
    std::filesystem::path model;
    std::string prompt;
    std::size_t threads = 1;
    std::optional<std::size_t> tokens;  ///< longest answer
    std::filesystem::path out;          ///< folder of the reports
    bool quick = false;                 ///< shorter texts and fewer repetitions
};

}  // namespace experiment

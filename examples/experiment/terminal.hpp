// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the terminal shows while the experiment runs, and the table at its end.

#include "results.hpp"

#include <string>
#include <string_view>

namespace experiment {

/// Text of a file, a model or a user without characters that steer a terminal. Line breaks stay.
[[nodiscard]] std::string printable(std::string_view text);

void print(std::string_view text);
void print_line(std::string_view text = {});
/// A chapter's number, its title, and the sentence that says what to look at.
void print_heading(int number, std::string_view title, std::string_view look_at);
/// An aligned "name  value  note" line.
void print_fact(std::string_view name, std::string_view value, std::string_view note = {});

void print_summary(const Results& results);
/// One line to paste elsewhere.
[[nodiscard]] std::string summary_line(const Results& results);

}  // namespace experiment

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Clocks and what to make of repeated measurements.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace examples {

class Stopwatch {
 public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

 private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Seconds that a call takes.
template <class F>
double seconds_of(F&& call) {
    const Stopwatch watch;
    call();
    return watch.seconds();
}

/// The middle value; 0 of none.
inline double median(std::vector<double> values) {
    if (values.empty()) return 0.0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace examples

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The chapters, in order. Each measures, prints what it found, and leaves it in the results. All throw
/// `decant::Exception`.

#include "results.hpp"
#include "settings.hpp"

#include <memory>

namespace experiment {

struct Lab;  // models, threads and texts: lab.hpp

class Experiment {
 public:
    explicit Experiment(const Settings& settings);
    Experiment(Experiment&&) noexcept;
    Experiment& operator=(Experiment&&) noexcept;
    ~Experiment();

    void measure_limits();        ///< arithmetic and bandwidth of this machine
    void two_builds();            ///< 1
    void pause_and_drip();        ///< 2
    void cache();                 ///< 3
    void elevator();              ///< 4
    void attention_and_paging();  ///< 5
    void speculation();           ///< 6
    void prefix_reuse();          ///< 7
    /// Measures the limits once more, and what share of them the model used.
    Results finish();

 private:
    std::unique_ptr<Lab> lab_;
};

}  // namespace experiment

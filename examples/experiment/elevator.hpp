// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Chapter 4: several sequences in one pass over the weights.

#include "format.hpp"
#include "lab.hpp"
#include "terminal.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace experiment {

inline Elevator ride_elevator(Lab& lab, std::size_t index) {
    constexpr std::size_t most = 16;
    Engine& engine = *lab.engines[index];
    const Build& build = lab.results.builds.builds[index];
    Elevator found;
    found.build = index;

    const std::size_t start = (std::min)({std::size_t{32}, lab.context_length() / 4, lab.long_text.size()});
    const std::size_t steps = (std::min)(std::size_t{lab.settings.quick ? 4u : 16u}, lab.context_length() / 4);
    const double patience = 2.5;  // seconds per ride, after which two steps must do
    const std::size_t extra = 3;  // to warm up, and to count
    const Cache cache = engine.cache(most * (start + steps + extra + 16));
    examples::Progress line(build.label + " rides the elevator");

    for (std::size_t riders = 1; riders <= most; riders *= 2) {
        std::vector<Sequence> sequences;
        Tokens next(riders);
        std::vector<decant::PassPart<Metered>> parts;
        for (std::size_t i = 0; i < riders; ++i) sequences.push_back(cache.sequence().value());
        for (std::size_t i = 0; i < riders; ++i) {  // each its own piece of the text
            const std::size_t from = i * (lab.long_text.size() - start) / most;
            const std::span<const decant::Token> prompt(lab.long_text.data() + from, start);
            next[i] = best_token(engine.context().prefill(sequences[i], prompt).value());
            parts.push_back({&sequences[i], {&next[i], 1}, decant::Want::last});
        }
        const auto pass = [&] {
            const auto logits = engine.context().pass(parts).value();
            for (std::size_t i = 0; i < riders; ++i) next[i] = best_token(logits.row(i));
        };
        Elevator::Ride ride;
        ride.sequences = riders;
        pass();
        std::vector<double> seconds;
        const examples::Stopwatch watch;
        for (std::size_t step = 0; step < steps && (step < 2 || watch.seconds() < patience); ++step) {
            seconds.push_back(examples::seconds_of(pass));
            line.show(2 * riders * steps + riders * step, 4 * most * steps);
        }
        ride.seconds = examples::median(seconds);
        ride.work = engine.meter().count(pass);
        found.rides.push_back(ride);
    }
    return found;
}

inline void elevator(Lab& lab) {
    for (std::size_t i = 0; i < lab.engines.size(); ++i) {
        lab.results.elevators.push_back(ride_elevator(lab, i));
        const Elevator& found = lab.results.elevators.back();
        for (const Elevator::Ride& ride : found.rides) {
            print_fact(lab.results.builds.builds[i].label + ", " + count(ride.sequences) +
                           (ride.sequences == 1 ? " sequence" : " sequences"),
                       rate(ride.total_speed()) + " in all",
                       rate(ride.single_speed()) + " for each, " + megabytes(ride.bytes_per_token()) + " per token");
        }
    }
}

}  // namespace experiment

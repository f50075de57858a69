// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The numbers of the table that both the terminal and the page end with.

#include "format.hpp"
#include "results.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace experiment {

struct SummaryRow {
    std::string name;
    std::vector<std::string> cells;  ///< one per build
};

[[nodiscard]] inline std::vector<SummaryRow> summary_rows(const Results& results) {
    const std::vector<Build>& builds = results.builds.builds;
    const Limits& limits = results.machine.limits;
    std::vector<SummaryRow> rows;
    const auto add = [&](std::string name, auto cell) {
        SummaryRow row{std::move(name), {}};
        for (std::size_t i = 0; i < builds.size(); ++i) row.cells.push_back(cell(builds[i], i));
        rows.push_back(std::move(row));
    };
    using Index = std::size_t;
    add("weights", [](const Build& b, Index) { return megabytes(b.weight_bytes); });
    add("bits per weight", [](const Build& b, Index) { return rounded(b.bits_per_weight); });
    add("resident memory, its own",
        [](const Build& b, Index) { return b.resident ? megabytes(b.resident->own_bytes) : std::string("unknown"); });
    add("resident memory, mapped file",
        [](const Build& b, Index) { return b.resident ? megabytes(b.resident->file_bytes) : std::string("unknown"); });
    add("reading (prefill)", [](const Build& b, Index) { return rate(b.prefill_speed()); });
    add("share of the arithmetic peak",
        [&](const Build& b, Index) { return percent(arithmetic_share(limits, b.prefill_work, b.prefill_seconds)); });
    add("arithmetic peak, best of the run", [&](const Build& b, Index) {
        const bool integers = b.prefill_work.integer_operations > b.prefill_work.float_operations;
        return rounded((integers ? limits.integer_operations_per_second : limits.float_operations_per_second) / 1e9) +
               " Gop/s";
    });
    add("writing (decode)", [](const Build& b, Index) { return rate(b.decode_speed()); });
    add("bytes read per token", [](const Build& b, Index) { return megabytes(b.decode_work.bytes()); });
    add("share of the read bandwidth", [&](const Build& b, Index) {
        return percent(b.decode_work.bytes() / b.decode_seconds / read_limit(limits, b));
    });
    add("read bandwidth, best of the run",
        [&](const Build& b, Index) { return rounded(read_limit(limits, b) / 1e9) + " GB/s"; });
    for (const std::size_t riders : {std::size_t{4}, std::size_t{16}}) {
        add("writing " + count(riders) + " sequences, in all", [&](const Build&, Index index) {
            for (const Elevator& elevator : results.elevators)
                for (const Elevator::Ride& ride : elevator.rides)
                    if (elevator.build == index && ride.sequences == riders) return rate(ride.total_speed());
            return std::string("-");
        });
    }
    return rows;
}

}  // namespace experiment

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "chapters.hpp"

#include "attention.hpp"
#include "cache_effect.hpp"
#include "elevator.hpp"
#include "format.hpp"
#include "lab.hpp"
#include "paging.hpp"
#include "pause_and_drip.hpp"
#include "prefix_reuse.hpp"
#include "speculation.hpp"
#include "terminal.hpp"
#include "two_builds.hpp"

#include "../support/machine_limits.hpp"
#include "../support/process.hpp"

#include <decant/backend/simd/simd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace experiment {
namespace {

/// Measures on the model's threads, with its instruction set.
void raise_limits(Limits& limits, examples::MachineLimits& machine) {
    const auto raise = [](double& limit, double measured) { limit = (std::max)(limit, measured); };
    raise(limits.integer_operations_per_second, 2.0 * machine.mac_speed(examples::Arithmetic::int8));
    raise(limits.float_operations_per_second, 2.0 * machine.mac_speed(examples::Arithmetic::f32));
    raise(limits.bytes_per_second, machine.read_speed(limits.buffer_bytes));
}

}  // namespace

Experiment::Experiment(const Settings& settings) : lab_(std::make_unique<Lab>(settings)) {
    Results& results = lab_->results;
    auto path = settings.model;
    if (path.filename().empty()) path = path.parent_path();  // "folder/"
    results.model = std::filesystem::is_directory(path) ? path.filename().string() : path.stem().string();
    results.machine.processor = examples::processor_name();
    results.machine.threads = lab_->pool.concurrency();
    results.machine.limits.instruction_set = decant::name(SimdKernels().isa());
    results.machine.limits.last_cache_bytes = examples::largest_cache();
}
Experiment::Experiment(Experiment&&) noexcept = default;
Experiment& Experiment::operator=(Experiment&&) noexcept = default;
Experiment::~Experiment() = default;

void Experiment::measure_limits() {
    Limits& limits = lab_->results.machine.limits;
    // Four times the largest cache, but no more than a quarter of the memory that is free.
    std::uint64_t bytes = (std::clamp)(4 * limits.last_cache_bytes, std::uint64_t{256} << 20, std::uint64_t{1} << 30);
    if (const auto available = examples::available_memory()) bytes = (std::min)(bytes, *available / 4);
    limits.buffer_bytes = bytes;
    examples::MachineLimits machine(lab_->pool, SimdKernels().isa(), bytes);
    raise_limits(limits, machine);

    const Results& results = lab_->results;
    print_line(printable(results.model) + " on " + printable(results.machine.processor) + ", " +
               count(results.machine.threads) + (results.machine.threads == 1 ? " thread" : " threads"));
    print_line();
    print_fact("arithmetic, 8-bit", rounded(limits.integer_operations_per_second / 1e9) + " Gop/s",
               "at best, with " + limits.instruction_set);
    print_fact("arithmetic, F32", rounded(limits.float_operations_per_second / 1e9) + " Gop/s");
    print_fact("reading memory", rounded(limits.bytes_per_second / 1e9) + " GB/s",
               "from a buffer of " + megabytes(limits.buffer_bytes));
    print_line("  All limits are measured once more at the end, and the better figures count.");
}

void Experiment::two_builds() {
    print_heading(1, "Two builds of one model", "Look at what fewer bytes change, and what they do not.");
    TwoBuilds(*lab_).run();
}

void Experiment::pause_and_drip() {
    print_heading(2, "The pause and the drip",
                  "Look at the silence before the first token, and at how even the rhythm is after it.");
    experiment::pause_and_drip(*lab_);
}

void Experiment::cache() {
    print_heading(3, "The cache",
                  "Look at what the next token costs when nothing was kept, and at what keeping costs.");
    cache_effect(*lab_);
}

void Experiment::elevator() {
    print_heading(4, "The elevator", "Look at how little longer a pass takes when more sequences ride along.");
    experiment::elevator(*lab_);
}

void Experiment::attention_and_paging() {
    print_heading(5, "Flash attention and paging",
                  "Look at the bytes that never move, and at the memory that is never set aside.");
    Lab& lab = *lab_;
    Attention& attention = lab.results.attention;
    attention.head_dim = lab.small_engine().spec().layers.front().attention.head_dim;
    attention.query_tile = CountedAttention::query_tile;
    attention.key_tile = CountedAttention::key_tile;
    {
        examples::Progress line("counting bytes of attention");
        for (std::size_t tokens = 256; tokens <= (lab.settings.quick ? 1024u : 2048u); tokens *= 2) {
            line.show(tokens, 4096);
            attention.points.push_back(CountedAttention(tokens, attention.head_dim).run());
        }
    }
    for (const Attention::Point& point : attention.points) {
        const auto total = [](const Attention::Traffic& t) { return megabytes(t.read_bytes + t.written_bytes); };
        print_fact("attention, " + count(point.tokens) + " tokens", total(point.tiled) + " in tiles",
                   total(point.naive) + " with the matrix of scores; results differ by " +
                       (point.difference == 0 ? std::string("nothing") : fixed(point.difference * 1e6, 2) + "e-6"));
    }

    Paging& paging = lab.results.paging;
    paging = compare_paging(lab.small_engine(), lab.context_length());
    const auto report = [&](std::string_view name, const Paging::Side& side) {
        print_fact(name, rounded(side.mean_at_once) + " at once",
                   percent(side.used_share) + " of the memory holds tokens, " + percent(side.wasted_share) +
                       " is taken and empty");
    };
    report("conversations in slots", paging.contiguous);
    report("conversations in pages", paging.paged);
}

void Experiment::speculation() {
    print_heading(6, "Guessing ahead",
                  "Look at how many tokens one trip over the weights brings when guesses are right.");
    GuessingAhead(*lab_).run();
}

void Experiment::prefix_reuse() {
    print_heading(7, "The same beginning",
                  "Look at how soon an agent answers when only what is new of its context is read.");
    experiment::prefix_reuse(*lab_);
}

Results Experiment::finish() {
    Lab& lab = *lab_;
    Results& results = lab.results;
    Limits& limits = results.machine.limits;
    examples::MachineLimits machine(lab.pool, SimdKernels().isa(), limits.buffer_bytes);
    raise_limits(limits, machine);
    for (Build& build : results.builds.builds)
        if (build.weight_bytes < limits.buffer_bytes) build.bytes_per_second = machine.read_speed(build.weight_bytes);

    PauseAndDrip& pause = results.pause;
    pause.prefill_share = arithmetic_share(limits, pause.prefill_work, pause.first_token_seconds);
    pause.decode_share = pause.decode_work.bytes() / pause.median_seconds / read_limit(limits, results.builds.small());
    return std::move(results);
}

}  // namespace experiment

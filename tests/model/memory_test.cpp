// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Weights are used where they are mapped: nothing copies them, and processes share their pages. Measured on Linux, in
// children whose memory nobody else touches.
#include <decant/backend/simd/simd.hpp>
#include <decant/model/context.hpp>

#include "core/sanitizers.hpp"
#include "model/support.hpp"
#include "support/process_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

#if defined(__linux__)

#include <sys/wait.h>
#include <unistd.h>

namespace {

using decant_test::measure;
using decant_test::ProcessMemory;

struct Report {
    bool worked = false;
    std::uint64_t grown = 0;  // private dirty memory, from nothing to the first token
    ProcessMemory file;       // while another process has touched it as well
};

/// Opens the model, computes one token and stays, so that `report.file` can be measured.
struct Run {
    Report report;
    decant::Result<decant::Weights> weights{decant::Error{}};

    Run() { report.worked = one_token(); }

 private:
    bool one_token() {
        const std::uint64_t before = measure().private_dirty;
        weights = decant::Weights::open(decant_test::smollm2());
        if (!weights) return false;
        const auto model = decant::Model<decant::Simd>::bind(*weights);
        if (!model) return false;
        decant::Context context(*model);
        const decant::KvCache cache(context);
        auto sequence = cache.sequence();
        const decant::Token token{504};
        const bool worked = sequence && context.prefill(*sequence, {&token, 1});
        report.grown = measure().private_dirty - before;
        return worked;
    }
};

/// A pipe on which one side waits for the other.
struct Pipe {
    int ends[2] = {-1, -1};
    Pipe() { REQUIRE(pipe(ends) == 0); }
    void close_end(int end) { close(std::exchange(ends[end], -1)); }
    ~Pipe() {
        for (const int end : ends)
            if (end >= 0) close(end);
    }
};

/// Two children run the model, and measure the file's pages when both have done so. Closing a pipe's end is the signal.
std::pair<Report, Report> run_two() {
    Pipe reports;
    Pipe measure_now;
    Pipe end_now;
    Pipe ready;
    pid_t children[2];
    for (pid_t& child : children) {
        child = fork();
        REQUIRE(child >= 0);
        if (child > 0) continue;
        measure_now.close_end(1);
        end_now.close_end(1);
        Run run;
        char signal = '.';
        bool good = write(ready.ends[1], &signal, 1) == 1 && read(measure_now.ends[0], &signal, 1) == 0;
        run.report.file = measure(decant_test::smollm2().filename().string());
        good =
            good && write(reports.ends[1], &run.report, sizeof run.report) == static_cast<ssize_t>(sizeof run.report);
        _exit(good && read(end_now.ends[0], &signal, 1) == 0 ? 0 : 1);
    }
    ready.close_end(1);
    reports.close_end(1);
    char signal = 0;
    bool good = read(ready.ends[0], &signal, 1) == 1 && read(ready.ends[0], &signal, 1) == 1;
    measure_now.close_end(1);
    std::pair<Report, Report> out;
    for (Report* report : {&out.first, &out.second})
        good = good && read(reports.ends[0], report, sizeof *report) == static_cast<ssize_t>(sizeof *report);
    end_now.close_end(1);
    for (const pid_t child : children) {
        int status = 1;
        waitpid(child, &status, 0);
        good = good && status == 0;
    }
    REQUIRE(good);
    return out;
}

}  // namespace

TEST_CASE("the weights stay in the file's pages, which processes share", "[model]") {
    const auto size = static_cast<std::uint64_t>(std::filesystem::file_size(decant_test::smollm2()));
    const auto [first, second] = run_two();
    for (const Report* report : {&first, &second}) {
        REQUIRE(report->worked);
        CHECK(report->file.private_dirty == 0);
        CHECK(report->file.resident > size / 2);  // one token reads every layer, and the embedding as the head
        CHECK(report->file.share * 10 <= report->file.resident * 6);  // half each
        INFO(report->grown << " bytes of private dirty memory for a file of " << size);
        if (!DECANT_TEST_SANITIZED) CHECK(report->grown < size / 50);
    }
}

#else

TEST_CASE("memory is measured on Linux only", "[model]") { SUCCEED(); }

#endif

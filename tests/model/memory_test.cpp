// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Weights are used where they are mapped: nothing copies them, and processes share their pages. Measured on Linux, in
// children whose memory nobody else touches.
#include <decant/backend/simd/simd.hpp>
#include <decant/model/context.hpp>

#include "model/support.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

#if defined(__linux__)

#include <sys/wait.h>
#include <unistd.h>

namespace {

// The address sanitizer's own memory would be counted.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
constexpr bool sanitized = __has_feature(address_sanitizer);
#else
constexpr bool sanitized = false;
#endif

/// Sums of /proc/self/smaps in bytes.
struct Memory {
    std::uint64_t resident = 0;
    std::uint64_t share = 0;  // "Pss": every page divided by the number of its users
    std::uint64_t private_dirty = 0;
};

/// Of the mappings of one file, or of all of them.
Memory measure(const std::string& file = {}) {
    Memory sum;
    bool counted = false;
    std::ifstream in("/proc/self/smaps");
    for (std::string line; std::getline(in, line);) {
        std::uint64_t kilobytes = 0;
        const std::size_t colon = line.find(':');
        const std::size_t space = line.find(' ');
        if (colon == std::string::npos || space < colon) {  // "start-end rights ... file"
            counted = file.empty() || line.ends_with(file);
            continue;
        }
        if (!counted) continue;
        for (const char c : line.substr(colon))
            if (c >= '0' && c <= '9') kilobytes = kilobytes * 10 + static_cast<std::uint64_t>(c - '0');
        const std::string key = line.substr(0, colon);
        if (key == "Rss") sum.resident += kilobytes * 1024;
        if (key == "Pss") sum.share += kilobytes * 1024;
        if (key == "Private_Dirty") sum.private_dirty += kilobytes * 1024;
    }
    return sum;
}

struct Report {
    bool worked = false;
    std::uint64_t grown = 0;  // private dirty memory, from nothing to the first token
    Memory file;              // while another process has touched it as well
};

/// Opens the model, computes one token, reports; and waits in between for its sibling to have done the same.
Report run_model(int ready, int go) {
    Report report;
    const std::uint64_t before = measure().private_dirty;
    const auto weights = decant::Weights::open(decant_test::smollm2());
    if (!weights) return report;
    auto model = decant::Model<decant::Simd>::bind(*weights);
    if (!model) return report;
    decant::Context context(*model);
    const decant::KvCache cache(context);
    auto sequence = cache.sequence();
    const decant::Token token{504};
    const auto logits = sequence ? context.prefill(*sequence, {&token, 1}) : decant::Result<decant::Logits>(sequence.error());
    report.grown = measure().private_dirty - before;
    char signal = '.';
    report.worked = logits && write(ready, &signal, 1) == 1 && read(go, &signal, 1) == 1;
    report.file = measure(decant_test::smollm2().filename().string());
    return report;
}

/// Runs `run_model` in two children at once.
std::pair<Report, Report> run_two() {
    int ready[2], go[2], result[2];
    REQUIRE((pipe(ready) == 0 && pipe(go) == 0 && pipe(result) == 0));
    pid_t children[2];
    for (pid_t& child : children) {
        child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            const Report report = run_model(ready[1], go[0]);
            const bool sent = write(result[1], &report, sizeof report) == static_cast<ssize_t>(sizeof report);
            char signal = 0;  // the mapping stays until the other has measured it
            _exit(sent && read(go[0], &signal, 1) == 1 ? 0 : 1);
        }
    }
    // A child that fails sends its report without having been ready; its pipe ends close when it does.
    close(ready[1]);
    close(result[1]);
    char signal = 0;
    std::pair<Report, Report> reports;
    const bool both = read(ready[0], &signal, 1) == 1 && read(ready[0], &signal, 1) == 1;
    static_cast<void>(write(go[1], "..", 2));
    for (Report* report : {&reports.first, &reports.second})
        if (read(result[0], report, sizeof *report) != static_cast<ssize_t>(sizeof *report)) report->worked = false;
    static_cast<void>(write(go[1], "..", 2));
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    for (const int end : {ready[0], go[0], go[1], result[0]}) close(end);
    CHECK(both);
    return reports;
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
        if (!sanitized) CHECK(report->grown < size / 50);
    }
}

#else

TEST_CASE("memory is measured on Linux only", "[model]") { SUCCEED(); }

#endif

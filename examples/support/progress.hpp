// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// A progress line on standard error: on a terminal it replaces itself, in a file or pipe it comes every few seconds.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace examples {

class Progress {
 public:
    explicit Progress(std::string task) : task_(std::move(task)) {}
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    ~Progress() {
        if (shown_ && terminal()) std::fprintf(stderr, "\r\033[K");
    }

    /// Cheap: prints nothing before the task has taken a while.
    void show(std::uint64_t done, std::uint64_t total) {
        const auto now = Clock::now();
        if (now < next_) return;
        next_ = now + (terminal() ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000));
        shown_ = true;
        const auto percent = static_cast<unsigned>(total == 0 ? 0 : 100 * (std::min)(done, total) / total);
        std::fprintf(stderr, terminal() ? "\r  %s ... %u %%\033[K" : "  %s ... %u %%\n", task_.c_str(), percent);
        std::fflush(stderr);
    }

 private:
    using Clock = std::chrono::steady_clock;

    static bool terminal() {
#if defined(__unix__) || defined(__APPLE__)
        return isatty(STDERR_FILENO) != 0;
#else
        return false;
#endif
    }

    std::string task_;
    Clock::time_point next_ = Clock::now() + std::chrono::milliseconds(terminal() ? 500 : 2000);
    bool shown_ = false;
};

}  // namespace examples

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the system says of this process: its memory.

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace examples {

/// Resident memory in bytes, split as Linux counts it.
struct ResidentMemory {
    std::uint64_t own = 0;  ///< anonymous: belongs to this process alone
    std::uint64_t file =
        0;  ///< pages of mapped files: shared with every process that maps them, and given back on demand
    [[nodiscard]] std::uint64_t total() const { return own + file; }
};

/// Empty on systems without /proc.
inline std::optional<ResidentMemory> resident_memory() {
    std::ifstream status("/proc/self/status");
    std::optional<ResidentMemory> memory;
    std::string key;
    while (status >> key) {
        std::uint64_t kib = 0;
        if (key == "RssAnon:" || key == "RssFile:" || key == "RssShmem:") {
            status >> kib;
            if (!memory) memory.emplace();
            (key == "RssAnon:" ? memory->own : memory->file) += kib * 1024;
        }
        status.ignore(1000, '\n');
    }
    return memory;
}

}  // namespace examples

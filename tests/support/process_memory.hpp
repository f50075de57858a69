// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What this process has in memory, as Linux tells it.

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

namespace decant_test {

/// Sums of /proc/self/smaps in bytes.
struct ProcessMemory {
    std::uint64_t resident = 0;
    std::uint64_t share = 0;  // "Pss": every page divided by the number of its users
    std::uint64_t private_dirty = 0;
};

/// Of the mappings of one file, or of all of them.
inline ProcessMemory measure(const std::string& file = {}) {
    ProcessMemory sum;
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

}  // namespace decant_test

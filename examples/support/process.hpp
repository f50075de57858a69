// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the system says of this process and its machine. Where there is no /proc, it says nothing.

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

namespace examples {

/// Resident memory in bytes, split as Linux counts it.
struct ResidentMemory {
    std::uint64_t own = 0;   ///< anonymous: belongs to this process alone
    std::uint64_t file = 0;  ///< pages of mapped files, shared with every process that maps them
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

/// Bytes that programs can still take before the system swaps.
inline std::optional<std::uint64_t> available_memory() {
    std::ifstream info("/proc/meminfo");
    std::string key;
    while (info >> key) {
        std::uint64_t kib = 0;
        if (key == "MemAvailable:" && info >> kib) return kib * 1024;
        info.ignore(1000, '\n');
    }
    return {};
}

/// The processor's name as its maker spells it.
inline std::string processor_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.rfind("model name", 0) != 0) continue;
        const std::size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
        if (at != std::string::npos) return line.substr(at);
    }
    return "unknown processor";
}

/// Bytes of the largest data cache of the first processor; 0 = unknown.
inline std::uint64_t largest_cache() {
    std::uint64_t largest = 0;
    for (int index = 0; index < 8; ++index) {
        std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
        std::string size;
        if (!(file >> size)) continue;
        std::uint64_t number = 0;
        const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), number);
        if (error != std::errc{}) continue;
        if (*end == 'K') number <<= 10;
        if (*end == 'M') number <<= 20;
        if (number > largest) largest = number;
    }
    return largest;
}

}  // namespace examples

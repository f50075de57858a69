// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the tests of files/ share: the case files, and looking at all that a file handed out.

#include "support/catch.hpp"
#include "support/data.hpp"

#include <decant/files/weights.hpp>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace decant_test {

inline std::filesystem::path case_file(const std::string& name) { return shared("cases/files/" + name); }
inline bool have_cases() { return std::filesystem::exists(case_file("MF-01-align0.gguf")); }

#define DECANT_NEEDS_CASES() \
    if (!decant_test::have_cases()) DECANT_SKIP("case files absent: ../shared/cases/files")

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Opens a case file that must be refused; the message must hold all `parts`.
inline decant::ErrorCode refused(const std::string& name, std::initializer_list<std::string_view> parts) {
    const auto weights = decant::Weights::open(case_file(name));
    INFO(name);
    REQUIRE_FALSE(weights);
    const std::string message = weights.error().message();
    for (const std::string_view part : parts) {
        INFO(message << " should hold: " << part);
        CHECK(contains(message, part));
    }
    CHECK(contains(message, name));
    return weights.error().code;
}

inline std::vector<float> as_floats(const decant::Tensor& tensor) {
    std::vector<float> out(tensor.bytes.size() / sizeof(float));
    if (!out.empty()) std::memcpy(out.data(), tensor.bytes.data(), out.size() * sizeof(float));
    return out;
}

/// Reads every value and the ends of every tensor, so that a wrong view is seen by the sanitizers. The sum is returned
/// so that the reads cannot be dropped.
inline double touch(const decant::Weights& weights) {
    double sum = 0;
    const decant::Metadata& metadata = weights.metadata();
    for (const std::string_view key : metadata.keys()) {
        sum += static_cast<double>(key.size());
        if (const auto value = metadata.uint(key)) sum += static_cast<double>(*value);
        if (const auto value = metadata.number(key)) sum += *value;
        if (const auto value = metadata.boolean(key)) sum += *value;
        if (const auto value = metadata.string(key))
            for (const char c : *value) sum += c;
        if (const auto value = metadata.array_size(key)) sum += static_cast<double>(*value);
        if (const auto value = metadata.strings(key))
            for (const std::string_view text : *value) sum += text.empty() ? 0 : text.front() + text.back();
        if (const auto value = metadata.ints(key))
            for (const auto number : *value) sum += static_cast<double>(number);
        if (const auto value = metadata.floats(key))
            for (const float number : *value) sum += static_cast<double>(number);
        if (const auto value = metadata.booleans(key)) sum += static_cast<double>(value->size());
    }
    for (const decant::Tensor& tensor : weights.tensors()) {
        sum += static_cast<double>(tensor.name.size() + tensor.rows() + tensor.columns());
        if (!tensor.bytes.empty())
            sum += std::to_integer<int>(tensor.bytes.front()) + std::to_integer<int>(tensor.bytes.back());
    }
    return sum;
}

/// `bytes` in a heap block of exactly their size, so that the address sanitizer sees one byte too far.
inline decant::Result<decant::Weights> open_copy(std::span<const std::byte> bytes) {
    const std::shared_ptr<std::byte[]> copy(new std::byte[bytes.size()]);
    if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
    return decant::Weights::from_memory({copy.get(), bytes.size()}, copy);
}

inline std::vector<std::byte> read_bytes(const std::filesystem::path& path) {
    const std::vector<char> chars = read_file(path);
    const auto bytes = std::as_bytes(std::span(chars));
    return {bytes.begin(), bytes.end()};
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

/// An empty folder of its own that is removed at the end.
class TemporaryFolder {
 public:
    explicit TemporaryFolder(const std::string& name)
        : path_(std::filesystem::temp_directory_path() / ("decant-files-" + name)) {
        std::filesystem::remove_all(path_);
        std::filesystem::create_directories(path_);
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::filesystem::path write(const std::string& name, std::span<const std::byte> bytes) const {
        const auto file = path_ / name;
        std::ofstream(file, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        return file;
    }

 private:
    std::filesystem::path path_;
};

}  // namespace decant_test

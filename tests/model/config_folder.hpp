// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Tiny Hugging Face folders: those of the reference data as they lie there, and copies with another config.json.

#include "support/catch.hpp"
#include "support/data.hpp"

#include <decant/files/weights.hpp>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace decant_test {

/// A folder of its own with the weights of `source`, gone with the object.
class ConfigFolder {
 public:
    explicit ConfigFolder(const std::filesystem::path& source) : path_(fresh()) {
        std::filesystem::create_directory(path_);
        const auto weights = std::filesystem::absolute(source / "model.safetensors");
        std::error_code failed;
        std::filesystem::create_symlink(weights, path_ / "model.safetensors", failed);
        if (failed) std::filesystem::copy_file(weights, path_ / "model.safetensors");
    }
    ConfigFolder(const ConfigFolder&) = delete;
    ConfigFolder& operator=(const ConfigFolder&) = delete;
    ~ConfigFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    /// Nothing of an earlier one may be in use.
    [[nodiscard]] decant::Result<decant::Weights> open(const std::string& config) const {
        std::ofstream(path_ / "config.json", std::ios::binary) << config;
        return decant::Weights::open(path_);
    }

 private:
    static std::filesystem::path fresh() {
        static std::atomic<int> count{0};
        std::string name = "decant_folder_" + std::to_string(count++);
#if defined(__unix__) || defined(__APPLE__)
        name += "_" + std::to_string(::getpid());
#endif
        const auto path = std::filesystem::temp_directory_path() / name;
        std::filesystem::remove_all(path);
        return path;
    }

    std::filesystem::path path_;
};

}  // namespace decant_test

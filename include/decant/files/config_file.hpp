// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ConfigFile`: a JSON file of settings (config.json and its kin) as `Metadata` that own their bytes.

#include <decant/core/result.hpp>
#include <decant/files/config_json.hpp>
#include <decant/files/metadata.hpp>
#include <decant/files/reader.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Movable, not copyable: the metadata view the bytes, whose place a move keeps.
struct ConfigFile {
    std::vector<std::byte> bytes;
    Metadata metadata;

    ConfigFile() = default;
    ConfigFile(ConfigFile&&) noexcept = default;
    ConfigFile& operator=(ConfigFile&&) noexcept = default;
    ConfigFile(const ConfigFile&) = delete;
    ConfigFile& operator=(const ConfigFile&) = delete;

    /// See `read_config_json`. `file` is for messages.
    [[nodiscard]] static Result<ConfigFile> read(std::span<const std::byte> json, const std::string& file) {
        ConfigFile out;
        auto pairs = read_config_json({reinterpret_cast<const char*>(json.data()), json.size()});
        if (!pairs) return std::move(pairs).error().in(file);
        out.bytes = std::move(pairs->bytes);
        ByteReader in(out.bytes);
        auto metadata = Metadata::read(in, pairs->count);
        if (!metadata) return std::move(metadata).error().in(file);
        out.metadata = *std::move(metadata);
        out.metadata.name_file(file);
        return out;
    }
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

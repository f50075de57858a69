// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Checked reading of a family's hyper-parameters from GGUF metadata, whose keys start with the architecture's name.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace decant::inline DECANT_ABI {

/// Reads `<architecture>.<key>`. Every error names the key, its value and what would be right.
class GgufKeys {
 public:
    /// No width or count of a real model is larger; keeps every product of two of them inside 64 bits.
    static constexpr std::uint64_t largest = std::uint64_t{1} << 24;

    GgufKeys(const Weights& weights, std::string_view architecture)
        : metadata_(&weights.metadata()), prefix_(detail::text(architecture, ".")) {}

    [[nodiscard]] std::string architecture() const { return prefix_.substr(0, prefix_.size() - 1); }

    [[nodiscard]] bool contains(std::string_view key) const { return metadata_->contains(detail::text(prefix_, key)); }

    /// An integer in [1, largest]; `fallback` if the key is absent.
    [[nodiscard]] Result<std::uint32_t> count(std::string_view key, std::optional<std::uint64_t> fallback = {}) const {
        const std::string full = detail::text(prefix_, key);
        std::uint64_t value = 0;
        if (fallback && !metadata_->contains(full)) {
            value = *fallback;
        } else {
            DECANT_TRY(value, metadata_->uint(full));
        }
        if (value == 0 || value > largest) {
            return Error{ErrorCode::bad_format, detail::text("value ", value, " is not in [1, ", largest, "]"),
                         detail::text("key ", full), "the file is damaged or not a language model"};
        }
        return static_cast<std::uint32_t>(value);
    }

    /// A finite number above zero; `fallback` if the key is absent.
    [[nodiscard]] Result<double> positive(std::string_view key, std::optional<double> fallback = {}) const {
        const std::string full = detail::text(prefix_, key);
        double value = 0.0;
        if (fallback && !metadata_->contains(full)) {
            value = *fallback;
        } else {
            DECANT_TRY(value, metadata_->number(full));
        }
        if (!std::isfinite(value) || !(value > 0.0) ||
            value > static_cast<double>((std::numeric_limits<float>::max)())) {
            return Error{ErrorCode::bad_format, detail::text("value ", value, " is not a finite number above 0"),
                         detail::text("key ", full), "the file is damaged"};
        }
        return value;
    }

    /// A string; empty if the key is absent.
    [[nodiscard]] Result<std::string_view> string(std::string_view key) const {
        const std::string full = detail::text(prefix_, key);
        if (!metadata_->contains(full)) return std::string_view{};
        return metadata_->string(full);
    }

    /// An error about a key's value.
    [[nodiscard]] Error wrong(ErrorCode code, std::string_view key, std::string what, std::string hint = {}) const {
        return Error{code, std::move(what), detail::text("key ", prefix_, key), std::move(hint)};
    }

 private:
    const Metadata* metadata_;
    std::string prefix_;
};

}  // namespace decant::inline DECANT_ABI

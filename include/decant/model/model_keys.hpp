// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Checked reading of a family's hyper-parameters: GGUF metadata, whose keys start with the architecture's name, or the
/// keys of config.json.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Reads `<architecture>.<key>` of GGUF, or `<key>` of config.json. Every error names the key, its value and what would
/// be right. Remembers what was asked for, so that nothing in a file is silently ignored.
class ModelKeys {
 public:
    /// No width or count of a real model is larger; keeps every product of two of them inside 64 bits.
    static constexpr std::uint64_t largest = std::uint64_t{1} << 24;

    /// `architecture`: the prefix of GGUF's keys; empty for config.json.
    ModelKeys(const Weights& weights, std::string_view architecture)
        : metadata_(&weights.metadata()), prefix_(architecture.empty() ? "" : detail::text(architecture, ".")) {}

    [[nodiscard]] bool contains(std::string_view key) const { return metadata_->contains(full(key)); }
    /// Any of `<key>.*`.
    [[nodiscard]] bool contains_group(std::string_view key) const {
        const std::string group = detail::text(prefix_, key, ".");
        for (const std::string_view each : metadata_->keys())
            if (each.starts_with(group)) return true;
        return false;
    }

    /// An integer in [1, largest]; `fallback` if the key is absent.
    [[nodiscard]] Result<std::uint32_t> count(std::string_view key, std::optional<std::uint64_t> fallback = {}) const {
        const std::string full = this->full(key);
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
        const std::string full = this->full(key);
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

    /// A string; `fallback` if the key is absent.
    [[nodiscard]] Result<std::string_view> string(std::string_view key, std::string_view fallback = {}) const {
        const std::string full = this->full(key);
        if (!metadata_->contains(full)) return fallback;
        return metadata_->string(full);
    }

    /// As `count`, but 0 is allowed; `fallback` if the key is absent.
    [[nodiscard]] Result<std::uint32_t> number(std::string_view key, std::uint32_t fallback) const {
        const std::string full = this->full(key);
        if (!metadata_->contains(full)) return fallback;
        DECANT_TRY(const std::uint64_t value, metadata_->uint(full));
        return value == 0 ? Result<std::uint32_t>(0u) : count(key);
    }

    [[nodiscard]] Result<bool> flag(std::string_view key, bool fallback) const {
        const std::string full = this->full(key);
        if (!metadata_->contains(full)) return fallback;
        return metadata_->boolean(full);
    }

    /// An array of strings; empty if the key is absent.
    [[nodiscard]] Result<std::vector<std::string_view>> strings(std::string_view key) const {
        const std::string full = this->full(key);
        if (!metadata_->contains(full)) return std::vector<std::string_view>{};
        return metadata_->strings(full);
    }

    /// An array of integers; empty if the key is absent.
    [[nodiscard]] Result<std::vector<std::int64_t>> integers(std::string_view key) const {
        const std::string full = this->full(key);
        if (!metadata_->contains(full)) return std::vector<std::int64_t>{};
        return metadata_->ints(full);
    }

    /// Two bounds [low, high], the upper of which may be infinite; `fallback` if the key is absent.
    [[nodiscard]] Result<std::array<float, 2>> limits(std::string_view key, std::array<float, 2> fallback) const {
        const std::string full = this->full(key);
        if (!metadata_->contains(full)) return fallback;
        DECANT_TRY(const std::vector<double> values, metadata_->numbers(full));
        if (values.size() != 2 || !std::isfinite(values[0]) || !(values[0] <= values[1]))
            return wrong(ErrorCode::bad_format, key, "not two numbers, the lower first");
        return std::array{static_cast<float>(values[0]), static_cast<float>(values[1])};
    }

    /// The keys that no member was asked for.
    [[nodiscard]] std::vector<std::string_view> unread() const {
        std::vector<std::string_view> left;
        for (const std::string_view key : metadata_->keys())
            if (key.starts_with(prefix_) && !read_.contains(std::string(key))) left.push_back(key);
        return left;
    }

    /// An error about a key's value.
    [[nodiscard]] Error wrong(ErrorCode code, std::string_view key, std::string what, std::string hint = {}) const {
        return Error{code, std::move(what), detail::text("key ", prefix_, key), std::move(hint)};
    }

 private:
    /// The whole key, which counts as read from now on.
    [[nodiscard]] std::string full(std::string_view key) const {
        std::string whole = detail::text(prefix_, key);
        read_.insert(whole);
        return whole;
    }

    const Metadata* metadata_;
    std::string prefix_;
    mutable std::set<std::string> read_;
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Command lines of the examples: `--name value` pairs and `--name` flags, checked.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace examples {

/// A mistake on the command line; the message says what to do.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Options {
 public:
    /// Takes `--name value` pairs of `known` and `--name` alone of `flags`; any other name is a `UsageError`.
    Options(int argc, char** argv, const std::vector<std::string_view>& known,
            const std::vector<std::string_view>& flags = {}) {
        const auto among = [](const std::vector<std::string_view>& names, std::string_view name) {
            return std::find(names.begin(), names.end(), name) != names.end();
        };
        for (int i = 1; i < argc; ++i) {
            const std::string_view name = argv[i];
            if (among(flags, name)) {
                values_.emplace_back(name, "");
                continue;
            }
            if (!among(known, name)) throw UsageError("unknown option " + std::string(name));
            if (++i == argc) throw UsageError("option " + std::string(name) + " needs a value");
            values_.emplace_back(name, argv[i]);
        }
    }

    /// Whether `name` was given.
    [[nodiscard]] bool given(std::string_view name) const {
        for (const auto& value : values_)
            if (value.first == name) return true;
        return false;
    }

    /// The last value given for `name`, or `fallback`.
    [[nodiscard]] std::string text(std::string_view name, std::string_view fallback) const {
        std::string_view value = fallback;
        for (const auto& [given, text] : values_)
            if (given == name) value = text;
        return std::string(value);
    }

    /// A whole number in [least, most].
    [[nodiscard]] std::size_t count(std::string_view name, std::size_t fallback, std::size_t least,
                                    std::size_t most) const {
        const std::string value = text(name, std::to_string(fallback));
        std::size_t number = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
        if (error != std::errc{} || end != value.data() + value.size() || number < least || number > most) {
            throw UsageError(std::string(name) + " takes a whole number from " + std::to_string(least) + " to " +
                             std::to_string(most) + ", not \"" + value + "\"");
        }
        return number;
    }

 private:
    std::vector<std::pair<std::string_view, std::string_view>> values_;
};

}  // namespace examples

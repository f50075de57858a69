// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Command lines of the examples: `--name value` pairs, checked.

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
    /// Takes `--name value` pairs; any name outside `known` is a `UsageError`.
    Options(int argc, char** argv, const std::vector<std::string_view>& known) {
        for (int i = 1; i < argc; i += 2) {
            const std::string_view name = argv[i];
            bool found = false;
            for (const std::string_view option : known) found = found || name == option;
            if (!found) throw UsageError("unknown option " + std::string(name));
            if (i + 1 == argc) throw UsageError("option " + std::string(name) + " needs a value");
            values_.emplace_back(name, argv[i + 1]);
        }
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

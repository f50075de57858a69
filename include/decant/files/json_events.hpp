// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `JsonEvents` and the declaration of `parse_json`; include json.hpp, which brings the definition.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>

#include <cstdint>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// What `parse_json` reports. Derive and override the events of interest; the others are ignored. An error that an
/// event returns ends the parse. Strings and keys are UTF-8 without escapes, valid during the call.
struct JsonEvents {
    virtual ~JsonEvents() = default;

    virtual Result<void> null() { return {}; }
    virtual Result<void> boolean(bool) { return {}; }
    /// Whole numbers without a minus sign.
    virtual Result<void> unsigned_integer(std::uint64_t) { return {}; }
    virtual Result<void> negative_integer(std::int64_t) { return {}; }
    /// Numbers with a fraction or exponent, or too large for 64 bits.
    virtual Result<void> real(double) { return {}; }
    virtual Result<void> string(std::string_view) { return {}; }
    virtual Result<void> begin_object() { return {}; }
    virtual Result<void> key(std::string_view) { return {}; }
    virtual Result<void> end_object() { return {}; }
    virtual Result<void> begin_array() { return {}; }
    virtual Result<void> end_array() { return {}; }
};

/// Parses one JSON document (nothing but white space may follow it) and reports it to `events`, a `JsonEvents`. Linear
/// time, memory in proportion to the longest string and the depth. Errors give the byte and name no file.
[[nodiscard]] Result<void> parse_json(std::string_view text, JsonEvents& events, std::uint32_t max_depth = 64);

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The definition of `parse_json`, for json.hpp. The one header that includes nlohmann/json, of which
/// nothing shows in the interface.

#include <decant/core/config.hpp>
#include <decant/core/errno.hpp>
#include <decant/core/result.hpp>
#include <decant/files/json_events.hpp>

#include <nlohmann/json.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Translates the events of nlohmann::json's SAX parser (which does not recurse) and counts the depth. Not a template:
/// the parser is compiled once.
class JsonAdapter {
 public:
    JsonAdapter(JsonEvents& events, std::uint32_t max_depth) : events_(events), max_depth_(max_depth) {}

    bool null() { return keep(events_.null()); }
    bool boolean(bool value) { return keep(events_.boolean(value)); }
    bool number_integer(std::int64_t value) { return keep(events_.negative_integer(value)); }
    bool number_unsigned(std::uint64_t value) { return keep(events_.unsigned_integer(value)); }
    /// From the digits themselves: the parser's own value comes from strtod, which another thread that changes the
    /// locale disturbs. The digits may hold the locale's decimal point.
    bool number_float(double, std::string digits) {
        for (char& c : digits)
            if (std::string_view("0123456789+-eE").find(c) == std::string_view::npos) c = '.';
        double value = 0.0;  // what is left of a number that is too small; too large ones the parser has refused
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
        return keep(events_.real(value));
    }
    bool string(std::string& value) { return keep(events_.string(value)); }
    bool binary(nlohmann::json::binary_t&) { return false; }
    bool start_object(std::size_t) { return deeper() && keep(events_.begin_object()); }
    bool key(std::string& value) { return keep(events_.key(value)); }
    bool end_object() { return --depth_, keep(events_.end_object()); }
    bool start_array(std::size_t) { return deeper() && keep(events_.begin_array()); }
    bool end_array() { return --depth_, keep(events_.end_array()); }
    template <class Reason>
    bool parse_error(std::size_t position, const std::string& last_token, const Reason&) {
        return keep(Error{ErrorCode::bad_format,
                          text("this is not valid JSON, at or before ", detail::quoted(last_token)),
                          text("byte ", position), ""});
    }

    [[nodiscard]] std::optional<Error>& error() noexcept { return error_; }

 private:
    bool keep(Result<void> result) {
        if (!result) error_ = std::move(result).error();
        return !error_;
    }
    bool deeper() {
        if (++depth_ <= max_depth_) return true;
        return keep(
            Error{ErrorCode::bad_format, text("the JSON is nested more than ", max_depth_, " levels deep"), "", ""});
    }

    JsonEvents& events_;
    std::uint32_t max_depth_;
    std::uint32_t depth_ = 0;
    std::optional<Error> error_;
};

}  // namespace detail

#if !defined(DECANT_SEPARATE_KERNELS)
inline
#endif
    Result<void>
    parse_json(std::string_view text, JsonEvents& events, std::uint32_t max_depth) {
    const detail::ErrnoGuard guard;
    detail::JsonAdapter adapter(events, max_depth);
    if (nlohmann::json::sax_parse(text.begin(), text.end(), &adapter)) return {};
    if (adapter.error()) return *std::move(adapter.error());
    return Error{ErrorCode::bad_format, "this is not valid JSON", "", ""};
}

}  // namespace decant::inline DECANT_ABI

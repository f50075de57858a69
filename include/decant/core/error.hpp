// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Error`: what was wrong, where, and what to do. Failure is a value; see result.hpp.

#include <decant/core/config.hpp>
#include <decant/core/text.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace decant::inline DECANT_ABI {

enum class ErrorCode : std::uint8_t {
    io,                ///< the system refused to open, read or map something
    bad_format,        ///< the bytes are not what the format says they must be
    unsupported,       ///< well formed, but a version, type or option that this build does not know
    missing,           ///< a key, tensor, file or token that is needed is not there
    mismatch,          ///< two things that must agree (shapes, counts, vocabularies) do not
    invalid_argument,  ///< the caller's argument cannot be used
    out_of_memory,     ///< the system or a cap of the host refused memory
    cache_full,        ///< the KV pool has no free block left
    cancelled,         ///< the host asked to stop
};

/// Stable lower-case name of a code, for logs.
[[nodiscard]] constexpr std::string_view name(ErrorCode code) noexcept {
    switch (code) {
        case ErrorCode::io: return "io";
        case ErrorCode::bad_format: return "bad_format";
        case ErrorCode::unsupported: return "unsupported";
        case ErrorCode::missing: return "missing";
        case ErrorCode::mismatch: return "mismatch";
        case ErrorCode::invalid_argument: return "invalid_argument";
        case ErrorCode::out_of_memory: return "out_of_memory";
        case ErrorCode::cache_full: return "cache_full";
        case ErrorCode::cancelled: return "cancelled";
    }
    return "unknown";
}

/// A failure: a code for programs and three sentences for people. Copyable, owns its text; never refers to the file.
struct Error {
    ErrorCode code = ErrorCode::bad_format;
    std::string what;   ///< what was wrong, with the offending value
    std::string where;  ///< file, tensor, key, byte offset; may be empty
    std::string hint;   ///< what to do; may be empty

    /// "where: what (hint)": one line for a log or a dialog.
    [[nodiscard]] std::string message() const {
        std::string line;
        if (!where.empty()) line = detail::text(where, ": ");
        line += what;
        if (!hint.empty()) line += detail::text(" (", hint, ")");
        return line;
    }

    /// The same failure seen from further out: `outer` (a file name, say) is put before `where`.
    [[nodiscard]] Error in(std::string_view outer) && {
        where = where.empty() ? std::string(outer) : detail::text(outer, ", ", where);
        return std::move(*this);
    }
};

}  // namespace decant::inline DECANT_ABI

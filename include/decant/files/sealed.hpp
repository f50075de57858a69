// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Sealed bytes: a mark, a version, content, and a checksum of all that. What saved requests, saved answers and frames
/// have in common.

#include <decant/core/config.hpp>
#include <decant/core/hash.hpp>
#include <decant/core/result.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/writer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// `Hash64` of bytes in one piece.
[[nodiscard]] inline std::uint64_t hash64(std::span<const std::byte> bytes) noexcept {
    Hash64 hash;
    hash.add(bytes);
    return hash.value();
}
/// FNV-1a with 64 bits (Fowler, Noll and Vo).
[[nodiscard]] inline std::uint64_t fnv1a(std::span<const std::byte> bytes) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
    return hash;
}

/// One kind of sealed bytes. The checksum is against damage, not against forgery.
struct Seal {
    std::string_view mark;
    std::uint32_t version;
    std::string_view what;  ///< its name in messages: "saved request"
    std::string_view hint;  ///< what to do where it is damaged
    std::uint64_t (*checksum)(std::span<const std::byte>) noexcept;

    /// Bytes around the content.
    [[nodiscard]] std::size_t size() const noexcept { return mark.size() + sizeof version + sizeof(std::uint64_t); }

    /// The content goes behind what this writes.
    void begin(std::vector<std::byte>& out) const {
        for (const char c : mark) out.push_back(static_cast<std::byte>(c));
        put(out, version);
    }
    /// After the content.
    void finish(std::vector<std::byte>& out) const { put(out, checksum(out)); }

    /// A reader of the content alone. Errors: `bad_format` for bytes of another kind, or that were cut or damaged;
    /// `unsupported` for another version.
    [[nodiscard]] Result<ByteReader> open(std::span<const std::byte> bytes) const {
        ByteReader in(bytes);
        DECANT_TRY(const auto start, in.take(mark.size(), text("the mark of a ", what)));
        if (!std::equal(start.begin(), start.end(), mark.begin(),
                        [](std::byte a, char b) { return a == static_cast<std::byte>(b); }))
            return damaged(text("these bytes are no ", what));
        if (bytes.size() < size()) return damaged("it is cut off");
        const std::size_t sealed = bytes.size() - sizeof(std::uint64_t);
        if (load_little<std::uint64_t>(bytes.data() + sealed) != checksum(bytes.first(sealed)))
            return damaged("its checksum is wrong");
        DECANT_TRY(const auto found, in.number<std::uint32_t>("the version"));
        if (found != version) {
            return Error{ErrorCode::unsupported,
                         text("version ", found, " of a ", what),
                         {},
                         text("this library reads version ", version)};
        }
        return ByteReader(bytes.first(sealed), in.position());
    }
    /// That the content is wrong.
    [[nodiscard]] Error damaged(std::string why) const {
        return {ErrorCode::bad_format, std::move(why), {}, std::string(hint)};
    }
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

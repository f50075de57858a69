// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The value types of GGUF metadata, and stepping over one value of them without recursion.
/// Source: the GGUF specification (docs/gguf.md of ggml), "File Structure".

#include <decant/files/reader.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// Numbered as in the file.
enum class MetadataType : std::uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7,
    string = 8,
    array = 9,
    u64 = 10,
    i64 = 11,
    f64 = 12,
};

[[nodiscard]] constexpr std::string_view name(MetadataType type) noexcept {
    switch (type) {
        case MetadataType::u8: return "u8";
        case MetadataType::i8: return "i8";
        case MetadataType::u16: return "u16";
        case MetadataType::i16: return "i16";
        case MetadataType::u32: return "u32";
        case MetadataType::i32: return "i32";
        case MetadataType::f32: return "f32";
        case MetadataType::boolean: return "bool";
        case MetadataType::string: return "string";
        case MetadataType::array: return "array";
        case MetadataType::u64: return "u64";
        case MetadataType::i64: return "i64";
        case MetadataType::f64: return "f64";
    }
    return "unknown";
}

namespace detail {

/// How deep arrays may lie in arrays. The format sets no limit; files in use need one level.
inline constexpr std::size_t max_array_depth = 4;

/// Bytes of a number or bool; 0 for strings and arrays.
[[nodiscard]] constexpr std::uint64_t scalar_bytes(MetadataType type) noexcept {
    switch (type) {
        case MetadataType::u8:
        case MetadataType::i8:
        case MetadataType::boolean: return 1;
        case MetadataType::u16:
        case MetadataType::i16: return 2;
        case MetadataType::u32:
        case MetadataType::i32:
        case MetadataType::f32: return 4;
        case MetadataType::u64:
        case MetadataType::i64:
        case MetadataType::f64: return 8;
        case MetadataType::string:
        case MetadataType::array: break;
    }
    return 0;
}

/// The fewest bytes that a value can take: a string has its length, an array its element type and count.
[[nodiscard]] constexpr std::uint64_t minimum_bytes(MetadataType type) noexcept {
    if (type == MetadataType::string) return 8;
    if (type == MetadataType::array) return 12;
    return scalar_bytes(type);
}

[[nodiscard]] inline Result<MetadataType> read_metadata_type(ByteReader& in) {
    const std::uint64_t at = in.position();
    DECANT_TRY(const std::uint32_t id, in.number<std::uint32_t>("a value type"));
    if (id > static_cast<std::uint32_t>(MetadataType::f64))
        return Error{ErrorCode::unsupported, text("unknown value type ", id), text("byte ", at), ""};
    return static_cast<MetadataType>(id);
}

struct ArrayHeader {
    MetadataType element;
    std::uint64_t count;
};

[[nodiscard]] inline Result<ArrayHeader> read_array_header(ByteReader& in) {
    DECANT_TRY(const MetadataType element, read_metadata_type(in));
    DECANT_TRY(const std::uint64_t count, in.count(minimum_bytes(element), "the number of array elements"));
    return ArrayHeader{element, count};
}

/// Steps over one value, checking that all of it lies within the bytes. Linear in the bytes, constant stack.
[[nodiscard]] inline Result<void> skip_metadata_value(ByteReader& in, MetadataType type) {
    std::array<ArrayHeader, max_array_depth + 1> open{};  // what is still to be stepped over, innermost last
    open[0] = {type, 1};
    std::size_t depth = 1;
    while (depth > 0) {
        ArrayHeader& level = open[depth - 1];
        if (level.count == 0) {
            --depth;
        } else if (const std::uint64_t width = scalar_bytes(level.element); width != 0) {
            DECANT_CHECK(in.take(level.count, width, "a value"));
            --depth;
        } else if (level.element == MetadataType::string) {
            std::string_view ignored;
            while (level.count != 0 && in.next_string(ignored)) --level.count;
            if (level.count != 0) DECANT_CHECK(in.string("a string length"));
        } else {
            if (depth > max_array_depth)
                return Error{ErrorCode::unsupported,
                             text("arrays are nested more than ", max_array_depth, " levels deep"),
                             text("byte ", in.position()), ""};
            --level.count;
            DECANT_TRY(open[depth], read_array_header(in));
            ++depth;
        }
    }
    return {};
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

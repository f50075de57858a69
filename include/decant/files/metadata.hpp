// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Metadata`: typed access to key/value pairs as they lie in a GGUF file (a folder's config.json is brought into that
/// form, see config_json.hpp). An index of keys is built when the file is opened; values stay in the file and are
/// converted when asked for.

#include <decant/files/metadata_type.hpp>
#include <decant/files/reader.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// A view of the file's bytes: it and the strings it returns are valid while the `Weights` (or a copy) lives. Threads
/// may share it. An absent key is `missing`; a value of another type is `mismatch` and names key, expected and found
/// type. Where there are no key/value pairs (a safetensors file, a folder without config.json) it is empty.
class Metadata {
 public:
    Metadata() = default;

    /// Indexes `pairs` key/value pairs at the reader and leaves it behind them. Every value is checked to lie within
    /// the file. Keys must not be empty, longer than 65535 bytes, or occur twice.
    [[nodiscard]] static Result<Metadata> read(ByteReader& in, std::uint64_t pairs);
    /// The name of the file, which later messages begin with.
    void name_file(std::string_view file) { file_ = file; }

    [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
    [[nodiscard]] bool contains(std::string_view key) const noexcept { return find(key) != nullptr; }
    /// All keys, sorted.
    [[nodiscard]] std::vector<std::string_view> keys() const;

    /// Any integer type; a negative value is a mismatch.
    [[nodiscard]] Result<std::uint64_t> uint(std::string_view key) const;
    /// Any integer or float type; NaN and infinities are `bad_format`.
    [[nodiscard]] Result<double> number(std::string_view key) const;
    [[nodiscard]] Result<bool> boolean(std::string_view key) const;
    /// Bytes as in the file: not checked to be UTF-8.
    [[nodiscard]] Result<std::string_view> string(std::string_view key) const;

    /// Number of elements of an array of any type.
    [[nodiscard]] Result<std::uint64_t> array_size(std::string_view key) const;
    [[nodiscard]] Result<std::vector<std::string_view>> strings(std::string_view key) const;
    /// Elements of any integer type, converted; one above the largest `int64_t` is a mismatch.
    [[nodiscard]] Result<std::vector<std::int64_t>> ints(std::string_view key) const;
    /// Elements of f32 or f64, converted; not checked to be finite.
    [[nodiscard]] Result<std::vector<float>> floats(std::string_view key) const;
    /// Elements of any integer or float type, converted; not checked to be finite.
    [[nodiscard]] Result<std::vector<double>> numbers(std::string_view key) const;
    [[nodiscard]] Result<std::vector<bool>> booleans(std::string_view key) const;

 private:
    struct Entry {
        std::string_view key;
        MetadataType type;
        std::uint64_t offset;  // of the value in the file
    };

    [[nodiscard]] const Entry* find(std::string_view key) const noexcept {
        const auto at =
            std::lower_bound(entries_.begin(), entries_.end(), key,
                             [](const Entry& entry, std::string_view wanted) { return entry.key < wanted; });
        return at != entries_.end() && at->key == key ? &*at : nullptr;
    }
    [[nodiscard]] std::string place(std::string_view key) const {
        const std::string label = detail::text("key ", detail::quoted(key));
        return file_.empty() ? label : detail::text(file_, ", ", label);
    }
    [[nodiscard]] std::string describe(const Entry& entry) const;
    [[nodiscard]] Error mismatch(const Entry& entry, std::string_view expected) const {
        return {ErrorCode::mismatch, detail::text("expected ", expected, ", found ", describe(entry)), place(entry.key),
                ""};
    }
    [[nodiscard]] Result<Entry> entry_at(std::string_view key) const {
        if (const Entry* entry = find(key)) return *entry;
        return Error{ErrorCode::missing, "the key is not in the file", place(key), ""};
    }
    /// Type, count and place of the elements; a scalar is not an array.
    [[nodiscard]] Result<std::pair<detail::ArrayHeader, ByteReader>> open_array(const Entry& entry,
                                                                                std::string_view expected) const {
        if (entry.type != MetadataType::array) return mismatch(entry, expected);
        ByteReader in(bytes_, entry.offset);
        DECANT_TRY(const detail::ArrayHeader header, detail::read_array_header(in));
        return std::pair{header, in};
    }
    /// Calls `visit` with the number of `type` at `at`; false if the type is no number.
    template <class Visit>
    static bool visit_number(MetadataType type, const std::byte* at, Visit&& visit);

    std::span<const std::byte> bytes_;
    std::vector<Entry> entries_;  // sorted by key
    std::string file_;
};

inline Result<Metadata> Metadata::read(ByteReader& in, std::uint64_t pairs) {
    constexpr std::size_t longest_key = 65535;
    Metadata metadata;
    metadata.bytes_ = in.bytes();
    for (std::uint64_t i = 0; i < pairs; ++i) {
        const std::uint64_t at = in.position();
        DECANT_TRY(const std::string_view key, in.string("a key length"));
        if (key.empty() || key.size() > longest_key)
            return Error{ErrorCode::bad_format,
                         detail::text("a key has ", key.size(), " bytes; 1 to ", longest_key, " are allowed"),
                         detail::text("byte ", at), ""};
        const std::string label = detail::text("key ", detail::quoted(key));
        auto type = detail::read_metadata_type(in);
        if (!type) return std::move(type).error().in(label);
        metadata.entries_.push_back({key, *type, in.position()});
        if (auto skipped = detail::skip_metadata_value(in, *type); !skipped)
            return std::move(skipped).error().in(label);
    }
    auto& entries = metadata.entries_;
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.key != b.key ? a.key < b.key : a.offset < b.offset; });
    const auto twin = std::adjacent_find(entries.begin(), entries.end(),
                                         [](const Entry& a, const Entry& b) { return a.key == b.key; });
    if (twin != entries.end())
        return Error{ErrorCode::bad_format,
                     detail::text("the key occurs twice, at bytes ", twin->offset, " and ", (twin + 1)->offset),
                     detail::text("key ", detail::quoted(twin->key)),
                     "the file is damaged or was written by a broken tool"};
    return metadata;
}

inline std::vector<std::string_view> Metadata::keys() const {
    std::vector<std::string_view> out;
    out.reserve(entries_.size());
    for (const Entry& entry : entries_) out.push_back(entry.key);
    return out;
}

inline std::string Metadata::describe(const Entry& entry) const {
    if (entry.type != MetadataType::array) return std::string(name(entry.type));
    ByteReader in(bytes_, entry.offset);
    const auto header = detail::read_array_header(in);
    return header ? detail::text("array of ", header->count, " ", name(header->element)) : std::string("array");
}

template <class Visit>
bool Metadata::visit_number(MetadataType type, const std::byte* at, Visit&& visit) {
    switch (type) {
        case MetadataType::u8: visit(detail::load_little<std::uint8_t>(at)); return true;
        case MetadataType::i8: visit(detail::load_little<std::int8_t>(at)); return true;
        case MetadataType::u16: visit(detail::load_little<std::uint16_t>(at)); return true;
        case MetadataType::i16: visit(detail::load_little<std::int16_t>(at)); return true;
        case MetadataType::u32: visit(detail::load_little<std::uint32_t>(at)); return true;
        case MetadataType::i32: visit(detail::load_little<std::int32_t>(at)); return true;
        case MetadataType::u64: visit(detail::load_little<std::uint64_t>(at)); return true;
        case MetadataType::i64: visit(detail::load_little<std::int64_t>(at)); return true;
        case MetadataType::f32: visit(detail::load_little<float>(at)); return true;
        case MetadataType::f64: visit(detail::load_little<double>(at)); return true;
        case MetadataType::boolean:
        case MetadataType::string:
        case MetadataType::array: break;
    }
    return false;
}

inline Result<std::uint64_t> Metadata::uint(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    DECANT_TRY(const auto raw, ByteReader(bytes_, entry.offset).take(detail::scalar_bytes(entry.type), "a value"));
    std::uint64_t value = 0;
    std::int64_t negative = 0;
    bool integer = false;
    visit_number(entry.type, raw.data(), [&](auto found) {
        if constexpr (std::is_integral_v<decltype(found)>) {
            integer = true;
            if constexpr (std::is_signed_v<decltype(found)>) negative = found < 0 ? found : 0;
            value = static_cast<std::uint64_t>(found);
        }
    });
    if (!integer) return mismatch(entry, "an integer");
    if (negative < 0)
        return Error{ErrorCode::mismatch, detail::text("expected a value of 0 or more, found ", negative), place(key),
                     ""};
    return value;
}

inline Result<double> Metadata::number(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    DECANT_TRY(const auto raw, ByteReader(bytes_, entry.offset).take(detail::scalar_bytes(entry.type), "a value"));
    double value = 0;
    if (!visit_number(entry.type, raw.data(), [&](auto found) { value = static_cast<double>(found); }))
        return mismatch(entry, "a number");
    if (!std::isfinite(value))
        return Error{ErrorCode::bad_format, detail::text("the value is ", value, ", not a finite number"), place(key),
                     ""};
    return value;
}

inline Result<bool> Metadata::boolean(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    if (entry.type != MetadataType::boolean) return mismatch(entry, "a bool");
    DECANT_TRY(const auto value, ByteReader(bytes_, entry.offset).number<std::uint8_t>("a bool"));
    if (value > 1)
        return Error{ErrorCode::bad_format, detail::text("the bool is ", value, ", not 0 or 1"), place(key), ""};
    return value == 1;
}

inline Result<std::string_view> Metadata::string(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    if (entry.type != MetadataType::string) return mismatch(entry, "a string");
    return ByteReader(bytes_, entry.offset).string("a string length");
}

inline Result<std::uint64_t> Metadata::array_size(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    DECANT_TRY(const auto array, open_array(entry, "an array"));
    return array.first.count;
}

inline Result<std::vector<std::string_view>> Metadata::strings(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    DECANT_TRY(auto array, open_array(entry, "an array of strings"));
    auto& [header, in] = array;
    if (header.element != MetadataType::string) return mismatch(entry, "an array of strings");
    std::vector<std::string_view> out(static_cast<std::size_t>(header.count));
    for (std::string_view& text : out)
        if (!in.next_string(text))
            return Error{ErrorCode::bad_format, "a string reaches past the end of the file", place(key), ""};
    return out;
}

inline Result<std::vector<std::int64_t>> Metadata::ints(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    DECANT_TRY(auto array, open_array(entry, "an array of integers"));
    auto& [header, in] = array;
    const MetadataType type = header.element;
    if (detail::scalar_bytes(type) == 0 || type == MetadataType::boolean || type == MetadataType::f32 ||
        type == MetadataType::f64)
        return mismatch(entry, "an array of integers");
    const auto width = static_cast<std::size_t>(detail::scalar_bytes(type));
    DECANT_TRY(const auto raw, in.take(header.count, width, "an array"));
    std::vector<std::int64_t> out(static_cast<std::size_t>(header.count));
    for (std::size_t i = 0; i < out.size(); ++i) {
        bool fits = true;
        visit_number(type, raw.data() + i * width, [&](auto found) {
            if constexpr (std::is_integral_v<decltype(found)>) {
                fits = std::in_range<std::int64_t>(found);
                out[i] = static_cast<std::int64_t>(found);
            }
        });
        if (!fits)
            return Error{ErrorCode::mismatch, detail::text("element ", i, " is larger than a signed 64-bit number"),
                         place(key), ""};
    }
    return out;
}

inline Result<std::vector<float>> Metadata::floats(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    DECANT_TRY(auto array, open_array(entry, "an array of f32 or f64"));
    auto& [header, in] = array;
    const MetadataType type = header.element;
    if (type != MetadataType::f32 && type != MetadataType::f64) return mismatch(entry, "an array of f32 or f64");
    const auto width = static_cast<std::size_t>(detail::scalar_bytes(type));
    DECANT_TRY(const auto raw, in.take(header.count, width, "an array"));
    std::vector<float> out(static_cast<std::size_t>(header.count));
    for (std::size_t i = 0; i < out.size(); ++i)
        visit_number(type, raw.data() + i * width, [&](auto found) { out[i] = static_cast<float>(found); });
    return out;
}

inline Result<std::vector<double>> Metadata::numbers(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    DECANT_TRY(auto array, open_array(entry, "an array of numbers"));
    auto& [header, in] = array;
    const MetadataType type = header.element;
    if (detail::scalar_bytes(type) == 0 || type == MetadataType::boolean) return mismatch(entry, "an array of numbers");
    const auto width = static_cast<std::size_t>(detail::scalar_bytes(type));
    DECANT_TRY(const auto raw, in.take(header.count, width, "an array"));
    std::vector<double> out(static_cast<std::size_t>(header.count));
    for (std::size_t i = 0; i < out.size(); ++i)
        visit_number(type, raw.data() + i * width, [&](auto found) { out[i] = static_cast<double>(found); });
    return out;
}

inline Result<std::vector<bool>> Metadata::booleans(std::string_view key) const {
    DECANT_TRY(const Entry entry, entry_at(key));
    DECANT_TRY(auto array, open_array(entry, "an array of bools"));
    auto& [header, in] = array;
    if (header.element != MetadataType::boolean) return mismatch(entry, "an array of bools");
    DECANT_TRY(const auto raw, in.take(header.count, "an array"));
    std::vector<bool> out(raw.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
        const auto value = std::to_integer<std::uint8_t>(raw[i]);
        if (value > 1)
            return Error{ErrorCode::bad_format, detail::text("element ", i, " is ", value, ", not 0 or 1"), place(key),
                         ""};
        out[i] = value == 1;
    }
    return out;
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The safetensors reader (one file). Names, types, shapes and ranges are independent fields of a JSON header; all are
/// checked against each other and the file here. Source: the format description in the safetensors README: 64-bit
/// header length, JSON header, and data that the tensors cover without gap or overlap.

#include <decant/core/dtype.hpp>
#include <decant/files/json.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

struct SafetensorsType {
    std::string_view name;
    std::uint32_t bits;
    DType dtype = DType::other;
};

inline constexpr std::array<SafetensorsType, 22> safetensors_types{{
    {"F32", 32, DType::f32},
    {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},
    {"F64", 64},
    {"I64", 64},
    {"U64", 64},
    {"I32", 32},
    {"U32", 32},
    {"I16", 16},
    {"U16", 16},
    {"I8", 8},
    {"U8", 8},
    {"BOOL", 8},
    {"C64", 64},
    {"F8_E4M3", 8},
    {"F8_E5M2", 8},
    {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8},
    {"F6_E2M3", 6},
    {"F6_E3M2", 6},
    {"F4", 4},
}};

/// One entry of the header, before its fields are compared.
struct SafetensorsEntry {
    std::string_view name;
    const SafetensorsType* type = nullptr;
    std::optional<Shape> shape;
    std::array<std::uint64_t, 2> range{};  // of the data section
    std::size_t range_size = 0;
    bool has_range = false;
};

/// Reads the JSON header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...} and an optional
/// "__metadata__" of strings.
class SafetensorsHeader : public JsonEvents {
 public:
    std::vector<SafetensorsEntry> entries;
    std::deque<std::string> names;  // a deque: views of its strings stay valid

    Result<void> null() override { return unexpected("null"); }
    Result<void> boolean(bool) override { return unexpected("a bool"); }
    Result<void> real(double value) override { return unexpected(text("the number ", value)); }
    Result<void> negative_integer(std::int64_t value) override {
        return unexpected(text("the negative number ", value));
    }
    Result<void> unsigned_integer(std::uint64_t value) override {
        if (level_ != Level::array) return unexpected(text("the number ", value));
        SafetensorsEntry& entry = entries.back();
        if (field_ == Field::range) {
            if (entry.range_size == entry.range.size()) return fail("data_offsets must be two numbers, found more");
            entry.range[entry.range_size++] = value;
            return {};
        }
        Shape& shape = *entry.shape;
        if (shape.rank == static_cast<int>(shape.dims.size()))
            return Error{ErrorCode::unsupported, "it has more than 4 dimensions", place(), ""};
        shape.dims[static_cast<std::size_t>(shape.rank++)] = value;
        return {};
    }
    Result<void> string(std::string_view value) override {
        if (level_ == Level::metadata) return {};
        if (level_ != Level::entry || field_ != Field::type)
            return unexpected(text("the string ", detail::quoted(value)));
        for (const SafetensorsType& type : safetensors_types)
            if (type.name == value) entries.back().type = &type;
        if (entries.back().type == nullptr)
            return Error{ErrorCode::unsupported, text("unknown tensor type ", detail::quoted(value)), place(), ""};
        return {};
    }
    Result<void> key(std::string_view value) override {
        if (level_ == Level::file) {
            in_metadata_ = value == "__metadata__";
            if (in_metadata_) return {};
            names.emplace_back(value);
            entries.emplace_back().name = names.back();
        } else if (level_ == Level::entry) {
            SafetensorsEntry& entry = entries.back();
            field_ = value == "dtype"          ? Field::type
                     : value == "shape"        ? Field::shape
                     : value == "data_offsets" ? Field::range
                                               : Field::none;
            if (field_ == Field::none) return fail(text("unknown field ", detail::quoted(value)));
            const bool twice = field_ == Field::type    ? entry.type != nullptr
                               : field_ == Field::shape ? entry.shape.has_value()
                                                        : entry.has_range;
            if (twice) return fail(text("the field ", detail::quoted(value), " occurs twice"));
        }
        return {};
    }
    Result<void> begin_object() override {
        if (level_ == Level::outside) {
            level_ = Level::file;
        } else if (level_ == Level::file) {
            level_ = in_metadata_ ? Level::metadata : Level::entry;
            field_ = Field::none;
        } else {
            return unexpected("an object");
        }
        return {};
    }
    Result<void> end_object() override {
        level_ = level_ == Level::file ? Level::outside : Level::file;
        return {};
    }
    Result<void> begin_array() override {
        if (level_ != Level::entry || (field_ != Field::shape && field_ != Field::range)) return unexpected("an array");
        level_ = Level::array;
        if (field_ == Field::shape) entries.back().shape = Shape{};
        if (field_ == Field::range) entries.back().has_range = true;
        return {};
    }
    Result<void> end_array() override {
        level_ = Level::entry;
        return {};
    }

 private:
    enum class Level { outside, file, metadata, entry, array };
    enum class Field { none, type, shape, range };

    [[nodiscard]] std::string place() const {
        if (in_metadata_) return "__metadata__";
        return entries.empty() ? std::string("header") : tensor_label(entries.back().name);
    }
    [[nodiscard]] Error fail(std::string what) const { return {ErrorCode::bad_format, std::move(what), place(), ""}; }
    [[nodiscard]] Error unexpected(std::string_view found) const {
        return fail(text(found, " has no place here (only dtype, shape and data_offsets of a tensor have)"));
    }

    Level level_ = Level::outside;
    Field field_ = Field::none;
    bool in_metadata_ = false;
};

/// What a safetensors file holds; the tensors view its bytes and `names`.
struct SafetensorsFile {
    std::deque<std::string> names;
    std::vector<Tensor> tensors;       ///< in the order of the header
    std::vector<std::size_t> by_name;  ///< see `index_by_name`
};

[[nodiscard]] inline bool starts_like_safetensors(std::span<const std::byte> bytes) noexcept {
    return bytes.size() > 8 && bytes[8] == std::byte{'{'};
}

/// Compares type, shape and range of an entry with each other and with the data section.
[[nodiscard]] inline Result<Tensor> place_safetensors_entry(const SafetensorsEntry& entry,
                                                            std::span<const std::byte> data) {
    const auto fail = [&](std::string what, std::string_view hint = "") {
        return Error{ErrorCode::bad_format, std::move(what), tensor_label(entry.name), std::string(hint)};
    };
    if (entry.type == nullptr) return fail("it has no dtype");
    if (!entry.shape) return fail("it has no shape");
    if (entry.range_size != entry.range.size())
        return fail(text("data_offsets must be two numbers, found ", entry.range_size));
    const auto [begin, end] = entry.range;
    if (begin > end) return fail(text("its data begins at byte ", begin, " and ends before it, at byte ", end));
    if (end > data.size())
        return fail(
            text("its data, bytes ", begin, " to ", end, ", is not inside the file's ", data.size(), " bytes of data"),
            "the file is cut off or damaged");
    std::optional<std::uint64_t> bits = entry.type->bits;
    for (int i = entry.shape->rank; i-- > 0;)
        if (bits) bits = checked_multiply(*bits, entry.shape->dims[static_cast<std::size_t>(i)]);
    const std::string needs = text(describe(*entry.shape), " ", entry.type->name);
    if (!bits) return fail(text("the size of ", needs, " overflows 64 bits"));
    if (*bits % 8 != 0) return fail(text(needs, " is not a whole number of bytes"));
    if (*bits / 8 != end - begin)
        return fail(text(needs, " takes ", *bits / 8, " bytes, but its data_offsets give it ", end - begin));
    return Tensor{entry.name, entry.type->name, entry.type->dtype, *entry.shape,
                  data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))};
}

/// The ranges must cover the data section from end to end, each byte once.
[[nodiscard]] inline Result<void> check_safetensors_cover(std::span<const SafetensorsEntry> entries,
                                                          std::uint64_t data_bytes) {
    std::vector<std::size_t> order(entries.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return entries[a].range < entries[b].range; });
    std::uint64_t covered = 0;
    std::string_view last;
    for (const std::size_t i : order) {
        const std::uint64_t begin = entries[i].range[0];
        if (begin != covered)
            return Error{ErrorCode::bad_format,
                         text("its data begins at byte ", begin, ", but the data before it ends at byte ", covered,
                              begin < covered ? ": they overlap" : ": a gap"),
                         tensor_label(entries[i].name), "the file is damaged"};
        covered = entries[i].range[1];
        last = entries[i].name;
    }
    if (covered != data_bytes)
        return Error{ErrorCode::bad_format,
                     text(data_bytes - covered, " bytes of data follow the last tensor's end at byte ", covered),
                     order.empty() ? std::string("data") : tensor_label(last), "the file is damaged"};
    return {};
}

/// Reads all of a safetensors file but its tensor data. The result views `bytes`, which must outlive it. Errors name
/// the tensor, not the file. Dimensions of zero are allowed, more than four are not.
[[nodiscard]] inline Result<SafetensorsFile> read_safetensors(std::span<const std::byte> bytes) {
    constexpr std::uint64_t longest_header = 100'000'000;  // the limit of the format's own reader
    ByteReader in(bytes);
    DECANT_TRY(const std::uint64_t length, in.count(1, "the header length"));
    if (length > longest_header)
        return Error{ErrorCode::bad_format,
                     text("the header has ", length, " bytes; up to ", longest_header, " are allowed"), "byte 0", ""};
    DECANT_TRY(const auto header, in.take(length, "the header"));
    if (!starts_like_safetensors(bytes) || length == 0)
        return Error{ErrorCode::bad_format, "the header does not start with {", "byte 8",
                     "this is not a safetensors file"};
    SafetensorsHeader parsed;
    if (auto read = parse_json({reinterpret_cast<const char*>(header.data()), header.size()}, parsed); !read)
        return std::move(read).error().in("header");

    const auto data = bytes.subspan(static_cast<std::size_t>(in.position()));
    SafetensorsFile out;
    out.tensors.reserve(parsed.entries.size());
    for (const SafetensorsEntry& entry : parsed.entries) {
        DECANT_TRY(const Tensor tensor, place_safetensors_entry(entry, data));
        out.tensors.push_back(tensor);
    }
    DECANT_TRY(out.by_name, index_by_name(out.tensors));
    DECANT_CHECK(check_safetensors_cover(parsed.entries, data.size()));
    out.names = std::move(parsed.names);
    return out;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

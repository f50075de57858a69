// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The GGUF reader, versions 2 and 3, little-endian. Everything that the file claims about itself is checked here,
/// once, before anything of it is handed out. Source: the GGUF specification (docs/gguf.md of ggml), "File Structure".

#include <decant/files/ggml_types.hpp>
#include <decant/files/metadata.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/tensor.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// What a GGUF file holds; views of its bytes.
struct GgufFile {
    std::uint32_t version = 0;
    std::uint64_t alignment = 0;
    Metadata metadata;
    std::vector<Tensor> tensors;       ///< in the order of the file
    std::vector<std::size_t> by_name;  ///< see `index_by_name`
};

[[nodiscard]] inline bool starts_like_gguf(std::span<const std::byte> bytes) noexcept {
    return bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
}

/// Magic and version. The magic is the same in files of the other byte order; there the version's bytes are reversed.
[[nodiscard]] inline Result<std::uint32_t> read_gguf_version(ByteReader& in) {
    DECANT_TRY(const auto magic, in.take(4, "the magic"));
    if (!starts_like_gguf(magic))
        return Error{
            ErrorCode::bad_format,
            text("the first four bytes are ",
                 detail::quoted({reinterpret_cast<const char*>(magic.data()), magic.size()}), ", not \"GGUF\""),
            "byte 0", "this is not a GGUF file"};
    DECANT_TRY(const std::uint32_t version, in.number<std::uint32_t>("the version"));
    if (version == 2 || version == 3) return version;
    const bool reversed = version > 0xffff && (version & 0xffff) == 0;
    if (reversed)
        return Error{ErrorCode::unsupported,
                     text("the file's byte order is big-endian (version ", (version >> 24) | (version >> 8 & 0xff00),
                          " with its bytes reversed); only little-endian files are read"),
                     "byte 4", "convert the file to little-endian"};
    return Error{ErrorCode::unsupported, text("unsupported version ", version, " of GGUF; 2 and 3 are read"), "byte 4",
                 "convert the model again with a current tool"};
}

struct GgufTensorInfo {
    const GgmlType* type = nullptr;
    std::uint64_t size = 0;    // in bytes
    std::uint64_t offset = 0;  // from the start of the data section
};

/// What follows a tensor's name. The size is computed with checked products in unsigned 64 bit.
[[nodiscard]] inline Result<GgufTensorInfo> read_gguf_tensor_info(ByteReader& in, Shape& shape) {
    const std::uint64_t at = in.position();
    DECANT_TRY(const std::uint32_t rank, in.number<std::uint32_t>("the number of dimensions"));
    if (rank > shape.dims.size())
        return Error{ErrorCode::unsupported, text("it has ", rank, " dimensions; up to 4 are read"), text("byte ", at),
                     ""};
    shape.rank = static_cast<int>(rank);
    std::optional<std::uint64_t> elements = 1;
    for (std::size_t i = 0; i < rank; ++i) {
        DECANT_TRY(const std::uint64_t dim, in.number<std::uint64_t>("a dimension"));
        shape.dims[rank - 1 - i] = dim;  // the file has the innermost first
        if (dim == 0)
            return Error{ErrorCode::bad_format, text("dimension ", i, " (innermost first) is zero"), text("byte ", at),
                         ""};
        if (elements) elements = checked_multiply(*elements, dim);
    }
    DECANT_TRY(const std::uint32_t id, in.number<std::uint32_t>("the tensor type"));
    DECANT_TRY(const std::uint64_t offset, in.number<std::uint64_t>("the offset"));
    const GgmlType* type = ggml_type(id);
    if (type == nullptr) return Error{ErrorCode::unsupported, text("unknown tensor type ", id), text("byte ", at), ""};
    const std::uint64_t columns = rank == 0 ? 1 : shape.dims[rank - 1];
    if (columns % type->block_elements != 0)
        return Error{
            ErrorCode::bad_format,
            text("a row of ", columns, " is not a whole number of ", type->name, " blocks of ", type->block_elements),
            text("byte ", at), ""};
    const auto size = elements ? checked_multiply(*elements / type->block_elements, type->block_bytes) : std::nullopt;
    if (!size)
        return Error{ErrorCode::bad_format,
                     text("the size of ", describe(shape), " ", type->name, " overflows 64 bits"), text("byte ", at),
                     ""};
    return GgufTensorInfo{type, *size, offset};
}

/// `general.alignment`, or the default where the key is absent.
[[nodiscard]] inline Result<std::uint64_t> read_gguf_alignment(const Metadata& metadata) {
    constexpr std::string_view key = "general.alignment";
    if (!metadata.contains(key)) return std::uint64_t{32};
    DECANT_TRY(const std::uint64_t alignment, metadata.uint(key));
    if (!std::has_single_bit(alignment))
        return Error{ErrorCode::bad_format, text("the alignment is ", alignment, ", not a power of two"),
                     text("key ", detail::quoted(key)), ""};
    return alignment;
}

/// Points the tensors at their bytes: each range aligned, inside the file, and of no other tensor.
[[nodiscard]] inline Result<void> place_gguf_tensors(std::span<const std::byte> bytes, std::uint64_t data_start,
                                                     std::uint64_t alignment, std::span<const GgufTensorInfo> infos,
                                                     std::span<Tensor> tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const GgufTensorInfo& info = infos[i];
        if (info.offset % alignment != 0)
            return Error{ErrorCode::bad_format,
                         text("its offset ", info.offset, " is not a multiple of the alignment ", alignment),
                         tensor_label(tensors[i].name), ""};
        const auto begin = checked_add(data_start, info.offset);
        const auto end = begin ? checked_add(*begin, info.size) : std::nullopt;
        if (!end || *end > bytes.size())
            return Error{ErrorCode::bad_format,
                         text("its ", info.size, " bytes at offset ", info.offset, " of the data (",
                              end ? text("bytes ", *begin, " to ", *end) : std::string("past 64 bits"),
                              ") are not inside the file of ", bytes.size(), " bytes"),
                         tensor_label(tensors[i].name), "the file is cut off or damaged"};
        tensors[i].bytes = bytes.subspan(static_cast<std::size_t>(*begin), static_cast<std::size_t>(info.size));
    }
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return infos[a].offset < infos[b].offset; });
    for (std::size_t i = 1; i < order.size(); ++i) {
        const std::size_t before = order[i - 1], after = order[i];
        if (infos[after].offset - infos[before].offset < infos[before].size)
            return Error{ErrorCode::bad_format,
                         text("its data at offset ", infos[after].offset, " overlaps that of ",
                              tensor_label(tensors[before].name), " (", infos[before].size, " bytes at offset ",
                              infos[before].offset, ")"),
                         tensor_label(tensors[after].name), "the file is damaged"};
    }
    return {};
}

/// Reads all of a GGUF file but its tensor data. The result views `bytes`, which must outlive it.
/// Time O(n log n) in keys and tensors, memory in proportion to them. Dimensions of zero are refused; no dimensions are
/// a scalar with one element. Errors name the key or tensor, not the file.
[[nodiscard]] inline Result<GgufFile> read_gguf(std::span<const std::byte> bytes) {
    constexpr std::uint64_t smallest_pair = 14;    // key length, a byte of key, value type, a byte of value
    constexpr std::uint64_t smallest_tensor = 24;  // name length, number of dimensions, type, offset
    ByteReader in(bytes);
    GgufFile out;
    DECANT_TRY(out.version, read_gguf_version(in));
    DECANT_TRY(const std::uint64_t tensor_count, in.count(smallest_tensor, "the number of tensors"));
    DECANT_TRY(const std::uint64_t pair_count, in.count(smallest_pair, "the number of key/value pairs"));
    DECANT_TRY(out.metadata, Metadata::read(in, pair_count));
    DECANT_TRY(out.alignment, read_gguf_alignment(out.metadata));

    std::vector<GgufTensorInfo> infos;
    for (std::uint64_t i = 0; i < tensor_count; ++i) {
        Tensor tensor;
        DECANT_TRY(tensor.name, in.string("a tensor name length"));
        auto info = read_gguf_tensor_info(in, tensor.shape);
        if (!info) return std::move(info).error().in(tensor_label(tensor.name));
        tensor.type_name = info->type->name;
        tensor.dtype = info->type->dtype;
        out.tensors.push_back(tensor);
        infos.push_back(*info);
    }
    DECANT_TRY(out.by_name, index_by_name(out.tensors));
    if (out.tensors.empty()) return out;

    const std::uint64_t padding = (out.alignment - in.position() % out.alignment) % out.alignment;
    const auto data_start = checked_add(in.position(), padding);
    if (!data_start)
        return Error{ErrorCode::bad_format, text("no data section can start at the alignment ", out.alignment),
                     "key \"general.alignment\"", ""};
    DECANT_CHECK(place_gguf_tensors(bytes, *data_start, out.alignment, infos, out.tensors));
    return out;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

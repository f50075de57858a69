// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `GgufWriter`: builds a GGUF v3 file in memory from key/value pairs and tensors.

#include <decant/core/dtype.hpp>
#include <decant/files/ggml_types.hpp>
#include <decant/files/metadata_type.hpp>
#include <decant/files/tensor.hpp>
#include <decant/files/writer.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// The value type of a C++ number.
template <class T>
[[nodiscard]] constexpr MetadataType metadata_type_of() noexcept {
    if constexpr (std::is_same_v<T, bool>)
        return MetadataType::boolean;
    else if constexpr (std::is_same_v<T, float>)
        return MetadataType::f32;
    else if constexpr (std::is_same_v<T, double>)
        return MetadataType::f64;
    else if constexpr (sizeof(T) == 1)
        return std::is_signed_v<T> ? MetadataType::i8 : MetadataType::u8;
    else if constexpr (sizeof(T) == 2)
        return std::is_signed_v<T> ? MetadataType::i16 : MetadataType::u16;
    else if constexpr (sizeof(T) == 4)
        return std::is_signed_v<T> ? MetadataType::i32 : MetadataType::u32;
    else
        return std::is_signed_v<T> ? MetadataType::i64 : MetadataType::u64;
}

}  // namespace detail

/// Names are written as given: whether they are unique is not checked. Tensor data is copied by `finish` only, and must
/// live until then. One thread at a time.
class GgufWriter {
 public:
    /// `alignment` of the tensor data, a power of two; written as general.alignment unless it is the default of 32.
    explicit GgufWriter(std::uint32_t alignment = 32) : alignment_(alignment) {
        DECANT_ASSERT(std::has_single_bit(alignment));
        if (alignment != 32) add("general.alignment", alignment);
    }

    /// A number or bool, with the value type of its C++ type.
    template <class T>
    requires std::is_arithmetic_v<T>
    void add(std::string_view key, T value) {
        begin_pair(key, detail::metadata_type_of<T>());
        detail::put(pairs_, value);
    }
    void add(std::string_view key, std::string_view value) {
        begin_pair(key, MetadataType::string);
        detail::put_string(pairs_, value);
    }
    void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
    /// An array of numbers.
    template <class T>
    requires(std::is_arithmetic_v<T> && !std::same_as<T, bool>) void add(std::string_view key,
                                                                         std::span<const T> values) {
        begin_array(key, detail::metadata_type_of<T>(), values.size());
        for (const T value : values) detail::put(pairs_, value);
    }
    void add(std::string_view key, std::span<const std::string_view> values) {
        begin_array(key, MetadataType::string, values.size());
        for (const std::string_view value : values) detail::put_string(pairs_, value);
    }

    /// A tensor of any dtype but `other`; `bytes` must be what dtype and shape need.
    void add_tensor(std::string_view name, DType dtype, const Shape& shape, std::span<const std::byte> bytes) {
        DECANT_ASSERT(detail::ggml_type(detail::ggml_id(dtype)) != nullptr);
        DECANT_ASSERT(bytes.size() == shape.rows() * row_bytes(dtype, static_cast<std::size_t>(shape.columns())));
        add_tensor(name, detail::ggml_id(dtype), shape, bytes);
    }
    /// A tensor of a type given by its number in the format; sizes are the caller's affair.
    void add_tensor(std::string_view name, std::uint32_t ggml_type, const Shape& shape,
                    std::span<const std::byte> bytes) {
        detail::put_string(infos_, name);
        detail::put(infos_, static_cast<std::uint32_t>(shape.rank));
        for (int i = shape.rank; i-- > 0;) detail::put(infos_, shape.dims[static_cast<std::size_t>(i)]);
        detail::put(infos_, ggml_type);
        detail::put(infos_, data_size_);
        data_size_ += (bytes.size() + alignment_ - 1) / alignment_ * alignment_;
        data_.push_back(bytes);
    }

    /// The whole file.
    [[nodiscard]] std::vector<std::byte> finish() const {
        std::vector<std::byte> out;
        for (const char c : {'G', 'G', 'U', 'F'}) out.push_back(static_cast<std::byte>(c));
        detail::put(out, std::uint32_t{3});
        detail::put(out, std::uint64_t{data_.size()});
        detail::put(out, pair_count_);
        out.insert(out.end(), pairs_.begin(), pairs_.end());
        out.insert(out.end(), infos_.begin(), infos_.end());
        const auto pad = [&] { out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_); };
        pad();
        for (const auto bytes : data_) {
            out.insert(out.end(), bytes.begin(), bytes.end());
            pad();
        }
        return out;
    }

 private:
    void begin_pair(std::string_view key, MetadataType type) {
        ++pair_count_;
        detail::put_string(pairs_, key);
        detail::put(pairs_, static_cast<std::uint32_t>(type));
    }
    void begin_array(std::string_view key, MetadataType element, std::size_t count) {
        begin_pair(key, MetadataType::array);
        detail::put(pairs_, static_cast<std::uint32_t>(element));
        detail::put(pairs_, std::uint64_t{count});
    }

    std::uint64_t alignment_;
    std::uint64_t pair_count_ = 0;
    std::uint64_t data_size_ = 0;
    std::vector<std::byte> pairs_;
    std::vector<std::byte> infos_;
    std::vector<std::span<const std::byte>> data_;
};

}  // namespace decant::inline DECANT_ABI

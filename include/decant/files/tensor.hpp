// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Tensor`: one named array of numbers in a file, as a view of the file's own bytes; and lookup by name.

#include <decant/core/dtype.hpp>
#include <decant/core/result.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Dimensions, outermost first: a matrix is {rows, columns}. Rank 0 is a scalar: one number.
struct Shape {
    std::array<std::uint64_t, 4> dims{};
    int rank = 0;

    /// Product of all dimensions but the last; 1 for vectors and scalars.
    [[nodiscard]] std::uint64_t rows() const noexcept {
        std::uint64_t product = 1;
        for (int i = 0; i + 1 < rank; ++i) product *= dims[static_cast<std::size_t>(i)];
        return product;
    }
    /// The last dimension; 1 for a scalar.
    [[nodiscard]] std::uint64_t columns() const noexcept {
        return rank == 0 ? 1 : dims[static_cast<std::size_t>(rank - 1)];
    }

    friend bool operator==(const Shape&, const Shape&) = default;
};

/// A view of one tensor; valid while the `Weights` that gave it (or a copy of that handle) lives.
struct Tensor {
    std::string_view name;
    std::string_view type_name;  ///< as the format spells it ("Q4_1", "IQ2_XXS", "F8_E4M3"), for messages
    DType dtype = DType::other;  ///< `other` where nothing computes with it
    Shape shape;
    std::span<const std::byte> bytes;  ///< at any alignment; the size is what shape and type need

    /// Product of all dimensions but the last; 1 for vectors and scalars.
    [[nodiscard]] std::uint64_t rows() const noexcept { return shape.rows(); }
    /// The last dimension; 1 for a scalar.
    [[nodiscard]] std::uint64_t columns() const noexcept { return shape.columns(); }
};

namespace detail {

[[nodiscard]] inline std::string tensor_label(std::string_view name) { return text("tensor ", detail::quoted(name)); }

/// "[2, 3]", outermost first.
[[nodiscard]] inline std::string describe(const Shape& shape) {
    std::string out = "[";
    for (int i = 0; i < shape.rank; ++i) out += text(i == 0 ? "" : ", ", shape.dims[static_cast<std::size_t>(i)]);
    return out += "]";
}

/// Positions of the tensors in order of their names. Sorting, not hashing: no choice of names makes it slow.
[[nodiscard]] inline std::vector<std::size_t> order_by_name(std::span<const Tensor> tensors) {
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return tensors[a].name < tensors[b].name; });
    return order;
}

/// `order_by_name`, or an error naming the first name that occurs twice.
[[nodiscard]] inline Result<std::vector<std::size_t>> index_by_name(std::span<const Tensor> tensors) {
    std::vector<std::size_t> order = order_by_name(tensors);
    const auto twin = std::adjacent_find(
        order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return tensors[a].name == tensors[b].name; });
    if (twin != order.end())
        return Error{ErrorCode::bad_format, "the name occurs twice", tensor_label(tensors[*twin].name),
                     "the file is damaged or was written by a broken tool"};
    return order;
}

[[nodiscard]] inline const Tensor* find_by_name(std::span<const Tensor> tensors, std::span<const std::size_t> order,
                                                std::string_view name) noexcept {
    const auto at = std::lower_bound(order.begin(), order.end(), name,
                                     [&](std::size_t i, std::string_view wanted) { return tensors[i].name < wanted; });
    return at != order.end() && tensors[*at].name == name ? &tensors[*at] : nullptr;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `requantize`: another build of a model's weights, made in memory.

#include <decant/core/dtype.hpp>
#include <decant/core/math_guard.hpp>
#include <decant/core/memory.hpp>
#include <decant/core/progress.hpp>
#include <decant/core/result.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/weights.hpp>
#include <decant/quant/formats.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Whether `requantize` writes this tensor anew. Biases of several experts and norms of several groups have the shape
/// of a matrix and are none; convolutions and tables with a few columns keep their precision.
[[nodiscard]] inline bool is_requantized(const Tensor& tensor, DType matrices) noexcept {
    constexpr std::uint64_t fewest_columns = 32;
    const std::uint64_t columns = tensor.columns();
    return tensor.shape.rank >= 2 && tensor.rows() > 1 && columns >= fewest_columns &&
           columns % traits(matrices).block_elements == 0 && tensor.dtype != matrices && tensor.dtype != DType::other &&
           !tensor.name.ends_with("bias") && tensor.name.find("norm") == std::string_view::npos;
}

/// Where tensors are put in one allocation, or nothing if it would be larger than memory can be.
[[nodiscard]] inline std::optional<std::size_t> add_room(std::size_t used, const Tensor& tensor, DType dtype) noexcept {
    constexpr std::uint64_t alignment = HostMemory::alignment;
    const DTypeTraits layout = traits(dtype);
    const auto elements = checked_multiply(tensor.rows(), tensor.columns());
    const auto bytes =
        elements ? checked_multiply(*elements / layout.block_elements, layout.block_bytes) : std::nullopt;
    const auto end = bytes ? checked_add(used, *bytes) : std::nullopt;
    const auto padded = end ? checked_add(*end, alignment - 1) : std::nullopt;
    if (!padded || *padded > (std::numeric_limits<std::size_t>::max)()) return std::nullopt;
    return static_cast<std::size_t>(*padded / alignment * alignment);
}

/// Converts `count` numbers in whole blocks of both dtypes, which is any piece of a tensor that begins at a block.
inline void convert(DType from, const std::byte* in, DType to, std::byte* out, std::size_t count) noexcept {
    constexpr std::size_t piece = 1024;  // whole blocks of every dtype
    float numbers[piece];
    const MathGuard guard;
    for (std::size_t at = 0; at < count; at += piece) {
        const std::size_t columns = (std::min)(piece, count - at);
        dequantize_row(from, in + row_bytes(from, at), columns, numbers);
        quantize_row(to, numbers, columns, out + row_bytes(to, at));
    }
}

}  // namespace detail

/// A new handle with the same metadata and tensor names in which every matrix is stored as `matrices` (F32, F16, BF16,
/// Q8_0, Q4_0 or Q4_1). To F32 that is exact; numbers that are not finite become what `WritableFormat` says. Vectors,
/// biases, matrices with fewer than 32 columns or with columns that are no whole number of blocks, and what is stored
/// so already are views of `source`, which is kept open; the rest is one allocation from `memory`. The name is
/// source's with the dtype behind it. Runs on the calling thread and reads every matrix once (some 100 million weights
/// a second); progress is in bytes written. Errors: `invalid_argument` for a dtype that cannot be written,
/// `out_of_memory`, `cancelled`.
[[nodiscard]] inline Result<Weights> requantize(const Weights& source, DType matrices, CallOptions options = {},
                                                const Memory& memory = {}) {
    if (!can_quantize(matrices)) {
        return Error{ErrorCode::invalid_argument, detail::text(name(matrices), " cannot be written"), "requantize",
                     "F32, F16, BF16, Q8_0, Q4_0 and Q4_1 can"};
    }
    std::vector<Tensor> tensors(source.tensors().begin(), source.tensors().end());
    std::size_t room = 0;
    std::uint64_t total = 0;
    for (const Tensor& tensor : tensors) {
        if (!detail::is_requantized(tensor, matrices)) continue;
        const auto end = detail::add_room(room, tensor, matrices);
        if (!end) {
            return Error{ErrorCode::out_of_memory,
                         detail::text("the matrices as ", name(matrices), " are larger than any memory"), source.name(),
                         "choose a smaller dtype"};
        }
        room = *end;
        total += tensor.rows() * row_bytes(matrices, static_cast<std::size_t>(tensor.columns()));
    }
    auto made = memory.allocate(room);
    if (!made) return std::move(made).error().in(source.name());
    const auto owner = std::make_shared<const HostMemory>(*std::move(made));

    constexpr std::size_t step = std::size_t{1} << 18;  // numbers between two looks at `options`
    std::byte* out = owner->data();
    std::uint64_t done = 0;
    for (Tensor& tensor : tensors) {
        if (!detail::is_requantized(tensor, matrices)) continue;
        const auto count = static_cast<std::size_t>(tensor.rows() * tensor.columns());
        for (std::size_t at = 0; at < count; at += step) {
            if (!options.go_on({done, total})) return detail::cancelled(source.name());
            const std::size_t numbers = (std::min)(step, count - at);
            detail::convert(tensor.dtype, tensor.bytes.data() + row_bytes(tensor.dtype, at), matrices,
                            out + row_bytes(matrices, at), numbers);
            done += row_bytes(matrices, numbers);
        }
        const std::size_t bytes = row_bytes(matrices, count);
        tensor.dtype = matrices;
        tensor.type_name = name(matrices);
        tensor.bytes = {out, bytes};
        out += (bytes + HostMemory::alignment - 1) / HostMemory::alignment * HostMemory::alignment;
    }
    if (!options.go_on({total, total})) return detail::cancelled(source.name());
    return Weights::with_tensors(source, std::move(tensors), owner,
                                 detail::text(source.name(), " as ", name(matrices)));
}

}  // namespace decant::inline DECANT_ABI

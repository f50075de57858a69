// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `DType`: how the numbers of a tensor are stored. Block formats store `block_elements` consecutive numbers of a row
/// in `block_bytes` bytes.

#include <decant/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace decant::inline DECANT_ABI {

enum class DType : std::uint8_t { f32, f16, bf16, q4_0, q4_1, q5_0, q8_0, q4_k, q6_k, other };

struct DTypeTraits {
    std::string_view name;
    std::uint32_t block_elements;
    std::uint32_t block_bytes;
};

/// Layout of a dtype. `other` (a type that files may hold and nothing computes with) has zero sizes.
[[nodiscard]] constexpr DTypeTraits traits(DType dtype) noexcept {
    switch (dtype) {
        case DType::f32: return {"F32", 1, 4};
        case DType::f16: return {"F16", 1, 2};
        case DType::bf16: return {"BF16", 1, 2};
        case DType::q4_0: return {"Q4_0", 32, 18};
        case DType::q4_1: return {"Q4_1", 32, 20};
        case DType::q5_0: return {"Q5_0", 32, 22};
        case DType::q8_0: return {"Q8_0", 32, 34};
        case DType::q4_k: return {"Q4_K", 256, 144};
        case DType::q6_k: return {"Q6_K", 256, 210};
        case DType::other: break;
    }
    return {"other", 0, 0};
}

[[nodiscard]] constexpr std::string_view name(DType dtype) noexcept { return traits(dtype).name; }

/// Bytes of one row of `columns` numbers; `columns` must be a multiple of the block.
[[nodiscard]] constexpr std::size_t row_bytes(DType dtype, std::size_t columns) noexcept {
    const DTypeTraits layout = traits(dtype);
    return layout.block_elements == 0 ? 0 : columns / layout.block_elements * layout.block_bytes;
}

}  // namespace decant::inline DECANT_ABI

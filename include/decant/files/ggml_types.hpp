// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The tensor types that a GGUF file may name: spelling and block layout of each, also of those that nothing here
/// computes with, so that their sizes are checked too. Source: `enum ggml_type` and the block structures of ggml.

#include <decant/core/dtype.hpp>

#include <array>
#include <cstdint>
#include <string_view>

namespace decant::inline DECANT_ABI {
namespace detail {

struct GgmlType {
    std::string_view name;  ///< empty: the id was removed from the format
    std::uint32_t block_elements = 0;
    std::uint32_t block_bytes = 0;
    DType dtype = DType::other;
};

/// Indexed by the id in the file.
inline constexpr std::array<GgmlType, 43> ggml_types{{
    {"F32", 1, 4, DType::f32},
    {"F16", 1, 2, DType::f16},
    {"Q4_0", 32, 18, DType::q4_0},
    {"Q4_1", 32, 20, DType::q4_1},
    {},
    {},
    {"Q5_0", 32, 22, DType::q5_0},
    {"Q5_1", 32, 24},
    {"Q8_0", 32, 34, DType::q8_0},
    {"Q8_1", 32, 36},
    {"Q2_K", 256, 84},
    {"Q3_K", 256, 110},
    {"Q4_K", 256, 144, DType::q4_k},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210, DType::q6_k},
    {"Q8_K", 256, 292},
    {"IQ2_XXS", 256, 66},
    {"IQ2_XS", 256, 74},
    {"IQ3_XXS", 256, 98},
    {"IQ1_S", 256, 50},
    {"IQ4_NL", 32, 18},
    {"IQ3_S", 256, 110},
    {"IQ2_S", 256, 82},
    {"IQ4_XS", 256, 136},
    {"I8", 1, 1},
    {"I16", 1, 2},
    {"I32", 1, 4},
    {"I64", 1, 8},
    {"F64", 1, 8},
    {"IQ1_M", 256, 56},
    {"BF16", 1, 2, DType::bf16},
    {},
    {},
    {},
    {"TQ1_0", 256, 54},
    {"TQ2_0", 256, 66},
    {},
    {},
    {},
    {"MXFP4", 32, 17},
    {"NVFP4", 64, 36},
    {"Q1_0", 128, 18},
    {"Q2_0", 64, 18},
}};

/// The type of an id, or nullptr for one that is unknown or was removed.
[[nodiscard]] constexpr const GgmlType* ggml_type(std::uint32_t id) noexcept {
    return id < ggml_types.size() && ggml_types[id].block_elements != 0 ? &ggml_types[id] : nullptr;
}

/// The id of a dtype; `other` has none and gives an id that no file may hold.
[[nodiscard]] constexpr std::uint32_t ggml_id(DType dtype) noexcept {
    std::uint32_t id = 0;
    while (id < ggml_types.size() && (dtype == DType::other || ggml_types[id].dtype != dtype)) ++id;
    return id;
}

/// Both tables must say the same about the types that are in both.
static_assert([] {
    for (const GgmlType& type : ggml_types) {
        const DTypeTraits layout = traits(type.dtype);
        if (type.dtype != DType::other && (type.name != layout.name || type.block_elements != layout.block_elements ||
                                           type.block_bytes != layout.block_bytes))
            return false;
    }
    return true;
}());

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

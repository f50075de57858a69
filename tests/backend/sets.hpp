// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The list of instruction sets for suites that are typed over them, and rows of activations as they multiply them.

#include <decant/backend/simd/avx2.hpp>
#include <decant/backend/simd/avx512.hpp>
#include <decant/backend/simd/avx512_bf16.hpp>
#include <decant/backend/simd/neon.hpp>
#include <decant/backend/simd/portable.hpp>

#include <cstddef>
#include <vector>

#ifndef DECANT_TEST_SETS
#if DECANT_X86
#define DECANT_TEST_SETS                                                                         \
    decant::simd::Portable, decant::simd::Avx2, decant::simd::AvxVnni, decant::simd::Avx512Vnni, \
        decant::simd::Avx512Bf16
#elif DECANT_ARM64
#define DECANT_TEST_SETS decant::simd::Portable, decant::simd::Neon, decant::simd::NeonDotprod
#else
#define DECANT_TEST_SETS decant::simd::Portable
#endif
#endif

namespace decant_test {

/// A row of activations in 8 bits with memory of its own.
struct QuantizedRow {
    std::vector<decant::simd::ActivationBlock> blocks;

    QuantizedRow() = default;
    QuantizedRow(const float* x, std::size_t columns) : blocks(columns / decant::simd::activation_block) {
        decant::simd::Portable::quantize(x, columns, blocks.data());
    }
    double step(std::size_t column) const { return blocks[column / decant::simd::activation_block].scale; }
    double value(std::size_t column) const {
        const auto& block = blocks[column / decant::simd::activation_block];
        return static_cast<double>(block.scale) * block.codes[column % decant::simd::activation_block];
    }
};

}  // namespace decant_test

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Panels of every format and set hold the dequantized weights: the unpackers of include/decant/quant/*.inl.
#include <decant/backend/simd/lanes.hpp>

#include "backend/matrices.hpp"
#include "backend/sets.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

using decant::panel_rows;
using decant_test::Random;

namespace {

/// 16 rows of blocks, `stride` bytes apart, the first at an odd address, with no more to read behind the last than an
/// unpacker may.
struct Rows {
    std::size_t stride;
    std::vector<std::byte> memory;
    const std::byte* first() const { return memory.data() + 1; }

    Rows(Random& random, decant::DType dtype, std::size_t columns)
        : stride(decant::row_bytes(dtype, columns) + random.between(0, 4)),
          memory(1 + (panel_rows - 1) * stride + decant::row_bytes(dtype, columns) + 15) {
        const std::size_t bytes = decant::row_bytes(dtype, columns), block = decant::traits(dtype).block_bytes;
        for (std::size_t row = 0; row < panel_rows; ++row) {
            for (std::size_t at = 0; at < bytes; at += block)
                fill(random, dtype, &memory[1 + row * stride + at], block);
        }
    }

 private:
    /// Random bytes, or all the same at a limit. Scales are of every kind that a file may hold.
    static void fill(Random& random, decant::DType dtype, std::byte* block, std::size_t bytes) {
        const std::size_t limit = random.between(0, 9);
        constexpr std::uint8_t limits[] = {0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0};
        for (std::size_t i = 0; i < bytes; ++i)
            block[i] = static_cast<std::byte>(limit < std::size(limits) ? limits[limit] : random.bits());
        if (!decant_test::is_block_format(dtype)) return;
        for (const std::size_t field : decant_test::scale_fields(dtype)) {
            auto bits = static_cast<std::uint16_t>(random.bits() & 0xBFFF);  // finite
            if (random.between(0, 9) == 0)
                bits = random.pick<std::uint16_t>({0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0x7C00, 0x7E00});
            std::memcpy(block + field, &bits, sizeof bits);
        }
    }
};

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// Memory for a panel of exactly the size needed, full of rubbish.
struct Panel {
    std::vector<std::uint8_t> codes;
    std::vector<float> scales;
    std::vector<float> offsets;
};

/// The documented formula gives the dequantized weight: exactly, because every product in the formats' formulas is
/// exact in F32.
template <class Set, decant::CodeFormat Format>
void check(Random& random) {
    constexpr std::size_t block = decant::traits(Format::dtype).block_elements;
    // AVX2 and NEON multiply codes of eight bits as signed ones, without the bias.
    constexpr bool neon = Set::isa == decant::Isa::neon || Set::isa == decant::Isa::neon_dotprod;
    const int bias = (Set::isa == decant::Isa::avx2 || neon) && Format::code_bits > 7 ? 0 : Format::bias;
    for (int round = 0; round < 60; ++round) {
        const std::size_t columns = block * random.between(1, decant::simd::piece_columns / block);
        CAPTURE(decant::name(Format::dtype), columns);
        const Rows rows(random, Format::dtype, columns);
        Panel panel{std::vector<std::uint8_t>(columns * panel_rows, 0xA5),
                    std::vector<float>(columns / Format::panel_block * panel_rows, -7.0f),
                    std::vector<float>(Format::has_offset ? columns / Format::panel_block * panel_rows : 0, -9.0f)};
        Set::unpack(rows.first(), rows.stride, columns, Format{},
                    decant::CodePanel{panel.codes.data(), panel.scales.data(), panel.offsets.data()});
        std::size_t wrong = 0, out_of_range = 0;
        std::vector<float> expected(columns);
        for (std::size_t row = 0; row < panel_rows; ++row) {
            decant::dequantize_row(Format::dtype, rows.first() + row * rows.stride, columns, expected.data());
            for (std::size_t column = 0; column < columns; ++column) {
                const std::uint8_t byte = panel.codes[(column / 4 * panel_rows + row) * 4 + column % 4];
                const int code = bias == Format::bias ? int{byte} : int{static_cast<std::int8_t>(byte)};
                out_of_range += code + Format::bias - bias < 0 || code + Format::bias - bias >= 1 << Format::code_bits;
                const std::size_t at = column / Format::panel_block * panel_rows + row;
                const float scaled = panel.scales[at] * static_cast<float>(code - bias);
                wrong += !same(scaled + (Format::has_offset ? panel.offsets[at] : 0.0f), expected[column]);
            }
        }
        CHECK(wrong == 0);
        CHECK(out_of_range == 0);
    }
}

template <class Set, decant::FloatFormat Format>
void check(Random& random) {
    for (std::size_t columns = 1; columns < 70; ++columns) {
        CAPTURE(decant::name(Format::dtype), columns);
        const Rows rows(random, Format::dtype, columns);
        std::vector<float> panel(columns * panel_rows, -7.0f);
        Set::unpack(rows.first(), rows.stride, columns, Format{}, panel.data());
        std::size_t wrong = 0;
        std::vector<float> expected(columns);
        for (std::size_t row = 0; row < panel_rows; ++row) {
            decant::dequantize_row(Format::dtype, rows.first() + row * rows.stride, columns, expected.data());
            for (std::size_t column = 0; column < columns; ++column) {
                const float got = panel[column * panel_rows + row];
                // What is no number may become quiet.
                wrong += !std::isnan(got) || !std::isnan(expected[column])
                             ? std::memcmp(&got, &expected[column], sizeof got) != 0
                             : 0;
            }
        }
        CHECK(wrong == 0);
    }
}

}  // namespace

TEMPLATE_TEST_CASE("unpack: panels hold the dequantized weights, whatever the blocks hold", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(17);
    for (const decant::DType dtype : decant_test::all_dtypes)
        decant::visit_format(dtype, [&]<class Format>(Format) { check<TestType, Format>(random); });
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Products of a tile of weight rows on every set: each against the formula in double precision, and the same bits
// whatever it is computed with. Products of few tokens take other paths than those of many.
#include <decant/backend/simd/lanes.hpp>

#include "backend/matrices.hpp"
#include "backend/sets.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

using decant::DType;
using decant::simd::activation_block;
using decant::simd::tile_rows;
using decant::simd::wide_tile_rows;
using decant_test::Matrix;
using decant_test::QuantizedRow;
using decant_test::Random;
using decant_test::Worst;

namespace {

constexpr std::size_t most_tokens = 259, guard = 64;
constexpr float untouched = 12345.0f;

/// Rows of activations: floats, and what block formats multiply of them.
struct Activations {
    std::size_t columns;
    std::vector<float> floats;
    std::vector<QuantizedRow> quantized;

    Activations(std::vector<float> x, std::size_t columns_of_row, bool quantize)
        : columns(columns_of_row), floats(std::move(x)) {
        if (!quantize) return;
        for (std::size_t t = 0; t < floats.size() / columns; ++t) quantized.emplace_back(&floats[t * columns], columns);
    }
    std::size_t rows() const { return floats.size() / columns; }
    template <class X>
    const X* row(std::size_t t) const {
        if constexpr (std::is_same_v<X, float>)
            return &floats[t * columns];
        else
            return quantized[t].blocks.data();
    }
    double value(std::size_t t, std::size_t i) const {
        return quantized.empty() ? double{floats[t * columns + i]} : quantized[t].value(i);
    }
};

/// The products of a set with memory that shows what is written where nothing should be.
template <class Set, class Format>
class Products {
    using X = std::conditional_t<decant::FloatFormat<Format>, float, decant::simd::ActivationBlock>;

 public:
    Products() : scratch_(decant::simd::product_bytes + 64 + guard) {}

    /// [tokens][count] of rows [first, first + count) of a matrix with the given rows of activations, as many at once
    /// as the set takes.
    std::vector<float> operator()(const Matrix& w, std::size_t first, std::size_t count, const Activations& x,
                                  const std::vector<std::size_t>& tokens) {
        const std::size_t row_bytes = decant::row_bytes(w.dtype, w.columns);
        std::vector<const X*> rows;
        for (const std::size_t t : tokens) rows.push_back(x.template row<X>(t));
        const std::size_t most = Set::most_rows(tokens.size());
        const std::size_t used = (tokens.size() + decant::simd::spare_rows) * most;
        std::vector<float> results(tokens.size() * count);
        auto* scratch =
            reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(scratch_.data()) + 63) / 64 * 64);
        std::fill(scratch_.begin(), scratch_.end(), std::byte{0xFF});
        for (std::size_t at = 0; at < count; at += most) {
            const std::size_t n = (std::min)(most, count - at);
            const bool more = first + at + n < w.rows;
            std::vector<float> sums(used + guard, untouched);
            Set::template multiply<Format>({w.data() + (first + at) * row_bytes, row_bytes, n, w.columns, more},
                                           rows.data(), rows.size(), sums.data(), scratch);
            for (std::size_t i = used; i < sums.size(); ++i) beyond_ += sums[i] != untouched;
            for (std::size_t t = 0; t < tokens.size(); ++t) std::copy_n(&sums[t * most], n, &results[t * count + at]);
        }
        for (std::byte* at = scratch + decant::simd::product_bytes; at < scratch_.data() + scratch_.size(); ++at)
            beyond_ += *at != std::byte{0xFF};
        return results;
    }
    /// Floats and bytes that were written where nothing should be.
    std::size_t beyond() const { return beyond_; }

 private:
    std::vector<std::byte> scratch_;
    std::size_t beyond_ = 0;
};

/// Each row of a matrix times each row of activations, computed alone: [row of x][row of the matrix].
template <class Set, class Format>
std::vector<float> alone(Products<Set, Format>& products, const Matrix& w, const Activations& x) {
    std::vector<float> all;
    for (std::size_t t = 0; t < x.rows(); ++t) {
        const std::vector<float> one = products(w, 0, w.rows, x, {t});
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

/// Products that differ from those computed alone, in any company: every number of tokens and of rows.
template <class Set, class Format>
std::size_t different(Random& random, Products<Set, Format>& products, const Matrix& w, const Activations& x,
                      const std::vector<float>& expected, bool thorough) {
    std::size_t wrong = 0;
    const auto compare = [&](std::size_t tokens, std::size_t first, std::size_t count) {
        std::vector<std::size_t> which(tokens);
        for (std::size_t& t : which) t = random.between(0, x.rows() - 1);
        const std::vector<float> got = products(w, first, count, x, which);
        for (std::size_t t = 0; t < tokens; ++t)
            wrong += std::memcmp(&got[t * count], &expected[which[t] * w.rows + first], count * sizeof(float)) != 0;
    };
    const auto part = [&](std::size_t tokens) {
        const std::size_t first = random.between(0, w.rows - 1);
        compare(tokens, first, random.between(1, w.rows - first));
    };
    for (std::size_t tokens = 1; tokens <= 20; ++tokens) {
        compare(tokens, 0, w.rows);
        part(tokens);
    }
    if (!thorough) return wrong;
    for (std::size_t count = 1; count <= w.rows; count += count < tile_rows + 2 ? 1 : random.between(1, 30)) {
        compare(1, 0, count);
        compare(random.between(2, 8), 0, count);
        compare(random.between(9, 20), w.rows - count, count);
    }
    compare(130, 0, w.rows);
    part(130);
    compare(most_tokens, 0, w.rows);
    return wrong;
}

/// A float as the set multiplies it.
template <class Set, class Format>
double multiplied(double x) {
#if DECANT_X86
    if (std::is_same_v<Set, decant::simd::Avx512Bf16> && Format::dtype == DType::bf16)
        return decant::bfloat16_to_float(decant::float_to_bfloat16(static_cast<float>(x)));
#endif
    return x;
}

template <class Set, class Format>
void check_random(Random& random) {
    constexpr std::size_t block = decant::traits(Format::dtype).block_elements;
    constexpr bool is_float = decant::FloatFormat<Format>;
    Products<Set, Format> products;
    std::vector<std::size_t> all_columns{block, 512, 768, 1536 + block};
    if constexpr (is_float) all_columns = {1, 3, 13, 127, 128, 300};
    for (const std::size_t columns : all_columns) {
        const Matrix w = decant_test::random_matrix(random, Format::dtype, wide_tile_rows + 3, columns);
        const Activations x(random.floats(24 * columns, random.pick({0.01f, 1.0f, 50.0f})), columns, !is_float);
        const std::vector<float> got = alone(products, w, x);
        const std::vector<float> values = w.values();
        Worst worst;
        for (std::size_t t = 0; t < x.rows(); ++t) {
            for (std::size_t r = 0; r < w.rows; ++r) {
                double sum = 0.0, size = 0.0;
                for (std::size_t i = 0; i < columns; ++i) {
                    const double term = double{values[r * columns + i]} * multiplied<Set, Format>(x.value(t, i));
                    sum += term;
                    size += std::abs(term);
                }
                // A rounding for each float step. With offsets, w = scale code + offset is never formed: its two parts
                // may cancel.
                const double steps = is_float ? static_cast<double>(columns) : 2.0 * static_cast<double>(columns / 16);
                const double parts = Format::dtype == DType::q4_1 || Format::dtype == DType::q4_k ? 4.0 : 1.0;
                worst.add(got[t * w.rows + r], sum, (steps + 2.0) * parts * size * 0x1p-24 + 1e-37);
            }
        }
        CAPTURE(decant::name(Format::dtype), columns);
        CHECK(worst.units() <= 1.0);
        CHECK(different(random, products, w, x, got, true) == 0);
        CHECK(products.beyond() == 0);
    }
}

/// Blocks whose bytes are at their limits, and whose 16-bit scales are `scale` or zero. Sub-blocks multiply by small
/// numbers.
Matrix limit_matrix(Random& random, DType dtype, std::size_t columns, std::uint16_t scale) {
    Matrix matrix(dtype, tile_rows, columns);
    const std::size_t bytes = decant::traits(dtype).block_bytes;
    constexpr std::uint8_t limits[] = {0x00, 0xFF, 0x80, 0x7F, 0x08, 0x88};
    for (std::size_t at = 0; at < matrix.size(); at += bytes) {
        std::byte* const block = matrix.data() + at;
        const std::size_t limit = random.between(0, 7);
        for (std::size_t i = 0; i < bytes; ++i)
            block[i] = static_cast<std::byte>(limits[limit < std::size(limits) ? limit : random.between(0, 5)]);
        for (const std::size_t field : decant_test::scale_fields(dtype)) {
            const std::uint16_t bits = random.between(0, 9) == 0 ? std::uint16_t{0} : scale;
            std::memcpy(block + field, &bits, sizeof bits);
        }
        if (dtype == DType::q4_k)
            for (std::size_t i = 4; i < 16; ++i)
                block[i] = static_cast<std::byte>(random.pick({0x00, 0x01, 0x02, 0x03}));
        if (dtype == DType::q6_k)
            for (std::size_t i = 192; i < 208; ++i)
                block[i] = static_cast<std::byte>(random.pick({0x00, 0x01, 0x02, 0xFF, 0xFE}));
    }
    return matrix;
}

/// All numbers are integers times one power of two, and sums stay below 2^24: F32 holds them exactly, so that one
/// product that saturates shows.
template <class Set, decant::CodeFormat Format>
void check_limits(Random& random) {
    constexpr std::size_t block = decant::traits(Format::dtype).block_elements;
    Products<Set, Format> products;
    // 1, -1/2, and the least that a 16-bit float holds: as a normal number and as a subnormal one.
    for (const unsigned bits : {0x3C00u, 0xB800u, 0x0400u, 0x8001u}) {
        const auto scale = static_cast<std::uint16_t>(bits);
        const std::size_t columns = block == 256 ? 768 : Format::code_bits == 8 ? 992 : 1056;
        const Matrix w = limit_matrix(random, Format::dtype, columns, scale);
        std::vector<float> numbers(12 * columns);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            const std::size_t t = i / columns;
            const bool positive = t == 0 || (t != 1 && random.coin());
            const float size = t < 8 || i % activation_block == 0 ? 127.0f : static_cast<float>(random.between(0, 127));
            numbers[i] = positive ? size : -size;
        }
        const Activations x(numbers, columns, true);
        const std::vector<float> got = alone(products, w, x), values = w.values();
        std::size_t wrong = 0;
        const double unit = std::abs(double{decant::half_to_float(scale)});
        for (std::size_t t = 0; t < x.rows(); ++t) {
            for (std::size_t r = 0; r < w.rows; ++r) {
                double sum = 0.0, size = 0.0;
                for (std::size_t i = 0; i < columns; ++i) {
                    const double term = double{values[r * columns + i]} * numbers[t * columns + i];
                    sum += term;
                    size += std::abs(term);
                }
                REQUIRE(size < 0x1p24 * unit);
                wrong += static_cast<double>(got[t * w.rows + r]) != sum;
            }
        }
        CAPTURE(decant::name(Format::dtype), scale);
        CHECK(wrong == 0);
        CHECK(different(random, products, w, x, got, false) == 0);
        CHECK(products.beyond() == 0);
    }
}

/// Floats of any size, and results that are no numbers.
template <class Set, decant::FloatFormat Format>
void check_limits(Random& random) {
    Products<Set, Format> products;
    const std::size_t columns = 150;
    Matrix w = decant_test::random_matrix(random, Format::dtype, tile_rows, columns);
    constexpr std::size_t bytes = decant::traits(Format::dtype).block_bytes;
    for (std::size_t at = 0; at < w.size(); at += bytes) {
        if (random.between(0, 20) != 0) continue;
        const float value = random.pick({0.0f, -0.0f, 1e-40f, -3e-6f, 65504.0f});
        Format::quantize(&value, w.data() + at);
    }
    std::vector<float> numbers = random.floats(12 * columns);
    for (float& number : numbers)
        if (random.between(0, 9) == 0) number = random.pick({0.0f, -0.0f, 1e-42f, 1e-37f, -1e30f});
    const Activations x(numbers, columns, false);
    const std::vector<float> got = alone(products, w, x);
    CAPTURE(decant::name(Format::dtype));
    CHECK(different(random, products, w, x, got, false) == 0);
    CHECK(products.beyond() == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("kernels: products are right, and the same in any company", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(71);
    for (const DType dtype : decant_test::all_dtypes)
        decant::visit_format(dtype, [&]<class Format>(Format) { check_random<TestType, Format>(random); });
}

TEMPLATE_TEST_CASE("kernels: codes, scales and activations at their limits", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(72);
    for (const DType dtype : decant_test::all_dtypes)
        decant::visit_format(dtype, [&]<class Format>(Format) { check_limits<TestType, Format>(random); });
}

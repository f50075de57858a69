// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Products of every dtype on every backend: against the formula in double precision, and exactly where all numbers are
// integers.
#include <decant/backend/host/ops.hpp>

#include "backend/support.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

using decant::DType;
using decant::RowSet;
using decant_test::Batch;
using decant_test::Machine;
using decant_test::Matrix;
using decant_test::QuantizedRow;
using decant_test::Random;
using decant_test::Rig;
using decant_test::Worst;

namespace {

struct Product {
    Matrix weight;
    std::optional<Matrix> bias;
    std::vector<float> before;  // what the residual stream holds; empty: no accumulation

    Product(Random& random, DType dtype, std::size_t inputs, std::size_t outputs, std::size_t rows)
        : weight(decant_test::random_matrix(random, dtype, outputs, inputs)) {
        if (random.coin())
            bias = decant_test::random_matrix(random, random.pick({DType::f32, DType::f16, DType::bf16}), 1, outputs);
        if (random.coin()) before = random.floats(rows * outputs);
    }
};

/// `linear` over rows of a random batch, or over its wanted rows, checked value by value. A weight narrower than x has
/// groups of outputs, one for each group of x.
template <class B>
void check_linear(Random& random, const std::vector<float>& x, std::size_t columns,
                  const std::vector<Product>& products, bool wanted) {
    const std::size_t rows = x.size() / columns;
    const std::size_t padding = random.between(0, 2);
    Batch batch({static_cast<std::uint32_t>(rows + padding), 1, static_cast<std::uint32_t>(rows), 1});
    for (std::size_t row = 0; row < rows; ++row) batch.add(row);
    std::vector<std::size_t> order;  // rows of x in the order of the operation's rows
    for (std::size_t row = 0; row < rows; ++row)
        if (!wanted || random.coin()) order.push_back(row);
    if (wanted) random.shuffle(order);
    for (const std::size_t row : order) wanted ? batch.want(row) : static_cast<void>(row);
    const RowSet set = wanted ? RowSet::wanted : RowSet::tokens;

    Rig<B> rig(batch.shape, static_cast<std::uint32_t>(columns));
    std::vector<typename B::View> out;
    std::vector<typename B::LinearTarget> targets;
    std::vector<bool> quantized;
    rig.pass().record([&](auto& pass) {
        auto in = rig.feed(x, columns);
        if (wanted) {
            const auto some = rig.view(columns, RowSet::wanted);
            pass.gather(in, some);
            in = some;
        }
        for (const Product& product : products) {
            const std::size_t outputs = product.weight.rows;
            out.push_back(rig.view(outputs, set));
            if (!product.before.empty()) {
                auto before = rig.feed(product.before, outputs);
                wanted ? pass.gather(before, out.back()) : static_cast<void>(out.back() = before);
            }
            const auto* bias = product.bias ? &rig.weight(*product.bias) : nullptr;
            const auto& weight = rig.weight(product.weight);
            quantized.push_back(rig.pass().kernels().prepares(weight));
            targets.push_back({&weight, bias, out.back(), !product.before.empty()});
        }
        switch (targets.size()) {
            case 1: pass.linear(in, {targets[0]}); break;
            case 2: pass.linear(in, {targets[0], targets[1]}); break;
            case 3: pass.linear(in, {targets[0], targets[1], targets[2]}); break;
            default: pass.linear(in, {targets[0], targets[1], targets[2], targets[3]}); break;
        }
    });
    rig.run(batch);

    for (std::size_t n = 0; n < products.size(); ++n) {
        const Product& product = products[n];
        const std::size_t outputs = product.weight.rows, inputs = product.weight.columns;
        const std::size_t group = outputs / (columns / inputs);
        const std::vector<float> w = product.weight.values();
        const std::vector<float> bias = product.bias ? product.bias->values() : std::vector<float>(outputs);
        const std::vector<float> got = rig.read(out[n], set);
        REQUIRE(got.size() == order.size() * outputs);
        Worst worst;        // against the activations that the kernel multiplies
        Worst worst_exact;  // against the activations as given, within half a quantization step each
        for (std::size_t t = 0; t < order.size(); ++t) {
            const float* given = &x[order[t] * columns];
            const QuantizedRow row(given, quantized[n] ? columns : 0);
            for (std::size_t o = 0; o < outputs; ++o) {
                double sum = 0.0, exact = 0.0, size = 0.0, steps = 0.0;
                const std::size_t from = o / group * inputs;
                for (std::size_t i = from; i < from + inputs; ++i) {
                    const double weight = w[o * inputs + i - from];
                    const double value = quantized[n] ? row.value(i) : double{given[i]};
                    sum += weight * value;
                    exact += weight * given[i];
                    size += std::abs(weight * value);
                    if (quantized[n]) steps += std::abs(weight) * row.step(i);
                }
                const double before = product.before.empty() ? 0.0 : product.before[order[t] * outputs + o];
                // With offsets, w = scale code + offset is never formed: its two parts may cancel.
                const double parts = product.weight.dtype == DType::q4_1 || product.weight.dtype == DType::q4_k ? 4 : 1;
                const double allowed = 1e-5 * parts * size + 1e-6 * (std::abs(bias[o]) + std::abs(before)) + 1e-30;
                worst.add(got[t * outputs + o], before + bias[o] + sum, allowed);
                worst_exact.add(got[t * outputs + o], before + bias[o] + exact, 0.5001 * steps + allowed);
            }
        }
        CAPTURE(decant::name(product.weight.dtype), columns, inputs, outputs, rows, wanted, products.size());
        CHECK(worst.units() <= 1.0);
        CHECK(worst_exact.units() <= 1.0);
        CHECK(rig.padding_untouched(out[n], outputs, set));
    }
}

/// Columns that a dtype allows; sometimes more than the pieces that kernels work in.
std::size_t columns_for(Random& random, DType dtype, int round) {
    const std::size_t block = decant::traits(dtype).block_elements;
    if (round == 0) return (5000 + block - 1) / block * block;
    if (block > 1) return block * random.between(1, 700 / block);
    return random.pick<std::size_t>({1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 100, random.between(1, 300)});
}

/// A weight whose 16-bit scales are 1 and whose other bytes are all `codes`, but for the multipliers of super-blocks:
/// `byte(i)` for the i-th byte of them.
template <class Byte>
Matrix limit_matrix(DType dtype, std::size_t rows, std::size_t columns, std::uint8_t codes, Byte byte) {
    Matrix matrix(dtype, rows, columns);
    std::fill_n(matrix.data(), matrix.size(), static_cast<std::byte>(codes));
    for (std::size_t at = 0; at < matrix.size(); at += decant::traits(dtype).block_bytes) {
        std::byte* const block = matrix.data() + at;
        constexpr std::uint16_t one = 0x3C00;
        for (const std::size_t field : decant_test::scale_fields(dtype)) std::memcpy(block + field, &one, sizeof one);
        if (dtype == DType::q4_k)
            for (std::size_t i = 0; i < 12; ++i) block[4 + i] = static_cast<std::byte>(byte(i));
        if (dtype == DType::q6_k)
            for (std::size_t i = 0; i < 16; ++i) block[192 + i] = static_cast<std::byte>(byte(i));
    }
    return matrix;
}

}  // namespace

TEMPLATE_TEST_CASE("linear: every dtype, alone and with others that share x", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(11);
    for (const DType dtype : decant_test::all_dtypes) {
        for (int round = 0; round < 14; ++round) {
            const std::size_t rows = round % 7 == 0 ? random.between(1, 3) : random.between(1, 20);
            const std::size_t columns = columns_for(random, dtype, round);
            const std::vector<float> x = random.floats(rows * columns, random.pick({0.01f, 1.0f, 50.0f}));
            const auto outputs = [&] {
                return random.pick<std::size_t>({1, 5, 15, 16, 17, 40, random.between(1, 70)});
            };
            std::vector<Product> products;
            products.emplace_back(random, dtype, columns, outputs(), rows);
            const std::size_t others = random.between(0, 3);
            for (std::size_t n = 0; n < others; ++n) {
                DType other = decant_test::all_dtypes[random.between(0, std::size(decant_test::all_dtypes) - 1)];
                if (columns % decant::traits(other).block_elements != 0) other = DType::f16;
                products.emplace_back(random, other, columns, outputs(), rows);
            }
            check_linear<TestType>(random, x, columns, products, random.between(0, 3) == 0);
        }
    }
}

TEMPLATE_TEST_CASE("linear: a product per group of columns, alone and with others", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(15);
    for (const DType dtype : decant_test::all_dtypes) {
        for (int round = 0; round < 10; ++round) {
            const std::size_t rows = random.between(1, 9), groups = random.pick<std::size_t>({2, 3, 5, 8});
            const std::size_t block = decant::traits(dtype).block_elements;
            const std::size_t inputs = round == 0  ? (2500 + block - 1) / block * block  // beyond one piece
                                       : block > 1 ? block * random.between(1, 300 / block)
                                                   : random.pick<std::size_t>({1, 2, 7, 12, 16, 33});
            const std::size_t width = random.pick<std::size_t>({1, 5, 12, 16, 17, 33}), columns = groups * inputs;
            const std::vector<float> x = random.floats(rows * columns, random.pick({0.01f, 1.0f, 50.0f}));
            struct Kind {
                DType dtype;
                std::size_t inputs, outputs;
            };
            std::vector<Kind> kinds{{dtype, inputs, groups * width}};
            if (random.coin()) kinds.push_back({DType::bf16, columns, 21});
            if (random.coin()) kinds.push_back({columns % 32 == 0 ? DType::q8_0 : DType::f16, columns, 18});
            if (random.coin()) kinds.push_back({DType::f32, inputs, groups});
            random.shuffle(kinds);
            std::vector<Product> products;
            for (const Kind& kind : kinds) products.emplace_back(random, kind.dtype, kind.inputs, kind.outputs, rows);
            check_linear<TestType>(random, x, columns, products, random.between(0, 3) == 0);
        }
    }
}

TEMPLATE_TEST_CASE("linear: more rows than a tile takes", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(16);
    // Fewer where rows are long.
    struct {
        std::size_t rows, columns;
    } const shapes[] = {{258, 256}, {259, 256}, {517, 256}, {97, 11008}};
    for (const auto& [rows, columns] : shapes) {
        for (const DType dtype : {DType::bf16, DType::q4_1, DType::q8_0}) {
            const std::vector<float> x = random.floats(rows * columns);
            std::vector<Product> products;
            products.emplace_back(random, dtype, columns, columns > 256 ? 5 : 35, rows);
            products.emplace_back(random, DType::q8_0, columns / 2, 6, rows);
            check_linear<TestType>(random, x, columns, products, random.coin());
        }
    }
}

TEMPLATE_TEST_CASE("linear: F16 and Q4_1 share one x", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(12);
    const std::vector<float> x = random.floats(std::size_t{5} * 96);
    for (const bool f16_first : {true, false}) {
        std::vector<Product> products;
        products.emplace_back(random, f16_first ? DType::f16 : DType::q4_1, 96, 33, 5);
        products.emplace_back(random, f16_first ? DType::q4_1 : DType::f16, 96, 20, 5);
        check_linear<TestType>(random, x, 96, products, false);
    }
}

TEMPLATE_TEST_CASE("linear: nothing wanted, nothing computed", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(13);
    Batch batch({2, 1, 2, 1});
    batch.add(0);
    Rig<TestType> rig(batch.shape, 32);
    const auto y = rig.view(3, RowSet::wanted);
    rig.pass().record([&](auto& pass) {
        const auto x = rig.view(32, RowSet::wanted);
        pass.gather(rig.feed(random.floats(32), 32), x);
        pass.linear(x, {{&rig.weight(decant_test::random_matrix(random, DType::q4_0, 3, 32)), nullptr, y, false}});
    });
    rig.run(batch);
    CHECK(rig.padding_untouched(y, 3, RowSet::wanted));
}

TEMPLATE_TEST_CASE("linear: a NaN or an infinity in x is seen in every output of its row and in no other row", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(14);
    for (const DType dtype : decant_test::all_dtypes) {
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
            std::vector<float> x = random.floats(std::size_t{9} * 512);
            x[4 * 512 + 300] = bad;
            Batch batch({9, 1, 0, 1});
            for (std::size_t row = 0; row < 9; ++row) batch.add(row);
            Rig<TestType> rig(batch.shape, 512);
            const auto y = rig.view(20);
            rig.pass().record([&](auto& pass) {
                pass.linear(rig.feed(x, 512),
                            {{&rig.weight(decant_test::random_matrix(random, dtype, 20, 512)), nullptr, y, false}});
            });
            rig.run(batch);
            const std::vector<float> got = rig.read(y);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < got.size(); ++i) wrong += std::isfinite(got[i]) == (i / 20 == 4);
            CAPTURE(decant::name(dtype), bad);
            CHECK(wrong == 0);
        }
    }
}

TEMPLATE_TEST_CASE("linear: codes and activations at their limits multiply exactly", "", DECANT_TEST_BACKENDS) {
    // All scales are 1 and the largest activation of a block is 127, so that every number is an integer; sums stay
    // below 2^24, where F32 holds them exactly.
    if (!Machine<TestType>::runs()) return;
    constexpr std::size_t rows = 9;
    constexpr std::size_t outputs = 18;
    for (const DType dtype : decant_test::all_dtypes) {
        if (!decant_test::is_block_format(dtype)) continue;
        const bool multiplied = decant::traits(dtype).block_elements == 256;
        const std::size_t columns = multiplied ? 256 : 1024;
        for (const unsigned codes : {0x00u, 0xFFu, 0x80u, 0x7Fu, 0x0Fu, 0xF0u, 0x88u, 0x77u, 0x08u, 0x01u}) {
            for (const bool one_block : {false, true}) {
                // The multipliers at their limits too where only one block of x is not zero.
                const auto multiplier = [&](std::size_t i) -> std::uint8_t {
                    if (dtype == DType::q4_k) return one_block ? 0xFF : i % 2 == 0 ? 0x0F : 0x01;
                    const int value = one_block ? (i % 2 == 0 ? 127 : -128) : (i % 2 == 0 ? 7 : -7);
                    return static_cast<std::uint8_t>(value);
                };
                const Matrix weight =
                    limit_matrix(dtype, outputs, columns, static_cast<std::uint8_t>(codes), multiplier);
                Random random(15 + codes);
                std::vector<float> x(rows * columns);
                for (std::size_t row = 0; row < rows; ++row) {
                    for (std::size_t i = 0; i < columns; ++i) {
                        const bool used = !one_block || i / 32 == row % 8;
                        const float sign = row == 0 ? 1.0f : row == 1 ? -1.0f : random.coin() ? 1.0f : -1.0f;
                        const float size = row < 5 || i % 32 == 0 ? 127.0f : std::floor(random.uniform(0.0f, 128.0f));
                        x[row * columns + i] = used ? sign * size : 0.0f;
                    }
                }
                Batch batch({rows, 1, 0, 1});
                for (std::size_t row = 0; row < rows; ++row) batch.add(row);
                Rig<TestType> rig(batch.shape, static_cast<std::uint32_t>(columns));
                const auto y = rig.view(outputs);
                rig.pass().record([&](auto& pass) {
                    pass.linear(rig.feed(x, columns), {{&rig.weight(weight), nullptr, y, false}});
                });
                rig.run(batch);

                const std::vector<float> got = rig.read(y);
                const std::vector<float> w = weight.values();
                std::size_t wrong = 0;
                for (std::size_t t = 0; t < rows; ++t) {
                    for (std::size_t o = 0; o < outputs; ++o) {
                        std::int64_t sum = 0, size = 0;
                        for (std::size_t i = 0; i < columns; ++i) {
                            const auto term = static_cast<std::int64_t>(w[o * columns + i]) *
                                              static_cast<std::int64_t>(x[t * columns + i]);
                            sum += term;
                            size += std::abs(term);
                        }
                        REQUIRE(size < 1 << 24);
                        wrong += static_cast<double>(got[t * outputs + o]) != static_cast<double>(sum);
                    }
                }
                CAPTURE(decant::name(dtype), codes, one_block);
                CHECK(wrong == 0);
            }
        }
    }
}

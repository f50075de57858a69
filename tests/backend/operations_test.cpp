// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Every operation of every backend against its formula in double precision.
#include <decant/backend/host/ops.hpp>

#include "backend/support.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

using decant::DType;
using decant::RowSet;
using decant_test::Batch;
using decant_test::Machine;
using decant_test::Matrix;
using decant_test::Random;
using decant_test::Rig;
using decant_test::Worst;

namespace {

/// A shape with some unused rows, and a batch of `rows` rows that read the table's rows 0, 1, ... in random order.
struct RowsOnly {
    decant::PassShape shape;
    Batch batch;
    RowsOnly(Random& random, std::size_t rows)
        : shape{static_cast<std::uint32_t>(rows + random.between(0, 3)), 1,
                static_cast<std::uint32_t>(rows + random.between(0, 3)), 1},
          batch(shape) {
        std::vector<std::size_t> order(rows);
        for (std::size_t i = 0; i < rows; ++i) order[i] = i;
        random.shuffle(order);
        for (const std::size_t token : order) batch.add(token);
    }
    std::size_t token(std::size_t row) const { return static_cast<std::size_t>(batch.tokens[row]); }
};

std::size_t some_columns(Random& random) {
    return random.pick<std::size_t>({1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, random.between(1, 700)});
}

decant::GateSpec random_gate(Random& random, bool gated) {
    const auto activation =
        random.pick({decant::Activation::silu, decant::Activation::gelu_tanh, decant::Activation::gelu});
    return {activation, random.pick({1.0f, 1.702f}), gated ? random.pick({0.0f, 0.0f, 2.5f, 7.0f}) : 0.0f};
}

double activated(decant::Activation activation, double x) {
    switch (activation) {
        case decant::Activation::silu: return x / (1.0 + std::exp(-x));
        case decant::Activation::gelu_tanh:
            return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        default: return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    }
}

}  // namespace

TEMPLATE_TEST_CASE("operations: embed copies the dequantized rows of the tokens, scaled", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(1);
    for (const DType dtype : decant_test::all_dtypes) {
        const std::size_t columns =
            decant_test::is_block_format(dtype) ? 256 * random.between(1, 3) : some_columns(random);
        const std::size_t vocabulary = 11;
        const Matrix table = decant_test::random_matrix(random, dtype, vocabulary, columns);
        Batch batch({9, 1, 0, 1});
        for (int row = 0; row < 7; ++row) batch.add(random.between(0, vocabulary - 1));

        Rig<TestType> rig(batch.shape, static_cast<std::uint32_t>(columns));
        const auto x = rig.view(columns);
        const float scale = random.pick({1.0f, 25.298221f, 0.125f});
        rig.pass().record([&](auto& pass) { pass.embed(rig.weight(table), x, scale); });
        rig.run(batch);
        std::vector<float> expected;
        const std::vector<float> values = table.values();
        for (std::size_t row = 0; row < batch.rows; ++row) {
            const float* from = &values[static_cast<std::size_t>(batch.tokens[row]) * columns];
            for (std::size_t i = 0; i < columns; ++i) expected.push_back(scale * from[i]);
        }
        CAPTURE(decant::name(dtype), columns, scale);
        CHECK(decant_test::same_bits(rig.read(x), expected));
        CHECK(rig.padding_untouched(x, columns));
    }
}

TEMPLATE_TEST_CASE("operations: norm of rows or of groups in them, written or added", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(2);
    for (int round = 0; round < 200; ++round) {
        const std::size_t group = some_columns(random);
        const std::size_t groups = random.pick<std::size_t>({1, 1, 2, 5});
        const std::size_t columns = group * groups;
        const RowsOnly in(random, random.between(1, 6));
        const float size = random.pick({1e-6f, 1.0f, 1000.0f});
        std::vector<float> x = random.floats(in.batch.rows * columns, size);
        if (round % 8 == 0) std::fill_n(x.begin(), columns, 0.0f);
        if (round % 3 == 0)
            for (float& value : x) value = 5.0f * size + 0.01f * value;  // a mean far beyond the spread
        // As long as a group, or as the row; a bias too.
        const bool whole = random.coin();
        const std::size_t length = whole ? columns : group;
        const DType dtype = random.pick({DType::f32, DType::f16, DType::bf16});
        const Matrix weight = decant_test::random_matrix(random, dtype, 1, length);
        std::optional<Matrix> bias;
        if (random.coin())
            bias = decant_test::random_matrix(random, random.pick({DType::f32, DType::f16, DType::bf16}), 1, length);
        const std::vector<float> w = weight.values();
        const std::vector<float> b = bias ? bias->values() : std::vector<float>(length);
        const decant::NormSpec spec{random.pick({1e-5f, 1e-6f, 0.5f}), random.pick({0.0f, 0.0f, 1.0f}), random.coin()};
        const bool accumulate = random.coin();
        const bool in_place = !accumulate && random.coin();
        const std::vector<float> before = random.floats(x.size(), 2.0f);

        Rig<TestType> rig(in.shape, static_cast<std::uint32_t>(columns));
        typename TestType::View y{};
        rig.pass().record([&](auto& pass) {
            const auto fed = rig.feed(x, columns);
            y = accumulate ? rig.feed(before, columns) : in_place ? fed : rig.view(columns);
            const auto* added = bias ? &rig.weight(*bias) : nullptr;
            pass.norm(fed, rig.weight(weight), spec, y, accumulate, added,
                      whole ? static_cast<std::uint32_t>(groups) : 1);
        });
        rig.run(in.batch);
        const std::vector<float> got = rig.read(y);
        Worst worst;
        for (std::size_t row = 0; row < in.batch.rows; ++row) {
            for (std::size_t head = 0; head < columns; head += group) {
                const float* from = &x[in.token(row) * columns + head];
                double mean = 0.0, magnitude = 0.0, squares = 0.0;
                for (std::size_t i = 0; spec.centered && i < group; ++i) {
                    mean += from[i] / static_cast<double>(group);
                    magnitude += std::abs(from[i]) / static_cast<double>(group);
                }
                for (std::size_t i = 0; i < group; ++i) squares += (from[i] - mean) * (from[i] - mean);
                const double scale = 1.0 / std::sqrt(squares / static_cast<double>(group) + double{spec.epsilon});
                for (std::size_t i = 0; i < group; ++i) {
                    const std::size_t at = whole ? head + i : i;
                    const double factor = double{w[at]} + double{spec.offset};
                    const double value = (from[i] - mean) * scale * factor;
                    const double old = accumulate ? double{before[in.token(row) * columns + head + i]} : 0.0;
                    // The mean is rounded as its terms are, and so is w + 1.
                    const double allowed = 3e-6 * (std::abs(old) + std::abs(value) + std::abs(b[at])) +
                                           scale * (5e-6 * magnitude * std::abs(factor) +
                                                    1e-7 * double{spec.offset} * std::abs(from[i] - mean));
                    worst.add(got[row * columns + head + i], old + value + b[at], allowed + 1e-37);
                }
            }
        }
        CAPTURE(round, columns, group, in_place, accumulate, whole, spec.centered, spec.offset, decant::name(dtype));
        CHECK(worst.units() <= 1.0);
        CHECK(rig.padding_untouched(y, columns));
    }
}

TEMPLATE_TEST_CASE("operations: angles", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(3);
    for (const std::size_t half : {1u, 3u, 32u, 40u}) {
        std::vector<float> frequencies(half);
        for (std::size_t i = 0; i < half; ++i)
            frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(half));
        const decant::RopeSpec spec{decant::RopeLayout::halves, static_cast<std::uint32_t>(2 * half),
                                    static_cast<std::uint32_t>(2 * half), random.pick({1.0f, 1.25f})};
        Batch batch({9, 1, 0, 1});
        for (const std::size_t position : {0u, 1u, 2u, 63u, 1000u, 131071u}) batch.add(0, position);

        Rig<TestType> rig(batch.shape, static_cast<std::uint32_t>(2 * half));
        const auto y = rig.view(2 * half);
        rig.pass().record([&](auto& pass) { pass.angles(rig.constant(frequencies), spec, y); });
        rig.run(batch);
        const std::vector<float> got = rig.read(y);
        Worst worst;
        for (std::size_t row = 0; row < batch.rows; ++row) {
            for (std::size_t i = 0; i < half; ++i) {
                const double angle = static_cast<double>(batch.positions[row]) * frequencies[i];
                const double allowed = spec.magnitude * (angle * 0x1p-24 + 1e-6);  // the angle itself is rounded
                worst.add(got[row * 2 * half + i], spec.magnitude * std::cos(angle), allowed);
                worst.add(got[row * 2 * half + half + i], spec.magnitude * std::sin(angle), allowed);
            }
        }
        CAPTURE(half);
        CHECK(worst.units() <= 1.0);
        CHECK(rig.padding_untouched(y, 2 * half));
    }
}

TEMPLATE_TEST_CASE("operations: rope turns pairs of both layouts and leaves the rest of a head", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(4);
    for (int round = 0; round < 40; ++round) {
        const auto layout = random.pick({decant::RopeLayout::halves, decant::RopeLayout::interleaved});
        const std::size_t head_dim = random.pick<std::size_t>({2, 3, 7, 64, 80, 81});
        const std::size_t dim = 2 * random.between(1, head_dim / 2);
        const std::size_t heads = random.between(1, 5);
        const std::size_t columns = heads * head_dim;
        const RowsOnly in(random, random.between(1, 5));
        const std::vector<float> x = random.floats(in.batch.rows * columns);
        const std::vector<float> angles = random.floats(in.batch.rows * dim);  // cos and sin: any numbers will do
        const decant::RopeSpec spec{layout, static_cast<std::uint32_t>(head_dim), static_cast<std::uint32_t>(dim),
                                    1.0f};

        Rig<TestType> rig(in.shape, static_cast<std::uint32_t>(columns));
        typename TestType::View y{};
        rig.pass().record([&](auto& pass) {
            y = rig.feed(x, columns);
            pass.rope(y, rig.feed(angles, dim), spec);
        });
        rig.run(in.batch);
        const std::vector<float> got = rig.read(y);
        Worst worst;
        for (std::size_t row = 0; row < in.batch.rows; ++row) {
            const float* turn = &angles[in.token(row) * dim];
            for (std::size_t head = 0; head < heads; ++head) {
                const float* from = &x[in.token(row) * columns + head * head_dim];
                const float* to = &got[row * columns + head * head_dim];
                for (std::size_t i = 0; i < dim / 2; ++i) {
                    const std::size_t first = layout == decant::RopeLayout::halves ? i : 2 * i;
                    const std::size_t second = layout == decant::RopeLayout::halves ? i + dim / 2 : 2 * i + 1;
                    const double a = from[first], b = from[second], cosine = turn[i], sine = turn[dim / 2 + i];
                    worst.add(to[first], a * cosine - b * sine, 4e-7);
                    worst.add(to[second], b * cosine + a * sine, 4e-7);
                }
                for (std::size_t i = dim; i < head_dim; ++i) worst.add(to[i], from[i], 0.0);
            }
        }
        CAPTURE(head_dim, dim, heads);
        CHECK(worst.units() <= 1.0);
        CHECK(rig.padding_untouched(y, columns));
    }
}

TEMPLATE_TEST_CASE("operations: gate, and activations without one", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(5);
    for (int round = 0; round < 150; ++round) {
        const std::size_t columns = some_columns(random);
        const RowsOnly in(random, random.between(1, 5));
        const float size = random.pick({1e-3f, 4.0f, 30.0f, 200.0f});
        std::vector<float> gate = random.floats(in.batch.rows * columns, size);
        gate[0] = 0.0f;
        const std::vector<float> up = random.floats(gate.size(), 3.0f);
        const bool in_place = random.coin(), gated = random.between(0, 3) != 0;
        const decant::GateSpec spec = random_gate(random, gated);

        Rig<TestType> rig(in.shape, static_cast<std::uint32_t>(columns));
        typename TestType::View y{};
        rig.pass().record([&](auto& pass) {
            const auto g = rig.feed(gate, columns);
            const auto u = rig.feed(up, columns);
            y = in_place ? g : rig.view(columns);
            gated ? pass.gate(g, u, spec, y) : pass.activate(g, spec, y);
        });
        rig.run(in.batch);
        const std::vector<float> got = rig.read(y);
        const double alpha = spec.alpha, limit = spec.limit;
        Worst worst;
        for (std::size_t row = 0; row < in.batch.rows; ++row) {
            for (std::size_t i = 0; i < columns; ++i) {
                double g = gate[in.token(row) * columns + i];
                double u = gated ? double{up[in.token(row) * columns + i]} : 1.0;
                if (limit > 0.0) {
                    g = (std::min)(g, limit);
                    u = std::clamp(u, -limit, limit) + 1.0;
                }
                const double expected = activated(spec.activation, alpha * g) / alpha * u;
                // exp overflows in F32 from 88 on, where the result is almost nothing; an error of its argument is a
                // relative one of its value; 1 + tanh and 1 + erf cancel below zero.
                const double relative = 2e-6 + (alpha == 1.0 ? 0.0 : 1e-7 * std::abs(alpha * g));
                const double floor = spec.activation == decant::Activation::silu ? 1e-34 : 1e-6 * std::abs(g * u);
                worst.add(got[row * columns + i], expected, relative * std::abs(expected) + floor);
            }
        }
        CAPTURE(round, columns, size, static_cast<int>(spec.activation), alpha, limit, gated);
        CHECK(worst.units() <= 1.0);
        CHECK(rig.padding_untouched(y, columns));
    }
}

TEMPLATE_TEST_CASE("operations: what is not finite passes gates and caps, and its neighbours do not change", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    Random random(8);
    for (int round = 0; round < 120; ++round) {
        const std::size_t columns = some_columns(random);
        Batch batch({1, 1, 0, 1});
        batch.add(0);
        const bool gated = random.coin();
        const decant::GateSpec spec = random_gate(random, gated);
        const std::vector<float> gate = random.floats(columns, 4.0f), up = random.floats(columns, 3.0f);
        const auto run = [&](const std::vector<float>& g, const std::vector<float>& u, std::vector<float>& capped) {
            Rig<TestType> rig(batch.shape, static_cast<std::uint32_t>(columns));
            typename TestType::View y{}, z{};
            rig.pass().record([&](auto& pass) {
                const auto fed = rig.feed(g, columns);
                y = rig.view(columns);
                z = rig.feed(g, columns);
                gated ? pass.gate(fed, rig.feed(u, columns), spec, y) : pass.activate(fed, spec, y);
                pass.softcap(z, 30.0f);
            });
            rig.run(batch);
            capped = rig.read(z);
            return rig.read(y);
        };
        const std::size_t at = random.between(0, columns - 1);
        const bool in_up = gated && random.coin();
        const float bad = random.pick({std::numeric_limits<float>::quiet_NaN(), infinity, -infinity});
        std::vector<float> bad_gate = gate, bad_up = up, capped, bad_capped;
        (in_up ? bad_up : bad_gate)[at] = bad;
        const std::vector<float> expected = run(gate, up, capped);
        std::vector<float> got = run(bad_gate, bad_up, bad_capped);
        CAPTURE(round, columns, at, in_up, bad, gated, static_cast<int>(spec.activation), spec.alpha, spec.limit);
        // A limit makes infinities finite; below zero there may be nothing left of one.
        const bool may_vanish = !std::isnan(bad) && (spec.limit > 0.0f || (!in_up && bad < 0.0f));
        CHECK((may_vanish || !std::isfinite(got[at])));
        if (std::isnan(bad)) CHECK(std::isnan(got[at]));
        got[at] = expected[at];
        CHECK(decant_test::same_bits(got, expected));
        if (!in_up && std::isnan(bad)) CHECK(std::isnan(bad_capped[at]));
        if (!in_up && !std::isnan(bad)) CHECK(bad_capped[at] == std::copysign(30.0f, bad));
        bad_capped[at] = capped[at];
        CHECK(decant_test::same_bits(bad_capped, capped));
    }
}

TEMPLATE_TEST_CASE("operations: softcap", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(9);
    for (int round = 0; round < 40; ++round) {
        const std::size_t columns = some_columns(random);
        const RowsOnly in(random, random.between(1, 5));
        const float cap = random.pick({1.0f, 30.0f, 50.0f});
        std::vector<float> x = random.floats(in.batch.rows * columns, random.pick({1e-4f, 1.0f, 40.0f, 2000.0f}));
        x[0] = 0.0f;
        Rig<TestType> rig(in.shape, static_cast<std::uint32_t>(columns));
        typename TestType::View y{};
        rig.pass().record([&](auto& pass) {
            y = rig.feed(x, columns);
            pass.softcap(y, cap);
        });
        rig.run(in.batch);
        const std::vector<float> got = rig.read(y);
        Worst worst;
        for (std::size_t row = 0; row < in.batch.rows; ++row) {
            for (std::size_t i = 0; i < columns; ++i) {
                const double expected = cap * std::tanh(double{x[in.token(row) * columns + i]} / cap);
                worst.add(got[row * columns + i], expected, 1e-6 * std::abs(expected));
            }
        }
        CAPTURE(columns, cap);
        CHECK(worst.units() <= 1.0);
        CHECK(rig.padding_untouched(y, columns));
    }
}

TEMPLATE_TEST_CASE("operations: copy of part of every head, the rest as it was", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(10);
    for (int round = 0; round < 60; ++round) {
        decant::CopySpec spec;
        const auto number = [&](std::size_t low, std::size_t high) {
            return static_cast<std::uint32_t>(random.between(low, high));
        };
        spec = {number(1, 5), number(1, 20), 0, number(0, 5), 0, number(0, 5)};
        spec.x_head = spec.x_first + spec.count + number(0, 4);
        spec.y_head = spec.y_first + spec.count + number(0, 4);
        const std::size_t x_columns = std::size_t{spec.heads} * spec.x_head,
                          y_columns = std::size_t{spec.heads} * spec.y_head;
        const RowsOnly in(random, random.between(1, 5));
        std::vector<float> x = random.floats(in.batch.rows * x_columns);
        x[spec.x_first] = std::numeric_limits<float>::quiet_NaN();
        const std::vector<float> before = random.floats(in.batch.rows * y_columns);
        Rig<TestType> rig(in.shape, static_cast<std::uint32_t>((std::max)(x_columns, y_columns)));
        typename TestType::View y{};
        rig.pass().record([&](auto& pass) {
            y = rig.feed(before, y_columns);
            pass.copy(rig.feed(x, x_columns), y, spec);
        });
        rig.run(in.batch);
        std::vector<float> expected;
        for (std::size_t row = 0; row < in.batch.rows; ++row) {
            const auto from = before.begin() + static_cast<std::ptrdiff_t>(in.token(row) * y_columns);
            expected.insert(expected.end(), from, from + static_cast<std::ptrdiff_t>(y_columns));
            for (std::size_t h = 0; h < spec.heads; ++h)
                for (std::size_t i = 0; i < spec.count; ++i)
                    expected[row * y_columns + h * spec.y_head + spec.y_first + i] =
                        x[in.token(row) * x_columns + h * spec.x_head + spec.x_first + i];
        }
        CAPTURE(spec.heads, spec.count, spec.x_head, spec.x_first, spec.y_head, spec.y_first);
        CHECK(decant_test::same_bits(rig.read(y), expected));
        CHECK(rig.padding_untouched(y, y_columns));
    }
}

TEMPLATE_TEST_CASE("operations: gather takes the wanted rows, in their order", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(6);
    for (int round = 0; round < 20; ++round) {
        const std::size_t columns = some_columns(random);
        RowsOnly in(random, random.between(1, 9));
        std::vector<std::size_t> wanted;
        for (std::size_t row = 0; row < in.batch.rows; ++row)
            if (random.coin()) wanted.push_back(row);
        random.shuffle(wanted);
        for (const std::size_t row : wanted) in.batch.want(row);
        const std::vector<float> x = random.floats(in.batch.rows * columns);

        Rig<TestType> rig(in.shape, static_cast<std::uint32_t>(columns));
        const auto y = rig.view(columns, RowSet::wanted);
        rig.pass().record([&](auto& pass) { pass.gather(rig.feed(x, columns), y); });
        rig.run(in.batch);
        std::vector<float> expected;
        for (const std::size_t row : wanted) {
            const float* from = &x[in.token(row) * columns];
            expected.insert(expected.end(), from, from + columns);
        }
        CHECK(decant_test::same_bits(rig.read(y, RowSet::wanted), expected));
        CHECK(rig.padding_untouched(y, columns, RowSet::wanted));
    }
}

TEMPLATE_TEST_CASE("operations: a weight of an unknown type is refused", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    decant::Tensor tensor;
    tensor.name = "blk.0.\x1b[31m%n";
    tensor.type_name = "IQ2_XXS";
    tensor.shape = {{4, 256}, 2};
    const auto weight = TestType{}.weight(tensor);
    REQUIRE(!weight);
    CHECK(weight.error().code == decant::ErrorCode::unsupported);
    CHECK(weight.error().what.find("IQ2_XXS") != std::string::npos);
    CHECK(weight.error().where == "tensor \"blk.0.\\x1b[31m%n\"");
}

TEMPLATE_TEST_CASE("operations: copy moves bytes inside a buffer", "", DECANT_TEST_BACKENDS) {
    // One token per block; V of a sequence of length 1 is what attention returns.
    if (!Machine<TestType>::runs()) return;
    const TestType backend;
    decant_test::TestCache<TestType> cache(backend, {{{1, 4}}, 1, DType::f32}, 3);
    const std::vector<float> values{1, 2, 3, 4};
    const decant::PassShape shape{1, 1, 0, 1};
    Batch batch(shape);
    batch.add(0, 0, 0, 2);
    batch.table(0, {0});
    Rig<TestType> store(shape, 4);
    store.pass().record([&](auto& pass) {
        const auto x = store.feed(values, 4);
        pass.store(x, x, 0);
    });
    store.run(batch, cache);
    backend.copy(cache.buffer, 2 * cache.shape.block_bytes(), 0, cache.shape.block_bytes());
    Rig<TestType> attend(shape, 4);
    const auto y = attend.view(4);
    attend.pass().record([&](auto& pass) { pass.attend(attend.feed(values, 4), 0, {1, 1, 4, 1.0f}, y); });
    attend.run(batch, cache);
    CHECK(attend.read(y) == values);
}

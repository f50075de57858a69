// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Work on rows of floats on every set: at every length, against the formula, and the same bits wherever in a row an
// element stands.
#include <decant/backend/simd/lanes.hpp>

#include "backend/matrices.hpp"
#include "backend/sets.hpp"
#include "support/catch.hpp"

#include <decant/quant/float16.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

using decant::Activation;
using decant::simd::activation_block;
using decant::simd::ActivationBlock;
using decant_test::Random;

namespace {

constexpr std::size_t longest = 70;
constexpr float untouched = -321.0f;

/// Rows of many sizes, with blocks of zeros, subnormal numbers, ties, and what is not finite.
std::vector<float> hard_blocks(Random& random, std::size_t blocks) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    std::vector<float> x;
    for (std::size_t b = 0; b < blocks; ++b) {
        std::vector<float> block = random.floats(activation_block, std::pow(10.0f, random.uniform(-40.0f, 38.0f)));
        const std::size_t one = random.between(0, activation_block - 1);
        switch (b % 12) {
            case 0: std::fill(block.begin(), block.end(), 0.0f); break;
            case 1: std::fill(block.begin(), block.end(), -0.0f); break;
            case 2: block = random.floats(activation_block, 1e-39f); break;
            case 3: block = random.floats(activation_block, 3e-35f); break;
            case 4: block[one] = std::numeric_limits<float>::quiet_NaN(); break;
            case 5: block[one] = random.coin() ? infinity : -infinity; break;
            case 6:  // ties
                for (float& value : block) value = static_cast<float>(random.between(0, 252)) - 126.5f;
                block[one] = -127.0f;
                break;
            case 7:
                for (float& value : block) value = random.coin() ? 1.0f : -1.0f;
                if (random.coin()) std::fill(block.begin(), block.end(), block[0]);
                break;
            case 8:
                std::fill(block.begin(), block.end(), 0.0f);
                block[one] = (std::numeric_limits<float>::max)();
                break;
            case 9:
                std::fill(block.begin(), block.end(), std::numeric_limits<float>::denorm_min());
                block[one] = -1.0f;
                break;
            default: break;
        }
        x.insert(x.end(), block.begin(), block.end());
    }
    return x;
}

/// A row with room behind it that nothing may write to.
struct Guarded {
    std::vector<float> values;
    explicit Guarded(std::size_t n) : values(n + 20, untouched) {}
    explicit Guarded(const std::vector<float>& from) : Guarded(from.size()) {
        std::copy(from.begin(), from.end(), values.begin());
    }
    float* data() { return values.data(); }
    float operator[](std::size_t i) const { return values[i]; }
    bool whole() const {
        return std::all_of(values.end() - 20, values.end(), [](float value) { return value == untouched; });
    }
};

/// `run(first, n, y)` computes elements [first, first + n): each alone, and rows of every length, are pieces of the
/// whole.
template <class Run>
void check_places(Run run) {
    Guarded whole(longest);
    run(std::size_t{0}, longest, whole.data());
    CHECK(whole.whole());
    std::size_t wrong = 0;
    for (std::size_t n = 0; n <= longest; ++n) {
        for (const std::size_t first : {std::size_t{0}, (longest - n) / 2, longest - n}) {
            Guarded part(n);
            run(first, n, part.data());
            wrong += std::memcmp(part.data(), whole.data() + first, n * sizeof(float)) != 0;
            wrong += !part.whole();
        }
    }
    for (std::size_t i = 0; i < longest; ++i) {
        Guarded one(1);
        run(i, std::size_t{1}, one.data());
        wrong += std::memcmp(one.data(), whole.data() + i, sizeof(float)) != 0;
    }
    CHECK(wrong == 0);
}

double activated(Activation which, double x) {
    switch (which) {
        case Activation::silu: return x / (1.0 + std::exp(-x));
        case Activation::gelu_tanh:
            return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        case Activation::gelu: break;
    }
    return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
}

}  // namespace

TEMPLATE_TEST_CASE("rows: quantized activations are within half a step, and equal in every set", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(31);
    const std::size_t blocks = 600;
    const std::vector<float> x = hard_blocks(random, blocks);
    std::vector<ActivationBlock> row(blocks), portable(blocks);
    TestType::quantize(x.data(), x.size(), row.data());
    decant::simd::Portable::quantize(x.data(), x.size(), portable.data());
    std::size_t far = 0, wrong_sums = 0, beyond = 0, unseen = 0, wasted = 0, different = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
        const ActivationBlock& block = row[b];
        const float* const given = &x[b * activation_block];
        float peak = 0.0f;
        bool finite = true;
        int most = 0;
        std::int32_t sums[2] = {};
        for (std::size_t i = 0; i < activation_block; ++i) {
            finite = finite && std::isfinite(given[i]);
            peak = (std::max)(peak, std::abs(given[i]));
        }
        for (std::size_t i = 0; i < activation_block; ++i) {
            const int code = block.codes[i];
            sums[i / (activation_block / 2)] += code;
            most = (std::max)(most, std::abs(code));
            const double step = block.scale;
            // What is smaller than the smallest usable magnitude counts as zero.
            far += finite && std::abs(given[i] - step * code) > 0.50001 * step + 1e-35;
        }
        unseen += !finite && (!std::isnan(block.scale) || !std::isnan(block.weighted_sum));
        wrong_sums += block.negative_half_sums[0] != -sums[0] || block.negative_half_sums[1] != -sums[1];
        wrong_sums += block.negative_sum != -(sums[0] + sums[1]);
        wrong_sums += finite && block.weighted_sum != block.scale * static_cast<float>(sums[0] + sums[1]);
        beyond += most > 127;
        wasted += finite && peak >= decant::simd::smallest_magnitude && most != 127;
        different += finite && std::memcmp(&block, &portable[b], sizeof block) != 0;
        different += std::memcmp(block.codes, portable[b].codes, sizeof block.codes) != 0;
    }
    CHECK(far == 0);
    CHECK(wrong_sums == 0);
    CHECK(beyond == 0);
    CHECK(unseen == 0);
    CHECK(wasted == 0);
    CHECK(different == 0);
}

TEMPLATE_TEST_CASE("rows: ties go to even codes", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    std::vector<float> x(std::size_t{8} * activation_block, 127.0f);
    for (std::size_t i = 0; i < x.size(); ++i)
        if (i % activation_block != 0) x[i] = static_cast<float>(i % 254) - 126.5f;
    std::vector<ActivationBlock> row(8);
    TestType::quantize(x.data(), x.size(), row.data());
    std::size_t odd = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const int code = row[i / activation_block].codes[i % activation_block];
        odd += i % activation_block != 0 && (code % 2 != 0 || std::abs(static_cast<float>(code) - x[i]) != 0.5f);
    }
    CHECK(odd == 0);
}

TEMPLATE_TEST_CASE("rows: halves convert as IEEE 754 says, at any alignment and length", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    std::vector<std::byte> halves(1 + 2 * 65536);
    for (std::uint32_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        std::memcpy(&halves[1 + 2 * i], &bits, sizeof bits);
    }
    std::vector<float> floats(65536);
    TestType::from_half(halves.data() + 1, floats.data(), floats.size());
    std::size_t wrong = 0;
    for (std::uint32_t i = 0; i < 65536; ++i) {
        const float expected = decant::half_to_float(static_cast<std::uint16_t>(i));
        wrong +=
            std::isnan(expected) ? !std::isnan(floats[i]) : std::memcmp(&floats[i], &expected, sizeof expected) != 0;
    }
    CHECK(wrong == 0);

    Random random(32);
    for (std::size_t n = 0; n <= longest; ++n) {
        Guarded got(n);
        TestType::from_half(halves.data() + 1 + 2 * 15000, got.data(), n);
        CHECK(std::memcmp(got.data(), &floats[15000], n * sizeof(float)) == 0);
        CHECK(got.whole());

        std::vector<float> from(n);
        for (float& value : from) {
            const std::uint32_t bits = random.bits();  // any float at all
            std::memcpy(&value, &bits, sizeof value);
            if (random.coin()) value = random.uniform(-1.0f, 1.0f) * std::pow(2.0f, random.uniform(-26.0f, 17.0f));
            // A tie, or its neighbour: between two halves, at the least of them, or at the largest.
            if (random.between(0, 3) == 0) {
                const std::uint32_t at = random.pick({random.bits() & 0x47FFE000u, 0x33000000u, 0x477FE000u});
                const std::uint32_t tie = (at | 0x1000u) + random.pick({0u, 0u, 1u, 0xFFFFFFFFu});
                std::memcpy(&value, &tie, sizeof value);
            }
        }
        std::vector<std::byte> to(1 + 2 * n + 2, std::byte{0xEE});
        TestType::to_half(from.data(), to.data() + 1, n);
        std::size_t different = 0;
        for (std::size_t i = 0; i < n; ++i) {
            std::uint16_t bits;
            std::memcpy(&bits, &to[1 + 2 * i], sizeof bits);
            different += bits != decant::float_to_half(from[i]);
        }
        CHECK(different == 0);
        CHECK(to.back() == std::byte{0xEE});
    }
}

TEMPLATE_TEST_CASE("rows: sums of every length", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(33);
    for (std::size_t n = 0; n <= longest; ++n) {
        const std::vector<float> a = random.floats(n), b = random.floats(n), c = random.floats(n);
        double dot = 0.0, dot_size = 0.0, sum = 0.0, sum_size = 0.0;
        for (std::size_t i = 0; i < n; ++i) {
            dot += double{a[i]} * b[i];
            dot_size += std::abs(double{a[i]} * b[i]);
            sum += a[i];
            sum_size += std::abs(a[i]);
        }
        // Ten roundings at most on the way of a term.
        CHECK(std::abs(TestType::dot(a.data(), b.data(), n) - dot) <= 10 * 0x1p-24 * dot_size);
        CHECK(std::abs(TestType::sum(a.data(), n) - sum) <= 10 * 0x1p-24 * sum_size);

        const float decay = random.uniform(0.0f, 1.0f), input = random.uniform(-2.0f, 2.0f);
        Guarded state(a);
        const float got = TestType::advance_state(decay, input, b.data(), c.data(), state.data(), n);
        double expected = 0.0, size = 0.0;
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const double kept = double{decay} * a[i], added = double{input} * b[i];
            wrong += std::abs(state[i] - (kept + added)) > 2 * 0x1p-24 * (std::abs(kept) + std::abs(added));
            expected += (kept + added) * c[i];
            size += (std::abs(kept) + std::abs(added)) * std::abs(c[i]);
        }
        CHECK(wrong == 0);
        CHECK(std::abs(got - expected) <= 12 * 0x1p-24 * size);
        CHECK(state.whole());
    }
    CHECK(TestType::dot(nullptr, nullptr, 0) == 0.0f);
    CHECK(TestType::sum(nullptr, 0) == 0.0f);
}

TEMPLATE_TEST_CASE("rows: products, sums and weights element by element", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(34);
    const std::vector<float> a = random.floats(longest, 3.0f), b = random.floats(longest), c = random.floats(longest);
    const float factor = 1.7f;
    check_places([&](std::size_t first, std::size_t n, float* y) { TestType::scale(&a[first], factor, y, n); });
    check_places([&](std::size_t first, std::size_t n, float* y) { TestType::subtract(&a[first], factor, y, n); });
    check_places([&](std::size_t first, std::size_t n, float* y) { TestType::add(&a[first], &b[first], y, n); });
    check_places([&](std::size_t first, std::size_t n, float* y) {
        TestType::weigh(&a[first], factor, &b[first], y, n, false);
    });
    check_places([&](std::size_t first, std::size_t n, float* y) {
        std::copy_n(&c[first], n, y);
        TestType::weigh(&a[first], factor, &b[first], y, n, true);
    });

    std::vector<float> scaled(longest), less(longest), sum(longest), weighed(longest), more = c, in_place = a;
    TestType::scale(a.data(), factor, scaled.data(), longest);
    TestType::subtract(a.data(), factor, less.data(), longest);
    TestType::add(a.data(), b.data(), sum.data(), longest);
    TestType::weigh(a.data(), factor, b.data(), weighed.data(), longest, false);
    TestType::weigh(a.data(), factor, b.data(), more.data(), longest, true);
    TestType::scale(in_place.data(), factor, in_place.data(), longest);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < longest; ++i) {
        // What is rounded once is known exactly.
        wrong += scaled[i] != static_cast<float>(double{a[i]} * factor);
        wrong += less[i] != static_cast<float>(double{a[i]} - factor);
        wrong += sum[i] != static_cast<float>(double{a[i]} + b[i]);
        const double product = double{a[i]} * factor * b[i];
        wrong += std::abs(weighed[i] - product) > 2 * 0x1p-24 * std::abs(product);
        wrong += std::abs(more[i] - (c[i] + product)) > 3 * 0x1p-24 * (std::abs(c[i]) + std::abs(product));
        wrong += in_place[i] != scaled[i];
    }
    CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("rows: results of a tile, with biases and what was there", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(38);
    constexpr std::size_t most = decant::simd::tile_rows, tokens = 3, stride = most + 5;
    for (std::size_t n = 1; n <= most; ++n) {
        for (const bool biased : {false, true}) {
            for (const bool accumulate : {false, true}) {
                const std::vector<float> sums = random.floats(tokens * most), bias = random.floats(n);
                const std::vector<float> before = random.floats(tokens * stride);
                std::vector<float> y = before;
                TestType::finish(sums.data(), most, tokens, n, biased ? bias.data() : nullptr, accumulate, y.data(),
                                 stride);
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < y.size(); ++i) {
                    const std::size_t t = i / stride, c = i % stride;
                    float expected = before[i];
                    if (c < n) {
                        expected = sums[t * most + c];
                        if (biased) expected += bias[c];
                        if (accumulate) expected += before[i];
                    }
                    wrong += y[i] != expected;
                }
                CAPTURE(n, biased, accumulate);
                CHECK(wrong == 0);
            }
        }
    }
}

TEMPLATE_TEST_CASE("rows: gates of every kind", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(35);
    for (const Activation which : {Activation::silu, Activation::gelu_tanh, Activation::gelu}) {
        for (const float alpha : {1.0f, 1.702f}) {
            for (const float limit : {0.0f, 2.5f, 7.0f}) {
                CAPTURE(static_cast<int>(which), alpha, limit);
                const decant::GateSpec spec{which, alpha, limit};
                const std::vector<float> g = random.floats(longest, 12.0f), u = random.floats(longest, 9.0f);
                check_places([&](std::size_t first, std::size_t n, float* y) {
                    TestType::gate(spec, &g[first], &u[first], y, n);
                });
                std::vector<float> got(longest);
                TestType::gate(spec, g.data(), u.data(), got.data(), longest);
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < longest; ++i) {
                    double gate = g[i], up = u[i];
                    if (limit > 0.0f) {
                        gate = (std::min)(gate, double{limit});
                        up = (std::min)((std::max)(up, -double{limit}), double{limit}) + 1.0;
                    }
                    const double expected = activated(which, alpha * gate) / alpha * up;
                    wrong += std::abs(got[i] - expected) > 1e-6 * std::abs(expected) + 2e-7 * std::abs(up);
                }
                CHECK(wrong == 0);

                // In place, as passes do, and without the other half.
                std::vector<float> gate = g, up = u, bare(longest);
                TestType::gate(spec, gate.data(), u.data(), gate.data(), longest);
                TestType::gate(spec, g.data(), up.data(), up.data(), longest);
                CHECK(decant_test::same_bits(gate, got));
                CHECK(decant_test::same_bits(up, got));
                if (limit > 0.0f) continue;
                check_places([&](std::size_t first, std::size_t n, float* y) {
                    TestType::gate(spec, &g[first], nullptr, y, n);
                });
                const std::vector<float> ones(longest, 1.0f);
                TestType::gate(spec, g.data(), nullptr, bare.data(), longest);
                TestType::gate(spec, g.data(), ones.data(), got.data(), longest);
                CHECK(decant_test::same_bits(bare, got));
            }
        }
    }
}

TEMPLATE_TEST_CASE("rows: caps and sums of powers", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(36);
    for (const float cap : {0.7f, 30.0f}) {
        const std::vector<float> x = random.floats(longest, 3.0f * cap);
        check_places([&](std::size_t first, std::size_t n, float* y) { TestType::soft_cap(&x[first], cap, y, n); });
        std::vector<float> got = x;
        TestType::soft_cap(got.data(), cap, got.data(), longest);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < longest; ++i) {
            const double expected = cap * std::tanh(double{x[i]} / cap);
            wrong += std::abs(got[i] - expected) > 8 * 0x1p-24 * std::abs(expected);
        }
        CHECK(wrong == 0);
    }
    for (std::size_t n = 0; n <= longest; ++n) {
        std::vector<float> x = random.floats(n, 20.0f);
        const float shift = random.uniform(-25.0f, 5.0f);
        double expected = 0.0;
        for (const float value : x) expected += std::exp(double{value + shift});
        CHECK(std::abs(TestType::exp_sum(x.data(), n, shift) - expected) <= 3e-7 * expected);
        if (n == 0) continue;
        x[random.between(0, n - 1)] = -std::numeric_limits<float>::infinity();
        CHECK(std::isfinite(TestType::exp_sum(x.data(), n, shift)));
        x[random.between(0, n - 1)] = std::numeric_limits<float>::quiet_NaN();
        CHECK(std::isnan(TestType::exp_sum(x.data(), n, shift)));
    }
}

TEMPLATE_TEST_CASE("rows: pairs turn by their angles", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(37);
    for (std::size_t half = 1; half <= longest / 2; ++half) {
        const std::size_t dim = 2 * half;
        std::vector<float> angles(dim);
        for (std::size_t i = 0; i < half; ++i) {
            const float angle = random.uniform(-4.0f, 4.0f);
            angles[i] = std::cos(angle);
            angles[half + i] = std::sin(angle);
        }
        const std::vector<float> x = random.floats(dim);
        Guarded halves(x), pairs(x), spread(2 * dim);
        TestType::turn_halves(halves.data(), angles.data(), half);
        TestType::spread_angles(angles.data(), dim, spread.data());
        TestType::turn_pairs(pairs.data(), spread.data(), dim);
        std::size_t wrong = 0;
        const auto check = [&](const Guarded& got, std::size_t a, std::size_t b, std::size_t i) {
            const double c = angles[i], s = angles[half + i];
            const double allowed = 3 * 0x1p-24 * (std::abs(x[a]) + std::abs(x[b]));
            wrong += std::abs(got[a] - (x[a] * c - x[b] * s)) > allowed;
            wrong += std::abs(got[b] - (x[b] * c + x[a] * s)) > allowed;
        };
        for (std::size_t i = 0; i < half; ++i) {
            check(halves, i, half + i, i);
            check(pairs, 2 * i, 2 * i + 1, i);
        }
        CAPTURE(half);
        CHECK(wrong == 0);
        CHECK(halves.whole());
        CHECK(pairs.whole());
        CHECK(spread.whole());
    }
}

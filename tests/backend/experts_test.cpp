// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Mixtures of experts on every backend: `route`, `experts` and `mix` against their formulas in double precision.
#include <decant/backend/host/ops.hpp>

#include "backend/support.hpp"
#include "support/numbers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

using decant::DType;
using decant::RouteSpec;
using decant_test::Batch;
using decant_test::Machine;
using decant_test::Matrix;
using decant_test::QuantizedRow;
using decant_test::Random;
using decant_test::Rig;
using decant_test::Worst;

namespace {

constexpr float no_number = std::numeric_limits<float>::quiet_NaN();
using decant_test::infinity;

/// Rows 0, 1, ... of every table, and some unused ones.
Batch rows_in_order(Random& random, std::size_t rows) {
    Batch batch({static_cast<std::uint32_t>(rows + random.between(0, 3)), 1, 0, 1});
    for (std::size_t row = 0; row < rows; ++row) batch.add(row);
    return batch;
}

/// A row's choices, in order, and their weights.
struct Routes {
    std::vector<std::size_t> ids;
    std::vector<double> weights;
    double margin = infinity;  // by how much the closest decision was made, of different values
};

Routes expected_routes(const float* scores, const std::vector<float>& bias, const RouteSpec& spec) {
    const std::size_t n = spec.experts, size = n / spec.groups;
    std::vector<double> s(n), choice(n);
    const double peak = *std::max_element(scores, scores + n);
    double sum = 0.0;
    for (std::size_t e = 0; e < n; ++e) {
        s[e] = spec.scoring == RouteSpec::Scoring::sigmoid ? 1.0 / (1.0 + std::exp(-double{scores[e]}))
                                                           : std::exp(scores[e] - peak);
        sum += s[e];
    }
    for (std::size_t e = 0; e < n; ++e) {
        if (spec.scoring == RouteSpec::Scoring::softmax) s[e] /= sum;
        choice[e] = s[e] + (bias.empty() ? 0.0 : double{bias[e]});
    }
    Routes routes;
    // The `count` largest, equal ones in order.
    const auto best = [&](std::vector<std::size_t> ids, const std::vector<double>& of, std::size_t count) {
        std::stable_sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) { return of[a] > of[b]; });
        for (std::size_t i = 1; i < ids.size() && i <= count; ++i) {
            const double gap = of[ids[i - 1]] - of[ids[i]];
            if (gap > 0.0) routes.margin = (std::min)(routes.margin, gap);
        }
        ids.resize(count);
        return ids;
    };
    std::vector<double> of_group(spec.groups);
    std::vector<std::size_t> groups(spec.groups);
    std::iota(groups.begin(), groups.end(), std::size_t{0});
    for (std::size_t g = 0; g < spec.groups; ++g) {
        std::vector<double> in(choice.begin() + static_cast<std::ptrdiff_t>(g * size),
                               choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
        std::sort(in.rbegin(), in.rend());
        of_group[g] = size > 1 ? in[0] + in[1] : in[0];
    }
    if (spec.groups_kept < spec.groups) groups = best(groups, of_group, spec.groups_kept);
    std::vector<std::size_t> candidates;
    for (std::size_t e = 0; e < n; ++e)
        if (std::find(groups.begin(), groups.end(), e / size) != groups.end()) candidates.push_back(e);
    routes.ids = best(candidates, choice, spec.chosen);
    double total = 0.0;
    for (const std::size_t e : routes.ids) total += s[e];
    for (const std::size_t e : routes.ids)
        routes.weights.push_back(s[e] * double{spec.scale} / (spec.normalize ? total : 1.0));
    return routes;
}

RouteSpec random_route(Random& random) {
    RouteSpec spec;
    spec.scoring = random.pick({RouteSpec::Scoring::softmax, RouteSpec::Scoring::sigmoid});
    spec.normalize = random.coin();
    spec.groups = random.pick<std::uint32_t>({1, 1, 2, 4, 8});
    spec.groups_kept = static_cast<std::uint32_t>(random.between(1, spec.groups));
    const auto size = static_cast<std::uint32_t>(random.pick<std::size_t>({1, 2, 3, 8, 32}));
    spec.experts = spec.groups * size;
    spec.chosen = static_cast<std::uint32_t>(random.between(1, (std::min)(size * spec.groups_kept, 9u)));
    if (random.between(0, 3) == 0) spec.chosen = size * spec.groups_kept;  // all that can win
    spec.scale = random.pick({1.0f, 2.5f});
    return spec;
}

template <class B>
std::vector<float> route(const Batch& batch, const std::vector<float>& scores, const std::optional<Matrix>& bias,
                         const RouteSpec& spec) {
    const std::size_t columns = 2 * std::size_t{spec.chosen};
    Rig<B> rig(batch.shape, spec.experts);
    const auto y = rig.view(columns);
    rig.pass().record(
        [&](auto& pass) { pass.route(rig.feed(scores, spec.experts), bias ? &rig.weight(*bias) : nullptr, spec, y); });
    rig.run(batch);
    CHECK(rig.padding_untouched(y, columns));
    return rig.read(y);
}

std::size_t id(float bits) { return static_cast<std::size_t>(std::bit_cast<std::int32_t>(bits)); }

/// Rows of different experts each, with weights, as `route` writes them.
std::vector<float> random_routes(Random& random, std::size_t rows, std::size_t experts, std::size_t chosen) {
    std::vector<float> routes;
    for (std::size_t t = 0; t < rows; ++t) {
        std::vector<std::size_t> ids(experts);
        std::iota(ids.begin(), ids.end(), std::size_t{0});
        random.shuffle(ids);
        for (std::size_t c = 0; c < chosen; ++c)
            routes.push_back(std::bit_cast<float>(static_cast<std::int32_t>(ids[c])));
        for (std::size_t c = 0; c < chosen; ++c) routes.push_back(random.uniform(-1.0f, 1.0f));
    }
    return routes;
}

/// Experts of one dtype, and rows that chose some of them. Each expert of a row reads its own x, or all the same.
struct Mixture {
    std::size_t rows, experts, chosen, in, out;
    bool own;
    std::vector<Matrix> weights, biases;
    std::vector<float> x, routes;

    Mixture(Random& random, DType dtype, std::size_t inputs)
        : rows(random.pick<std::size_t>({1, 2, 5, 17, 40})),
          experts(random.between(1, 9)),
          chosen(random.between(1, (std::min)(experts, std::size_t{4}))),
          in(inputs),
          out(random.pick<std::size_t>({1, 15, 16, 17, 32, 50})),
          own(random.coin()) {
        const DType bias = random.pick({DType::f32, DType::f16, DType::bf16});
        const bool biased = random.coin();
        for (std::size_t e = 0; e < experts; ++e) {
            weights.push_back(decant_test::random_matrix(random, dtype, out, in));
            if (biased) biases.push_back(decant_test::random_matrix(random, bias, 1, out));
        }
        x = random.floats(rows * columns());
        routes = random_routes(random, rows, experts, chosen);
    }
    std::size_t columns() const { return own ? chosen * in : in; }
    std::size_t expert(std::size_t t, std::size_t c) const { return id(routes[t * 2 * chosen + c]); }
};

template <class B>
std::vector<float> run_experts(Random& random, const Mixture& mixture, bool& quantized) {
    const std::size_t columns = mixture.chosen * mixture.out;
    const Batch batch = rows_in_order(random, mixture.rows);
    Rig<B> rig(batch.shape, static_cast<std::uint32_t>((std::max)(mixture.columns(), columns)));
    const auto out = rig.view(columns);
    rig.pass().record([&](auto& pass) {
        const auto weights = rig.list(mixture.weights);
        quantized = pass.kernels().prepares(weights.front());
        const auto x = rig.feed(mixture.x, mixture.columns());
        pass.experts(x, weights, rig.list(mixture.biases), rig.feed(mixture.routes, 2 * mixture.chosen), out);
    });
    rig.run(batch);
    CHECK(rig.padding_untouched(out, columns));
    return rig.read(out);
}

}  // namespace

TEMPLATE_TEST_CASE("experts: routes of random scores", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(61);
    for (int round = 0; round < 120; ++round) {
        const RouteSpec spec = random_route(random);
        const std::size_t rows = random.between(1, 6);
        std::optional<Matrix> bias;
        if (random.coin())
            bias =
                decant_test::random_matrix(random, random.pick({DType::f32, DType::f16, DType::bf16}), 1, spec.experts);
        const std::vector<float> offsets = bias ? bias->values() : std::vector<float>{};
        std::vector<float> scores;
        std::vector<Routes> expected;
        while (expected.size() < rows) {  // no decision so close that rounding may turn it
            const std::vector<float> row = random.floats(spec.experts, random.pick({1.0f, 6.0f}));
            Routes routes = expected_routes(row.data(), offsets, spec);
            if (routes.margin < 1e-6) continue;
            scores.insert(scores.end(), row.begin(), row.end());
            expected.push_back(std::move(routes));
        }
        const auto got = route<TestType>(rows_in_order(random, rows), scores, bias, spec);
        Worst worst;
        std::size_t wrong = 0;
        for (std::size_t t = 0; t < rows; ++t) {
            for (std::size_t c = 0; c < spec.chosen; ++c) {
                wrong += id(got[t * 2 * spec.chosen + c]) != expected[t].ids[c];
                const double weight = expected[t].weights[c];
                worst.add(got[t * 2 * spec.chosen + spec.chosen + c], weight, 4e-6 * weight);
            }
        }
        CAPTURE(round, spec.experts, spec.chosen, spec.groups, spec.groups_kept, spec.normalize);
        CHECK(wrong == 0);
        CHECK(worst.units() <= 1.0);
    }
}

TEMPLATE_TEST_CASE("experts: of equal scores and of equal groups the lower id wins", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(62);
    for (int round = 0; round < 120; ++round) {
        const RouteSpec spec = random_route(random);
        const std::size_t rows = random.between(1, 4), kinds = random.between(1, 3);
        std::vector<float> scores(rows * spec.experts);
        for (float& score : scores) score = static_cast<float>(random.between(0, kinds - 1));
        std::optional<Matrix> bias;
        if (random.coin()) bias = decant_test::float_matrix(std::vector<float>(spec.experts, 0.5f), spec.experts);
        const auto got = route<TestType>(rows_in_order(random, rows), scores, bias, spec);
        std::size_t wrong = 0;
        for (std::size_t t = 0; t < rows; ++t) {
            const Routes expected =
                expected_routes(&scores[t * spec.experts], bias ? bias->values() : std::vector<float>{}, spec);
            for (std::size_t c = 0; c < spec.chosen; ++c) wrong += id(got[t * 2 * spec.chosen + c]) != expected.ids[c];
        }
        CAPTURE(round, spec.experts, spec.chosen, spec.groups, spec.groups_kept, kinds);
        CHECK(wrong == 0);
    }
}

TEMPLATE_TEST_CASE("experts: a bias chooses and does not weigh", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(63);
    const Matrix bias = decant_test::float_matrix({0.0f, 0.0f, 10.0f, -10.0f}, 4);
    const RouteSpec spec{RouteSpec::Scoring::sigmoid, false, 4, 2};
    const auto got = route<TestType>(rows_in_order(random, 1), {0.0f, -1.0f, -2.0f, 5.0f}, bias, spec);
    CHECK(id(got[0]) == 2);
    CHECK(id(got[1]) == 0);
    CHECK(got[2] == Approx(1.0 / (1.0 + std::exp(2.0))));
    CHECK(got[3] == Approx(0.5));
}

TEMPLATE_TEST_CASE("experts: a score that is no number makes a weight none, and every id stays an expert", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(64);
    for (int round = 0; round < 100; ++round) {
        const RouteSpec spec = random_route(random);
        std::vector<float> scores = random.floats(2 * spec.experts, 3.0f);
        const std::size_t bad = random.between(0, spec.experts - 1);
        const float value = random.pick({no_number, no_number, infinity});
        scores[bad] = value;
        if (random.between(0, 3) == 0) std::fill_n(scores.begin(), spec.experts, value);
        const auto got = route<TestType>(rows_in_order(random, 2), scores, std::nullopt, spec);
        const auto alone = route<TestType>(rows_in_order(random, 1), {scores.begin() + spec.experts, scores.end()},
                                           std::nullopt, spec);
        CAPTURE(round, spec.experts, spec.chosen, spec.groups, spec.groups_kept, bad, value);
        std::vector<std::size_t> ids;
        bool visible = false;
        for (std::size_t c = 0; c < spec.chosen; ++c) {
            ids.push_back(id(got[c]));
            visible = visible || std::isnan(got[spec.chosen + c]);
        }
        std::sort(ids.begin(), ids.end());
        CHECK(ids.back() < spec.experts);
        CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
        // The sigmoid of infinity is 1, its softmax nothing.
        CHECK((visible || (spec.scoring == RouteSpec::Scoring::sigmoid && !std::isnan(value))));
        CHECK(decant_test::same_bits({got.begin() + 2 * spec.chosen, got.end()}, alone));
    }
}

TEMPLATE_TEST_CASE("experts: products with the weights of each row's choices", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(65);
    for (const DType dtype : decant_test::all_dtypes) {
        const std::size_t block = decant::traits(dtype).block_elements;
        for (int round = 0; round < 10; ++round) {
            const std::size_t inputs = block == 1     ? random.pick<std::size_t>({1, 12, 33, random.between(1, 300)})
                                       : block == 256 ? 256 * random.pick<std::size_t>({1, 2, 9})  // beyond one piece
                                                      : block * random.pick<std::size_t>({1, 3, 8, 70});
            const Mixture mixture(random, dtype, inputs);
            bool quantized = false;
            const auto got = run_experts<TestType>(random, mixture, quantized);
            std::vector<std::vector<float>> weights, biases;
            for (const Matrix& matrix : mixture.weights) weights.push_back(matrix.values());
            for (const Matrix& matrix : mixture.biases) biases.push_back(matrix.values());
            Worst worst;
            for (std::size_t t = 0; t < mixture.rows; ++t) {
                for (std::size_t c = 0; c < mixture.chosen; ++c) {
                    const std::size_t e = mixture.expert(t, c);
                    const float* x = &mixture.x[t * mixture.columns() + (mixture.own ? c * inputs : 0)];
                    const QuantizedRow row(x, quantized ? inputs : 0);
                    for (std::size_t o = 0; o < mixture.out; ++o) {
                        const double bias = biases.empty() ? 0.0 : biases[e][o];
                        double sum = bias, size = 0.0;
                        for (std::size_t i = 0; i < inputs; ++i) {
                            const double product = weights[e][o * inputs + i] * (quantized ? row.value(i) : x[i]);
                            sum += product;
                            size += std::abs(product);
                        }
                        // With offsets, w = scale code + offset is never formed: its two parts may cancel.
                        const double parts = dtype == DType::q4_1 || dtype == DType::q4_k ? 4 : 1;
                        worst.add(got[(t * mixture.chosen + c) * mixture.out + o], sum,
                                  1e-5 * parts * size + 1e-6 * std::abs(bias) + 1e-30);
                    }
                }
            }
            CAPTURE(decant::name(dtype), inputs, mixture.rows, mixture.experts, mixture.chosen, mixture.out,
                    mixture.own);
            CHECK(worst.units() <= 1.0);
        }
    }
}

TEMPLATE_TEST_CASE("experts: a row is the same whatever the others are, and its faults are its own", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(66);
    for (const DType dtype : {DType::f32, DType::bf16, DType::q8_0, DType::q4_1, DType::q4_k}) {
        Mixture mixture(random, dtype, 256);
        bool quantized = false;
        const auto all = run_experts<TestType>(random, mixture, quantized);
        const std::size_t columns = mixture.columns(), bad = random.between(0, mixture.rows - 1);
        Mixture broken = mixture;
        for (std::size_t c = 0; c < columns / 256; ++c)
            broken.x[bad * columns + c * 256 + random.between(0, 255)] = random.pick({no_number, infinity, -infinity});
        const auto got = run_experts<TestType>(random, broken, quantized);
        const std::size_t width = mixture.chosen * mixture.out;
        std::size_t wrong = 0, hidden = 0;
        for (std::size_t t = 0; t < mixture.rows; ++t) {
            Mixture alone = mixture;
            alone.rows = 1;
            const auto part = [&](std::span<const float> values, std::size_t n) { return values.subspan(t * n, n); };
            const auto x = part(mixture.x, columns), routes = part(mixture.routes, 2 * mixture.chosen);
            alone.x.assign(x.begin(), x.end());
            alone.routes.assign(routes.begin(), routes.end());
            wrong += !decant_test::same_bits(run_experts<TestType>(random, alone, quantized), part(all, width));
            if (t != bad) wrong += !decant_test::same_bits(part(got, width), part(all, width));
            if (t == bad)
                for (const float value : part(got, width)) hidden += std::isfinite(value);
        }
        CAPTURE(decant::name(dtype), mixture.rows, mixture.own);
        CHECK(wrong == 0);
        CHECK(hidden == 0);
    }
}

TEMPLATE_TEST_CASE("experts: mix weighs and adds", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(67);
    for (int round = 0; round < 40; ++round) {
        const std::size_t columns = random.pick<std::size_t>({1, 7, 16, 33, 100}), rows = random.between(1, 6);
        const std::size_t experts = random.between(1, 8), chosen = random.between(1, experts);
        const std::vector<float> routes = random_routes(random, rows, experts, chosen);
        const std::vector<float> x = random.floats(rows * chosen * columns), before = random.floats(rows * columns);
        const bool accumulate = random.coin();
        const Batch batch = rows_in_order(random, rows);
        Rig<TestType> rig(batch.shape, static_cast<std::uint32_t>(chosen * columns));
        typename TestType::View y{};
        rig.pass().record([&](auto& pass) {
            y = accumulate ? rig.feed(before, columns) : rig.view(columns);
            pass.mix(rig.feed(x, chosen * columns), rig.feed(routes, 2 * chosen), y, accumulate);
        });
        rig.run(batch);
        const auto got = rig.read(y);
        Worst worst;
        for (std::size_t t = 0; t < rows; ++t) {
            for (std::size_t i = 0; i < columns; ++i) {
                double sum = accumulate ? before[t * columns + i] : 0.0, size = std::abs(sum);
                for (std::size_t c = 0; c < chosen; ++c) {
                    const double product = double{routes[(2 * t + 1) * chosen + c]} * x[(t * chosen + c) * columns + i];
                    sum += product;
                    size += std::abs(product);
                }
                worst.add(got[t * columns + i], sum, 1e-6 * size);
            }
        }
        CAPTURE(rows, columns, chosen, accumulate);
        CHECK(worst.units() <= 1.0);
        CHECK(rig.padding_untouched(y, columns));
    }
}

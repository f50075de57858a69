// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Gates that are merged with the products around them give the bits that gates on their own give.
#include <decant/backend/simd/simd.hpp>

#include "backend/support.hpp"

#include <decant/core/thread_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

using decant::Activation;
using decant::AnyExecutor;
using decant::DType;
using decant::RunState;
using decant_test::Batch;
using decant_test::Machine;
using decant_test::Matrix;
using decant_test::Random;
using decant_test::Rig;

namespace {

/// A feed-forward network: down(gate(x gate^T, x up^T)), added to what is there.
struct FeedForward {
    std::size_t width, hidden, rows;
    Matrix gate, up, down;
    std::optional<Matrix> gate_bias, up_bias;
    std::vector<float> x, before;
    decant::GateSpec spec;

    FeedForward(Random& random, DType gate_type, DType up_type, DType down_type, std::size_t inner,
                std::size_t rows_of_x)
        : width(random.pick<std::size_t>({256, 768})),
          hidden(inner),
          rows(rows_of_x),
          gate(decant_test::random_matrix(random, gate_type, hidden, width)),
          up(decant_test::random_matrix(random, up_type, hidden, width)),
          down(decant_test::random_matrix(random, down_type, width, hidden)),
          x(random.floats(rows * width)),
          before(random.floats(rows * width)),
          spec(random.pick({Activation::silu, Activation::gelu_tanh, Activation::gelu}), random.pick({1.0f, 1.702f}),
               random.pick({0.0f, 7.0f})) {
        if (random.coin()) gate_bias = decant_test::random_matrix(random, DType::f32, 1, hidden);
        if (random.coin()) up_bias = decant_test::random_matrix(random, DType::bf16, 1, hidden);
    }
};

enum class Way {
    merged,      // the gate with both products
    kept,        // with the product before it: another operation reads its result
    on_its_own,  // its operands are copied first
};

template <class B>
std::vector<float> run(const FeedForward& network, Way way, bool in_place, const AnyExecutor& executor) {
    Batch batch({static_cast<std::uint32_t>(network.rows + 1), 1, 0, 1});
    for (std::size_t row = 0; row < network.rows; ++row) batch.add(row);
    const std::size_t widest = (std::max)(network.width, network.hidden);
    Rig<B> rig(batch.shape, static_cast<std::uint32_t>(widest), 4);
    typename B::View out{};
    rig.pass().record([&](auto& pass) {
        const auto x = rig.feed(network.x, network.width);
        out = rig.feed(network.before, network.width);
        auto g = rig.view(network.hidden), u = rig.view(network.hidden);
        const auto bias = [&](const std::optional<Matrix>& matrix) { return matrix ? &rig.weight(*matrix) : nullptr; };
        pass.linear(x, {{&rig.weight(network.gate), bias(network.gate_bias), g, false},
                        {&rig.weight(network.up), bias(network.up_bias), u, false}});
        const auto copied = [&](auto from) {
            const auto to = rig.view(network.hidden);
            const auto n = static_cast<std::uint32_t>(network.hidden);
            pass.copy(from, to, {1, n, n, 0, n, 0});
            return to;
        };
        if (way == Way::on_its_own) {
            g = copied(g);
            u = copied(u);
        }
        auto y = in_place ? g : rig.view(network.hidden);
        pass.gate(g, u, network.spec, y);
        if (way == Way::kept) y = copied(y);
        pass.linear(y, {{&rig.weight(network.down), nullptr, out, true}});
    });
    std::size_t gates = 0, merged = 0;
    for (const auto& step : rig.pass().steps()) {
        gates += std::holds_alternative<decant::host::Gate>(step);
        if (const auto* linear = std::get_if<decant::host::Linear>(&step)) merged += linear->gated;
    }
    REQUIRE(gates == (way == Way::on_its_own ? 1 : 0));
    REQUIRE(merged == (way == Way::on_its_own ? 0 : 1));
    rig.upload(batch);
    REQUIRE(rig.pass().run(executor) == RunState::finished);
    CHECK(rig.padding_untouched(out, network.width));
    return rig.read(out);
}

}  // namespace

TEMPLATE_TEST_CASE("simd: a merged gate gives the bits of one on its own", "", DECANT_TEST_SIMD_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(81);
    decant::ThreadPool pool(3, 3);
    const auto check = [&](DType gate, DType up, DType down, std::size_t hidden, std::size_t rows) {
        const FeedForward network(random, gate, up, down, hidden, rows);
        CAPTURE(decant::name(gate), decant::name(up), decant::name(down), network.width, hidden, rows);
        CAPTURE(static_cast<int>(network.spec.activation), network.spec.alpha, network.spec.limit);
        const AnyExecutor executor = random.coin() ? AnyExecutor{} : AnyExecutor(pool);
        const std::vector<float> expected = run<TestType>(network, Way::on_its_own, random.coin(), executor);
        CHECK(decant_test::same_bits(run<TestType>(network, Way::merged, random.coin(), executor), expected));
        CHECK(decant_test::same_bits(run<TestType>(network, Way::kept, random.coin(), executor), expected));
    };
    const auto any = [&] { return decant_test::all_dtypes[random.between(0, std::size(decant_test::all_dtypes) - 1)]; };
    for (const DType dtype : decant_test::all_dtypes) {
        check(dtype, dtype, dtype, 256, random.between(1, 8));
        for (int round = 0; round < 3; ++round)
            check(dtype, any(), any(), random.pick<std::size_t>({256, 512}), random.between(1, 20));
        check(any(), dtype, random.pick({DType::f32, DType::f16, DType::bf16}), random.between(1, 100), 5);
    }
    check(DType::q4_1, DType::q4_1, DType::q8_0, 288, 130);
    check(DType::q8_0, DType::q4_k, DType::q4_0, 96, 261);  // more rows than a tile takes
    check(DType::f16, DType::q4_0, DType::f32, 77, 259);
}

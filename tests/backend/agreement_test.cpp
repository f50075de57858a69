// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Each instruction set of Simd against Eigen, operation by operation, on the same random inputs.
#include "backend/support.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

using decant::DType;
using decant::RowSet;
using decant_test::Batch;
using decant_test::Machine;
using decant_test::Matrix;
using decant_test::Random;
using decant_test::Rig;
using decant_test::TestCache;
using decant_test::Worst;

namespace {

/// Sequences whose tokens come in one pass, in random order and in random blocks.
struct Ragged {
    decant::CacheShape cache;
    std::size_t blocks = 0;
    Batch batch;

    Ragged(Random& random, decant::CacheLayer layer, std::size_t rows, std::uint32_t block_tokens, DType dtype)
        : cache{{layer, layer}, block_tokens, dtype}, batch(decant::PassShape{}) {
        const std::size_t sequences = random.between(1, 3);
        const std::size_t table = (rows + block_tokens - 1) / block_tokens;
        blocks = sequences * table;
        batch = Batch({static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(sequences),
                       static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(table)});
        std::vector<std::int32_t> order(blocks);
        for (std::size_t i = 0; i < blocks; ++i) order[i] = static_cast<std::int32_t>(i);
        random.shuffle(order);
        std::vector<std::size_t> length(sequences, 0);
        for (std::size_t s = 0; s < sequences; ++s)
            batch.table(s, {order.begin() + static_cast<std::ptrdiff_t>(s * table),
                            order.begin() + static_cast<std::ptrdiff_t>((s + 1) * table)});
        for (std::size_t row = 0; row < rows; ++row) {
            const std::size_t s = random.between(0, sequences - 1);
            const std::size_t position = length[s]++;
            const auto block = static_cast<std::size_t>(order[s * table + position / block_tokens]);
            batch.add(row, position, s, block * block_tokens + position % block_tokens);
        }
    }
};

/// All operations but the product, one after the other, each result kept: norm, angles, rope, store and attend, gate,
/// gather.
template <class B>
std::vector<std::vector<float>> run_operations(std::uint32_t seed, DType dtype) {
    Random random(seed);
    const std::uint32_t kv_heads = static_cast<std::uint32_t>(random.between(1, 3));
    const std::uint32_t heads = kv_heads * static_cast<std::uint32_t>(random.between(1, 10));
    const std::uint32_t head_dim = random.pick<std::uint32_t>({1, 2, 7, 16, 33, 64, 80});
    const decant::AttentionSpec attention{heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim))};
    const auto layout = random.pick({decant::RopeLayout::halves, decant::RopeLayout::interleaved});
    const auto dim = static_cast<std::uint32_t>(random.between(0, head_dim / 2)) * 2;
    const decant::RopeSpec spec{layout, head_dim, dim, 1.0f};
    const std::size_t rows = random.pick<std::size_t>({1, 2, 5, 17, 90});
    const std::uint32_t block_tokens = random.pick<std::uint32_t>({1, 3, 16, 64});
    const Ragged in(random, {kv_heads, head_dim}, rows, block_tokens, dtype);

    const std::size_t width = std::size_t{heads} * head_dim;
    const std::size_t narrow = std::size_t{kv_heads} * head_dim;
    const std::vector<float> wide[2] = {random.floats(rows * width, 4.0f), random.floats(rows * width, 4.0f)};
    const std::vector<float> small[2] = {random.floats(rows * narrow), random.floats(rows * narrow)};
    const std::vector<float> frequencies = random.floats((std::max)(dim / 2, 1u), 1.0f);
    const Matrix scale = decant_test::random_matrix(random, DType::bf16, 1, width);
    Batch batch = in.batch;
    for (std::size_t row = 0; row < rows; ++row)
        if (random.coin()) batch.want(row);

    Rig<B> rig(batch.shape, static_cast<std::uint32_t>(width));
    TestCache<B> cache(B{}, in.cache, in.blocks);
    std::vector<typename B::View> views;
    rig.pass().record([&](auto& pass) {
        const auto x = rig.feed(wide[0], width);
        const auto up = rig.feed(wide[1], width);
        const auto k = rig.feed(small[0], narrow);
        const auto v = rig.feed(small[1], narrow);
        const auto normed = rig.view(width), turned = rig.view(width), mixed = rig.view(width), gated = rig.view(width);
        const auto angles = rig.view((std::max)(dim, 2u));
        const auto some = rig.view(width, RowSet::wanted);
        const auto& ones = rig.weight(decant_test::float_matrix(std::vector<float>(width, 1.0f), width));
        pass.norm(x, rig.weight(scale), {1e-5f}, normed);
        pass.angles(rig.constant(frequencies), spec, angles);
        pass.norm(up, ones, {1e-5f}, turned);
        pass.rope(turned, angles, spec);
        pass.rope(k, angles, spec);
        pass.store(k, v, 1);
        pass.attend(turned, 1, attention, mixed);
        pass.gate(x, up, decant::Activation::silu, gated);
        pass.gather(gated, some);
        views = {normed, angles, turned, k, mixed, gated, some};
    });
    rig.run(batch, cache);
    std::vector<std::vector<float>> results;
    for (const auto& view : views)
        results.push_back(rig.read(view, &view == &views.back() ? RowSet::wanted : RowSet::tokens));
    return results;
}

struct Product {
    Matrix weight;
    std::vector<float> x;
    std::size_t rows;
};

Product random_product(Random& random, DType dtype) {
    const std::size_t block = decant::traits(dtype).block_elements;
    const std::size_t columns =
        block == 1 ? random.between(1, 300) : block * random.between(1, block == 256 ? 10 : 80);  // beyond one piece
    const std::size_t rows = random.pick<std::size_t>({1, 2, 3, 4, 7, 8, 9, 13, 31});
    return {decant_test::random_matrix(random, dtype, random.between(1, 40), columns), random.floats(rows * columns),
            rows};
}

template <class B>
std::vector<float> multiply(const Product& product) {
    Batch batch({static_cast<std::uint32_t>(product.rows), 1, 1, 1});
    for (std::size_t row = 0; row < product.rows; ++row) batch.add(row);
    Rig<B> rig(batch.shape, static_cast<std::uint32_t>(product.weight.columns));
    const auto y = rig.view(product.weight.rows);
    rig.pass().record([&](auto& pass) {
        const auto x = rig.feed(product.x, product.weight.columns);
        pass.linear(x, {{&rig.weight(product.weight), nullptr, y}});
    });
    rig.run(batch);
    return rig.read(y);
}

}  // namespace

TEMPLATE_TEST_CASE("agreement: every operation but the product gives Eigen's numbers", "", DECANT_TEST_SIMD_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    static constexpr const char* names[] = {"norm", "angles", "rope", "rope of keys", "attend", "gate", "gather"};
    for (std::uint32_t seed = 1; seed <= 60; ++seed) {
        const DType dtype = seed % 2 == 0 ? DType::f16 : DType::f32;  // of the cache
        const auto got = run_operations<TestType>(seed, dtype);
        const auto expected = run_operations<decant::Eigen>(seed, dtype);
        REQUIRE(got.size() == expected.size());
        for (std::size_t op = 0; op < got.size(); ++op) {
            REQUIRE(got[op].size() == expected[op].size());
            // Attention in pairs of integers rounds weights and values to 12 bits, and scores to a little more.
            const bool pairs =
                Machine<TestType>::attends_in_pairs && dtype == DType::f16 && names[op] == std::string_view("attend");
            const double relative = pairs ? 4 * 0x1p-13 : 2e-5;
            Worst worst;
            for (std::size_t i = 0; i < got[op].size(); ++i)
                worst.add(got[op][i], expected[op][i], relative * (1.0 + std::abs(double{expected[op][i]})));
            CAPTURE(seed, names[op], decant::name(dtype));
            CHECK(worst.units() <= 1.0);
        }
    }
}

TEMPLATE_TEST_CASE("agreement: products differ from Eigen's by no more than 8-bit activations explain", "",
                   DECANT_TEST_SIMD_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(7);
    for (const DType dtype : decant_test::all_dtypes) {
        for (int round = 0; round < 12; ++round) {
            const Product product = random_product(random, dtype);
            const auto got = multiply<TestType>(product);
            const auto expected = multiply<decant::Eigen>(product);
            const std::vector<float> w = product.weight.values();
            const std::size_t columns = product.weight.columns;
            Worst worst;
            for (std::size_t t = 0; t < product.rows; ++t) {
                for (std::size_t o = 0; o < product.weight.rows; ++o) {
                    double bound = 1e-30;
                    for (std::size_t i = 0; i < columns; ++i)
                        bound += 2e-6 * std::abs(double{w[o * columns + i]} * product.x[t * columns + i]);
                    for (std::size_t b = 0; decant_test::is_block_format(dtype) && b < columns; b += 32) {
                        // Half a step of the block's scale, for every weight of the block.
                        double peak = 0.0, weights = 0.0;
                        for (std::size_t i = b; i < b + 32; ++i) {
                            peak = (std::max)(peak, std::abs(double{product.x[t * columns + i]}));
                            weights += std::abs(double{w[o * columns + i]});
                        }
                        bound += 0.5001 * peak / 127.0 * weights;
                    }
                    const std::size_t at = t * product.weight.rows + o;
                    worst.add(got[at], expected[at], bound);
                }
            }
            CAPTURE(decant::name(dtype), columns, product.rows);
            CHECK(worst.units() <= 1.0);
        }
    }
}

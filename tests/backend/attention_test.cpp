// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// `store` and `attend` on every backend, over paged caches of all shapes.
#include <decant/backend/host/ops.hpp>

#include "backend/support.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

using decant::CacheShape;
using decant::DType;
using decant_test::Batch;
using decant_test::Machine;
using decant_test::Random;
using decant_test::Rig;
using decant_test::TestCache;
using decant_test::Worst;

namespace {

/// K and V of several sequences in a cache whose blocks lie in random order.
struct Sequences {
    std::vector<std::size_t> lengths;
    std::vector<std::size_t> first;  // row of a sequence's position 0 in k and v
    std::size_t rows = 0;
    std::size_t width = 0;  // kv_heads * head_dim
    std::vector<float> k, v;

    Sequences(Random& random, std::vector<std::size_t> sequence_lengths, std::size_t columns, float key_size)
        : lengths(std::move(sequence_lengths)), width(columns) {
        for (const std::size_t length : lengths) {
            first.push_back(rows);
            rows += length;
        }
        k = random.floats(rows * width, key_size);
        v = random.floats(rows * width);
    }
};

struct Tables {
    std::vector<std::vector<std::int32_t>> blocks;  // of each sequence
    std::size_t pool = 0;                           // blocks in the pool
    std::size_t most = 1;                           // blocks of the longest sequence

    Tables(Random& random, const std::vector<std::size_t>& lengths, std::size_t block_tokens) {
        for (const std::size_t length : lengths) pool += (length + block_tokens - 1) / block_tokens;
        pool += 2;
        std::vector<std::int32_t> order(pool);
        for (std::size_t i = 0; i < pool; ++i) order[i] = static_cast<std::int32_t>(i);
        random.shuffle(order);
        for (const std::size_t length : lengths) {
            const std::size_t count = (length + block_tokens - 1) / block_tokens;
            blocks.emplace_back(order.end() - static_cast<std::ptrdiff_t>(count), order.end());
            order.resize(order.size() - count);
            most = (std::max)(most, count);
        }
    }
    std::size_t slot(std::size_t sequence, std::size_t position, std::size_t block_tokens) const {
        return static_cast<std::size_t>(blocks[sequence][position / block_tokens]) * block_tokens +
               position % block_tokens;
    }
};

template <class B>
void store(const Sequences& sequences, const Tables& tables, TestCache<B>& cache, std::uint32_t layer) {
    Batch batch({static_cast<std::uint32_t>(sequences.rows + 3), static_cast<std::uint32_t>(sequences.lengths.size()),
                 0, static_cast<std::uint32_t>(tables.most)});
    for (std::size_t s = 0; s < sequences.lengths.size(); ++s)
        for (std::size_t p = 0; p < sequences.lengths[s]; ++p)
            batch.add(sequences.first[s] + p, p, s, tables.slot(s, p, cache.shape.block_tokens));
    Rig<B> rig(batch.shape, static_cast<std::uint32_t>(sequences.width));
    rig.pass().record([&](auto& pass) {
        const auto k = rig.feed(sequences.k, sequences.width);
        pass.store(k, rig.feed(sequences.v, sequences.width), layer);
    });
    rig.run(batch, cache);
}

struct Query {
    std::size_t sequence;
    std::size_t position;
};

/// Attention of some (sequence, position) pairs, row t of q for queries[t].
template <class B>
std::vector<float> attend(const std::vector<Query>& queries, const std::vector<float>& q, const Tables& tables,
                          TestCache<B>& cache, std::uint32_t layer, const decant::AttentionSpec& spec) {
    const std::size_t columns = std::size_t{spec.heads} * spec.head_dim;
    Batch batch({static_cast<std::uint32_t>(queries.size() + 1), static_cast<std::uint32_t>(tables.blocks.size()), 0,
                 static_cast<std::uint32_t>(tables.most)});
    for (std::size_t t = 0; t < queries.size(); ++t) batch.add(t, queries[t].position, queries[t].sequence, 0);
    for (std::size_t s = 0; s < tables.blocks.size(); ++s) batch.table(s, tables.blocks[s]);
    Rig<B> rig(batch.shape, static_cast<std::uint32_t>(columns));
    const auto y = rig.view(columns);
    rig.pass().record([&](auto& pass) { pass.attend(rig.feed(q, columns), layer, spec, y); });
    rig.run(batch, cache);
    CHECK(rig.padding_untouched(y, columns));
    return rig.read(y);
}

double cached(float value, DType dtype) {
    return dtype == DType::f16 ? double{decant::half_to_float(decant::float_to_half(value))} : double{value};
}

template <class B>
void check_attention(Random& random, std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t head_dim,
                     std::uint32_t block_tokens, DType dtype) {
    // The layer under test lies between two of other shapes.
    const CacheShape shape{{{2, 5}, {kv_heads, head_dim}, {1, 16}}, block_tokens, dtype};
    std::vector<std::size_t> lengths;
    const std::size_t count = random.between(1, 3);
    for (std::size_t s = 0; s < count; ++s)
        lengths.push_back(random.pick<std::size_t>({1, 2, 63, 64, 65, 128, 129, random.between(1, 300)}));
    const float key_size = random.pick({1.0f, 6.0f});  // large ones make the maximum move from tile to tile
    const Sequences sequences(random, lengths, std::size_t{kv_heads} * head_dim, key_size);
    const Tables tables(random, lengths, block_tokens);
    TestCache<B> cache(B{}, shape, tables.pool);
    store<B>(sequences, tables, cache, 1);

    std::vector<Query> queries;
    for (std::size_t s = 0; s < count; ++s) {
        queries.push_back({s, lengths[s] - 1});
        queries.push_back({s, random.between(0, lengths[s] - 1)});
    }
    random.shuffle(queries);
    const auto window = random.pick<std::uint32_t>({0, 0, 1, 4, 63, 64, 65, 100, 1'000'000'000});
    const decant::AttentionSpec spec{heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim)), window};
    const std::size_t columns = std::size_t{heads} * head_dim;
    const std::vector<float> q = random.floats(queries.size() * columns, 3.0f);
    const std::vector<float> got = attend<B>(queries, q, tables, cache, 1, spec);

    Worst worst;
    for (std::size_t t = 0; t < queries.size(); ++t) {
        const std::size_t length = queries[t].position + 1;
        const auto visible = [&](std::size_t p) { return window == 0 || p + window > queries[t].position; };
        const std::size_t first = sequences.first[queries[t].sequence];
        for (std::size_t h = 0; h < heads; ++h) {
            const std::size_t kv_offset = h / (heads / kv_heads) * head_dim;
            std::vector<double> scores(length);
            double highest = -1e300, largest = 0.0, total = 0.0;
            for (std::size_t p = 0; p < length; ++p) {
                if (!visible(p)) continue;
                double size = 0.0;
                for (std::size_t i = 0; i < head_dim; ++i) {
                    const double product = q[t * columns + h * head_dim + i] *
                                           cached(sequences.k[(first + p) * sequences.width + kv_offset + i], dtype);
                    scores[p] += product * double{spec.scale};
                    size += std::abs(product) * double{spec.scale};
                }
                highest = (std::max)(highest, scores[p]);
                largest = (std::max)(largest, size);
            }
            for (std::size_t p = 0; p < length; ++p)
                total += scores[p] = visible(p) ? std::exp(scores[p] - highest) : 0.0;
            for (std::size_t i = 0; i < head_dim; ++i) {
                double expected = 0.0, size = 0.0;
                for (std::size_t p = 0; p < length; ++p) {
                    const double v = cached(sequences.v[(first + p) * sequences.width + kv_offset + i], dtype);
                    expected += scores[p] / total * v;
                    size += scores[p] / total * std::abs(v);
                }
                // A score's rounding error is a relative error of its weight.
                const double allowed = (2 * largest * 0x1p-22 + 5e-6) * size;
                worst.add(got[t * columns + h * head_dim + i], expected, allowed);
            }
        }
    }
    CAPTURE(heads, kv_heads, head_dim, block_tokens, decant::name(dtype), lengths, key_size, window);
    CHECK(worst.units() <= 1.0);
}

}  // namespace

TEMPLATE_TEST_CASE("attention: grouped heads over ragged paged sequences", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(21);
    struct Heads {
        std::uint32_t heads, kv_heads;
    };
    for (const Heads h :
         {Heads{1, 1}, Heads{4, 4}, Heads{9, 3}, Heads{8, 1}, Heads{9, 1}, Heads{20, 2}, Heads{17, 1}}) {
        for (const std::uint32_t head_dim : {1u, 7u, 64u, 80u}) {
            const auto block_tokens = random.pick<std::uint32_t>({1, 3, 16, 64});
            check_attention<TestType>(random, h.heads, h.kv_heads, head_dim, block_tokens, DType::f32);
            check_attention<TestType>(random, h.heads, h.kv_heads, head_dim, block_tokens, DType::f16);
        }
    }
    for (const std::uint32_t block_tokens : {1u, 3u, 16u, 64u})
        for (const DType dtype : {DType::f32, DType::f16})
            check_attention<TestType>(random, 6, 2, 33, block_tokens, dtype);
}

// The case KV-04 of ../shared/cases: a query at p sees p - 3 to p; a window of 1 sees itself, one of 0 or of more than
// there is sees everything.
TEMPLATE_TEST_CASE("attention: KV-04, the border of a window", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(24);
    const std::vector<std::size_t> lengths{14};
    Sequences sequences(random, lengths, 1, 0.0f);  // equal scores: the mean of the visible values
    for (std::size_t p = 0; p < 14; ++p) sequences.v[p] = static_cast<float>(p);
    const Tables tables(random, lengths, 4);
    TestCache<TestType> cache(TestType{}, {{{1, 1}}, 4, DType::f32}, tables.pool);
    store<TestType>(sequences, tables, cache, 0);
    std::vector<Query> queries;
    for (std::size_t p = 0; p < 14; ++p) queries.push_back({0, p});
    const std::vector<float> q(queries.size(), 1.0f);
    for (const std::uint32_t window : {0u, 1u, 4u, 1'000'000'000u}) {
        const auto y = attend<TestType>(queries, q, tables, cache, 0, {1, 1, 1, 1.0f, window});
        for (std::size_t p = 0; p < 14; ++p) {
            const std::size_t seen = window == 0 ? p + 1 : (std::min)(p + 1, std::size_t{window});
            CAPTURE(window, p);
            CHECK(std::abs(y[p] - (static_cast<float>(p) - static_cast<float>(seen - 1) / 2)) < 1e-5f);
        }
    }
}

TEMPLATE_TEST_CASE("attention: neither the order nor the size of blocks changes a bit", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(22);
    const std::vector<std::size_t> lengths{150, 1, 67};
    const std::vector<Query> queries{{2, 66}, {0, 149}, {1, 0}, {0, 64}, {2, 3}};
    const decant::AttentionSpec spec{6, 2, 24, 0.25f, random.pick<std::uint32_t>({0, 70})};
    const Sequences sequences(random, lengths, 48, 2.0f);
    const std::vector<float> q = random.floats(queries.size() * 144);
    for (const DType dtype : {DType::f32, DType::f16}) {
        std::vector<float> expected;
        for (const std::uint32_t block_tokens : {256u, 1u, 3u, 16u, 16u, 16u, 64u}) {
            const Tables tables(random, lengths, block_tokens);
            TestCache<TestType> cache(TestType{}, {{{2, 24}}, block_tokens, dtype}, tables.pool);
            store<TestType>(sequences, tables, cache, 0);
            const std::vector<float> got = attend<TestType>(queries, q, tables, cache, 0, spec);
            if (expected.empty()) expected = got;
            CAPTURE(block_tokens, decant::name(dtype));
            CHECK(decant_test::same_bits(got, expected));
        }
    }
}

TEMPLATE_TEST_CASE("attention: the cache holds each value rounded once, at its place, and nothing else is written", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(23);
    for (const std::size_t head_dim : {1u, 7u, 8u, 33u}) {
        const std::vector<std::size_t> lengths{5, 21};
        Sequences sequences(random, lengths, 3 * head_dim, 1.0f);
        // Ties, subnormal halves, the edge of overflow, infinities and zeros among the values.
        const std::vector<float> special{1.0f + 0x1p-11f, 1.0f + 0x3p-11f, -0x1.8p-24f, 0x1p-25f,
                                         0x1.1p-25f,      65519.0f,        65520.0f,    -1e30f,
                                         -0.0f,           0x1p-140f,       6.1e-5f,     0.333333f};
        for (std::size_t i = 0; i < sequences.k.size(); i += 2) {
            sequences.k[i] = special[random.between(0, special.size() - 1)];
            sequences.v[i] = special[random.between(0, special.size() - 1)] * random.uniform(-1.0f, 1.0f);
        }
        for (const DType dtype : {DType::f32, DType::f16}) {
            const CacheShape shape{{{1, 3}, {3, static_cast<std::uint32_t>(head_dim)}}, 4, dtype};
            const Tables tables(random, lengths, 4);
            TestCache<TestType> cache(TestType{}, shape, tables.pool);
            std::vector<std::byte> expected(cache.buffer.size(), std::byte{0xFF});
            const std::size_t width = dtype == DType::f16 ? 2 : 4;
            for (std::size_t s = 0; s < lengths.size(); ++s) {
                for (std::size_t p = 0; p < lengths[s]; ++p) {
                    for (std::size_t i = 0; i < sequences.width; ++i) {
                        for (const std::size_t value : {0u, 1u}) {
                            // [layer][K then V][token of the block][column], after the three columns of layer 0.
                            const auto block = static_cast<std::size_t>(tables.blocks[s][p / 4]);
                            const std::size_t at = block * (2 * 4 * 3 + 2 * 4 * sequences.width) + 2 * 4 * 3 +
                                                   (value * 4 + p % 4) * sequences.width + i;
                            const float number =
                                (value == 0 ? sequences.k
                                            : sequences.v)[(sequences.first[s] + p) * sequences.width + i];
                            const std::uint16_t half = decant::float_to_half(number);
                            if (dtype == DType::f16) std::memcpy(&expected[at * width], &half, width);
                            if (dtype == DType::f32) std::memcpy(&expected[at * width], &number, width);
                        }
                    }
                }
            }
            store<TestType>(sequences, tables, cache, 1);
            CAPTURE(head_dim, decant::name(dtype));
            CHECK(std::memcmp(cache.buffer.data(), expected.data(), expected.size()) == 0);
        }
    }
}

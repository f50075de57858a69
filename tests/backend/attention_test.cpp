// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// `store` and `attend` on every backend, over paged caches of all shapes.
#include <decant/backend/host/ops.hpp>

#include "backend/support.hpp"
#include "support/numbers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

using decant::CacheShape;
using decant::DType;
using decant_test::Batch;
using decant_test::Machine;
using decant_test::Matrix;
using decant_test::Random;
using decant_test::Rig;
using decant_test::TestCache;
using decant_test::Worst;

namespace {

using decant_test::infinity;

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
        pass.store(k, cache.shape.layers[layer].latent() ? k : rig.feed(sequences.v, sequences.width), layer);
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
                          TestCache<B>& cache, std::uint32_t layer, const decant::AttentionSpec& spec,
                          const std::optional<Matrix>& sinks = std::nullopt) {
    const std::size_t columns = std::size_t{spec.heads} * spec.head_dim;
    const std::size_t value_columns = std::size_t{spec.heads} * spec.value_dim();
    Batch batch({static_cast<std::uint32_t>(queries.size() + 1), static_cast<std::uint32_t>(tables.blocks.size()), 0,
                 static_cast<std::uint32_t>(tables.most)});
    for (std::size_t t = 0; t < queries.size(); ++t) batch.add(t, queries[t].position, queries[t].sequence, 0);
    for (std::size_t s = 0; s < tables.blocks.size(); ++s) batch.table(s, tables.blocks[s]);
    Rig<B> rig(batch.shape, static_cast<std::uint32_t>(columns));
    const auto y = rig.view(value_columns);
    rig.pass().record(
        [&](auto& pass) { pass.attend(rig.feed(q, columns), layer, spec, y, sinks ? &rig.weight(*sinks) : nullptr); });
    rig.run(batch, cache);
    CHECK(rig.padding_untouched(y, value_columns));
    return rig.read(y);
}

bool in_blocks(DType dtype) { return decant::traits(dtype).block_elements > 1; }

/// Hadamard's matrix of a size over the root of it, from its definition.
double hadamard_entry(std::size_t row, std::size_t column, std::size_t size) {
    return (std::popcount(row & column) % 2 == 0 ? 1.0 : -1.0) / std::sqrt(static_cast<double>(size));
}

/// The bytes that a cache holds of a row of keys or values.
std::vector<std::byte> stored(const CacheShape& shape, std::size_t layer, const float* row, std::size_t columns) {
    std::vector<float> numbers(row, row + columns);
    decant::hadamard(numbers.data(), columns, shape.rotation(layer));
    std::vector<std::byte> bytes(decant::row_bytes(shape.dtype, columns));
    decant::quantize_row(shape.dtype, numbers.data(), columns, bytes.data());
    return bytes;
}

/// Rows as a cache holds them: rounded, and turned back by the matrix if they are rotated.
std::vector<double> rounded(const CacheShape& shape, std::size_t layer, const std::vector<float>& rows,
                            std::size_t columns) {
    std::vector<double> result;
    std::vector<float> numbers(columns);
    for (std::size_t first = 0; first < rows.size(); first += columns) {
        decant::dequantize_row(shape.dtype, stored(shape, layer, &rows[first], columns).data(), columns,
                               numbers.data());
        const std::size_t size = shape.rotation(layer);
        if (size == 0) result.insert(result.end(), numbers.begin(), numbers.end());
        for (std::size_t block = 0; size > 0 && block < columns; block += size) {
            for (std::size_t i = 0; i < size; ++i) {
                double sum = 0.0;
                for (std::size_t j = 0; j < size; ++j) sum += hadamard_entry(i, j, size) * double{numbers[block + j]};
                result.push_back(sum);
            }
        }
    }
    return result;
}

/// The power of two that is at most `largest`, and not below the smallest normal half.
double power_of(double largest) { return std::exp2(std::max(-14.0, std::floor(std::log2(largest)))); }

/// What attention in pairs of integers (attention_pairs.inl) may round, besides.
struct PairRounding {
    double score = 0.0;         // of a query's scores
    std::vector<double> value;  // of its result

    /// Of one query, whose weights p (not yet divided by `total`) are 0 where it sees nothing. Slabs have 256 elements.
    template <class Key, class Value>
    PairRounding(const float* q, std::size_t dim, double scale, const std::vector<double>& p, double total, Key key,
                 std::size_t value_dim, Value v)
        : value(value_dim) {
        for (std::size_t d = 0; d < dim; d += 256) {
            const std::size_t end = (std::min)(dim, d + 256);
            double q_sum = 0.0, q_most = 0.0, worst = 0.0;
            for (std::size_t i = d; i < end; ++i) {
                q_sum += std::abs(double{q[i]});
                q_most = (std::max)(q_most, std::abs(double{q[i]}));
            }
            // Half a step of the query's integers, and of the keys' with 13 bits.
            const double q_half = (std::max)(q_most / 32767, q_sum / (262144 - 256)) / 2;
            for (std::size_t j = 0; j < p.size(); ++j) {
                if (p[j] == 0.0) continue;
                double k_sum = 0.0, k_most = 0.0;
                for (std::size_t i = d; i < end; ++i) {
                    k_sum += std::abs(key(j, i));
                    k_most = (std::max)(k_most, std::abs(key(j, i)));
                }
                const double k_half = power_of(k_most) * 0x1p-13;
                worst = (std::max)(worst, q_sum * k_half + (k_sum + static_cast<double>(end - d) * k_half) * q_half);
            }
            score += worst * scale;
        }
        for (std::size_t first = 0; first < p.size(); first += 128) {
            const std::size_t end = (std::min)(p.size(), first + 128);
            std::vector<double> power(end - first);
            double highest = 0.0;
            for (std::size_t j = first; j < end; ++j) {
                double most = 0.0;
                for (std::size_t i = 0; i < value_dim; ++i) most = (std::max)(most, std::abs(v(j, i)));
                power[j - first] = power_of(most);
                highest = (std::max)(highest, p[j] * power[j - first]);
            }
            // Half a step of weights, of 12 bits where they are highest, and of values with 12 bits.
            for (std::size_t j = first; j < end; ++j) {
                if (p[j] == 0.0) continue;
                for (std::size_t i = 0; i < value_dim; ++i)
                    value[i] += (highest * 0x1p-13 * std::abs(v(j, i)) / power[j - first] +
                                 (p[j] + highest * 0x1p-13 / power[j - first]) * power[j - first] * 0x1p-12) /
                                total;
            }
        }
    }
};

struct Asked {
    std::vector<Query> queries;
    std::vector<float> q;
    std::vector<float> sinks;
};

/// How far results are from those in double precision, in units of what is allowed.
template <class B>
Worst compare(const Asked& asked, const Sequences& sequences, const decant::AttentionSpec& spec,
              const CacheShape& shape, std::size_t layer, const std::vector<float>& got) {
    const bool pairs = Machine<B>::attends_in_pairs && shape.dtype == DType::f16;
    const std::vector<double> k = rounded(shape, layer, sequences.k, sequences.width);
    const std::vector<double> v = rounded(shape, layer, sequences.v, sequences.width);
    // What is rotated sums up others, a few places of the last of which it may miss.
    const double block = static_cast<double>((std::max)(shape.rotation(layer), std::size_t{1}));
    const std::size_t heads = spec.heads, head_dim = spec.head_dim, value_dim = spec.value_dim();
    const std::size_t columns = heads * head_dim;
    Worst worst;
    for (std::size_t t = 0; t < asked.queries.size(); ++t) {
        const std::size_t position = asked.queries[t].position, length = position + 1;
        const auto visible = [&](std::size_t p) { return spec.window == 0 || p + spec.window > position; };
        const std::size_t first = sequences.first[asked.queries[t].sequence];
        for (std::size_t h = 0; h < heads; ++h) {
            const std::size_t kv_offset = h / (heads / spec.kv_heads) * head_dim;
            const float* const q = &asked.q[t * columns + h * head_dim];
            const auto key = [&](std::size_t p, std::size_t i) {
                return k[(first + p) * sequences.width + kv_offset + i];
            };
            const auto value = [&](std::size_t p, std::size_t i) {
                const std::size_t at = (first + p) * sequences.width + kv_offset + i;
                return spec.key_skip > 0 ? k[at + spec.key_skip] : v[at];
            };
            std::vector<double> scores(length);
            double highest = -1e300, largest = 0.0, total = 0.0, widest = 0.0;
            for (std::size_t p = 0; p < length; ++p) {
                if (!visible(p)) continue;
                double size = 0.0, q_size = 0.0, k_size = 0.0;
                for (std::size_t i = 0; i < head_dim; ++i) {
                    const double product = q[i] * key(p, i);
                    scores[p] += product * double{spec.scale};
                    size += std::abs(product) * double{spec.scale};
                    q_size += double{q[i]} * q[i];
                    k_size += key(p, i) * key(p, i);
                }
                if (block > 1) size = std::sqrt(q_size * k_size * block) * double{spec.scale};
                for (std::size_t i = 0; i < value_dim; ++i) widest = (std::max)(widest, std::abs(value(p, i)));
                if (spec.softcap > 0.0f) scores[p] = spec.softcap * std::tanh(scores[p] / double{spec.softcap});
                highest = (std::max)(highest, scores[p]);
                largest = (std::max)(largest, size);
            }
            if (!asked.sinks.empty()) highest = (std::max)(highest, double{asked.sinks[h]});
            for (std::size_t p = 0; p < length; ++p)
                total += scores[p] = visible(p) ? std::exp(scores[p] - highest) : 0.0;
            if (!asked.sinks.empty()) total += std::exp(asked.sinks[h] - highest);
            PairRounding rounding(q, pairs ? head_dim : 0, double{spec.scale}, pairs ? scores : std::vector<double>{},
                                  total, key, value_dim, value);
            for (std::size_t i = 0; i < value_dim; ++i) {
                double expected = 0.0, size = 0.0;
                for (std::size_t p = 0; p < length; ++p) {
                    expected += scores[p] / total * value(p, i);
                    size += scores[p] / total * std::abs(value(p, i));
                }
                // A score's rounding error is a relative error of its weight.
                const double relative =
                    2 * largest * 0x1p-22 + 1e-6 * double{spec.softcap} + 5e-6 + (pairs ? 6e-6 : 0.0);
                if (block > 1) size += widest * std::sqrt(block);
                const double allowed = (relative + std::expm1(2 * rounding.score)) * size + rounding.value[i];
                worst.add(got[(t * heads + h) * value_dim + i], expected, allowed + 1e-37);
            }
        }
    }
    return worst;
}

template <class B>
void check_attention(Random& random, std::uint32_t heads, std::uint32_t kv_heads, std::uint32_t head_dim,
                     std::uint32_t block_tokens, DType dtype) {
    const std::uint32_t whole = decant::traits(dtype).block_elements;
    const bool latent = head_dim > whole && random.between(0, 2) == 0;
    const std::uint32_t key_skip =
        latent ? whole * static_cast<std::uint32_t>(random.between(1, head_dim / whole - 1)) : 0;
    // The layer under test lies between two of other shapes, behind some states.
    const CacheShape shape{{{2, 5 * whole}, {kv_heads, head_dim, key_skip}, {1, 16 * whole, 0, 3}},
                           block_tokens,
                           dtype,
                           random.pick({0u, 3u})};
    std::vector<std::size_t> lengths;
    const std::size_t count = random.between(1, 3);
    for (std::size_t s = 0; s < count; ++s)
        lengths.push_back(
            random.pick<std::size_t>({1, 2, 63, 64, 65, 128, 129, random.between(1, 300), random.between(1024, 1100)}));
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
    decant::AttentionSpec spec{heads, kv_heads, head_dim, 1.0f / std::sqrt(static_cast<float>(head_dim)), window};
    spec.softcap = random.pick({0.0f, 0.0f, 1.0f, 20.0f});
    spec.key_skip = key_skip;
    std::optional<Matrix> sinks;
    if (random.between(0, 2) == 0) {
        sinks = decant_test::random_matrix(random, random.pick({DType::f32, DType::f16, DType::bf16}), 1, heads);
        if (sinks->dtype == DType::f32)  // large ones too
            *sinks = decant_test::float_matrix(random.floats(heads, 20.0f), heads);
    }
    const std::vector<float> sink_values = sinks ? sinks->values() : std::vector<float>{};
    const std::vector<float> q = random.floats(queries.size() * heads * head_dim, 3.0f);
    const std::vector<float> got = attend<B>(queries, q, tables, cache, 1, spec, sinks);
    const Worst worst = compare<B>({queries, q, sink_values}, sequences, spec, shape, 1, got);
    CAPTURE(heads, kv_heads, head_dim, block_tokens, decant::name(dtype), lengths, key_size, window, spec.softcap,
            spec.key_skip, sink_values);
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
        for (const std::uint32_t head_dim : {1u, 7u, 12u, 64u, 80u}) {
            const auto block_tokens = random.pick<std::uint32_t>({1, 3, 16, 64});
            check_attention<TestType>(random, h.heads, h.kv_heads, head_dim, block_tokens, DType::f32);
            check_attention<TestType>(random, h.heads, h.kv_heads, head_dim, block_tokens, DType::f16);
        }
    }
    for (const std::uint32_t block_tokens : {1u, 3u, 16u, 64u})
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
            check_attention<TestType>(random, 6, 2, 33, block_tokens, dtype);
}

TEMPLATE_TEST_CASE("attention: cache entries in blocks, of any head that they divide", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(30);
    for (const DType dtype : {DType::q8_0, DType::q4_0, DType::bf16})
        for (const std::uint32_t head_dim : {32u, 64u, 96u, 128u, 256u, 320u, 576u})
            check_attention<TestType>(random, 6, random.pick({1u, 2u, 6u}), head_dim,
                                      random.pick<std::uint32_t>({1, 3, 16, 64}), dtype);
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

TEMPLATE_TEST_CASE("attention: a sink takes its share of the weight", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(25);
    const std::vector<std::size_t> lengths{3};
    Sequences sequences(random, lengths, 1, 0.0f);  // scores of 0
    sequences.v = {1.0f, 2.0f, 6.0f};
    const Tables tables(random, lengths, 4);
    TestCache<TestType> cache(TestType{}, {{{1, 1}}, 4, DType::f32}, tables.pool);
    store<TestType>(sequences, tables, cache, 0);
    // Heads with a sink as heavy as two positions, none, and one beside which nothing counts.
    const Matrix sinks = decant_test::float_matrix({std::log(2.0f), -infinity, 100.0f}, 3);
    const auto y = attend<TestType>({{0, 2}}, {1.0f, 1.0f, 1.0f}, tables, cache, 0, {3, 1, 1, 1.0f}, sinks);
    CHECK(std::abs(y[0] - 9.0f / 5.0f) < 1e-5f);
    CHECK(std::abs(y[1] - 9.0f / 3.0f) < 1e-5f);
    CHECK(std::abs(y[2]) < 1e-30f);
}

TEMPLATE_TEST_CASE("attention: what is no number stays visible where it is seen, and only there", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    constexpr float no_number = std::numeric_limits<float>::quiet_NaN();
    Random random(26);
    const std::vector<std::size_t> lengths{100, 70};
    const std::vector<Query> queries{{0, 99}, {0, 60}, {1, 69}, {0, 89}};
    constexpr std::uint32_t heads = 4, kv_heads = 2;
    for (int round = 0; round < 60; ++round) {
        const bool latent = random.coin();
        const DType dtype = random.pick({DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0});
        const std::uint32_t dim = in_blocks(dtype) ? 96 : 12;
        decant::AttentionSpec spec{heads, kv_heads, dim, 0.3f, random.pick({0u, 10u}), random.pick({0.0f, 5.0f})};
        if (latent) spec.key_skip = in_blocks(dtype) ? 32 : 4;
        const CacheShape shape{{{kv_heads, dim, spec.key_skip}}, 16, dtype};
        const Tables tables(random, lengths, 16);
        const Sequences good(random, lengths, std::size_t{kv_heads} * dim, 1.0f);
        const std::vector<float> q = random.floats(queries.size() * heads * dim);
        const Matrix sinks = decant_test::float_matrix(random.floats(heads), heads);
        const auto run = [&](const Sequences& sequences, const std::vector<float>& asked, const Matrix& sunk) {
            TestCache<TestType> cache(TestType{}, shape, tables.pool);
            store<TestType>(sequences, tables, cache, 0);
            return attend<TestType>(queries, asked, tables, cache, 0, spec, sunk);
        };
        // A number of a key or a value at position 88 of the first sequence, of the query of row 0, or a sink.
        Sequences broken = good;
        std::vector<float> broken_q = q;
        std::vector<float> broken_sinks = sinks.values();
        const std::size_t place = random.between(0, 3), head = random.between(0, heads - 1), group = head / 2;
        const std::size_t at = 88 * kv_heads * dim + group * dim + 7;
        if (place == 0) broken.k[at] = no_number;
        if (place == 1) (latent ? broken.k : broken.v)[at] = no_number;
        if (place == 2) broken_q[head * dim + 7] = no_number;
        if (place == 3) broken_sinks[head] = no_number;
        const auto expected = run(good, q, sinks);
        const auto got = run(broken, broken_q, decant_test::float_matrix(broken_sinks, heads));
        // Where a value shares its scale with the others of its row, it is seen in all of them.
        const bool whole = latent || (Machine<TestType>::attends_in_pairs && shape.dtype == DType::f16);
        std::size_t hidden = 0, spread = 0;
        const std::size_t value_dim = spec.value_dim();
        for (std::size_t t = 0; t < queries.size(); ++t) {
            const bool sees = queries[t].sequence == 0 && queries[t].position >= 88 &&
                              (spec.window == 0 || queries[t].position < 88 + spec.window);
            for (std::size_t h = 0; h < heads; ++h) {
                for (std::size_t i = 0; i < value_dim; ++i) {
                    const std::size_t y = (t * heads + h) * value_dim + i;
                    const bool shares = whole || i == 7 || (in_blocks(dtype) && i < 32);  // its block, or 32 rotated
                    const bool affected = place < 2    ? sees && h / 2 == group && (place == 0 || shares)
                                          : place == 2 ? t == 0 && h == head
                                                       : h == head;
                    hidden += affected && !std::isnan(got[y]);
                    spread += !affected && std::memcmp(&got[y], &expected[y], sizeof(float)) != 0;
                }
            }
        }
        CAPTURE(round, place, head, latent, spec.window, spec.softcap, decant::name(shape.dtype));
        CHECK(hidden == 0);
        CHECK(spread == 0);
    }
}

// Sums of integers may not overflow, nor may what is small vanish beside what is large in other rows.
TEMPLATE_TEST_CASE("attention: rows of extreme numbers", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    constexpr float most = 65504.0f, least = 0x1p-24f;
    Random random(29);
    const std::vector<std::size_t> lengths{300};
    struct Case {
        std::uint32_t dim;
        DType dtype;
    };
    for (const auto& [dim, dtype] :
         {Case{64, DType::f16}, Case{128, DType::f16}, Case{256, DType::f16}, Case{300, DType::f16},
          Case{64, DType::q8_0}, Case{288, DType::q8_0}, Case{64, DType::q4_0}, Case{300, DType::bf16}}) {
        const Tables tables(random, lengths, 16);
        for (int kind = 0; kind < 6; ++kind) {
            const CacheShape shape{{{1, dim}}, 16, dtype};
            Sequences sequences(random, lengths, dim, 1.0f);
            std::vector<Query> queries{{0, 0}, {0, 127}, {0, 128}, {0, 254}, {0, 299}};
            std::vector<float> q = random.floats(queries.size() * 2 * dim);
            float scale = 0.125f;
            for (std::size_t i = 0; i < sequences.k.size(); ++i) {
                const std::size_t row = i / dim, column = i % dim;
                float& k = sequences.k[i];
                float& v = sequences.v[i];
                if (kind == 0) k = v = row % 3 == 0 ? -most : most;   // everything as large as can be
                if (kind == 1) k = v = random.coin() ? most : -most;  // of either sign
                if (kind == 2 && column == row % dim) k = v = most;   // one huge element
                if (kind == 3 && row % 2 == 0) k = v = 0.0f;          // nothing but zeros
                if (kind == 4) k = v = static_cast<float>(random.between(0, 9)) * least;  // subnormal halves
                if (kind == 5) v *= random.pick({1.0f, 0x1p-20f, 4096.0f});               // rows of different size
            }
            if (kind < 3) scale = 0x1p-16f;
            if (kind == 0)
                for (float& x : q) x = 1.0f;
            if (kind == 4) scale = 0x1p20f;
            TestCache<TestType> cache(TestType{}, shape, tables.pool);
            store<TestType>(sequences, tables, cache, 0);
            const decant::AttentionSpec spec{2, 1, dim, scale};
            const auto got = attend<TestType>(queries, q, tables, cache, 0, spec);
            CAPTURE(dim, kind, decant::name(dtype));
            CHECK(compare<TestType>({queries, q, {}}, sequences, spec, shape, 0, got).units() <= 1.0);
            // Each row alone gives the same bits.
            for (std::size_t t = 0; t < queries.size(); ++t) {
                const auto first = q.begin() + static_cast<std::ptrdiff_t>(t * 2 * dim);
                const auto alone = attend<TestType>({queries[t]}, {first, first + 2 * dim}, tables, cache, 0, spec);
                CHECK(std::memcmp(alone.data(), &got[t * 2 * dim], 2 * dim * sizeof(float)) == 0);
            }
        }
    }
}

TEMPLATE_TEST_CASE("attention: a latent layer keeps its keys alone, behind the states", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(27);
    const std::vector<std::size_t> lengths{5, 21};
    const Sequences sequences(random, lengths, 12, 1.0f);
    // States of two layers' 3 and 2 floats; a block of four tokens has 2 x 4 x 3, 4 x 12, and 2 x 4 x 5 columns.
    const CacheShape shape{{{1, 3, 0, 3}, {1, 12, 4}, {1, 5, 0, 2}}, 4, DType::f32, 7};
    const Tables tables(random, lengths, 4);
    TestCache<TestType> cache(TestType{}, shape, tables.pool);
    store<TestType>(sequences, tables, cache, 1);
    std::vector<std::byte> expected(cache.buffer.size(), std::byte{0xFF});
    REQUIRE(expected.size() == (7 * 5 + tables.pool * (24 + 48 + 40)) * sizeof(float));
    for (std::size_t s = 0; s < lengths.size(); ++s) {
        for (std::size_t p = 0; p < lengths[s]; ++p) {
            const auto block = static_cast<std::size_t>(tables.blocks[s][p / 4]);
            const std::size_t at = 7 * 5 + block * (24 + 48 + 40) + 24 + p % 4 * 12;
            std::memcpy(&expected[at * sizeof(float)], &sequences.k[(sequences.first[s] + p) * 12], 12 * sizeof(float));
        }
    }
    CHECK(std::memcmp(cache.buffer.data(), expected.data(), expected.size()) == 0);
}

TEMPLATE_TEST_CASE("attention: neither the order nor the size of blocks changes a bit", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(22);
    const std::vector<std::size_t> lengths{150, 1, 67};
    const std::vector<Query> queries{{2, 66}, {0, 149}, {1, 0}, {0, 64}, {2, 3}};
    const decant::AttentionSpec spec{6, 2, 32, 0.25f, random.pick<std::uint32_t>({0, 70}), 9.0f};
    const std::optional<Matrix> sinks = decant_test::random_matrix(random, DType::f16, 1, 6);
    const Sequences sequences(random, lengths, 64, 2.0f);
    const std::vector<float> q = random.floats(queries.size() * 192);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
        std::vector<float> expected;
        for (const std::uint32_t block_tokens : {256u, 1u, 3u, 16u, 16u, 16u, 64u}) {
            const Tables tables(random, lengths, block_tokens);
            TestCache<TestType> cache(TestType{}, {{{2, 32}}, block_tokens, dtype}, tables.pool);
            store<TestType>(sequences, tables, cache, 0);
            const std::vector<float> got = attend<TestType>(queries, q, tables, cache, 0, spec, sinks);
            if (expected.empty()) expected = got;
            CAPTURE(block_tokens, decant::name(dtype));
            CHECK(decant_test::same_bits(got, expected));
        }
    }
}

// What a pass of few rows cuts into pieces, one of many rows computes at once.
TEMPLATE_TEST_CASE("attention: a long cache in pieces, and together with other rows, gives the same bits", "",
                   DECANT_TEST_SIMD_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(28);
    const std::vector<std::size_t> lengths{2100, 1030, 40};
    const std::vector<Query> few{{0, 2047}, {0, 2048}, {0, 2049}, {2, 39}, {1, 1023}, {1, 1024}, {0, 2099}, {1, 5}};
    struct Case {
        std::uint32_t window;
        DType dtype;
    };
    for (const auto& [window, dtype] : {Case{0, DType::f16}, Case{1100, DType::f16}, Case{3, DType::f16},
                                        Case{0, DType::q8_0}, Case{1100, DType::q4_0}, Case{0, DType::bf16}}) {
        const decant::AttentionSpec spec{6, 2, 32, 0.25f, window};
        const Matrix sinks = decant_test::random_matrix(random, DType::f32, 1, 6);
        const Sequences sequences(random, lengths, 64, 3.0f);
        const Tables tables(random, lengths, 16);
        TestCache<TestType> cache(TestType{}, {{{2, 32}}, 16, dtype}, tables.pool);
        store<TestType>(sequences, tables, cache, 0);
        std::vector<Query> many = few;
        while (many.size() < 40) many.push_back({2, many.size() - 8});
        const std::vector<float> q = random.floats(many.size() * 192);
        const std::vector<float> some(q.begin(), q.begin() + static_cast<std::ptrdiff_t>(few.size() * 192));
        for (const bool sunk : {false, true}) {
            const std::optional<Matrix> weight = sunk ? std::optional(sinks) : std::nullopt;
            const std::vector<float> got = attend<TestType>(few, some, tables, cache, 0, spec, weight);
            std::vector<float> expected = attend<TestType>(many, q, tables, cache, 0, spec, weight);
            expected.resize(got.size());
            CAPTURE(window, sunk, decant::name(dtype));
            CHECK(decant_test::same_bits(got, expected));
        }
    }
}

TEMPLATE_TEST_CASE("attention: the cache holds each value rounded once, at its place, and nothing else is written", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(23);
    for (const std::size_t head_dim : {1u, 7u, 8u, 33u, 32u, 96u}) {
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
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
            if (head_dim % decant::traits(dtype).block_elements != 0) continue;
            const std::uint32_t first = 3 * decant::traits(dtype).block_elements;
            const CacheShape shape{{{1, first}, {3, static_cast<std::uint32_t>(head_dim)}}, 4, dtype};
            const Tables tables(random, lengths, 4);
            TestCache<TestType> cache(TestType{}, shape, tables.pool);
            std::vector<std::byte> expected(cache.buffer.size(), std::byte{0xFF});
            const std::size_t skipped = 2 * 4 * decant::row_bytes(dtype, first);
            const std::size_t width = decant::row_bytes(dtype, sequences.width);
            for (std::size_t s = 0; s < lengths.size(); ++s) {
                for (std::size_t p = 0; p < lengths[s]; ++p) {
                    for (const std::size_t value : {0u, 1u}) {
                        // [layer][K then V][token of the block], after layer 0.
                        const auto block = static_cast<std::size_t>(tables.blocks[s][p / 4]);
                        const std::size_t at =
                            block * (skipped + 2 * 4 * width) + skipped + (value * 4 + p % 4) * width;
                        const std::vector<float>& rows = value == 0 ? sequences.k : sequences.v;
                        const auto bytes =
                            stored(shape, 1, &rows[(sequences.first[s] + p) * sequences.width], sequences.width);
                        std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(at));
                    }
                }
            }
            store<TestType>(sequences, tables, cache, 1);
            CAPTURE(head_dim, decant::name(dtype));
            CHECK(std::memcmp(cache.buffer.data(), expected.data(), expected.size()) == 0);
        }
    }
}

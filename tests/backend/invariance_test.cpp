// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The same answer however it is asked, bit for bit: a small network of all operations (but those on states, which
// states_test.cpp asks the same) and many dtypes is run token by token, and then in passes of other sizes, mates,
// orders, threads, interruptions and caches.
#include <decant/backend/concept.hpp>

#include "backend/support.hpp"
#include "core/executors.hpp"

#include <decant/core/stop.hpp>
#include <decant/core/thread_pool.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

using decant::AnyExecutor;
using decant::DType;
using decant::RowSet;
using decant::RunState;
using decant_test::Batch;
using decant_test::Machine;
using decant_test::Matrix;
using decant_test::Random;
using decant_test::Rig;
using decant_test::TestCache;

namespace {

constexpr std::size_t width = 256, heads = 6, kv_heads = 2, head_dim = 32, hidden = 288, vocabulary = 37;
constexpr std::size_t attention_width = heads * head_dim, kv_width = kv_heads * head_dim;
constexpr std::uint32_t layers = 2, latent_layer = layers;
// The layer after them: latent attention, then experts.
constexpr std::size_t plain = 16, turned = 32, rank = 32, latent_dim = turned + rank;
constexpr std::size_t experts = 5, chosen = 2, expert_width = 32, widest = chosen * width;
constexpr std::size_t most_rows = 9, most_sequences = 3;

/// Makes matrices for the network.
struct Maker {
    Random& random;
    bool blocks;  // or floats in their place
    Matrix operator()(DType dtype, std::size_t rows, std::size_t columns) const {
        if (!blocks && decant_test::is_block_format(dtype)) dtype = DType::bf16;
        return decant_test::random_matrix(random, dtype, rows, columns);
    }
};

/// Weights of the network.
struct Network {
    struct Layer {
        Matrix norm, q, k, v, q_bias, v_bias, o, mlp_norm, gate, up, down;
    };
    struct Latent {
        Matrix norm, norm_bias, q, kv, k_turned, up, down, sinks, o, mlp_norm, router, router_bias, shared_up,
            shared_down;
        std::vector<Matrix> gates, gate_biases, ups, downs;
    };
    Matrix table;
    std::vector<Layer> layer;
    Latent latent;
    Matrix norm, head;

    /// \param blocks whether products have weights in block formats, else all are floats.
    Network(Random& random, bool blocks)
        : table(decant_test::random_matrix(random, DType::q8_0, vocabulary, width)),
          latent(make_latent(random, blocks)),
          norm(decant_test::random_matrix(random, DType::f32, 1, width)),
          head(decant_test::random_matrix(random, blocks ? DType::q6_k : DType::f16, vocabulary, width)) {
        const Maker make{random, blocks};
        for (std::uint32_t l = 0; l < layers; ++l) {
            const bool odd = l % 2 != 0;
            layer.push_back({make(DType::f32, 1, width), make(odd ? DType::q4_1 : DType::q4_k, attention_width, width),
                             make(DType::f16, kv_width, width), make(odd ? DType::q6_k : DType::q5_0, kv_width, width),
                             make(DType::f32, 1, attention_width), make(DType::f16, 1, kv_width),
                             make(odd ? DType::q8_0 : DType::q4_0, width, attention_width), make(DType::bf16, 1, width),
                             make(odd ? DType::q4_0 : DType::q4_k, hidden, width),
                             make(odd ? DType::bf16 : DType::q4_1, hidden, width),
                             make(odd ? DType::q5_0 : DType::f32, width, hidden)});
        }
    }

 private:
    static Latent make_latent(Random& random, bool blocks) {
        const Maker make{random, blocks};
        Latent latent{make(DType::f32, 1, width),
                      make(DType::f16, 1, width),
                      make(DType::q4_k, heads * (plain + turned), width),
                      make(DType::q8_0, rank, width),
                      make(DType::f16, turned, width),
                      make(DType::f16, heads * rank, plain),
                      make(DType::q8_0, heads * plain, rank),
                      make(DType::f32, 1, heads),
                      make(DType::q4_0, width, heads * plain),
                      make(DType::bf16, 1, width),
                      make(DType::f32, experts, width),
                      make(DType::f16, 1, experts),
                      make(DType::q4_1, hidden, width),
                      make(DType::q8_0, width, hidden),
                      {},
                      {},
                      {},
                      {}};
        for (std::size_t e = 0; e < experts; ++e) {
            latent.gates.push_back(make(DType::q4_k, expert_width, width));
            latent.gate_biases.push_back(make(DType::f32, 1, expert_width));
            latent.ups.push_back(make(DType::bf16, expert_width, width));
            latent.downs.push_back(make(DType::q4_1, width, expert_width));
        }
        return latent;
    }
};

/// Which answers are compared: the logits of every token of every sequence.
struct Texts {
    std::vector<std::vector<std::size_t>> tokens;
    std::vector<std::vector<std::vector<float>>> logits;  // [sequence][position]
};

/// The network on a backend with a cache of some shape, its blocks in random order.
template <class B>
class Runner {
 public:
    Runner(Random& random, const Network& network, const Texts& texts, std::uint32_t block_tokens, DType dtype,
           std::size_t participants = 4)
        : table_((100 + block_tokens - 1) / block_tokens),
          rig_({most_rows + 2, most_sequences, most_rows, static_cast<std::uint32_t>(table_)}, widest, participants),
          cache_(B{}, {cached(), block_tokens, dtype}, table_ * texts.tokens.size()) {
        std::vector<std::int32_t> order(table_ * texts.tokens.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
        random.shuffle(order);
        for (std::size_t s = 0; s < texts.tokens.size(); ++s)
            blocks_.emplace_back(order.begin() + static_cast<std::ptrdiff_t>(s * table_),
                                 order.begin() + static_cast<std::ptrdiff_t>((s + 1) * table_));
        rig_.pass().record([&](auto& pass) { record(pass, network); });
    }

    Batch batch() const {
        Batch batch(rig_.shape());
        for (std::size_t s = 0; s < blocks_.size(); ++s) batch.table(s, blocks_[s]);
        return batch;
    }
    void add(Batch& batch, const Texts& texts, std::size_t sequence, std::size_t position) const {
        const std::size_t block_tokens = cache_.shape.block_tokens;
        const auto block = static_cast<std::size_t>(blocks_[sequence][position / block_tokens]);
        batch.add(texts.tokens[sequence][position], position, sequence, block * block_tokens + position % block_tokens);
    }
    void upload(const Batch& batch) { rig_.upload(batch, cache_); }
    auto& pass() { return rig_.pass(); }
    std::vector<float> logits() { return rig_.read(logits_, RowSet::wanted); }

 private:
    static std::vector<decant::CacheLayer> cached() {
        std::vector<decant::CacheLayer> all(layers, {kv_heads, head_dim});
        all.push_back({1, latent_dim, turned});
        return all;
    }

    template <class P>
    void record(P& pass, const Network& network) {
        const auto& w = [&](const Matrix& matrix) -> const auto& { return rig_.weight(matrix); };
        const decant::RopeSpec rope{decant::RopeLayout::halves, head_dim, head_dim - 4, 1.0f};
        const decant::AttentionSpec attention{heads, kv_heads, head_dim, 0.25f};
        std::vector<float> frequencies(rope.dim / 2);
        for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = std::pow(0.3f, static_cast<float>(i));
        const auto x = rig_.view(width), n = rig_.view(width), q = rig_.view(attention_width), k = rig_.view(kv_width),
                   v = rig_.view(kv_width), a = rig_.view(attention_width), g = rig_.view(hidden),
                   u = rig_.view(hidden), angles = rig_.view(rope.dim), last = rig_.view(width, RowSet::wanted);
        logits_ = rig_.view(vocabulary, RowSet::wanted);
        pass.embed(w(network.table), x, 1.0f);
        pass.angles(rig_.constant(frequencies), rope, angles);
        for (std::uint32_t l = 0; l < layers; ++l) {
            const Network::Layer& layer = network.layer[l];
            pass.norm(x, w(layer.norm), {}, n);
            pass.linear(n, {{&w(layer.q), &w(layer.q_bias), q, false},
                            {&w(layer.k), nullptr, k, false},
                            {&w(layer.v), &w(layer.v_bias), v, false}});
            pass.rope(q, angles, rope);
            pass.rope(k, angles, rope);
            pass.store(k, v, l);
            pass.attend(q, l, attention, a);
            pass.linear(a, {{&w(layer.o), nullptr, x, true}});
            pass.norm(x, w(layer.mlp_norm), {}, n);
            pass.linear(n, {{&w(layer.gate), nullptr, g, false}, {&w(layer.up), nullptr, u, false}});
            pass.gate(g, u, decant::Activation::silu, g);
            pass.linear(g, {{&w(layer.down), nullptr, x, true}});
        }
        attend_latent(pass, network.latent, x);
        mix_experts(pass, network.latent, x);
        pass.gather(x, last);
        pass.norm(last, w(network.norm), {}, last);
        pass.linear(last, {{&w(network.head), nullptr, logits_, false}});
        pass.softcap(logits_, 50.0f);
    }

    template <class P>
    void attend_latent(P& pass, const Network::Latent& layer, typename B::View x) {
        const auto& w = [&](const Matrix& matrix) -> const auto& { return rig_.weight(matrix); };
        const decant::RopeSpec rope{decant::RopeLayout::interleaved, latent_dim, turned, 1.0f};
        const auto n = rig_.view(width), all = rig_.view(heads * (plain + turned)), flat = rig_.view(heads * plain),
                   wide = rig_.view(heads * rank), q = rig_.view(heads * latent_dim), kv = rig_.view(rank),
                   k_turned = rig_.view(turned), k = rig_.view(latent_dim), angles = rig_.view(turned),
                   values = rig_.view(heads * plain);
        std::vector<float> frequencies(turned / 2);
        for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = std::pow(0.6f, static_cast<float>(i));
        pass.angles(rig_.constant(frequencies), rope, angles);
        pass.norm(x, w(layer.norm), {1e-5f, 1.0f, true}, n, false, &w(layer.norm_bias), 1);
        pass.linear(n, {{&w(layer.q), nullptr, all, false},
                        {&w(layer.kv), nullptr, kv, false},
                        {&w(layer.k_turned), nullptr, k_turned, false}});
        pass.copy(all, flat, {heads, plain, plain + turned, 0, plain, 0});
        pass.copy(all, q, {heads, turned, plain + turned, plain, latent_dim, 0});
        pass.linear(flat, {{&w(layer.up), nullptr, wide, false}});
        pass.copy(wide, q, {heads, rank, rank, 0, latent_dim, turned});
        pass.copy(k_turned, k, {1, turned, turned, 0, latent_dim, 0});
        pass.copy(kv, k, {1, rank, rank, 0, latent_dim, turned});
        pass.rope(q, angles, rope);
        pass.rope(k, angles, rope);
        pass.store(k, k, latent_layer);
        pass.attend(q, latent_layer, {heads, 1, latent_dim, 0.004f, 50, 10.0f, turned}, wide, &w(layer.sinks));
        pass.linear(wide, {{&w(layer.down), nullptr, values, false}});
        pass.linear(values, {{&w(layer.o), nullptr, x, true}});
    }

    template <class P>
    void mix_experts(P& pass, const Network::Latent& layer, typename B::View x) {
        const auto& w = [&](const Matrix& matrix) -> const auto& { return rig_.weight(matrix); };
        const auto n = rig_.view(width), scores = rig_.view(experts), routes = rig_.view(2 * chosen),
                   gate = rig_.view(chosen * expert_width), up = rig_.view(chosen * expert_width),
                   out = rig_.view(chosen * width), shared = rig_.view(hidden);
        pass.norm(x, w(layer.mlp_norm), {1e-5f, 0.0f, true}, n);
        pass.linear(n, {{&w(layer.router), nullptr, scores, false}, {&w(layer.shared_up), nullptr, shared, false}});
        pass.route(scores, &w(layer.router_bias),
                   {decant::RouteSpec::Scoring::sigmoid, true, experts, chosen, 1, 1, 1.5f}, routes);
        pass.experts(n, rig_.list(layer.gates), rig_.list(layer.gate_biases), routes, gate);
        pass.experts(n, rig_.list(layer.ups), {}, routes, up);
        pass.gate(gate, up, {decant::Activation::silu, 1.702f, 7.0f}, gate);
        pass.experts(gate, rig_.list(layer.downs), {}, routes, out);
        pass.mix(out, routes, x, true);
        pass.activate(shared, decant::Activation::gelu, shared);
        pass.linear(shared, {{&w(layer.shared_down), nullptr, x, true}});
    }

    std::size_t table_;
    Rig<B> rig_;
    TestCache<B> cache_;
    std::vector<std::vector<std::int32_t>> blocks_;
    typename B::View logits_{};
};

Texts random_texts(Random& random) {
    Texts texts;
    for (const std::size_t length : {83u, 4u, 21u}) {
        texts.tokens.emplace_back();
        for (std::size_t p = 0; p < length; ++p) texts.tokens.back().push_back(random.between(0, vocabulary - 1));
    }
    return texts;
}

/// One token at a time, one sequence after the other, on one thread.
template <class B>
void answer_alone(Random& random, const Network& network, Texts& texts, DType dtype) {
    Runner<B> runner(random, network, texts, 100, dtype, 1);
    texts.logits.assign(texts.tokens.size(), {});
    for (std::size_t s = 0; s < texts.tokens.size(); ++s) {
        for (std::size_t p = 0; p < texts.tokens[s].size(); ++p) {
            Batch batch = runner.batch();
            runner.add(batch, texts, s, p);
            batch.want(0);
            runner.upload(batch);
            REQUIRE(runner.pass().run(AnyExecutor{}) == RunState::finished);
            texts.logits[s].push_back(runner.logits());
        }
    }
}

/// All tokens in random ragged passes, `run(pass)` running each; counts the wrong logits.
template <class B, class Run>
std::size_t wrong_answers(Random& random, Runner<B>& runner, const Texts& texts, Run run) {
    std::vector<std::size_t> done(texts.tokens.size(), 0);
    std::size_t left = 0, wrong = 0;
    for (const auto& tokens : texts.tokens) left += tokens.size();
    while (left > 0) {
        struct Row {
            std::size_t sequence, position;
        };
        std::vector<Row> rows;
        const std::size_t count = (std::min)(left, random.between(1, most_rows));
        while (rows.size() < count) {
            const std::size_t s = random.between(0, texts.tokens.size() - 1);
            if (done[s] < texts.tokens[s].size()) rows.push_back({s, done[s]++});
        }
        left -= count;
        random.shuffle(rows);
        std::vector<std::size_t> wanted;
        for (std::size_t row = 0; row < count; ++row)
            if (random.between(0, 3) != 0) wanted.push_back(row);
        random.shuffle(wanted);
        Batch batch = runner.batch();
        for (const Row row : rows) runner.add(batch, texts, row.sequence, row.position);
        for (const std::size_t row : wanted) batch.want(row);
        runner.upload(batch);
        run(runner.pass());
        const std::vector<float> logits = runner.logits();
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            const Row row = rows[wanted[i]];
            const auto from = logits.begin() + static_cast<std::ptrdiff_t>(i * vocabulary);
            wrong += !decant_test::same_bits({from, from + vocabulary}, texts.logits[row.sequence][row.position]);
        }
    }
    return wrong;
}

}  // namespace

TEMPLATE_TEST_CASE("invariance: batch mates, threads, executors, interruptions and caches change no bit", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(41);
    const Network network(random, true);
    Texts texts = random_texts(random);
    for (const DType dtype : {DType::f32, DType::f16, DType::q4_0}) {
        CAPTURE(decant::name(dtype));
        answer_alone<TestType>(random, network, texts, dtype);
        for (const auto& sequence : texts.logits)
            for (const auto& logits : sequence)
                for (const float logit : logits) REQUIRE(std::isfinite(logit));

        const auto finish = [](const AnyExecutor& executor) {
            return [&executor](auto& pass) { REQUIRE(pass.run(executor) == RunState::finished); };
        };
        for (const std::uint32_t block_tokens : {1u, 3u, 16u, 64u}) {
            Runner<TestType> runner(random, network, texts, block_tokens, dtype);
            CAPTURE(block_tokens);
            CHECK(wrong_answers(random, runner, texts, finish(AnyExecutor{})) == 0);
        }
        Runner<TestType> runner(random, network, texts, 16, dtype);
        for (const std::size_t threads : {2u, 3u, 4u}) {
            CAPTURE(threads);
            CHECK(wrong_answers(random, runner, texts, finish(AnyExecutor(decant::ThreadPool(threads, threads)))) == 0);
        }
        CHECK(wrong_answers(random, runner, texts, finish(AnyExecutor(decant_test::ReversedExecutor{}))) == 0);
        CHECK(wrong_answers(random, runner, texts, finish(AnyExecutor(decant_test::ShuffledExecutor{}))) == 0);

        decant::ThreadPool pool(3, 3);
        const AnyExecutor executor(pool);
        for (const std::uint64_t tiles : {1u, 2u, 7u, 50u}) {
            CAPTURE(tiles);
            std::uint64_t runs = 0;
            CHECK(wrong_answers(random, runner, texts, [&](auto& pass) {
                      while (pass.run(executor, {nullptr, tiles}) == RunState::stopped) ++runs;
                  }) == 0);
            CHECK(runs > 0);
        }

        // Another thread asks to stop at any moment, and this one at the start, should the other sleep throughout.
        decant::StopFlag stop;
        std::atomic<bool> over{false};
        std::thread nuisance([&] {
            while (!over) {
                stop.request();
                std::this_thread::sleep_for(std::chrono::microseconds(20));
            }
        });
        std::uint64_t stops = 0;
        const std::size_t wrong = wrong_answers(random, runner, texts, [&](auto& pass) {
            stop.request();
            while (pass.run(executor, {&stop}) == RunState::stopped) {
                ++stops;
                stop.clear();
            }
        });
        over = true;
        nuisance.join();
        CHECK(wrong == 0);
        CHECK(stops > 0);
    }
}

TEMPLATE_TEST_CASE("invariance: a pass may be interrupted after any of its tiles", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(44);
    const Network network(random, true);
    const Texts texts = random_texts(random);
    Runner<TestType> runner(random, network, texts, 16, DType::f16);
    const auto upload = [&] {
        Batch batch = runner.batch();
        for (const std::size_t s : {0u, 2u, 2u, 1u, 0u})
            runner.add(batch, texts, s,
                       static_cast<std::size_t>(
                           std::count(batch.sequences.begin(), batch.sequences.end(), static_cast<int>(s))));
        for (const std::size_t row : {3u, 1u, 2u, 4u}) batch.want(row);
        runner.upload(batch);
    };
    upload();
    REQUIRE(runner.pass().run(AnyExecutor{}) == RunState::finished);
    const std::vector<float> expected = runner.logits();
    decant::ThreadPool pool(3, 3);
    std::size_t wrong = 0;
    std::uint64_t tiles = 0;
    for (RunState state = RunState::stopped; state == RunState::stopped; ++tiles) {
        const AnyExecutor executor = tiles % 2 == 0 ? AnyExecutor{} : AnyExecutor(pool);
        upload();
        state = runner.pass().run(executor, {nullptr, tiles});
        if (state == RunState::stopped) REQUIRE(runner.pass().run(executor) == RunState::finished);
        wrong += !decant_test::same_bits(runner.logits(), expected);
    }
    CHECK(tiles > 100);
    CHECK(wrong == 0);
}

TEST_CASE("invariance: the backend that picks a set equals the set that it picks") {
    Random random(42);
    const Network network(random, true);
    Texts texts = random_texts(random);
    answer_alone<decant::Simd>(random, network, texts, DType::f16);
    const auto check = [&]<class B>(B) {
        Runner<B> runner(random, network, texts, 16, DType::f16);
        CHECK(wrong_answers(random, runner, texts,
                            [](auto& pass) { REQUIRE(pass.run(AnyExecutor{}) == RunState::finished); }) == 0);
    };
    switch (decant::Simd{}.pass(1).kernels().isa()) {
        case decant::Isa::portable: check(decant_test::PortableSimd{}); break;
#if DECANT_X86
        case decant::Isa::avx2: check(decant_test::Avx2Simd{}); break;
        case decant::Isa::avx_vnni: check(decant_test::AvxVnniSimd{}); break;
        case decant::Isa::avx512_vnni: check(decant_test::Avx512Simd{}); break;
#elif DECANT_ARM64
        case decant::Isa::neon: check(decant_test::NeonSimd{}); break;
        case decant::Isa::neon_dotprod: check(decant_test::NeonDotprodSimd{}); break;
#endif
        default: FAIL("a set without a backend of its own"); break;
    }
}

#if DECANT_AMX
namespace {

struct AmxSimd : decant::Simd {
    AmxSimd() : decant::Simd(decant::SimdKernels{decant::Isa::amx}) {}
};

}  // namespace

TEST_CASE("invariance: products by tiles give the same in any company") {
    if (!decant::allow_amx()) return;
    Random random(44);
    const Network network(random, true);
    Texts texts = random_texts(random);
    answer_alone<AmxSimd>(random, network, texts, DType::f16);
    Runner<AmxSimd> runner(random, network, texts, 16, DType::f16);
    REQUIRE(runner.pass().kernels().isa() == decant::Isa::amx);
    for (const std::size_t threads : {1u, 3u}) {
        const AnyExecutor executor(decant::ThreadPool(threads, threads));
        CHECK(wrong_answers(random, runner, texts,
                            [&](auto& pass) { REQUIRE(pass.run(executor) == RunState::finished); }) == 0);
    }
}
#endif

TEMPLATE_TEST_CASE("invariance: a whole network of float weights comes near the reference backend", "",
                   DECANT_TEST_SIMD_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(43);
    const Network network(random, false);
    Texts texts = random_texts(random);
    answer_alone<decant::Eigen>(random, network, texts, DType::f32);
    const auto expected = texts.logits;
    answer_alone<TestType>(random, network, texts, DType::f32);
    double largest = 0.0, size = 0.0;
    for (std::size_t s = 0; s < expected.size(); ++s) {
        for (std::size_t p = 0; p < expected[s].size(); ++p) {
            for (std::size_t i = 0; i < vocabulary; ++i) {
                largest = (std::max)(largest, std::abs(double{texts.logits[s][p][i]} - expected[s][p][i]));
                size = (std::max)(size, std::abs(double{expected[s][p][i]}));
            }
        }
    }
    CHECK(largest <= 3e-5 * size);
}

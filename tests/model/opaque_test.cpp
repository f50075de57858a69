// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Model, cache, sampler and the hand-over of logits on a backend whose memory the host cannot reach: the bits of Eigen.
#include "support/catch.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include "backend/opaque.hpp"

#include <decant/backend/eigen/eigen.hpp>
#include <decant/model/context.hpp>
#include <decant/sample/sampler.hpp>

#include "model/support.hpp"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using decant::Context;
using decant::DType;
using decant::ErrorCode;
using decant::KvCache;
using decant::Model;
using decant::PassPart;
using decant::RunState;
using decant::Sequence;
using decant::Token;
using decant::Want;
using decant_test::Floats;
using decant_test::Opaque;
using decant_test::taken;
using decant_test::TinyFile;
using Tokens = std::vector<Token>;

namespace {

Tokens random_tokens(std::size_t count, std::uint64_t seed, std::size_t vocabulary) {
    decant_test::Random random{seed};
    return decant_test::random_tokens(random, count, vocabulary);
}

/// All that was handed over, in order.
struct Transcript {
    std::vector<Floats> rows;
    Tokens picked;

    void add(const decant::Logits& logits) {
        for (std::size_t r = 0; r < logits.rows(); ++r) rows.push_back(decant_test::row(logits, r));
    }
    void add(const decant::BestRows& best) {
        for (std::size_t r = 0; r < best.rows(); ++r) {
            const auto row = best.row(r);
            Floats values{row.log_sum_exp()};
            for (std::size_t i = 0; i < row.size(); ++i) {
                values.push_back(row.logit(i));
                picked.push_back(row.token(i));
            }
            rows.push_back(std::move(values));
        }
    }
};

/// Everything that a host does with sequences. `length` tokens of prompt in chunks.
template <class B>
Transcript play(const Model<B>& model, DType dtype, std::size_t length) {
    Transcript out;
    const std::size_t vocabulary = model.spec().vocabulary;
    Context context(model, {.rows = 8, .sequences = 5, .logits = 8, .best = 3});
    const KvCache cache(context, {.tokens = 40 + 6 * length, .block_tokens = 4, .dtype = dtype});
    const auto say = [&](Sequence<B>& sequence, decant::Sampler sampler, int steps) {
        for (int i = 0; i < steps; ++i) {
            const auto logits = taken(context.decode(sequence, sequence.tokens().back()));
            out.picked.push_back(taken(sampler.pick(logits.row(0), sequence.tokens())));
            out.add(logits);
            out.add(taken(context.decode(sequence, out.picked.back())));
        }
    };

    const Tokens prompt = random_tokens(length, 1, vocabulary);
    auto first = taken(cache.sequence());
    out.add(taken(context.prefill(first, prompt)));

    auto second = first.fork();  // the last block is shared until one of them writes
    say(first, decant::Sampler{}, 3);
    say(second, decant::Sampler{{.temperature = 1.5f, .seed = 7}}, 3);
    auto third = second.fork();
    third.truncate(length - 1);
    say(third, decant::Sampler{{.temperature = 0.7f, .seed = 8}}, 2);
    first.truncate(2);
    out.add(taken(context.prefill(first, std::span(prompt).subspan(2))));

    auto fourth = taken(cache.sequence());
    const Tokens more = random_tokens(3, 2, vocabulary);
    out.add(taken(context.pass({{&third, std::span(more).first(1), Want::last},
                                {&fourth, more, Want::all},
                                {&first, std::span(more).first(1), Want::none},
                                {&second, std::span(more).first(2), Want::last}})));
    out.add(taken(context.best({{&third, std::span(more).first(1)}, {&fourth, std::span(more).last(2), Want::all}})));
    REQUIRE(context.erase(second, 1, 3));
    out.add(taken(context.decode(second, more[0])));
    for (const auto* sequence : {&first, &second, &third, &fourth})
        out.picked.insert(out.picked.end(), sequence->tokens().begin(), sequence->tokens().end());
    return out;
}

void check_same(const decant::Weights& weights, DType dtype, std::size_t length) {
    const auto expected = play(decant_test::bind<decant::Eigen>(weights), dtype, length);
    const auto found = play(decant_test::bind<Opaque>(weights), dtype, length);
    REQUIRE(expected.rows.size() > 25);
    CHECK(found.picked == expected.picked);
    REQUIRE(found.rows.size() == expected.rows.size());
    for (std::size_t r = 0; r < expected.rows.size(); ++r) {
        INFO("row " << r);
        CHECK(decant_test::same_bits(found.rows[r], expected.rows[r]));
    }
}

/// A pass of a tiny model, with its parts in the open.
struct Scene {
    Model<Opaque> model = decant_test::bind<Opaque>(TinyFile{}.open());
    Context<Opaque> context{model, {.rows = 16, .sequences = 4, .logits = 4}};
    KvCache<Opaque> cache{context, {.tokens = 64}};
    Sequence<Opaque> sequence = taken(cache.sequence());
    Tokens tokens = random_tokens(12, 3, 24);
    PassPart<Opaque> part{&sequence, tokens, Want::last};
    std::span<const PassPart<Opaque>> parts{&part, 1};

    [[nodiscard]] decant_test::opaque::Counts counts() const { return model.backend().counts(); }
};

}  // namespace

TEST_CASE("opaque: tiny models give the bits of Eigen", "[model][opaque]") {
    for (const char* name : {"llama2", "llama3", "llama_linear", "llama_yarn"}) {
        INFO(name);
        check_same(decant_test::tiny(name), DType::f16, 21);
    }
    for (const DType dtype :
         {DType::f32, DType::f16, DType::bf16, DType::q4_0, DType::q4_1, DType::q5_0, DType::q8_0}) {
        INFO(decant::name(dtype));
        check_same(TinyFile(dtype).open(), DType::f32, 13);
    }
}

TEST_CASE("opaque: the real model gives the bits of Eigen", "[model][opaque]") {
    const auto weights = taken(decant::Weights::open(decant_test::smollm2()));
    const Tokens prompt = random_tokens(5, 4, 1000);
    const auto run = [&](const auto& model) {
        Context context(model, {.rows = 4, .sequences = 2, .logits = 2});
        const KvCache cache(context, {.tokens = 32});
        Transcript out;
        auto sequence = taken(cache.sequence());
        out.add(taken(context.prefill(sequence, prompt)));
        auto other = sequence.fork();
        for (const float temperature : {0.0f, 2.0f}) {
            decant::Sampler sampler{{.temperature = temperature, .seed = 5}};
            out.picked.push_back(taken(sampler.pick(out.rows.back(), sequence.tokens())));
            const Token next = out.picked.back();
            out.add(taken(context.pass({{&sequence, {&next, 1}}, {&other, std::span(prompt).first(1)}})));
        }
        return out;
    };
    const auto expected = run(decant_test::bind<decant::Eigen>(weights));
    const auto found = run(decant_test::bind<Opaque>(weights));
    CHECK(found.picked == expected.picked);
    REQUIRE(expected.rows.size() == 5);
    CHECK(found.rows == expected.rows);  // finite
    for (std::size_t r = 0; r < expected.rows.size(); ++r)
        CHECK(decant_test::same_bits(found.rows[r], expected.rows[r]));
}

TEST_CASE("opaque: weights go over once, a shape is recorded once, a pass is one replay", "[model][opaque]") {
    const auto weights = TinyFile(DType::q8_0, 64, 256, 3).open();
    std::size_t file = 0;
    for (const auto& tensor : weights.tensors()) file += tensor.bytes.size();

    const auto model = decant_test::bind<Opaque>(weights);
    const auto counts = [&] { return model.backend().counts(); };
    CHECK(counts().weights == weights.tensors().size());
    CHECK(counts().bytes > file);
    CHECK(counts().bytes < file + 200 * weights.tensors().size());
    CHECK(counts().recordings == 0);

    Context context(model, {.rows = 8, .sequences = 4, .logits = 4});
    const KvCache cache(context, {.tokens = 128});
    auto sequence = taken(cache.sequence());
    const Tokens tokens = random_tokens(30, 5, 24);
    REQUIRE(context.prefill(sequence, tokens));  // chunks of 8, 8, 8 and 6
    CHECK(counts().recordings == 1);
    CHECK(counts().replays == 4);
    CHECK(counts().downloads == 4);

    // A step carries its inputs and no more, and reads its logits and no more.
    const auto before = counts();
    REQUIRE(context.decode(sequence, tokens[0]));
    auto fork = sequence.fork();
    REQUIRE(context.pass({{&sequence, tokens, Want::last}}).error().code == ErrorCode::invalid_argument);
    REQUIRE(context.pass({{&fork, std::span(tokens).first(2)}, {&sequence, std::span(tokens).first(1)}}));
    const auto after = counts();
    CHECK(after.recordings == 1);
    CHECK(after.replays - before.replays == 2);
    CHECK(after.uploads - before.uploads == 2);
    CHECK(after.downloads - before.downloads == 2);
    CHECK(after.messages - before.messages <= 2 * 4 + 1);  // and one copy of a shared block
    CHECK(after.bytes - before.bytes < 3000);
    CHECK(after.weights == weights.tensors().size());

    // A longer block table is another shape.
    const KvCache larger(context, {.tokens = 512});
    auto other = taken(larger.sequence());
    REQUIRE(context.decode(other, tokens[0]));
    REQUIRE(context.decode(other, tokens[1]));
    REQUIRE(context.decode(sequence, tokens[1]));  // which serves the smaller cache too
    CHECK(counts().recordings == 2);
    CHECK(counts().replays == after.replays + 3);
}

TEST_CASE("opaque: what a pass writes cannot be read inside of it", "[model][opaque]") {
    Scene scene;
    REQUIRE(scene.context.begin(scene.parts));
    const auto early = scene.context.finish(scene.parts);
    REQUIRE_FALSE(early);
    CHECK(early.error().code == ErrorCode::invalid_argument);
    CHECK(scene.sequence.size() == 0);
    CHECK(scene.context.advance({.tiles = 0}) == RunState::stopped);
    CHECK_FALSE(scene.context.finish(scene.parts));
    CHECK(scene.context.advance() == RunState::finished);
    const Floats late = decant_test::row(taken(scene.context.finish(scene.parts)));
    CHECK(scene.counts().replays == 1);

    Scene fresh;
    CHECK(decant_test::same_bits(decant_test::row(taken(fresh.context.prefill(fresh.sequence, fresh.tokens))), late));
}

TEST_CASE("opaque: a cancelled pass never starts, and a forgotten one is in nobody's way", "[model][opaque]") {
    Scene scene;
    REQUIRE(scene.context.prefill(scene.sequence, scene.tokens));
    decant::StopFlag stop;
    stop.request();
    const auto cancelled = scene.context.decode(scene.sequence, Token{1}, {.stop = &stop});
    REQUIRE_FALSE(cancelled);
    CHECK(cancelled.error().code == ErrorCode::cancelled);
    CHECK(scene.sequence.size() == 12);
    CHECK(scene.counts().replays == 1);

    auto fork = scene.sequence.fork();
    const PassPart<Opaque> part{&fork, std::span(scene.tokens).first(1), Want::last};
    REQUIRE(scene.context.begin({&part, 1}));  // and left alone
    fork.truncate(12);
    Context second(scene.model, {.rows = 16});
    const Floats other = decant_test::row(taken(second.decode(scene.sequence, Token{1})));
    const Floats again = decant_test::row(taken(scene.context.decode(fork, Token{1})));
    CHECK(decant_test::same_bits(other, again));
}

TEST_CASE("opaque: a device that dies fails the call and leaves the sequence", "[model][opaque]") {
    for (const bool amid : {false, true}) {
        Scene scene;
        REQUIRE(scene.context.prefill(scene.sequence, scene.tokens));
        const std::size_t free = scene.cache.free_blocks();
        if (amid) {
            REQUIRE(scene.context.begin(scene.parts));
            CHECK(scene.context.advance({.tiles = 0}) == RunState::stopped);
        }
        REQUIRE(kill(scene.model.backend().child(), SIGKILL) == 0);
        if (amid) {
            CHECK(scene.context.advance() == RunState::finished);
            const auto logits = scene.context.finish(scene.parts);
            REQUIRE_FALSE(logits);
            CHECK(logits.error().code == ErrorCode::io);
            scene.sequence.truncate(12);
        }
        const auto logits = scene.context.decode(scene.sequence, Token{1});
        REQUIRE_FALSE(logits);
        CHECK(logits.error().code == ErrorCode::io);
        CHECK(scene.sequence.size() == 12);
        CHECK(scene.cache.free_blocks() == free);
        CHECK(KvCache(scene.context).sequence().error().code == ErrorCode::io);
        const auto another = Model<Opaque>::bind(scene.model.weights(), scene.model.backend());
        REQUIRE_FALSE(another);
        CHECK(another.error().code == ErrorCode::io);
    }
}

TEST_CASE("opaque: groups of layers with block tables of their own", "[model][opaque]") {
    const auto weights = decant_test::tiny("gemma3_std");  // a window of 16
    const Tokens tokens = random_tokens(120, 8, 160);
    const auto run = [&](const auto& model, bool forget) {
        Context context(model, {.rows = 50});
        const KvCache cache(context, {.tokens = 160, .block_tokens = 4, .forget_unseen = forget});
        auto sequence = taken(cache.sequence());
        std::vector<Floats> rows{decant_test::row(taken(context.prefill(sequence, tokens)))};
        rows.push_back(decant_test::row(taken(context.decode(sequence, Token{5}))));
        REQUIRE(context.erase(sequence, 4, 30));
        rows.push_back(decant_test::row(taken(context.decode(sequence, Token{9}))));
        CHECK((!sequence.table(1).empty() && sequence.table(1)[0] < 0) == forget);
        return rows;
    };
    const auto expected = run(decant_test::bind<decant::Eigen>(weights), false);
    const auto found = run(decant_test::bind<Opaque>(weights), true);
    for (std::size_t r = 0; r < expected.size(); ++r) CHECK(decant_test::same_bits(found[r], expected[r]));
}

TEST_CASE("opaque: two contexts on one device from two threads", "[model][opaque]") {
    const auto weights = decant_test::tiny("llama3");
    const Tokens tokens = random_tokens(20, 6, 160);
    const auto eigen = decant_test::bind<decant::Eigen>(weights);
    Context reference(eigen);
    const KvCache cache(reference);
    auto sequence = taken(cache.sequence());
    const Floats expected = decant_test::row(taken(reference.prefill(sequence, tokens)));

    const auto model = decant_test::bind<Opaque>(weights);
    int wrong[2] = {0, 0};
    std::vector<std::thread> threads;
    for (int& failures : wrong) {
        threads.emplace_back([&] {
            for (int round = 0; round < 10; ++round) {
                Context context(model, {.rows = 16});
                const KvCache own(context, {.tokens = 64});
                auto mine = own.sequence();
                const auto logits =
                    mine ? context.prefill(*mine, tokens) : decant::Result<decant::Logits>(mine.error());
                failures += !logits || !decant_test::same_bits(decant_test::row(*logits), expected);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong[0] == 0);
    CHECK(wrong[1] == 0);
}

TEST_CASE("opaque: objects may go in any order, and the device with the last", "[model][opaque]") {
    const Tokens tokens = random_tokens(10, 7, 24);
    for (int order = 0; order < 8; ++order) {
        std::optional<Model<Opaque>> model(decant_test::bind<Opaque>(TinyFile{}.open()));
        std::optional<Context<Opaque>> context;
        context.emplace(*model, decant::ContextOptions{.rows = 16});
        std::optional<KvCache<Opaque>> cache;
        cache.emplace(*context, decant::CacheOptions{.tokens = 64});
        std::optional<Sequence<Opaque>> sequence(taken(cache->sequence()));
        if (order & 1) model.reset();
        if (order & 2) cache.reset();
        CHECK(context->prefill(*sequence, tokens));
        if (order & 4) sequence.reset();
        context.reset();
        sequence.reset();
        cache.reset();
        model.reset();
        CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
        CHECK(errno == ECHILD);
    }
}

#else

TEST_CASE("opaque: needs a system with fork") { SUCCEED("none here"); }

#endif

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/model/plan.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/thread_pool.hpp>

#include "core/sanitizers.hpp"
#include "model/plan.hpp"
#include "model/support.hpp"
#include "support/arena.hpp"
#include "support/process_memory.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/wait.h>
#include <unistd.h>
#endif

using decant::CacheOptions;
using decant::Context;
using decant::ContextOptions;
using decant::DType;
using decant::ErrorCode;
using decant::KvCache;
using decant::Memory;
using decant::MemoryOptions;
using decant::MemoryPlan;
using decant::Model;
using decant::Simd;
using decant::ThreadPool;
using decant::Token;
using decant::Want;
using decant_test::Arena;
using decant_test::taken;

namespace {

std::vector<Token> prompt(std::size_t count, std::size_t vocabulary) {
    decant_test::Random random{11};
    return decant_test::random_tokens(random, count, vocabulary);
}

}  // namespace

TEMPLATE_TEST_CASE("a plan counts what is then reserved, byte for byte", "[model][plan]", decant::Eigen, Simd) {
    const auto weights = decant_test::tiny("llama3");
    for (const ContextOptions& options :
         {ContextOptions{}, ContextOptions{.rows = 7, .sequences = 2, .logits = 3, .best = 5}}) {
        for (const CacheOptions& cached : {CacheOptions{}, CacheOptions{100, 1, DType::f32}, CacheOptions{65, 64}}) {
            for (const std::size_t threads : {1u, 3u})
                decant_test::check_plan<TestType>(weights, options, cached, threads);
        }
    }
}

TEST_CASE("a plan of what cannot be is an error", "[model][plan]") {
    const auto weights = decant_test::tiny("llama3");
    const auto huge = MemoryPlan::of<Simd>(weights, {}, {.tokens = 1000, .block_tokens = 0});
    REQUIRE_FALSE(huge);
    CHECK(huge.error().code == ErrorCode::invalid_argument);
    CHECK_FALSE(MemoryPlan::of<Simd>(weights, {}, {.tokens = (std::numeric_limits<std::size_t>::max)()}));
}

TEMPLATE_TEST_CASE("a cap is kept: what passes it is refused, what fits works", "[model][plan]", decant::Eigen, Simd) {
    const auto weights = decant_test::tiny("llama3");
    const CacheOptions cached{.tokens = 64};
    const auto plan = taken(MemoryPlan::of<TestType>(weights, {}, cached));
    for (const std::size_t missing : {0u, 1u}) {
        const Memory memory(MemoryOptions{.limit = plan.limited() - missing});
        const auto model = taken(Model<TestType>::bind(weights, TestType{memory}));
        Context context(model);
        const KvCache cache(context, cached);
        auto sequence = taken(cache.sequence());
        const auto logits = context.prefill(sequence, prompt(9, 160));
        CHECK(memory.used() <= memory.limit());
        if (missing == 0) {
            CHECK(logits);
        } else {
            REQUIRE_FALSE(logits);
            CHECK(logits.error().code == ErrorCode::out_of_memory);
            CHECK(sequence.size() == 0);
            CHECK(cache.free_blocks() == cache.blocks());
        }
    }
    const Memory little(MemoryOptions{.limit = plan.cache - 1});
    const KvCache none(taken(Model<TestType>::bind(weights, TestType{little})), cached);
    REQUIRE_FALSE(none.sequence());
    CHECK(none.sequence().error().code == ErrorCode::out_of_memory);
}

TEMPLATE_TEST_CASE("what a host's memory held before changes no bit", "[model][plan]", decant::Eigen, Simd) {
    for (const auto& weights : {decant_test::tiny("llama3"), decant_test::TinyFile(DType::q4_1).open()}) {
        const auto run = [&](const TestType& backend) {
            const auto model = taken(Model<TestType>::bind(weights, backend));
            Context context(model, ThreadPool{2}, {.rows = 32, .sequences = 2, .logits = 64});
            const KvCache cache(context, {.tokens = 96, .block_tokens = 4});
            const auto tokens = prompt(75, model.spec().vocabulary);
            auto sequence = taken(cache.sequence());
            std::vector<std::vector<float>> rows{decant_test::row(taken(context.prefill(sequence, tokens)))};
            auto fork = sequence.fork();
            const std::span<const Token> next(tokens.data(), 5);
            const auto logits = taken(context.pass({{&sequence, next, Want::all}, {&fork, next.first(2), Want::all}}));
            for (std::size_t r = 0; r < logits.rows(); ++r) rows.push_back(decant_test::row(logits, r));
            return rows;
        };
        Arena dirty;
        const auto expected = run(TestType{});
        const auto found = run(TestType{Memory(MemoryOptions{.source = dirty.source()})});
        CHECK(dirty.blocks == 0);
        REQUIRE(found.size() == expected.size());
        for (std::size_t r = 0; r < found.size(); ++r) CHECK(decant_test::same_bits(found[r], expected[r]));
    }
}

TEST_CASE("memory that the host refuses at any request is an error, and nothing is kept", "[model][plan]") {
    const auto weights = decant_test::tiny("llama3");
    for (std::size_t allowed = 0;; ++allowed) {
        REQUIRE(allowed < 20);
        Arena dirty{.left = allowed};
        bool worked = false;
        {
            const Memory memory(MemoryOptions{.source = dirty.source()});
            const auto model = taken(Model<Simd>::bind(weights, Simd{memory}));
            Context context(model);
            const KvCache cache(context, {.tokens = 64});
            auto sequence = cache.sequence();
            if (sequence) {
                const auto tokens = prompt(9, 160);
                const auto logits = context.prefill(*sequence, tokens);
                worked = logits && context.erase(*sequence, 0, 3);
                if (!logits) {
                    CHECK(logits.error().code == ErrorCode::out_of_memory);
                    CHECK(cache.free_blocks() == cache.blocks());
                    dirty.left = 100;  // the host has found some
                    CHECK(context.prefill(*sequence, tokens));
                }
            } else {
                CHECK(sequence.error().code == ErrorCode::out_of_memory);
            }
        }
        CHECK(dirty.blocks == 0);
        if (worked) break;
    }
}

#if defined(__linux__)

namespace {

struct Figures {
    bool worked = false;
    std::uint64_t planned = 0;
    std::uint64_t used = 0;
};

/// In a process of its own: plans, then uses all of it, with `best` tokens per row.
Figures use_everything() {
    Figures figures;
    const auto weights = decant::Weights::open(decant_test::smollm2());
    if (!weights) return figures;
    const ContextOptions options{.rows = 256, .sequences = 16, .logits = 16};
    const CacheOptions cached{.tokens = 1024};
    const auto plan = MemoryPlan::of<Simd>(*weights, options, cached, 2);
    if (!plan) return figures;
    figures.planned = plan->total();
    const std::uint64_t before = decant_test::measure().resident;

    const auto model = Model<Simd>::bind(*weights);
    if (!model) return figures;
    Context context(*model, ThreadPool{2}, options);
    const KvCache cache(context, cached);
    auto first = cache.sequence();
    const auto tokens = prompt(1024 - 15 * 16, 49152);
    if (!first || !context.prefill(*first, tokens)) return figures;
    std::vector<decant::Sequence<Simd>> others;
    for (int i = 0; i < 15; ++i) others.push_back(*cache.sequence());
    std::vector<decant::PassPart<Simd>> parts;
    const std::span<const Token> few(tokens.data(), 16);
    for (auto& sequence : others) parts.push_back({&sequence, few, Want::last});
    figures.worked =
        static_cast<bool>(context.pass(parts)) && cache.free_blocks() == 0 && static_cast<bool>(weights->warm_up());
    figures.used = decant_test::measure().resident - before;
    return figures;
}

}  // namespace

TEST_CASE("a plan comes within three percent of what is then in memory", "[model][plan]") {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const Figures figures = use_everything();
        _exit(write(ends[1], &figures, sizeof figures) == static_cast<ssize_t>(sizeof figures) ? 0 : 1);
    }
    close(ends[1]);
    Figures figures;
    const bool complete = read(ends[0], &figures, sizeof figures) == static_cast<ssize_t>(sizeof figures);
    close(ends[0]);
    int status = 1;
    waitpid(child, &status, 0);
    REQUIRE(complete);
    REQUIRE(status == 0);
    REQUIRE(figures.worked);
    INFO("planned " << figures.planned << ", used " << figures.used);
    if (DECANT_TEST_SANITIZED) return;
    CHECK(static_cast<double>(figures.used) < 1.02 * static_cast<double>(figures.planned));
    CHECK(static_cast<double>(figures.used) > 0.97 * static_cast<double>(figures.planned));
}

#endif

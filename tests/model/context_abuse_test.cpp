// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Hosts that do unexpected things in the middle of a call, lie, or ask for too much.
#include <decant/backend/simd/simd.hpp>
#include <decant/model/context.hpp>
#include <decant/model/plan.hpp>

#include "model/support.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

using decant::Context;
using decant::ContextOptions;
using decant::ErrorCode;
using decant::KvCache;
using decant::Memory;
using decant::MemoryOptions;
using decant::MemoryPlan;
using decant::Model;
using decant::PassPart;
using decant::Progress;
using decant::RunState;
using decant::Simd;
using decant::StopFlag;
using decant::TaskRef;
using decant::Token;
using decant::Want;
using decant_test::same_bits;
using decant_test::taken;
using Tokens = std::vector<Token>;

namespace {

Tokens prompt(std::size_t count, std::uint64_t seed = 1) {
    decant_test::Random random{seed};
    return decant_test::random_tokens(random, count, 160);
}

decant_test::Floats after(const Model<Simd>& model, const Tokens& tokens) {
    Context context(model);
    const KvCache cache(context, {.tokens = 128});
    auto sequence = taken(cache.sequence());
    return decant_test::row(taken(context.prefill(sequence, tokens)));
}

/// A job system that runs another job while it waits.
struct Busy {
    std::function<void()> job;
    [[nodiscard]] std::size_t concurrency() const { return 2; }
    void parallel_for(std::size_t n, TaskRef task) {
        if (auto now = std::exchange(job, nullptr)) now();
        for (std::size_t i = 0; i < n; ++i) task(i);
    }
};

}  // namespace

TEST_CASE("a cancelled call brings back its past, whatever became of the sequence that shared it", "[model][abuse]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    const Tokens past = prompt(10), other_past = prompt(10, 2);
    Tokens longer = past;
    longer.push_back(Token{7});
    const auto expected = after(model, longer);
    for (const bool destroy : {false, true}) {
        Busy busy;
        Context context(model, busy), second(model);
        const KvCache cache(context, {.tokens = 64, .block_tokens = 8});
        std::optional parent(taken(cache.sequence()));
        REQUIRE(context.prefill(*parent, past));
        auto child = parent->fork();
        StopFlag stop;
        busy.job = [&] {
            if (destroy) {
                parent.reset();
            } else {
                parent->truncate(0);
                REQUIRE(second.prefill(*parent, other_past));
            }
            stop.request();
        };
        REQUIRE_FALSE(context.decode(child, Token{5}, {.stop = &stop}));
        REQUIRE(child.size() == 10);
        auto late = taken(cache.sequence());  // takes whatever was freed too early
        REQUIRE(second.prefill(late, prompt(20, 3)));
        CHECK(same_bits(decant_test::row(taken(context.decode(child, Token{7}))), expected));
        parent.reset();
        child.truncate(0);
        late.truncate(0);
        CHECK(cache.free_blocks() == cache.blocks());
    }
}

TEST_CASE("forks of one block in one pass need one copy less than there are forks", "[model][abuse]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    Context context(model);
    const KvCache cache(context, {.tokens = 24, .block_tokens = 8});
    const Tokens past = prompt(4);
    auto a = taken(cache.sequence());
    REQUIRE(context.prefill(a, past));
    auto b = a.fork(), c = a.fork();
    const Token next[] = {Token{1}, Token{2}, Token{3}};
    const std::vector<PassPart<Simd>> parts{{&a, {&next[0], 1}}, {&b, {&next[1], 1}}, {&c, {&next[2], 1}}};
    REQUIRE_FALSE(context.pass(parts, {.progress = [](Progress) { return false; }}));
    CHECK(cache.free_blocks() == 2);
    const auto logits = taken(context.pass(parts));
    CHECK(cache.free_blocks() == 0);
    for (std::size_t i = 0; i < 3; ++i) {
        Tokens all = past;
        all.push_back(next[i]);
        CHECK(same_bits(decant_test::row(logits, i), after(model, all)));
    }
}

TEST_CASE("a limit that holds the plan holds a change of caches and an erase", "[model][abuse]") {
    const auto weights = decant_test::tiny("llama3");
    const decant::CacheOptions small{.tokens = 32}, large{.tokens = 96};
    const auto plan = taken(MemoryPlan::of<Simd>(weights, {}, large));
    const auto small_plan = taken(MemoryPlan::of<Simd>(weights, {}, small));
    const Memory memory(MemoryOptions{.limit = plan.limited() + small_plan.cache});
    const auto model = taken(Model<Simd>::bind(weights, Simd{memory}));
    Context context(model);
    const KvCache first(context, small), second(context, large);
    auto a = taken(first.sequence());
    auto b = taken(second.sequence());
    REQUIRE(context.prefill(a, prompt(9)));
    REQUIRE(context.prefill(b, prompt(50)));  // longer block tables: the workspace is made anew
    REQUIRE(context.decode(a, Token{1}));
    REQUIRE(context.erase(b, 3, 20));
    CHECK(memory.used() == memory.limit());

    // A cache that leaves no room for the workspace: an error, and with the cache gone everything goes on.
    const auto huge = taken(MemoryPlan::of<Simd>(weights, {}, {.tokens = 4096}));
    const Memory tight(MemoryOptions{.limit = small_plan.limited() + huge.cache});
    const auto tight_model = taken(Model<Simd>::bind(weights, Simd{tight}));
    Context tight_context(tight_model);
    const KvCache kept(tight_context, small);
    auto c = taken(kept.sequence());
    REQUIRE(tight_context.prefill(c, prompt(9)));
    {
        const auto blocker = taken(tight.allocate(tight.limit() - tight.used() - huge.cache));
        const KvCache greedy(tight_context, {.tokens = 4096});
        auto d = taken(greedy.sequence());
        static_cast<void>(tight_context.prefill(d, prompt(9)));
    }
    CHECK(tight_context.decode(c, Token{1}));
}

TEST_CASE("the three steps of a pass are checked", "[model][abuse]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    Context context(model);
    const KvCache cache(context, {.tokens = 128});
    auto a = taken(cache.sequence());
    auto b = taken(cache.sequence());
    const Tokens tokens = prompt(12);
    const std::vector<PassPart<Simd>> parts{{&a, tokens}};
    const auto refused = [&](std::span<const PassPart<Simd>> with) {
        const auto logits = context.finish(with);
        return !logits && logits.error().code == ErrorCode::invalid_argument;
    };
    CHECK(context.advance() == RunState::finished);  // nothing was begun
    CHECK(refused(parts));
    REQUIRE(context.begin(parts));
    CHECK(refused(parts));  // not advanced
    CHECK(context.advance({.tiles = 5}) == RunState::stopped);
    CHECK(refused(parts));  // not finished
    REQUIRE(context.decode(b, Token{1}));
    CHECK(context.advance() == RunState::finished);  // forgotten by the decode
    CHECK(refused(parts));
    REQUIRE(context.begin(parts));
    CHECK(context.advance() == RunState::finished);
    const std::vector<PassPart<Simd>> others{{&b, tokens}}, shorter{{&a, std::span(tokens).first(3)}};
    CHECK(refused(others));
    CHECK(refused(shorter));
    CHECK(refused({}));
    const auto logits = taken(context.finish(parts));
    CHECK(same_bits(decant_test::row(logits), after(model, tokens)));
    CHECK(refused(parts));  // once
    CHECK(refused({}));
    REQUIRE(context.begin(parts));
    REQUIRE(context.prefill(b, tokens));
    REQUIRE(context.erase(b, 1, 2));
    CHECK(refused(parts));
    CHECK(a.size() == 12);
}

namespace {

struct Liar {
    std::size_t says;
    [[nodiscard]] std::size_t concurrency() const { return says; }
    void parallel_for(std::size_t n, TaskRef task) const {
        for (std::size_t i = 0; i < n; ++i) task(i);
    }
};

struct Lazy {
    [[nodiscard]] std::size_t concurrency() const { return 2; }
    void parallel_for(std::size_t, TaskRef) const {}
};

}  // namespace

TEST_CASE("an executor's concurrency is a hint", "[model][abuse]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    const Tokens tokens = prompt(20);
    const auto expected = after(model, tokens);
    for (const std::size_t says : {std::size_t{0}, std::size_t{1'000'000}, std::size_t{1} << 58, ~std::size_t{0}}) {
        Context context(model, Liar{says});
        const KvCache cache(context, {.tokens = 64});
        auto sequence = taken(cache.sequence());
        CHECK(same_bits(decant_test::row(taken(context.prefill(sequence, tokens))), expected));
    }
    Context context(model, Lazy{});
    const KvCache cache(context, {.tokens = 64});
    auto sequence = taken(cache.sequence());
    const auto logits = context.prefill(sequence, tokens);
    REQUIRE_FALSE(logits);
    CHECK(decant_test::contains(logits.error().message(), "executor"));
    CHECK(sequence.size() == 0);

    // Rows that were to be moved and were not are given up.
    Context diligent(model);
    REQUIRE(diligent.prefill(sequence, tokens));
    CHECK_FALSE(context.erase(sequence, 2, 3));
    CHECK(sequence.size() == 2);
}

TEST_CASE("wishes beyond every bound are errors", "[model][abuse]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    Context context(model, ContextOptions{.best = 1025});
    const KvCache cache(context, {.tokens = 64});
    auto sequence = taken(cache.sequence());
    for (const std::size_t count : {std::size_t{65}, ~std::size_t{0}, ~std::size_t{0} / 2}) {
        const auto room = sequence.reserve(count);
        REQUIRE_FALSE(room);
        CHECK(room.error().code == ErrorCode::cache_full);
    }
    const Tokens tokens = prompt(3);
    const auto best = context.best({{&sequence, tokens}});
    REQUIRE_FALSE(best);
    CHECK(decant_test::contains(best.error().message(), "1024"));
    CHECK(taken(MemoryPlan::of<Simd>(model.weights(), {.best = 0x80000000u}, {})).workspace < 50'000'000);
}

TEST_CASE("objects that were moved from, or onto themselves", "[model][abuse]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    Context context(model);
    KvCache cache(context, {.tokens = 64});
    auto sequence = taken(cache.sequence());
    REQUIRE(context.prefill(sequence, prompt(5)));
    auto& same = sequence;
    sequence = std::move(same);
    CHECK(sequence.size() == 5);
    const KvCache moved = std::move(cache);
    const auto none = cache.sequence();
    REQUIRE_FALSE(none);
    CHECK(none.error().code == ErrorCode::invalid_argument);
    CHECK(cache.blocks() == 0);
    CHECK(moved.sequence());
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The rules of sameness_test.cpp and context_calls_test.cpp for every family, and for the states that some layers keep
// beside the cache (pool.hpp, sequence.hpp, plan.hpp, request.hpp).
#include <decant/model/context.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/thread_pool.hpp>
#include <decant/model/plan.hpp>
#include <decant/serve/request.hpp>

#include "core/executors.hpp"
#include "core/sanitizers.hpp"
#include "model/plan.hpp"
#include "model/support.hpp"
#include "text/support.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

using decant::BlockPool;
using decant::CacheOptions;
using decant::Context;
using decant::ContextOptions;
using decant::ErrorCode;
using decant::KvCache;
using decant::MemoryPlan;
using decant::Model;
using decant::PassPart;
using decant::RunState;
using decant::Sequence;
using decant::Simd;
using decant::StopFlag;
using decant::ThreadPool;
using decant::Token;
using decant::Want;
using decant_test::Floats;
using decant_test::Random;
using decant_test::random_tokens;
using decant_test::row;
using decant_test::same_bits;
using decant_test::taken;
using decant_test::Tokens;
using decant_test::whole;

namespace {

decant::Weights folder(const std::string& name) {
    return taken(decant::Weights::open(decant_test::data("tiny/" + name)));
}

constexpr const char* families[]{"deepseek_v3",   "gemma2", "gemma3_text", "gpt_neox",
                                 "gpt_oss_trunc", "mamba2", "mixtral",     "stablelm"};
constexpr std::size_t length = 80;  // more than a tile of attention's 64 positions
constexpr std::size_t vocabulary = 160;
constexpr std::size_t rounds = DECANT_TEST_SANITIZED ? 2 : 6;

/// A cache whose pool the tests can look into.
template <class B>
struct Pool {
    std::shared_ptr<BlockPool<B>> pool;

    Pool(const Context<B>& context, const CacheOptions& options)
        : pool(std::make_shared<BlockPool<B>>(taken(BlockPool<B>::create(
              context.backend(), options.shape(context.spec().cache_layers()), options.tokens)))) {}
    Sequence<B> sequence() const { return Sequence<B>(pool); }
    bool unused() const {
        return pool->free_blocks() == pool->blocks() && pool->states().available() == pool->states().size();
    }
};

/// Everything that a call which came to nothing must leave alone.
template <class B>
struct Snapshot {
    std::vector<Tokens> tokens;
    std::vector<std::vector<std::int32_t>> tables;
    std::size_t blocks, states;

    Snapshot(const Pool<B>& pool, std::initializer_list<const Sequence<B>*> sequences)
        : blocks(pool.pool->free_blocks()), states(pool.pool->states().available()) {
        for (const Sequence<B>* s : sequences) {
            tokens.emplace_back(s->tokens().begin(), s->tokens().end());
            tables.emplace_back(s->table().begin(), s->table().end());
        }
    }
    friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

/// Requests a stop before its n-th task.
struct Stopper {
    StopFlag* flag = nullptr;
    std::uint64_t after = 0;

    [[nodiscard]] std::size_t concurrency() const { return 2; }
    void parallel_for(std::size_t n, decant::TaskRef task) {
        for (std::size_t i = 0; i < n; ++i) {
            if (after > 0 && --after == 0) flag->request();
            task(i);
        }
    }
};

decant::AnyExecutor executor_of(Random& random) {
    switch (random.below(3)) {
        case 0: return decant::AnyExecutor{};
        case 1: return decant::AnyExecutor(ThreadPool{3, 3});
        default:
            return decant::AnyExecutor(
                decant_test::ShuffledExecutor{std::mt19937{static_cast<unsigned>(random.next())}});
    }
}

}  // namespace

TEMPLATE_TEST_CASE("every family: the same bits however they are asked for", "[model]", decant::Eigen, Simd) {
    Random random{5};
    std::size_t shared_passes = 0;
    for (const char* name : families) {
        INFO(name);
        const auto model = decant_test::bind<TestType>(folder(name));
        // Two texts that agree up to some position.
        const std::size_t common = 20 + random.below(40);
        std::vector<Tokens> texts{random_tokens(random, length)};
        texts.push_back(texts[0]);
        const Tokens tail = random_tokens(random, length - common);
        std::copy(tail.begin(), tail.end(), texts[1].begin() + static_cast<std::ptrdiff_t>(common));
        const std::vector<std::vector<Floats>> expected{whole<TestType>(model, texts[0]),
                                                        whole<TestType>(model, texts[1])};
        // That the two differ shows that the comparisons below can fail.
        REQUIRE_FALSE(same_bits(expected[0][length - 1], expected[1][length - 1]));

        for (std::size_t round = 0; round < rounds; ++round) {
            const auto rows = static_cast<std::uint32_t>(round == 0 ? 1 : 1 + random.below(length));
            const auto block = static_cast<std::uint32_t>(1 + random.below(40));
            INFO("round " << round << ", passes of " << rows << " rows, blocks of " << block << " tokens");
            Context context(model, executor_of(random), {.rows = rows, .sequences = 3, .logits = rows});
            const Pool<TestType> pool(context, {.tokens = 4 * (length + block), .block_tokens = block, .sequences = 4});
            {
                // A common beginning, then a fork, then both, with a third one beside them.
                auto one = pool.sequence();
                CHECK(same_bits(row(taken(context.prefill(one, std::span(texts[0]).first(common)))),
                                expected[0][common - 1]));
                auto two = one.fork();
                auto third = pool.sequence();
                struct Growing {
                    Sequence<TestType>* sequence;
                    std::size_t text;
                };
                std::vector<Growing> all{{&one, 0}, {&two, 1}, {&third, random.below(2)}};
                for (std::size_t done = 0; done < all.size();) {
                    std::vector<PassPart<TestType>> parts;
                    std::size_t room = rows;
                    for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
                    for (const Growing& g : all) {
                        const std::size_t size = g.sequence->size();
                        if (size == length || room == 0) continue;
                        const std::size_t count = 1 + random.below((std::min)(room, length - size));
                        parts.push_back({g.sequence, std::span(texts[g.text]).subspan(size, count), Want::all});
                        room -= count;
                    }
                    shared_passes += parts.size() > 1;
                    decant::Logits logits;
                    if (random.below(2) == 0) {
                        logits = taken(context.pass(parts));
                    } else {
                        REQUIRE(context.begin(parts));
                        while (context.advance({.tiles = 1 + random.below(9)}) != RunState::finished) {
                        }
                        logits = taken(context.finish(parts));
                    }
                    std::size_t r = 0;
                    for (const auto& part : parts) {
                        const auto text = std::ranges::find_if(all, [&](const Growing& g) {
                                              return g.sequence == part.sequence;
                                          })->text;
                        for (std::size_t i = part.sequence->size() - part.tokens.size(); i < part.sequence->size(); ++i)
                            if (!same_bits(row(logits, r++), expected[text][i])) FAIL("other bits at position " << i);
                    }
                    done = static_cast<std::size_t>(
                        std::ranges::count_if(all, [](const Growing& g) { return g.sequence->size() == length; }));
                }
                // Taken back, as far as a state can be, and written again.
                const std::size_t left = two.truncate(common + 1);
                CHECK(left == (model.spec().layers[0].state.heads > 0 ? 0 : common + 1));
                CHECK(same_bits(row(taken(context.prefill(two, std::span(texts[1]).subspan(left)))),
                                expected[1][length - 1]));
            }
            CHECK(pool.unused());
        }
    }
    CHECK(shared_passes > 8 * rounds);
}

TEMPLATE_TEST_CASE("every family: a call that is broken off at any moment leaves no trace", "[model]", decant::Eigen,
                   Simd) {
    Random random{6};
    StopFlag stop;
    Stopper stopper{&stop};
    std::size_t broken = 0, abandoned = 0;
    for (const char* name : families) {
        INFO(name);
        const auto model = decant_test::bind<TestType>(folder(name));
        const Tokens text = random_tokens(random, 40);
        const auto expected = whole<TestType>(model, text);
        const auto context_options = ContextOptions{.rows = 9, .sequences = 2, .logits = 2};
        Context context(model, stopper, context_options);
        const Pool<TestType> pool(context, {.tokens = 400, .block_tokens = 7, .sequences = 4});
        auto origin = pool.sequence();
        REQUIRE(context.prefill(origin, std::span(text).first(10)));
        auto other = pool.sequence();
        REQUIRE(context.prefill(other, std::span(text).first(5)));
        for (std::size_t round = 0; round < 4 * rounds; ++round) {
            auto one = origin.fork();
            const Snapshot<TestType> before(pool, {&one, &origin, &other});
            const std::vector<PassPart<TestType>> parts{{&other, std::span(text).subspan(5, 3), Want::last},
                                                        {&one, std::span(text).subspan(10, 4), Want::last}};
            const bool prefills = round % 2 == 0;
            stopper.after = 1 + random.below(prefills ? 150 : 40);
            stop.clear();
            const auto result = prefills ? context.prefill(one, std::span(text).subspan(10), {.stop = &stop})
                                         : context.pass(parts, {.stop = &stop});
            stopper.after = 0;
            if (!result) {
                ++broken;
                CHECK(result.error().code == ErrorCode::cancelled);
                if (!(Snapshot<TestType>(pool, {&one, &origin, &other}) == before)) FAIL("the call left a trace");
            } else if (!prefills) {
                CHECK(same_bits(row(*result, 0), expected[7]));
                CHECK(same_bits(row(*result, 1), expected[13]));
                other.truncate(0);
                REQUIRE(context.prefill(other, std::span(text).first(5)));
            }
            // A pass that is begun, perhaps worked on, and forgotten; what it reserved goes back.
            if (round % 5 == 0) {
                auto lost = origin.fork();
                const Snapshot<TestType> then(pool, {&lost, &origin});
                const std::vector<PassPart<TestType>> forgotten{{&lost, std::span(text).subspan(10, 6), Want::last}};
                REQUIRE(context.begin(forgotten));
                if (round % 2 == 0) static_cast<void>(context.advance({.tiles = 1 + random.below(5)}));
                CHECK(lost.size() == 10);
                const std::size_t size = one.size();
                const std::size_t kept = one.truncate(size);
                CHECK(kept == size);
                CHECK(lost.truncate(10) == 10);
                CHECK(pool.pool->states().available() == then.states);
                CHECK(same_bits(row(taken(context.prefill(lost, std::span(text).subspan(10)))), expected.back()));
                CHECK_FALSE(context.finish(forgotten));
                ++abandoned;
            }
            if (one.size() < text.size())
                CHECK(
                    same_bits(row(taken(context.prefill(one, std::span(text).subspan(one.size())))), expected.back()));
        }
        CHECK(same_bits(row(taken(context.prefill(origin, std::span(text).subspan(10)))), expected.back()));
        { const auto gone = std::move(origin), gone_too = std::move(other); }
        CHECK(pool.unused());
    }
    CHECK(broken > 12 * rounds);
    CHECK(abandoned >= std::size(families));
}

TEMPLATE_TEST_CASE("states: a full cache says so and leaves everything as it was", "[model][cache]", decant::Eigen,
                   Simd) {
    const auto model = decant_test::bind<TestType>(folder("mamba2"));
    Random random{7};
    const Tokens text = random_tokens(random, 30);
    const auto expected = whole<TestType>(model, text);
    Context context(model, {.rows = 8, .sequences = 8, .logits = 8});
    const auto full = [](const auto& result) {
        REQUIRE_FALSE(result);
        CHECK(result.error().code == ErrorCode::cache_full);
        CHECK(decant_test::contains(result.error().message(), "CacheOptions::sequences"));
    };
    for (const std::uint32_t most : {0u, 1u, 2u, 5u}) {
        INFO("for " << most << " sequences");
        const Pool<TestType> pool(context, {.tokens = 600, .sequences = most});
        std::vector<Sequence<TestType>> all;
        // As many as promised, each with a prompt in chunks while the others wait, then all in one pass.
        for (std::uint32_t i = 0; i < most; ++i) {
            all.push_back(pool.sequence());
            CHECK(same_bits(row(taken(context.prefill(all.back(), std::span(text).first(20)))), expected[19]));
        }
        std::vector<PassPart<TestType>> parts;
        for (auto& sequence : all) parts.push_back({&sequence, std::span(text).subspan(20, 1)});
        if (most > 0) {
            const auto logits = taken(context.pass(parts));
            for (std::uint32_t i = 0; i < most; ++i) CHECK(same_bits(row(logits, i), expected[20]));
        }
        // More than promised, until there is none left.
        while (pool.pool->states().available() > 0) {
            all.push_back(pool.sequence());
            REQUIRE(context.prefill(all.back(), std::span(text).first(7)));
        }
        auto fork = all[0].fork();
        auto fresh = pool.sequence();
        const Snapshot<TestType> before(pool, {&all[0], &fork, &fresh});
        const std::size_t size = all[0].size();
        full(context.prefill(fresh, text));
        full(context.decode(fresh, text[0]));
        full(context.decode(fork, text[size]));
        full(context.pass({{&all[0], std::span(text).subspan(size, 2)}, {&fresh, std::span(text).first(3)}}));
        full(context.begin(std::vector<PassPart<TestType>>{{&fork, std::span(text).subspan(size, 2)}}));
        CHECK(Snapshot<TestType>(pool, {&all[0], &fork, &fresh}) == before);
        if (most == 0) {
            // One state is just enough for a sequence's first pass.
            CHECK(all.size() == 1);
            continue;
        }
        // One sequence less makes room for one step of one other, or for half a pass of two.
        all.pop_back();
        CHECK(pool.pool->states().available() == 1);
        const Snapshot<TestType> half(pool, {&all[0], &fork, &fresh});
        full(context.pass({{&all[0], std::span(text).subspan(size, 2)}, {&fork, std::span(text).subspan(size, 3)}}));
        CHECK(Snapshot<TestType>(pool, {&all[0], &fork, &fresh}) == half);
        CHECK(same_bits(row(taken(context.decode(all[0], text[size]))), expected[size]));
        full(context.decode(all[0], text[size + 1]));
        // The fork still has the state that it shared, now alone.
        CHECK(fork.size() == size);
        all.clear();
        CHECK(same_bits(row(taken(context.prefill(fork, std::span(text).subspan(size)))), expected.back()));
        fork.truncate(0);
        CHECK(pool.unused());
    }
}

TEMPLATE_TEST_CASE("states: they go with their sequence and come back", "[model][cache]", decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(folder("mamba2"));
    Random random{8};
    const Tokens text = random_tokens(random, 30);
    const auto expected = whole<TestType>(model, text);
    Context context(model, {.rows = 16, .sequences = 4, .logits = 4});
    const Pool<TestType> pool(context, {.tokens = 256, .sequences = 3});
    auto& states = pool.pool->states();
    REQUIRE(states.size() == 7);
    const auto rest = [&](const Sequence<TestType>& s) { return std::span(text).subspan(s.size()); };
    const auto goes_on = [&](Sequence<TestType>& s) {
        return same_bits(row(taken(context.prefill(s, rest(s)))), expected.back());
    };

    auto a = pool.sequence();
    CHECK(states.available() == 7);
    REQUIRE(context.prefill(a, std::span(text).first(12)));
    CHECK(states.available() == 6);
    auto b = std::move(a);  // moved, with its state
    CHECK(states.available() == 6);
    auto c = b.fork();  // shared
    CHECK(states.available() == 6);
    REQUIRE(context.decode(c, text[12]));
    CHECK(states.available() == 5);
    auto d = c.fork();
    c = std::move(b);  // c's state lives on in d
    CHECK(states.available() == 5);
    CHECK(c.size() == 12);
    CHECK(d.size() == 13);
    CHECK(c.truncate(12) == 12);
    CHECK(c.truncate(50) == 12);
    CHECK(states.available() == 5);
    CHECK(goes_on(c));
    CHECK(goes_on(d));
    CHECK(c.truncate(29) == 0);  // one token back is all the way back
    CHECK(states.available() == 6);
    CHECK(goes_on(c));
    REQUIRE(d.reserve(20));
    CHECK(states.available() == 5);
    CHECK(d.truncate(d.size()) == text.size());

    // Tokens cannot be cut out of a state.
    const auto erased = context.erase(d, 3, 2);
    REQUIRE_FALSE(erased);
    CHECK(erased.error().code == ErrorCode::unsupported);
    CHECK(d.size() == text.size());
    { const auto gone = std::move(c), gone_too = std::move(d); }
    CHECK(pool.unused());
}

TEMPLATE_TEST_CASE("every family: a plan counts what is then reserved, byte for byte", "[model][plan]", decant::Eigen,
                   Simd) {
    for (const char* name : families) {
        INFO(name);
        const auto weights = folder(name);
        for (const ContextOptions& options :
             {ContextOptions{}, ContextOptions{.rows = 7, .sequences = 2, .logits = 3, .best = 5}}) {
            for (const CacheOptions& cached :
                 {CacheOptions{.tokens = 100, .block_tokens = 1, .sequences = 1},
                  CacheOptions{.tokens = 65, .block_tokens = 64, .dtype = decant::DType::f32}}) {
                decant_test::check_plan<TestType>(weights, options, cached, options.rows == 7 ? 3 : 1, vocabulary);
            }
        }
    }
}

TEST_CASE("states: a request is rolled back, forked, saved and loaded", "[model][serve]") {
    auto pieces = decant_test::byte_tokenizer();
    pieces.tokens.resize(vocabulary);
    pieces.types.resize(vocabulary);
    const auto tokenizer = taken(decant::Tokenizer::from(pieces.open()));
    const auto model = decant_test::bind<Simd>(folder("mamba2"));
    Context context(model, {.rows = 6, .sequences = 2, .logits = 2});
    const Pool<Simd> pool(context, {.tokens = 512, .sequences = 3});
    const auto sampler = taken(decant::Sampler::chain(
        {decant::Penalties{.repetition = 1.1f, .presence = 0.1f}, decant::Temperature{0.9f}}, 3));
    {
        decant::Request<Simd> request(pool.sequence(), sampler, decant::TextStream(tokenizer));
        request.push(random_tokens(10, 2, vocabulary));
        const auto write = [](decant::Request<Simd>& r, Context<Simd>& c, int steps) {
            Tokens made;
            for (int i = 0; i < steps; ++i) made.push_back(taken(r.step(c)).token);
            return made;
        };
        std::vector<decant::Request<Simd>::Mark> marks{request.mark()};
        Tokens steps;
        for (int i = 0; i < 12; ++i) {
            steps.push_back(write(request, context, 1)[0]);
            marks.push_back(request.mark());
        }
        for (const std::size_t back : {11u, 4u, 12u, 0u, 7u}) {
            request.rollback(marks[back]);
            // A state cannot be taken back: what came before is computed again.
            CHECK(request.computed() == (back == 12 ? 21 : 0));
            CHECK(request.tokens().size() == 10 + back);
            CHECK(write(request, context, static_cast<int>(12 - back)) ==
                  Tokens(steps.begin() + static_cast<std::ptrdiff_t>(back), steps.end()));
        }

        // A step that is cancelled leaves it as it was, its state too.
        StopFlag stop;
        stop.request();
        const std::size_t computed = request.computed();
        CHECK_FALSE(request.step(context, {.stop = &stop}));
        CHECK(request.computed() == computed);

        decant::Request<Simd> fork = request.fork();
        const auto bytes = request.save();
        Context elsewhere(model, ThreadPool{2}, {.rows = 3});
        const KvCache<Simd> other_cache(elsewhere, {.tokens = 128});
        auto loaded = taken(decant::Request<Simd>::load(bytes, taken(other_cache.sequence()), tokenizer));
        const Tokens expected = write(request, context, 8);
        CHECK(write(fork, context, 8) == expected);
        CHECK(write(loaded, elsewhere, 8) == expected);
    }
    CHECK(pool.unused());
}

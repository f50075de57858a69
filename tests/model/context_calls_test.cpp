// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Calls that a host watches, interrupts or breaks off (context.hpp, progress.hpp): whatever happens, the sequences and
// the pool are as they were, and going on gives the bits of an undisturbed call.
#include <decant/model/context.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/thread_pool.hpp>

#include "core/sanitizers.hpp"
#include "model/support.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using decant::CallOptions;
using decant::Context;
using decant::ContextOptions;
using decant::ErrorCode;
using decant::KvCache;
using decant::PassPart;
using decant::Progress;
using decant::Result;
using decant::RunState;
using decant::Sequence;
using decant::Simd;
using decant::StopFlag;
using decant::TaskRef;
using decant::ThreadPool;
using decant::Token;
using decant::Want;
using decant_test::Floats;
using decant_test::Random;
using decant_test::random_tokens;
using decant_test::same_bits;
using decant_test::taken;
using decant_test::TinyFile;
using decant_test::Tokens;
using decant_test::whole;

namespace {

constexpr std::uint64_t never = ~std::uint64_t{0};

struct HostError {
    int code;
};

/// A host's executor whose trigger goes off at a chosen task: it requests a stop, or throws and leaves the rest undone.
struct Trigger {
    StopFlag* flag = nullptr;
    bool throws = false;
    std::uint64_t after = never;  // tasks from now on

    [[nodiscard]] std::size_t concurrency() const { return 3; }
    void parallel_for(std::size_t n, TaskRef task) {
        for (std::size_t i = n; i-- > 0;) {
            if (after != never && after-- == 0) {
                after = never;
                if (throws) throw HostError{7};
                flag->request();
            }
            task(i);
        }
    }
};

/// Everything that a call which came to nothing must leave alone.
template <class B>
struct Snapshot {
    std::vector<Tokens> tokens;
    std::vector<std::vector<std::int32_t>> tables;
    std::size_t free;

    Snapshot(const KvCache<B>& cache, std::initializer_list<const Sequence<B>*> sequences) : free(cache.free_blocks()) {
        for (const Sequence<B>* s : sequences) {
            tokens.emplace_back(s->tokens().begin(), s->tokens().end());
            tables.emplace_back(s->table().begin(), s->table().end());
        }
    }
    friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

Floats best_of(const decant::BestRows& rows, std::size_t r) {
    const decant::BestTokens best = rows.row(r);
    Floats values{best.log_sum_exp()};
    for (std::size_t i = 0; i < best.size(); ++i) {
        values.push_back(best.logit(i));
        values.push_back(static_cast<float>(id(best.token(i))));
    }
    return values;
}

/// The ways to append the rest of two texts to two sequences: what they return, row after row.
enum class Call { prefill, decode, pass, best };

template <class B>
Result<std::vector<Floats>> make(Call call, Context<B>& context, Sequence<B>& one, std::span<const Token> more,
                                 Sequence<B>& other, std::span<const Token> others_more, CallOptions options) {
    const std::vector<PassPart<B>> parts{{&other, others_more, Want::last}, {&one, more, Want::last}};
    std::vector<Floats> rows;
    if (call == Call::best) {
        DECANT_TRY(const auto best, context.best(parts, options));
        for (std::size_t r = 0; r < best.rows(); ++r) rows.push_back(best_of(best, r));
        return rows;
    }
    DECANT_TRY(const auto logits, call == Call::prefill  ? context.prefill(one, more, options)
                                  : call == Call::decode ? context.decode(one, more[0], options)
                                                         : context.pass(parts, options));
    for (std::size_t r = 0; r < logits.rows(); ++r) rows.push_back(decant_test::row(logits, r));
    return rows;
}

template <class Body>
bool throws_host_error(Body&& body) {
    try {
        body();
    } catch (const HostError& error) {
        return error.code == 7;
    }
    return false;
}

bool same_rows(const std::vector<Floats>& a, const std::vector<Floats>& b) {
    return std::ranges::equal(a, b, same_bits);
}

}  // namespace

// Where a call is broken off: the executor requests a stop or throws at some task, the progress callback says no,
// requests a stop or throws at some step, or a pass in slices is abandoned after some tiles.
TEMPLATE_TEST_CASE("a call that is broken off at any moment leaves no trace", "[model]", decant::Eigen, Simd) {
    enum class How { stop_in_task, throw_in_task, no_in_progress, stop_in_progress, throw_in_progress, abandon, count };
    StopFlag stop;
    Trigger trigger{&stop};
    Random random{31};
    std::size_t broken = 0;
    std::size_t survived = 0;
    std::vector<std::size_t> ways(static_cast<std::size_t>(How::count));
    for (const auto& model : decant_test::models<TestType>()) {
        constexpr std::size_t length = 40;
        const Tokens text = random_tokens(length, 1, model.spec().vocabulary);
        const Tokens foreign = random_tokens(length, 2, model.spec().vocabulary);
        const auto expected = whole<TestType>(model, text);
        const auto others_expected = whole<TestType>(model, foreign);
        for (const std::uint32_t rows : {1u, 3u, 8u, 25u, 80u}) {
            INFO("passes of " << rows << " rows");
            Context context(model, trigger, {.rows = rows, .sequences = 2, .logits = 2, .best = 5});
            const auto block = static_cast<std::uint32_t>(1 + random.below(7));
            const KvCache cache(context, {.tokens = 5 * length + 4 * block, .block_tokens = block});
            // The origins stay, so that the copies on write of their forks must be undone as well.
            auto origin = taken(cache.sequence());
            auto others_origin = taken(cache.sequence());
            REQUIRE(context.prefill(origin, text));
            REQUIRE(context.prefill(others_origin, foreign));

            for (const std::size_t goal = broken + 101; broken < goal;) {
                std::size_t known = random.below(length);
                std::size_t others_known = random.below(length);
                auto call = static_cast<Call>(random.below(4));
                if ((call == Call::pass || call == Call::best) && rows < 2) call = Call::prefill;
                if (call == Call::pass || call == Call::best) {  // in one pass
                    const std::size_t most = (std::min)(rows, std::uint32_t{length}) / 2;
                    known = length - 1 - random.below(most);
                    others_known = length - 1 - random.below(most);
                }
                auto one = origin.fork();
                auto other = others_origin.fork();
                one.truncate(known);
                other.truncate(others_known);
                const auto more = std::span(text).subspan(known);
                const auto others_more = std::span(foreign).subspan(others_known);
                const auto attempt = [&](CallOptions options) {
                    return make(call, context, one, more, other, others_more, options);
                };
                const Snapshot<TestType> before(cache, {&one, &other, &origin, &others_origin});
                const std::size_t passes = call == Call::prefill ? (more.size() - 1) / rows + 1 : 1;
                const auto how = static_cast<How>(random.below(ways.size()));
                INFO("call " << static_cast<int>(call) << " from " << known << " on, broken off in way "
                             << static_cast<int>(how));

                stop.clear();
                const std::uint64_t moment = random.below(passes * 40);  // some lie beyond the end
                trigger.throws = how == How::throw_in_task;
                trigger.after = how == How::stop_in_task || how == How::throw_in_task ? moment : never;
                std::uint64_t steps = 0;
                const auto watch = [&](Progress) {
                    if (steps++ != moment) return true;
                    if (how == How::throw_in_progress) throw HostError{7};
                    if (how == How::stop_in_progress) stop.request();
                    return how != How::no_in_progress;
                };
                const bool throws = trigger.throws || how == How::throw_in_progress;
                std::optional<Result<std::vector<Floats>>> result;
                bool thrown = false;
                if (how == How::abandon) {
                    const std::vector<PassPart<TestType>> parts{{&one, more.first(1), Want::last}};
                    REQUIRE(context.begin(parts));
                    if (context.advance({.tiles = 1 + random.below(300)}) == RunState::finished) continue;
                    CHECK(one.size() == known);
                    // Its room goes back; but the copy of a tail that the origin shares stays, with the same contents.
                    const bool copied = known % block != 0;
                    one.truncate(known);
                    REQUIRE(cache.free_blocks() == before.free - (copied ? 1 : 0));
                    REQUIRE(std::ranges::equal(one.tokens(), before.tokens[0]));
                    if (copied) CHECK(one.table().back() != before.tables[0].back());
                } else if (throws) {
                    thrown = throws_host_error([&] { result = attempt({.stop = &stop, .progress = watch}); });
                } else {
                    result = attempt({.stop = &stop, .progress = watch});
                }
                trigger.after = never;

                if (result && *result) {
                    ++survived;  // its moment lay beyond the end, or in the last step
                } else {
                    ++broken;
                    ++ways[static_cast<std::size_t>(how)];
                    if (result) REQUIRE(result->error().code == ErrorCode::cancelled);
                    if (throws) REQUIRE(thrown);
                    if (how != How::abandon) {
                        const Snapshot<TestType> after(cache, {&one, &other, &origin, &others_origin});
                        if (!(after == before)) FAIL("the call left a trace");
                    }
                    stop.clear();
                    result = attempt({.stop = &stop});
                }
                REQUIRE(*result);
                REQUIRE(one.size() == (call == Call::decode ? known + 1 : length));
                const auto& rows_found = **result;
                if (call == Call::best) {
                    auto alone = origin.fork();
                    alone.truncate(length - 1);
                    const auto best = taken(context.best({{&alone, std::span(text).last(1), Want::last}}));
                    REQUIRE(rows_found.size() == 2);
                    if (!same_bits(rows_found[1], best_of(best, 0))) FAIL("other best tokens");
                } else if (call == Call::pass) {
                    if (!same_rows(rows_found, {others_expected.back(), expected.back()})) FAIL("other bits");
                } else {
                    if (!same_rows(rows_found, {expected[one.size() - 1]})) FAIL("other bits");
                }
            }
            origin.truncate(0);
            others_origin.truncate(0);
            CHECK(cache.free_blocks() == cache.blocks());
        }
    }
    CHECK(broken >= 1'000);
    CHECK(survived > 50);
    for (const std::size_t count : ways) CHECK(count > 20);
}

TEMPLATE_TEST_CASE("cancelled before the call, twice, from inside and at the very last step", "[model]", decant::Eigen,
                   Simd) {
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama2"));
    const Tokens tokens = random_tokens(50, 3, 160);
    const auto expected = whole<TestType>(model, tokens);
    Context context(model, ThreadPool{2}, {.rows = 16, .sequences = 2, .logits = 2});
    const KvCache cache(context, {.tokens = 128, .block_tokens = 4});
    auto sequence = taken(cache.sequence());
    auto neighbour = taken(cache.sequence());
    REQUIRE(context.prefill(sequence, std::span(tokens).first(6)));
    REQUIRE(context.prefill(neighbour, std::span(tokens).first(9)));
    const auto rest = std::span(tokens).subspan(6);
    StopFlag stop;
    const Snapshot<TestType> before(cache, {&sequence, &neighbour});
    const auto cancelled = [&](CallOptions options) {
        const auto logits = context.prefill(sequence, rest, options);
        REQUIRE_FALSE(logits);
        CHECK(logits.error().code == ErrorCode::cancelled);
        CHECK_FALSE(logits.error().message().empty());
        CHECK(Snapshot<TestType>(cache, {&sequence, &neighbour}) == before);
    };

    stop.request();
    cancelled({.stop = &stop});
    stop.request();  // twice
    cancelled({.stop = &stop});
    CHECK_FALSE(context.decode(sequence, rest[0], {.stop = &stop}));
    CHECK(Snapshot<TestType>(cache, {&sequence, &neighbour}) == before);
    stop.clear();

    std::uint64_t steps = 0;
    cancelled({.stop = &stop, .progress = [&](Progress) {
                   if (++steps == 5) stop.request();
               }});
    CHECK(steps == 5);  // and not one step more
    cancelled({.progress = [](Progress now) { return now.done < now.total / 2; }});
    cancelled({.progress = [](Progress now) { return now.done < now.total; }});  // at the very last step
    cancelled({.progress = [](Progress) { return false; }});

    // A request that comes when nothing is left to stop: the answer, and the flag is there for the next call.
    stop.clear();
    const auto late = context.prefill(sequence, rest, {.stop = &stop, .progress = [&](Progress now) {
                                                           if (now.done == now.total) stop.request();
                                                       }});
    CHECK(same_bits(decant_test::row(taken(late)), expected.back()));
    sequence.truncate(6);
    cancelled({.stop = &stop});

    // The neighbour saw nothing of it, and the sequence can be used, then freed.
    CHECK(
        same_bits(decant_test::row(taken(context.prefill(neighbour, std::span(tokens).subspan(9)))), expected.back()));
    CHECK(same_bits(decant_test::row(taken(context.prefill(sequence, rest))), expected.back()));
    { const auto gone = std::move(sequence); }
    { const auto gone = std::move(neighbour); }
    CHECK(cache.free_blocks() == cache.blocks());
}

// Case EH-04 of ../shared/cases; its other moments are in the two tests above.
TEST_CASE("a long prompt ends soon after it is cancelled from another thread", "[model]") {
    const auto model = decant_test::bind<Simd>(decant_test::tiny("llama2"));
    const Tokens tokens = random_tokens(100'000, 4, 160);
    Context context(model, ThreadPool{2}, {.rows = 64, .sequences = 1, .logits = 1});
    const KvCache cache(context, {.tokens = tokens.size()});
    auto sequence = taken(cache.sequence());
    StopFlag stop;
    using Clock = std::chrono::steady_clock;
    auto quickest = Clock::duration::max();
    for (int attempt = 0; attempt < 10; ++attempt) {
        stop.clear();
        Clock::time_point requested;
        std::thread host([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            requested = Clock::now();
            stop.request();
        });
        const auto logits = context.prefill(sequence, tokens, {.stop = &stop});
        const auto returned = Clock::now();
        host.join();
        REQUIRE_FALSE(logits);
        CHECK(logits.error().code == ErrorCode::cancelled);
        CHECK(sequence.size() == 0);
        CHECK(cache.free_blocks() == cache.blocks());
        quickest = (std::min)(quickest, returned - requested);
    }
    // The best of ten, since the machine may be busy with other things.
    if (!DECANT_TEST_SANITIZED) CHECK(quickest < std::chrono::milliseconds(50));
}

TEMPLATE_TEST_CASE("progress rises to its total, on the calling thread", "[model]", decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    const Tokens tokens = random_tokens(45, 5, 160);
    Context context(model, ThreadPool{3, 3}, {.rows = 10, .sequences = 2, .logits = 2, .best = 3});
    const KvCache cache(context, {.tokens = 256});
    struct Watcher {
        std::thread::id caller = std::this_thread::get_id();
        std::vector<Progress> calls;
        bool at_home = true;
        bool operator()(Progress now) {
            at_home = at_home && std::this_thread::get_id() == caller;
            calls.push_back(now);
            return true;
        }
        /// The total, or 0 if anything is wrong.
        std::uint64_t total() const {
            if (calls.empty() || !at_home) return 0;
            const std::uint64_t last = calls.back().total;
            std::uint64_t done = 0;
            for (const Progress& now : calls) {
                if (now.total != last || now.done < done || now.done > now.total) return 0;
                done = now.done;
            }
            return done == last ? last : 0;
        }
    };

    Watcher one_pass;
    auto a = taken(cache.sequence());
    auto b = taken(cache.sequence());
    REQUIRE(context.pass({{&a, std::span(tokens).first(4)}, {&b, std::span(tokens).first(5)}}, {.progress = one_pass}));
    const std::uint64_t steps = one_pass.total();
    CHECK(steps >= 10 * model.spec().layers.size());  // an operation is a step
    const std::size_t calls = one_pass.calls.size();  // steps that go together row by row are told of at once
    CHECK(calls >= 5 * model.spec().layers.size());
    CHECK(calls <= steps);

    Watcher decoding;
    REQUIRE(context.decode(a, tokens[0], {.progress = decoding}));
    CHECK(decoding.total() == steps);

    Watcher picking;
    REQUIRE(context.best({{&a, std::span(tokens).first(4)}}, {.progress = picking}));
    CHECK(picking.total() == steps);

    for (const std::size_t length : {1u, 10u, 11u, 20u, 45u}) {
        auto sequence = taken(cache.sequence());
        Watcher chunks;
        REQUIRE(context.prefill(sequence, std::span(tokens).first(length), {.progress = chunks}));
        CHECK(chunks.total() == (length + 9) / 10 * steps);
        CHECK(chunks.calls.size() == (length + 9) / 10 * calls);
    }

    // In slices: told again where a slice ends within a step, never less.
    Watcher slices;
    const std::vector<PassPart<TestType>> parts{{&b, std::span(tokens).first(9)}};
    REQUIRE(context.begin(parts));
    while (context.advance({.tiles = 5, .progress = slices}) != RunState::finished) continue;
    REQUIRE(context.finish(parts));
    CHECK(slices.total() == steps);

    std::uint64_t last = 0;
    REQUIRE(context.decode(a, tokens[0], {.progress = [&](Progress now) { last = now.done; }}));  // returns nothing
    CHECK(last == steps);
}

// Case EH-05 of ../shared/cases; allocations that fail are in contract/out_of_memory.cpp.
TEMPLATE_TEST_CASE("exceptions of the host come through and leave no trace", "[model]", decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    const Tokens tokens = random_tokens(30, 6, 160);
    const auto expected = whole<TestType>(model, tokens);
    StopFlag unused;
    Trigger trigger{&unused, true};
    Context context(model, trigger, {.rows = 8, .sequences = 1, .logits = 1});
    const KvCache cache(context, {.tokens = 64, .block_tokens = 4});
    auto sequence = taken(cache.sequence());
    REQUIRE(context.prefill(sequence, std::span(tokens).first(5)));
    const auto rest = std::span(tokens).subspan(5);
    const std::vector<PassPart<TestType>> parts{{&sequence, rest.first(8)}};
    const Snapshot<TestType> before(cache, {&sequence});

    // In slices: begin again.
    REQUIRE(context.begin(parts));
    trigger.after = 10;
    CHECK(throws_host_error([&] { static_cast<void>(context.advance()); }));
    CHECK(std::ranges::equal(sequence.tokens(), before.tokens[0]));
    REQUIRE(context.begin(parts));
    CHECK(throws_host_error([&] {
        static_cast<void>(context.advance({.progress = [](Progress now) {
            if (now.done == now.total) throw HostError{7};
        }}));
    }));
    CHECK(std::ranges::equal(sequence.tokens(), before.tokens[0]));
    sequence.truncate(5);
    CHECK(Snapshot<TestType>(cache, {&sequence}) == before);
    REQUIRE(context.begin(parts));
    REQUIRE(context.advance() == RunState::finished);
    CHECK(same_bits(decant_test::row(taken(context.finish(parts))), expected[12]));
    sequence.truncate(5);

    // In the last chunk of several, at its last step.
    CHECK(throws_host_error([&] {
        static_cast<void>(context.prefill(sequence, rest, {.progress = [](Progress now) {
                                              if (now.done == now.total) throw HostError{7};
                                          }}));
    }));
    CHECK(Snapshot<TestType>(cache, {&sequence}) == before);
    CHECK(same_bits(decant_test::row(taken(context.prefill(sequence, rest))), expected.back()));

    // While rows are moved: the tokens before the gap are left, and they are sound.
    for (const std::uint64_t moment : {0u, 1u, 3u}) {
        sequence.truncate(0);
        REQUIRE(context.prefill(sequence, tokens));
        auto fork = sequence.fork();
        trigger.after = moment;
        if (!throws_host_error([&] { static_cast<void>(context.erase(sequence, 6, 3)); })) {
            trigger.after = never;
            CHECK(moment > 0);
            CHECK(sequence.size() == tokens.size() - 3);
            continue;
        }
        CHECK(std::ranges::equal(sequence.tokens(), std::span(tokens).first(6)));
        CHECK(sequence.table().size() == 2);
        CHECK(cache.free_blocks() == cache.blocks() - fork.table().size() - 1);  // one of the two is the fork's as well
        CHECK(same_bits(decant_test::row(taken(context.prefill(sequence, std::span(tokens).subspan(6)))),
                        expected.back()));
        fork.truncate(29);
        CHECK(same_bits(decant_test::row(taken(context.decode(fork, tokens[29]))), expected.back()));
    }
    trigger.after = never;
}

TEMPLATE_TEST_CASE("capacities of zero and sequences that were moved from are refused with a sentence", "[model]",
                   decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(TinyFile{}.open());
    const Tokens tokens = random_tokens(4, 7, 24);
    const auto refusal = [](const auto& result, std::string_view part) {
        REQUIRE_FALSE(result);
        INFO(result.error().message());
        CHECK(result.error().code == ErrorCode::invalid_argument);
        CHECK(decant_test::contains(result.error().message(), part));
        CHECK_FALSE(result.error().hint.empty());
    };
    const auto refuses_all = [&](Context<TestType>& context, Sequence<TestType>& sequence, std::string_view part) {
        const std::vector<PassPart<TestType>> parts{{&sequence, tokens}};
        refusal(context.prefill(sequence, tokens), part);
        refusal(context.decode(sequence, tokens[0]), part);
        refusal(context.pass(parts), part);
        refusal(context.best(parts), part);
        refusal(context.begin(parts), part);
    };
    for (const ContextOptions options : {ContextOptions{.rows = 0, .best = 2},
                                         {.sequences = 0, .best = 2},
                                         {.logits = 0, .best = 2},
                                         {.rows = 0, .sequences = 0, .logits = 0, .best = 2}}) {
        Context context(model, options);
        const KvCache cache(context, {.tokens = 16});
        auto sequence = taken(cache.sequence());
        refuses_all(context, sequence, "rows, sequences or logits are 0");
        if (options.rows == 0) refusal(context.erase(sequence, 0, 0), "are 0");
        CHECK(sequence.size() == 0);
        CHECK(cache.free_blocks() == cache.blocks());
        CHECK(context.workspace_bytes() == 0);
    }

    Context context(model, {.rows = 8, .best = 2});
    const KvCache cache(context, {.tokens = 32, .block_tokens = 4});
    auto sequence = taken(cache.sequence());
    REQUIRE(context.prefill(sequence, tokens));
    auto moved = std::move(sequence);
    refuses_all(context, sequence, "moved from");
    refusal(context.erase(sequence, 0, 0), "moved from");
    refusal(sequence.reserve(1), "moved from");
    sequence.truncate(0);
    CHECK(sequence.size() == 0);
    CHECK(sequence.table().empty());
    refusal(context.pass({{&moved, tokens}, {&sequence, tokens}}), "moved from");
    refusal(context.pass({{&sequence, tokens}, {&moved, tokens}}), "moved from");
    CHECK(moved.size() == tokens.size());
    CHECK(cache.free_blocks() == cache.blocks() - 1);
    sequence = std::move(moved);  // and back
    CHECK(context.decode(sequence, tokens[0]));
}

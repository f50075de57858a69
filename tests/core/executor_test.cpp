// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/executor.hpp>

#include "core/executors.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

using decant::AnyExecutor;
using decant::Executor;
using decant::SerialExecutor;
using decant::TaskRef;

namespace {

struct WithoutConcurrency {
    void parallel_for(std::size_t, TaskRef) {}
};
struct WithoutLoop {
    std::size_t concurrency() { return 1; }
};
/// Counts its calls; says that it has no threads at all.
struct Counting {
    int calls = 0;
    std::size_t concurrency() const { return 0; }
    void parallel_for(std::size_t n, TaskRef task) {
        ++calls;
        SerialExecutor{}.parallel_for(n, task);
    }
};
/// Can be referred to only.
struct Pinned : SerialExecutor {
    Pinned() = default;
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
};
struct MoveOnly {
    std::unique_ptr<int> calls = std::make_unique<int>(0);
    std::size_t concurrency() const { return 3; }
    void parallel_for(std::size_t, TaskRef) { ++*calls; }
};

static_assert(Executor<SerialExecutor> && Executor<AnyExecutor> && Executor<Counting> && Executor<MoveOnly>);
static_assert(Executor<decant_test::OnJobs> && Executor<const decant_test::ReversedExecutor>);
static_assert(!Executor<WithoutConcurrency> && !Executor<WithoutLoop> && !Executor<int>);
static_assert(std::is_trivially_copyable_v<TaskRef>);

// What AnyExecutor takes: whatever it can call as it is given, and can hold.
static_assert(std::is_constructible_v<AnyExecutor, Counting&> && std::is_constructible_v<AnyExecutor, Counting>);
static_assert(std::is_constructible_v<AnyExecutor, const SerialExecutor&> &&
              std::is_constructible_v<AnyExecutor, const SerialExecutor>);
static_assert(std::is_constructible_v<AnyExecutor, MoveOnly> && std::is_constructible_v<AnyExecutor, Pinned&>);
static_assert(!std::is_constructible_v<AnyExecutor, const Counting&>);  // its loop is not const
static_assert(!std::is_constructible_v<AnyExecutor, Pinned> && !std::is_constructible_v<AnyExecutor, int>);
static_assert(!std::is_convertible_v<SerialExecutor, AnyExecutor>);

std::vector<std::size_t> order(const AnyExecutor& executor, std::size_t n) {
    std::vector<std::size_t> seen;
    executor.parallel_for(
        n, {&seen, [](void* to, std::size_t i) { static_cast<std::vector<std::size_t>*>(to)->push_back(i); }});
    return seen;
}

}  // namespace

TEST_CASE("executor: the default runs everything on the caller, in order") {
    CHECK(AnyExecutor{}.concurrency() == 1);
    CHECK(order(AnyExecutor{}, 5) == std::vector<std::size_t>{0, 1, 2, 3, 4});
    CHECK(order(AnyExecutor{}, 0).empty());
}

TEST_CASE("executor: any order is an executor") {
    CHECK(order(AnyExecutor(decant_test::ReversedExecutor{}), 4) == std::vector<std::size_t>{3, 2, 1, 0});
    std::vector<std::size_t> shuffled = order(AnyExecutor(decant_test::ShuffledExecutor{}), 100);
    CHECK(!std::is_sorted(shuffled.begin(), shuffled.end()));
    std::sort(shuffled.begin(), shuffled.end());
    CHECK(shuffled == order(AnyExecutor{}, 100));
}

TEST_CASE("executor: an lvalue is referred to, a temporary is owned") {
    Counting mine;
    const AnyExecutor refers(mine);
    static_cast<void>(order(refers, 3));
    static_cast<void>(order(refers, 3));
    CHECK(mine.calls == 2);
    CHECK(refers.concurrency() == 1);  // at least 1, whatever the host says

    const AnyExecutor owns(std::move(mine));
    static_cast<void>(order(owns, 3));
    CHECK(mine.calls == 2);

    MoveOnly only;
    const int* const calls = only.calls.get();
    const AnyExecutor holder(std::move(only));
    const AnyExecutor copy = holder;  // shares
    static_cast<void>(order(copy, 3));
    static_cast<void>(order(holder, 3));
    CHECK(*calls == 2);
    CHECK(copy.concurrency() == 3);
}

TEST_CASE("executor: a constant one will do, and moving from the holder leaves it whole") {
    const decant_test::ReversedExecutor reversed;
    AnyExecutor first(reversed);
    CHECK(order(first, 3) == std::vector<std::size_t>{2, 1, 0});
    const AnyExecutor second = std::move(first);
    CHECK(order(first, 3) == order(second, 3));  // NOLINT(bugprone-use-after-move): that is the promise
}

TEST_CASE("executor: a job system, also from inside its jobs") {
    for (const std::size_t threads : {0u, 1u, 3u}) {
        decant_test::Jobs jobs(threads);
        const AnyExecutor executor(decant_test::OnJobs{jobs});
        CHECK(executor.concurrency() == threads + 1);
        struct Loops {
            const AnyExecutor& executor;
            std::vector<std::vector<int>> calls;
        } loops{executor, {}};
        struct Inner {
            std::vector<int>& calls;
        };
        std::size_t wrong = 0;
        for (int round = 0; round < 200; ++round) {
            loops.calls.assign(7, std::vector<int>(5));
            executor.parallel_for(7, {&loops, [](void* object, std::size_t i) {
                                          auto& outer = *static_cast<Loops*>(object);
                                          Inner inner{outer.calls[i]};
                                          outer.executor.parallel_for(5, {&inner, [](void* to, std::size_t k) {
                                                                              ++static_cast<Inner*>(to)->calls[k];
                                                                          }});
                                      }});
            for (const auto& calls : loops.calls) wrong += calls != std::vector<int>(5, 1);
        }
        CHECK(wrong == 0);
        executor.parallel_for(0, {});
    }
}

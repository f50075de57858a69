// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/thread_pool.hpp>

#include "core/sanitizers.hpp"
#include "support/catch.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <mutex>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

using decant::TaskRef;
using decant::ThreadPool;

static_assert(decant::Executor<ThreadPool>);
static_assert(!std::is_copy_constructible_v<ThreadPool> && std::is_nothrow_move_constructible_v<ThreadPool>);

namespace {

/// Runs any callable.
template <class F>
void parallel_for(ThreadPool& pool, std::size_t n, F f) {
    pool.parallel_for(n, {&f, [](void* object, std::size_t i) { (*static_cast<F*>(object))(i); }});
}

/// How many of n indices were not called exactly once.
std::size_t wrong_calls(ThreadPool& pool, std::size_t n) {
    std::vector<int> calls(n);  // not atomic: a second call of one index at the same time would be a race
    std::atomic<std::size_t> beyond{0};
    parallel_for(pool, n, [&](std::size_t i) { i < n ? static_cast<void>(++calls[i]) : static_cast<void>(++beyond); });
    std::size_t wrong = beyond;
    for (const int count : calls) wrong += count != 1;
    return wrong;
}

}  // namespace

TEST_CASE("thread_pool: calls every index exactly once") {
    for (const std::size_t threads : {1u, 2u, 3u, 4u, 9u}) {
        ThreadPool pool(threads);
        CHECK(pool.concurrency() == threads);
        for (const std::size_t n : {0u, 1u, 2u, 3u, 7u, 64u, 1000u, 100003u}) {
            CAPTURE(threads, n);
            CHECK(wrong_calls(pool, n) == 0);
        }
    }
}

TEST_CASE("thread_pool: many short jobs") {
    ThreadPool pool(3);
    std::size_t wrong = 0;
    for (std::size_t job = 0; job < 20000; ++job) wrong += wrong_calls(pool, 2 + job % 5);
    CHECK(wrong == 0);
}

TEST_CASE("thread_pool: returns when all calls have returned") {
    ThreadPool pool(3);
    const std::thread::id caller = std::this_thread::get_id();
    std::size_t early = 0;
    for (int job = 0; job < 300; ++job) {
        std::atomic<int> returned{0};
        parallel_for(pool, 4, [&](std::size_t) {
            // The caller runs out of work first.
            std::this_thread::sleep_for(std::chrono::microseconds(std::this_thread::get_id() == caller ? 20 : 300));
            ++returned;
        });
        early += returned != 4;
    }
    CHECK(early == 0);
}

TEST_CASE("thread_pool: several callers at once") {
    ThreadPool pool(3);
    std::atomic<std::size_t> wrong{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&] {
            for (std::size_t job = 0; job < 1000; ++job) wrong += wrong_calls(pool, job % 50);
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(wrong == 0);
}

TEST_CASE("thread_pool: a task may call it") {
    ThreadPool pool(3);
    std::atomic<std::size_t> wrong{0};
    parallel_for(pool, 20, [&](std::size_t) { wrong += wrong_calls(pool, 20); });
    CHECK(wrong == 0);
}

TEST_CASE("thread_pool: all its threads take part, and no others") {
    ThreadPool pool(3);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (seen.size() < 3 && std::chrono::steady_clock::now() < deadline) {
        parallel_for(pool, 30, [&](std::size_t) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            const std::lock_guard lock(mutex);
            seen.insert(std::this_thread::get_id());
        });
    }
    CHECK(seen.size() == 3);
    CHECK(seen.contains(std::this_thread::get_id()));
}

TEST_CASE("thread_pool: comes and goes at once") {
    for (int i = 0; i < 200; ++i) {
        ThreadPool pool(3);
        if (i % 2 == 0) CHECK(wrong_calls(pool, 5) == 0);
    }
}

TEST_CASE("thread_pool: moving keeps it working") {
    ThreadPool first(3);
    CHECK(wrong_calls(first, 100) == 0);
    ThreadPool second = std::move(first);
    CHECK(second.concurrency() == 3);
    CHECK(wrong_calls(second, 100) == 0);
    ThreadPool third(2);
    third = std::move(second);
    CHECK(third.concurrency() == 3);
    CHECK(wrong_calls(third, 100) == 0);

    const decant::AnyExecutor any(std::move(third));
    CHECK(any.concurrency() == 3);
}

TEST_CASE("thread_pool: by default one thread per processor that it may use") {
    CHECK(ThreadPool().concurrency() == decant::available_processors());
#if defined(__linux__)
    cpu_set_t before;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    CHECK(decant::available_processors() == static_cast<std::size_t>(CPU_COUNT(&before)));
    cpu_set_t one;
    CPU_ZERO(&one);
    int processor = 0;
    while (!CPU_ISSET(processor, &before)) ++processor;
    CPU_SET(processor, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    const std::size_t allowed = decant::available_processors();
    REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
    CHECK(allowed == 1);
#endif
}

#if defined(__linux__) && !DECANT_TEST_SANITIZED
TEST_CASE("thread_pool: is smaller where the system refuses threads") {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {  // no address space for more stacks
        const rlimit none{1, 1};
        setrlimit(RLIMIT_AS, &none);
        ThreadPool pool(64);
        _exit(pool.concurrency() < 64 && wrong_calls(pool, 5) == 0 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}
#endif

#if defined(CLOCK_PROCESS_CPUTIME_ID)
TEST_CASE("thread_pool: an idle pool uses no processor time") {
    const auto used = [] {
        timespec time{};
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    ThreadPool pool(4);
    CHECK(wrong_calls(pool, 1000) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the spin before the sleep
    const double before = used();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    CHECK(used() - before < 0.01);
}
#endif

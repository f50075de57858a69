// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/thread_pool.hpp>

#include "core/sanitizers.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
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
        ThreadPool pool(threads, threads);
        CHECK(pool.concurrency() == threads);
        for (const std::size_t n : {0u, 1u, 2u, 3u, 7u, 64u, 1000u, 100003u}) {
            CAPTURE(threads, n);
            CHECK(wrong_calls(pool, n) == 0);
        }
    }
}

TEST_CASE("thread_pool: many short jobs") {
    ThreadPool pool(3, 3);
    std::size_t wrong = 0;
    for (std::size_t job = 0; job < 20000; ++job) wrong += wrong_calls(pool, 2 + job % 5);
    CHECK(wrong == 0);
}

TEST_CASE("thread_pool: returns when all calls have returned") {
    ThreadPool pool(3, 3);
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
    ThreadPool pool(3, 3);
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
    ThreadPool pool(3, 3);
    std::atomic<std::size_t> wrong{0};
    parallel_for(pool, 20, [&](std::size_t) { wrong += wrong_calls(pool, 20); });
    CHECK(wrong == 0);
}

TEST_CASE("thread_pool: all its threads take part, and no others") {
    ThreadPool pool(3, 3);
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
        ThreadPool pool(3, 3);
        if (i % 2 == 0) CHECK(wrong_calls(pool, 5) == 0);
    }
}

TEST_CASE("thread_pool: moving keeps it working") {
    ThreadPool first(3, 3);
    CHECK(wrong_calls(first, 100) == 0);
    ThreadPool second = std::move(first);
    CHECK(second.concurrency() == 3);
    CHECK(wrong_calls(second, 100) == 0);
    CHECK(first.concurrency() == 1);  // NOLINT(bugprone-use-after-move): still an executor
    CHECK(wrong_calls(first, 100) == 0);

    ThreadPool third(2, 2);
    third = std::move(second);
    CHECK(third.concurrency() == 3);
    CHECK(wrong_calls(third, 100) == 0);
    ThreadPool& itself = third;
    third = std::move(itself);
    CHECK(third.concurrency() == 3);
    CHECK(wrong_calls(third, 100) == 0);
    third = std::move(first);
    CHECK(third.concurrency() == 1);
    third = ThreadPool(2, 2);

    const decant::AnyExecutor any(std::move(third));
    CHECK(any.concurrency() == 2);
}

TEST_CASE("thread_pool: by default one thread per processor that is available, and never more") {
    CHECK(ThreadPool().concurrency() == decant::available_processors());
    const std::size_t processors = decant::available_processors(true);
    CHECK(processors >= decant::available_processors());
    CHECK(ThreadPool(2 * processors).concurrency() == processors);
    CHECK(ThreadPool((std::numeric_limits<std::size_t>::max)()).concurrency() == processors);
    CHECK(ThreadPool(0, 3).concurrency() == 3);
    CHECK(ThreadPool(9, 3).concurrency() == 3);
    CHECK(ThreadPool(3, 9).concurrency() == 3);
}

TEST_CASE("thread_pool: more threads than processors: only so many take part") {
    ThreadPool pool(9, 2);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    for (int job = 0; job < 20; ++job) {
        parallel_for(pool, 20, [&](std::size_t) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            const std::lock_guard lock(mutex);
            seen.insert(std::this_thread::get_id());
        });
    }
    CHECK(seen.size() <= 2);
    CHECK(wrong_calls(pool, 1000) == 0);
}

#if DECANT_EXCEPTIONS
TEST_CASE("thread_pool: what a task throws comes back to the caller, when all threads have left") {
    ThreadPool pool(3, 3);
    const std::thread::id caller = std::this_thread::get_id();
    for (const bool thrown_by_caller : {true, false}) {
        CAPTURE(thrown_by_caller);
        std::size_t caught = 0;
        std::size_t early = 0;
        for (int job = 0; job < 200; ++job) {
            std::atomic<int> begun{0};
            std::atomic<int> left{0};
            std::atomic<int> thrown{0};
            try {
                parallel_for(pool, 40, [&](std::size_t i) {
                    ++begun;
                    if ((std::this_thread::get_id() == caller) == thrown_by_caller) {
                        ++left;
                        ++thrown;
                        throw i;
                    }
                    std::this_thread::sleep_for(std::chrono::microseconds(200));
                    ++left;
                });
            } catch (std::size_t i) {
                ++caught;
                early += i >= 40;
            }
            early += begun != left || begun > 40;
            if (thrown == 0) ++caught;  // no thread of that kind took part
        }
        CHECK(caught == 200);
        CHECK(early == 0);
    }
    CHECK(wrong_calls(pool, 1000) == 0);
    CHECK(pool.concurrency() == 3);
}

TEST_CASE("thread_pool: every thread may throw at once") {
    ThreadPool pool(4, 4);
    int caught = 0;
    for (int job = 0; job < 500; ++job) {
        try {
            parallel_for(pool, 4, [](std::size_t i) { throw std::vector<std::size_t>(100, i); });
        } catch (const std::vector<std::size_t>& from) {
            caught += from.size() == 100;
        }
    }
    CHECK(caught == 500);
    CHECK(wrong_calls(pool, 1000) == 0);
}
#endif

TEST_CASE("thread_pool: two holders share one") {
    ThreadPool pool(3, 3);
    std::atomic<std::size_t> wrong{0};
    const auto use = [&] {
        const decant::AnyExecutor executor(pool);
        for (int job = 0; job < 500; ++job) {
            std::vector<int> calls(20);
            executor.parallel_for(
                20, {&calls, [](void* to, std::size_t i) { ++(*static_cast<std::vector<int>*>(to))[i]; }});
            wrong += calls != std::vector<int>(20, 1);
        }
    };
    std::thread other(use);
    use();
    other.join();
    CHECK(wrong == 0);
}

#if defined(__linux__)
namespace {

std::ptrdiff_t threads_now() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
}

/// True soon: a joined thread may be listed a moment longer.
bool threads_become(std::ptrdiff_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (threads_now() != count) {
        if (std::chrono::steady_clock::now() > deadline) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

}  // namespace

TEST_CASE("thread_pool: no threads but those asked for") {
    { ThreadPool warm(2, 2); }  // a sanitizer may start a thread of its own with the first
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::ptrdiff_t before = threads_now();
    {
        ThreadPool one(1);
        CHECK(wrong_calls(one, 100) == 0);
        const decant::AnyExecutor serial;
        CHECK(threads_now() == before);
        ThreadPool three(3, 3);
        CHECK(threads_now() == before + 2);
        CHECK(wrong_calls(three, 100) == 0);
        ThreadPool moved = std::move(three);
        CHECK(threads_now() == before + 2);
        moved = ThreadPool(2, 2);
        CHECK(threads_become(before + 1));
    }
    CHECK(threads_become(before));
}
#endif

#if defined(__linux__) && !DECANT_TEST_SANITIZED
TEST_CASE("thread_pool: is smaller where the system refuses threads") {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {  // no address space for more stacks
        const rlimit none{1, 1};
        setrlimit(RLIMIT_AS, &none);
        ThreadPool pool(64, 64);
        _exit(pool.concurrency() < 64 && wrong_calls(pool, 5) == 0 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}
#endif

#if defined(CLOCK_PROCESS_CPUTIME_ID)
namespace {

/// Seconds of processor time that this process has used.
double processor_time() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

TEST_CASE("thread_pool: an idle pool uses no processor time") {
    ThreadPool pool(4, 4);
    CHECK(wrong_calls(pool, 1000) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the spin before the sleep
    const double before = processor_time();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    CHECK(processor_time() - before < 0.01);
}

TEST_CASE("thread_pool: waiting for a slow task uses no processor time") {
    ThreadPool pool(4, 4);
    CHECK(wrong_calls(pool, 1000) == 0);
    const double before = processor_time();
    parallel_for(pool, 8, [](std::size_t i) {
        if (i == 3) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    });
    CHECK(processor_time() - before < 0.03);
}
#endif

#if defined(__linux__) && !DECANT_TEST_SANITIZED
namespace {

/// Milliseconds for what a decoding step asks of an executor: many short loops of uneven tiles.
double time_loops(std::size_t threads) {
    ThreadPool pool(threads, threads);
    std::atomic<std::uint64_t> sum{0};
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t loop = 0; loop < 150; ++loop) {
        std::atomic<std::size_t> next{0};
        const std::size_t tiles = 2 + loop * 7 % 24;
        parallel_for(pool, threads, [&](std::size_t) {
            for (std::size_t tile = next++; tile < tiles; tile = next++) {
                std::uint64_t x = tile;
                for (std::size_t i = 0; i < 1000 * (1 + (loop + tile * 5) % 16); ++i)
                    x = x * 6364136223846793005u + 1442695040888963407u;
                sum += x;
            }
        });
    }
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
    return sum == 0 ? std::numeric_limits<double>::infinity() : taken.count();
}

/// The time with two threads per processor over that with one: the median of 11 pairs of turns, so that a burst of
/// other work does not decide. On a loaded machine it is measured again until it is below `enough`, at most 6 times.
double cost_of_twice_the_threads(double enough) {
    const std::size_t processors = decant::available_processors();
    double least = std::numeric_limits<double>::infinity();
    for (int attempt = 0; attempt < 6 && least >= enough; ++attempt) {
        std::vector<double> ratios;
        for (int turn = 0; turn < 11; ++turn) {
            const double once = time_loops(processors);
            ratios.push_back(time_loops(2 * processors) / once);
        }
        std::nth_element(ratios.begin(), ratios.begin() + 5, ratios.end());
        least = (std::min)(least, ratios[5]);
    }
    return least;
}

}  // namespace

TEST_CASE("thread_pool: twice as many threads as processors lose less than 20 %") {
    CHECK(cost_of_twice_the_threads(1.2) < 1.2);
}

TEST_CASE("thread_pool: so they do while another process burns a processor") {
    const pid_t burner = fork();
    REQUIRE(burner >= 0);
    if (burner == 0) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (std::chrono::steady_clock::now() < end) {
        }
        _exit(0);
    }
    const double cost = cost_of_twice_the_threads(1.2);
    kill(burner, SIGKILL);
    int status = 0;
    CHECK(waitpid(burner, &status, 0) == burner);
    CHECK(cost < 1.2);
}

TEST_CASE("thread_pool: a thread that leaves a processor is elsewhere, and may come back") {
    cpu_set_t before;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    const int from = decant::detail::this_processor();
    REQUIRE(from >= 0);
    std::thread([&] {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(from), &one);
        CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
        decant::detail::leave_processor(from);  // there is no other: it stays
        CHECK(decant::detail::this_processor() == from);
        CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
        int moved = 0;
        for (int turn = 0; turn < 100; ++turn) {
            const int here = decant::detail::this_processor();
            decant::detail::leave_processor(here);
            moved += decant::detail::this_processor() != here ? 1 : 0;
        }
        if (CPU_COUNT(&before) > 1) CHECK(moved > 50);  // the system may put it back at any time
        cpu_set_t after;
        CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
        CHECK(CPU_EQUAL(&before, &after));
    }).join();
    decant::detail::leave_processor(1 << 20);  // no such processor
    CHECK(decant::detail::this_processor() >= 0);
}

TEST_CASE("thread_pool: who waits for a number misses no change of it") {
    decant::detail::Signal there, back;
    constexpr std::uint32_t changes = 300;
    std::thread other([&] {
        for (std::uint32_t seen = 0; seen < changes;) {
            seen = there.wait_while(seen);
            back.value.store(seen);
            back.wake();
        }
    });
    for (std::uint32_t n = 0; n < changes; ++n) {
        // Every tenth change comes when the other one spins, naps, or sleeps for good.
        if (n % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(n % 40 * 60));
        there.value.store(n + 1);
        there.wake();
        CHECK(back.wait_while(n) == n + 1);
    }
    other.join();
}

TEST_CASE("thread_pool: four times as many threads as processors finish") {
    CHECK(time_loops(4 * decant::available_processors()) < 20000);
}
#endif

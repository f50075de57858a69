// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ThreadPool`: the library's own executor, for hosts that have none. Starts threads only because the host constructed
/// it.

#include <decant/core/config.hpp>
#include <decant/core/errno.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/processors.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace decant::inline DECANT_ABI {
namespace detail {

/// Tells the core that this is a spin loop.
inline void pause_cpu() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// Waits while `value` is `old` and returns what it is then: spins for about 50 microseconds, the time that waking a
/// thread takes, and then sleeps. Bounded by the clock, since a pause takes from 1 to 60 nanoseconds by processor.
inline std::uint32_t wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) noexcept {
    std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    const auto sleep_at = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    do {
        for (int i = 0; i < 64; ++i) {
            pause_cpu();
            now = value.load(std::memory_order_acquire);
            if (now != old) return now;
        }
    } while (std::chrono::steady_clock::now() < sleep_at);
    value.wait(old, std::memory_order_acquire);
    return value.load(std::memory_order_acquire);
}

}  // namespace detail

/// A fixed set of threads. The caller of `parallel_for` takes part, so `threads` = 1 starts none. Waiting threads spin
/// briefly and then sleep: an idle pool costs no processor time. Movable; a moved-from pool has one
/// thread, the caller's.
///
/// `parallel_for` from several threads at once is safe: while one job runs, the others (and loops inside a task) run on
/// their own thread alone. So contexts may share a pool: give each of them the same lvalue, and let it outlive them.
///
/// Where exceptions are on a task may throw: indices not begun by then may be left out, and the first exception is
/// thrown on the caller's thread once no thread uses the task any more. The pool stays usable.
class ThreadPool {
 public:
    static constexpr std::size_t max_threads = 1024;

    /// \param threads how many take part, the caller included, at most `max_threads`; 0 = `available_processors()`.
    /// \param processors more threads than that would only be in each other's way, so no more are started; 0 =
    /// `available_processors(true)`.
    /// Fewer, too, if the system refuses more (where exceptions are on; without them the program ends):
    /// `concurrency()` tells.
    explicit ThreadPool(std::size_t threads = 0, std::size_t processors = 0) {
        const detail::ErrnoGuard guard;
        if (threads == 0) threads = processors == 0 ? available_processors() : processors;
        if (processors == 0) processors = available_processors(true);
        threads = (std::min)({threads, processors, max_threads});
        if (threads == 1) return;
        state_ = std::make_unique<State>();
        state_->workers.reserve(threads - 1);
#if DECANT_EXCEPTIONS
        try {
            start(threads - 1);
        } catch (...) {  // of the system, or no memory: those that have started are joined by the destructor
        }
#else
        start(threads - 1);
#endif
    }
    ThreadPool(ThreadPool&&) noexcept = default;
    ThreadPool& operator=(ThreadPool&& other) noexcept {
        ThreadPool taken(std::move(other));
        std::swap(state_, taken.state_);
        return *this;
    }
    ~ThreadPool() {
        if (!state_) return;
        const detail::ErrnoGuard guard;
        state_->stopping.store(true, std::memory_order_release);
        state_->generation.fetch_add(1, std::memory_order_release);
        state_->generation.notify_all();
        for (std::thread& worker : state_->workers) worker.join();
    }

    [[nodiscard]] std::size_t concurrency() const noexcept { return state_ ? state_->workers.size() + 1 : 1; }

    void parallel_for(std::size_t n, TaskRef task) {
        if (n <= 1 || concurrency() == 1 || state_->busy.exchange(true, std::memory_order_acquire)) {
            SerialExecutor{}.parallel_for(n, task);
            return;
        }
        const detail::ErrnoGuard guard;
        State& s = *state_;
        s.task = task;
        s.count = n;
        s.next.store(0, std::memory_order_relaxed);
        s.gate.store(open, std::memory_order_release);
        s.generation.fetch_add(1, std::memory_order_release);
        s.generation.notify_all();
        drain(s);
        // Close the gate; whoever passed it before is waited for, whoever comes later does not touch the job.
        std::uint32_t inside = s.gate.fetch_and(~open, std::memory_order_acq_rel) & ~open;
        while (inside != 0) inside = detail::wait_while(s.gate, inside);
#if DECANT_EXCEPTIONS
        const std::exception_ptr thrown = std::exchange(s.thrown, nullptr);
        s.has_thrown.store(false, std::memory_order_relaxed);
        s.busy.store(false, std::memory_order_release);
        if (thrown) std::rethrow_exception(thrown);
#else
        s.busy.store(false, std::memory_order_release);
#endif
    }

 private:
    static constexpr std::uint32_t open = 0x80000000u;  // gate: this bit, and the number of workers inside

    struct State {
        std::atomic<bool> busy{false};
        std::atomic<bool> stopping{false};
        std::atomic<std::uint32_t> generation{0};
        std::atomic<std::uint32_t> gate{0};
        std::atomic<std::size_t> next{0};
        TaskRef task;
        std::size_t count = 0;
#if DECANT_EXCEPTIONS
        std::atomic<bool> has_thrown{false};
        std::exception_ptr thrown;  // written by the one that set `has_thrown`, read by the caller behind the gate
#endif
        std::vector<std::thread> workers;
    };

    void start(std::size_t workers) {
        for (std::size_t i = 0; i < workers; ++i)
            state_->workers.emplace_back([state = state_.get()] { work(*state); });
    }

    static void call_tasks(State& s) {
        for (std::size_t i = s.next.fetch_add(1, std::memory_order_relaxed); i < s.count;
             i = s.next.fetch_add(1, std::memory_order_relaxed))
            s.task(i);
    }

    static void drain(State& s) noexcept {
#if DECANT_EXCEPTIONS
        try {
            call_tasks(s);
        } catch (...) {
            s.next.store(s.count, std::memory_order_relaxed);
            if (!s.has_thrown.exchange(true, std::memory_order_relaxed)) s.thrown = std::current_exception();
        }
#else
        call_tasks(s);
#endif
    }

    static void work(State& s) noexcept {
        std::uint32_t seen = 0;
        while (true) {
            seen = detail::wait_while(s.generation, seen);
            if (s.stopping.load(std::memory_order_acquire)) return;
            std::uint32_t gate = s.gate.load(std::memory_order_acquire);
            while ((gate & open) != 0 && !s.gate.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) {
            }
            if ((gate & open) == 0) continue;
            drain(s);
            s.gate.fetch_sub(1, std::memory_order_acq_rel);
            s.gate.notify_all();
        }
    }

    std::unique_ptr<State> state_;
};

}  // namespace decant::inline DECANT_ABI

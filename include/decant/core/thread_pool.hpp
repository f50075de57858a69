// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ThreadPool`: the library's own executor, for hosts that have none. Starts threads only because the host constructed
/// it.

#include <decant/core/config.hpp>
#include <decant/core/errno.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/processors.hpp>
#include <decant/core/signal.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
/// A fixed set of threads. The caller of `parallel_for` takes part, so `threads` = 1 starts none. Waiting threads spin
/// briefly and then sleep: an idle pool costs no processor time. Where other programs keep processors busy, workers
/// give way to them between jobs and (on Linux) move off the caller's processor. Movable; a moved-from pool has one
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
        state_->generation.value.fetch_add(1);
        state_->generation.wake();
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
        s.caller.store(detail::this_processor(), std::memory_order_relaxed);
        s.gate.value.store(open, std::memory_order_release);
        s.generation.value.fetch_add(1);
        s.generation.wake();
        drain(s);
        // Close the gate; whoever passed it before is waited for, whoever comes later does not touch the job.
        std::uint32_t inside = s.gate.value.fetch_and(~open, std::memory_order_acq_rel) & ~open;
        while (inside != 0) inside = s.gate.wait_while(inside);
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
        detail::Signal generation;
        detail::Signal gate;
        std::atomic<int> caller{-1};  // the processor of the job's
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
        detail::Worker worker;
        std::uint32_t seen = 0;
        while (true) {
            worker.give_way();
            seen = s.generation.wait_while(seen);
            if (s.stopping.load(std::memory_order_acquire)) return;
            worker.keep_off(s.caller.load(std::memory_order_relaxed));
            std::uint32_t gate = s.gate.value.load(std::memory_order_acquire);
            while ((gate & open) != 0 &&
                   !s.gate.value.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) {
            }
            if ((gate & open) == 0) continue;
            drain(s);
            s.gate.value.fetch_sub(1);
            s.gate.wake();
        }
    }

    std::unique_ptr<State> state_;
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ThreadPool`: the library's own executor, for hosts that have none. Starts threads only because the host constructed
/// it.

#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
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

}  // namespace detail

/// Processors that this thread may run on (its affinity mask where the system has one), at least 1.
[[nodiscard]] inline std::size_t available_processors() noexcept {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        const int count = CPU_COUNT(&set);
        if (count > 0) return static_cast<std::size_t>(count);
    }
#endif
    const unsigned count = std::thread::hardware_concurrency();
    return count == 0 ? 1 : count;
}

/// A fixed set of threads. The caller of `parallel_for` takes part, so `threads` = 1 starts none. Waiting threads spin
/// briefly and then sleep. Movable; not copyable. `parallel_for` from several threads at once is safe: while one job
/// runs, the others run theirs on their own thread. A task must not throw.
class ThreadPool {
 public:
    /// \param threads how many take part, the caller included; 0 = `available_processors()`. Fewer if the system
    /// refuses more (where exceptions are on; without them the program ends): `concurrency()` tells.
    explicit ThreadPool(std::size_t threads = 0) : state_(std::make_unique<State>()) {
        if (threads == 0) threads = available_processors();
        state_->workers.reserve(threads - 1);
#if DECANT_EXCEPTIONS
        try {
            start(threads - 1);
        } catch (const std::system_error&) {
        }
#else
        start(threads - 1);
#endif
    }
    ThreadPool(ThreadPool&&) noexcept = default;
    ThreadPool& operator=(ThreadPool&& other) noexcept {
        stop();
        state_ = std::move(other.state_);
        return *this;
    }
    ~ThreadPool() { stop(); }

    [[nodiscard]] std::size_t concurrency() const noexcept { return state_->workers.size() + 1; }

    void parallel_for(std::size_t n, TaskRef task) {
        State& s = *state_;
        if (n <= 1 || s.workers.empty() || s.busy.exchange(true, std::memory_order_acquire)) {
            SerialExecutor{}.parallel_for(n, task);
            return;
        }
        s.task = task;
        s.count = n;
        s.next.store(0, std::memory_order_relaxed);
        s.gate.store(open, std::memory_order_release);
        s.generation.fetch_add(1, std::memory_order_release);
        s.generation.notify_all();
        drain(s);
        // Close the gate; whoever passed it before is waited for, whoever comes later does not touch the job.
        s.gate.fetch_and(~open, std::memory_order_acq_rel);
        for (std::uint32_t inside = s.gate.load(std::memory_order_acquire), spins = 0; inside != 0;
             inside = s.gate.load(std::memory_order_acquire)) {
            if (++spins < spin_limit) {
                detail::pause_cpu();
            } else {
                s.gate.wait(inside, std::memory_order_acquire);
            }
        }
        s.busy.store(false, std::memory_order_release);
    }

 private:
    static constexpr std::uint32_t open = 0x80000000u;  // gate: this bit, and the number of workers inside
    static constexpr std::uint32_t spin_limit = 2000;

    struct State {
        std::atomic<bool> busy{false};
        std::atomic<bool> stopping{false};
        std::atomic<std::uint32_t> generation{0};
        std::atomic<std::uint32_t> gate{0};
        std::atomic<std::size_t> next{0};
        TaskRef task;
        std::size_t count = 0;
        std::vector<std::thread> workers;
    };

    void start(std::size_t workers) {
        for (std::size_t i = 0; i < workers; ++i)
            state_->workers.emplace_back([state = state_.get()] { work(*state); });
    }

    static void drain(State& s) {
        for (std::size_t i = s.next.fetch_add(1, std::memory_order_relaxed); i < s.count;
             i = s.next.fetch_add(1, std::memory_order_relaxed))
            s.task(i);
    }

    static void work(State& s) {
        std::uint32_t seen = 0;
        while (true) {
            std::uint32_t now = s.generation.load(std::memory_order_acquire);
            for (std::uint32_t spins = 0; now == seen; now = s.generation.load(std::memory_order_acquire)) {
                if (++spins < spin_limit) {
                    detail::pause_cpu();
                } else {
                    s.generation.wait(seen, std::memory_order_acquire);
                }
            }
            seen = now;
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

    void stop() noexcept {
        if (!state_) return;
        state_->stopping.store(true, std::memory_order_release);
        state_->generation.fetch_add(1, std::memory_order_release);
        state_->generation.notify_all();
        for (std::thread& worker : state_->workers) worker.join();
        state_.reset();
    }

    std::unique_ptr<State> state_;
};

}  // namespace decant::inline DECANT_ABI

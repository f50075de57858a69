// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// How the threads of a pool wait for each other, and how they live with other programs on the same processors.

#include <decant/core/config.hpp>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <thread>
#include <utility>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#if defined(__linux__) && defined(__LP64__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
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

/// A number that threads wait for. Whoever changes it calls `wake` afterwards.
class Signal {
 public:
    std::atomic<std::uint32_t> value{0};  // changed with the default memory order: `wake` counts on it

    /// Waits while the number is `old` and returns what it is then: spins for about 50 microseconds, the time that
    /// waking a thread takes, and then sleeps. Bounded by the clock, since a pause takes from 1 to 60 nanoseconds by
    /// processor.
    std::uint32_t wait_while(std::uint32_t old) noexcept {
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
        return sleep_while(old);
    }

#if defined(__linux__) && defined(__LP64__)
    void wake() noexcept {
        if (sleepers_.load() > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX, nullptr);
    }

 private:
    /// The first sleep ends early. Who is waited for may have lost its processor to another program, and this one's is
    /// idle: Linux looks for threads that an idle processor could take over when a thread goes to sleep on it, but
    /// leaves those alone that ran in the last half a millisecond.
    std::uint32_t sleep_while(std::uint32_t old) noexcept {
        const timespec nap{0, 700'000};
        const timespec* limit = &nap;
        std::uint32_t now = 0;
        sleepers_.fetch_add(1);
        do {
            futex(FUTEX_WAIT_PRIVATE, old, std::exchange(limit, nullptr));
            now = value.load(std::memory_order_acquire);
        } while (now == old);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
        return now;
    }
    void futex(int operation, std::uint32_t argument, const timespec* limit) noexcept {
        static_assert(sizeof value == sizeof argument && decltype(value)::is_always_lock_free);
        syscall(SYS_futex, &value, operation, argument, limit, nullptr, 0);
    }

    std::atomic<std::uint32_t> sleepers_{0};
#else
    void wake() noexcept { value.notify_all(); }

 private:
    std::uint32_t sleep_while(std::uint32_t old) noexcept {
        value.wait(old, std::memory_order_acquire);
        return value.load(std::memory_order_acquire);
    }
#endif
};

/// The processor that the calling thread is on; -1 where the system does not tell.
[[nodiscard]] inline int this_processor() noexcept {
#if defined(__linux__) && defined(__LP64__)
    return sched_getcpu();
#else
    return -1;
#endif
}

/// Moves the calling thread to another of its processors, if it has any. Afterwards it may run where it could before.
inline void leave_processor(int processor) noexcept {
#if defined(__linux__) && defined(__LP64__)
    cpu_set_t allowed[8] = {}, others[8] = {};  // Linux knows 8192 processors at most
    const auto bit = static_cast<std::size_t>(processor);
    if (sched_getaffinity(0, sizeof allowed, allowed) != 0 || bit >= 8 * sizeof allowed) return;
    for (std::size_t i = 0; i < 8; ++i) others[i] = allowed[i];
    CPU_CLR_S(bit, sizeof others, others);
    if (sched_setaffinity(0, sizeof others, others) == 0) sched_setaffinity(0, sizeof allowed, allowed);
#else
    static_cast<void>(processor);
#endif
}

/// Manners of a worker: it stays out of the way of the thread that gives it work, and hands its processor over while it
/// holds none.
class Worker {
 public:
    /// To be called between jobs. A thread that has run for some milliseconds is interrupted if another program wants
    /// the processor, and everybody waits if that happens in the middle of a job: better to give way before.
    void give_way() noexcept {
        const Clock::time_point now = Clock::now();
        if (now - gave_way_ < std::chrono::milliseconds(2)) return;
        std::this_thread::yield();
        gave_way_ = Clock::now();
    }

    /// To be called before a job that comes from a thread on that processor: two threads in turns on one processor are
    /// slower than one, and the system leaves them there as long as other programs keep the others busy.
    void keep_off(int processor) noexcept {
        if (processor < 0 || this_processor() != processor) return;
        const Clock::time_point now = Clock::now();
        if (now - moved_ < std::chrono::microseconds(500)) return;
        moved_ = now;
        leave_processor(processor);
    }

 private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point gave_way_ = Clock::now();
    Clock::time_point moved_{};
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

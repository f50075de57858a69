// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// `ThreadPool` on what a decoding step asks of it: many short loops of uneven tiles, one right after another. Per
// number of threads (in times of the processors; 0 = serial) and with other threads that burn processors meanwhile.
// Serial and pool runs share the work, so that ratios of times say what over-subscription costs.

#include <decant/core/processors.hpp>
#include <decant/core/thread_pool.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

/// Loops as a pass runs them: as many participants as threads, which claim tiles of 2 to 30 microseconds.
class Loops {
 public:
    void run(const decant::AnyExecutor& executor) {
        for (std::uint32_t loop = 0; loop < 250; ++loop) {
            loop_ = loop;
            tiles_ = 1 + loop * 7 % 24;
            next_.store(0, std::memory_order_relaxed);
            const std::size_t participants = (std::min)(executor.concurrency(), std::size_t{tiles_});
            executor.parallel_for(participants,
                                  {this, [](void* self, std::size_t) { static_cast<Loops*>(self)->participate(); }});
        }
    }

 private:
    void participate() {
        for (std::uint32_t tile = next_.fetch_add(1, std::memory_order_relaxed); tile < tiles_;
             tile = next_.fetch_add(1, std::memory_order_relaxed)) {
            std::uint64_t x = tile;
            for (std::uint32_t i = 0; i < 1000 * (1 + (loop_ + tile * 5) % 16); ++i)
                x = x * 6364136223846793005u + 1442695040888963407u;
            benchmark::DoNotOptimize(x);
        }
    }

    std::uint32_t loop_ = 0;
    std::uint32_t tiles_ = 0;
    std::atomic<std::uint32_t> next_{0};
};

/// Threads that burn processors for its lifetime.
class Burners {
 public:
    explicit Burners(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            threads_.emplace_back([this] {
                while (!stop_.load(std::memory_order_relaxed)) {
                }
            });
        }
    }
    ~Burners() {
        stop_.store(true);
        for (std::thread& thread : threads_) thread.join();
    }
    Burners(const Burners&) = delete;
    Burners& operator=(const Burners&) = delete;

 private:
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
};

void loops(benchmark::State& state) {
    const std::size_t threads = static_cast<std::size_t>(state.range(0)) * decant::available_processors();
    const decant::AnyExecutor executor =
        threads == 0 ? decant::AnyExecutor{} : decant::AnyExecutor(decant::ThreadPool(threads));
    const Burners burners(static_cast<std::size_t>(state.range(1)));
    Loops work;
    for (auto _ : state) work.run(executor);
}

}  // namespace

BENCHMARK(loops)
    ->ArgNames({"threads_per_processor", "burners"})
    ->ArgsProduct({{0, 1, 2, 4}, {0, 1, 2}})
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Executors that keep the contract in ways a thread pool rarely does, and a host's job system.

#include <decant/core/executor.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace decant_test {

/// The last index first, on the calling thread; claims to have many threads.
struct ReversedExecutor {
    std::size_t concurrency() const { return 64; }
    void parallel_for(std::size_t n, decant::TaskRef task) const {
        while (n > 0) task(--n);
    }
};

/// Every time another order, on the calling thread.
struct ShuffledExecutor {
    std::mt19937 random{7};
    std::size_t concurrency() const { return 5; }
    void parallel_for(std::size_t n, decant::TaskRef task) {
        std::vector<std::size_t> order(n);
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::shuffle(order.begin(), order.end(), random);
        for (const std::size_t i : order) task(i);
    }
};

/// What games and servers have: one queue of jobs, threads that work on it, and groups of jobs to wait for. Who waits
/// works on the queue meanwhile, newest first, so that jobs may submit jobs.
class Jobs {
 public:
    explicit Jobs(std::size_t threads) {
        for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    }
    ~Jobs() {
        {
            const std::lock_guard lock(mutex_);
            closing_ = true;
        }
        changed_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }
    Jobs(const Jobs&) = delete;
    Jobs& operator=(const Jobs&) = delete;

    std::size_t threads() const { return threads_.size(); }

    class Group {
     public:
        explicit Group(Jobs& jobs) : jobs_(jobs) {}
        void submit(std::function<void()> job) {
            {
                const std::lock_guard lock(jobs_.mutex_);
                ++open_;
                jobs_.queue_.push_back({std::move(job), this});
            }
            jobs_.changed_.notify_all();
        }
        void wait() {
            std::unique_lock lock(jobs_.mutex_);
            while (open_ > 0) {
                jobs_.changed_.wait(lock, [&] { return open_ == 0 || !jobs_.queue_.empty(); });
                if (open_ > 0) jobs_.run_one(lock);
            }
        }

     private:
        friend class Jobs;
        Jobs& jobs_;
        std::size_t open_ = 0;
    };

 private:
    struct Job {
        std::function<void()> run;
        Group* group;
    };

    void run_one(std::unique_lock<std::mutex>& lock) {
        if (queue_.empty()) return;
        Job job = std::move(queue_.back());
        queue_.pop_back();
        lock.unlock();
        job.run();
        lock.lock();
        if (--job.group->open_ == 0) changed_.notify_all();
    }
    void work() {
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
            if (queue_.empty()) return;
            run_one(lock);
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> queue_;
    bool closing_ = false;
    std::vector<std::thread> threads_;
};

/// The adapter of the documentation of `decant::Executor`.
struct OnJobs {
    Jobs& jobs;
    std::size_t concurrency() const { return jobs.threads() + 1; }
    void parallel_for(std::size_t n, decant::TaskRef task) {
        Jobs::Group group(jobs);
        for (std::size_t i = 1; i < n; ++i) group.submit([task, i] { task(i); });
        if (n > 0) task(0);
        group.wait();
    }
};

}  // namespace decant_test

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Executors that keep the contract in ways a thread pool rarely does.

#include <decant/core/executor.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
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

}  // namespace decant_test

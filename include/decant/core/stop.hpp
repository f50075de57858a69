// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `StopFlag`: how a host interrupts a pass, from any thread.

#include <decant/core/config.hpp>

#include <atomic>

namespace decant::inline DECANT_ABI {

/// Set by the host (any thread), read between two tiles of a pass. Must outlive the calls it is given to.
class StopFlag {
 public:
    void request() noexcept { flag_.store(true, std::memory_order_relaxed); }
    void clear() noexcept { flag_.store(false, std::memory_order_relaxed); }
    [[nodiscard]] bool requested() const noexcept { return flag_.load(std::memory_order_relaxed); }

 private:
    std::atomic<bool> flag_{false};
};

}  // namespace decant::inline DECANT_ABI

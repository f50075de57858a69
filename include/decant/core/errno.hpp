// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Keeps the host's `errno` as it was: calls into the system and the C library change it, the host must not notice.

#include <decant/core/config.hpp>

#include <cerrno>

namespace decant::inline DECANT_ABI {
namespace detail {

class ErrnoGuard {
 public:
    ErrnoGuard() noexcept = default;
    ~ErrnoGuard() { errno = saved_; }
    ErrnoGuard(const ErrnoGuard&) = delete;
    ErrnoGuard& operator=(const ErrnoGuard&) = delete;

 private:
    int saved_ = errno;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

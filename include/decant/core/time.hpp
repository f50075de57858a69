// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `detail::later`: a moment so long after another, however long that is.

#include <decant/core/config.hpp>

#include <chrono>

namespace decant::inline DECANT_ABI {
namespace detail {

/// `from` plus a time that a host or a file names, in units no finer than the clock's. What lies beyond the clock's
/// moments is the last (the first) of them: hosts write `duration::max()` for "as long as it takes".
template <class Duration>
[[nodiscard]] constexpr std::chrono::steady_clock::time_point later(std::chrono::steady_clock::time_point from,
                                                                    Duration time) noexcept {
    using Moment = std::chrono::steady_clock::time_point;
    const bool ahead = time > Duration::zero();
    const Moment end = ahead ? (Moment::max)() : (Moment::min)();
    // From the epoch, where the way to the end from `from` itself would be longer than a duration.
    const Moment start = ahead == (from > Moment()) ? from : Moment();
    const auto room = std::chrono::duration_cast<Duration>(end - start);
    if (ahead ? time >= room : time <= room) return end;
    return from + std::chrono::duration_cast<Moment::duration>(time);
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

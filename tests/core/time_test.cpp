// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/time.hpp>

#include "support/catch.hpp"

#include <chrono>

using decant::detail::later;
using Moment = std::chrono::steady_clock::time_point;
using Duration = Moment::duration;

TEST_CASE("time: what lies beyond the clock's moments is the last or the first of them", "[core][time]") {
    const Moment epoch, now = epoch + std::chrono::hours(1000), before = epoch - std::chrono::hours(1000);
    const Moment last = (Moment::max)(), first = (Moment::min)();
    for (const Moment from : {before, epoch, now}) {
        CHECK(later(from, Duration(0)) == from);
        CHECK(later(from, Duration(1)) == from + Duration(1));
        CHECK(later(from, Duration(-1)) == from - Duration(1));
        CHECK(later(from, std::chrono::hours(20)) == from + std::chrono::hours(20));
        CHECK(later(from, std::chrono::hours(-20)) == from - std::chrono::hours(20));
    }
    for (const Moment from : {epoch, now, last}) {
        CHECK(later(from, (Duration::max)()) == last);
        CHECK(later(from, (std::chrono::microseconds::max)()) == last);
        CHECK(later(from, (std::chrono::hours::max)()) == last);
    }
    for (const Moment from : {epoch, before, first}) {
        CHECK(later(from, (Duration::min)()) == first);
        CHECK(later(from, (std::chrono::hours::min)()) == first);
    }
    CHECK(later(now, (Duration::min)()) < before);
    CHECK(later(before, (Duration::max)()) > now);
    CHECK(later(now, last - now - Duration(1)) == last - Duration(1));
    CHECK(later(last, Duration(1)) == last);
    CHECK(later(first, Duration(-1)) == first);
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/progress.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <type_traits>
#include <vector>

using decant::CallOptions;
using decant::Progress;
using decant::ProgressRef;
using decant::StopFlag;

static_assert(std::is_trivially_copyable_v<ProgressRef>);
static_assert(std::is_convertible_v<bool (&)(Progress), ProgressRef>);
static_assert(!std::is_convertible_v<void (&)(int*), ProgressRef>);

TEST_CASE("progress: without a callable the call goes on") {
    const ProgressRef none;
    CHECK_FALSE(none);
    CHECK(none({1, 2}));
}

TEST_CASE("progress: a callable without a result never stops, one with a result decides") {
    std::vector<std::uint64_t> seen;
    auto watch = [&](Progress progress) { seen.push_back(progress.done); };
    const ProgressRef watching(watch);
    CHECK(watching({1, 3}));
    CHECK(watching({2, 3}));
    CHECK(seen == std::vector<std::uint64_t>{1, 2});

    const auto until = [](Progress progress) { return progress.done < 2; };
    const ProgressRef deciding(until);
    CHECK(deciding({1, 3}));
    CHECK_FALSE(deciding({2, 3}));
}

TEST_CASE("progress: a stop is seen before and after the callable") {
    StopFlag stop;
    int calls = 0;
    const auto requests = [&](Progress) {
        ++calls;
        stop.request();
    };
    const CallOptions options{.stop = &stop, .progress = requests};
    CHECK_FALSE(options.stopped());
    CHECK_FALSE(options.go_on({1, 2}));
    CHECK(calls == 1);
    CHECK(options.stopped());
    CHECK_FALSE(options.go_on({1, 2}));
    CHECK(calls == 1);
    CHECK(CallOptions{}.go_on({}));
}

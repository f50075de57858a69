// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/result.hpp>

#include "support/catch.hpp"

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

using decant::Error;
using decant::ErrorCode;
using decant::Result;

namespace {

Result<int> half(int x) {
    if (x % 2 != 0) return Error{ErrorCode::invalid_argument, decant::detail::text(x, " is odd"), "half", ""};
    return x / 2;
}
Result<void> positive(int x) {
    if (x <= 0) return Error{ErrorCode::mismatch, decant::detail::text(x, " is not positive"), "", ""};
    return {};
}
Result<std::string> eighth(int x) {
    DECANT_CHECK(positive(x));
    DECANT_TRY(const int y, half(x));
    DECANT_TRY(int z, half(y));
    DECANT_TRY(z, half(z));
    return std::to_string(z);
}
Result<std::unique_ptr<int>> boxed(int x) {
    DECANT_TRY(auto box, Result<std::unique_ptr<int>>(std::make_unique<int>(x)));
    return box;
}
Result<void> nothing(int x) {
    DECANT_TRY(const auto text, eighth(x));
    static_cast<void>(text);
    return {};
}

static_assert(!std::is_convertible_v<Result<int>, bool>);
static_assert(!std::is_copy_constructible_v<Result<std::unique_ptr<int>>>);
static_assert(std::is_nothrow_move_constructible_v<Result<std::unique_ptr<int>>>);

}  // namespace

TEST_CASE("result: holds a value or an error") {
    Result<int> good = half(10);
    REQUIRE(good);
    CHECK(good.has_value());
    CHECK(*good == 5);
    *good = 6;
    CHECK(std::as_const(good).value() == 6);

    const Result<int> bad = half(3);
    REQUIRE(!bad);
    CHECK(!bad.has_value());
    CHECK(bad.error().code == ErrorCode::invalid_argument);
    CHECK(bad.error().what == "3 is odd");
}

TEST_CASE("result: carries move-only values") {
    Result<std::unique_ptr<int>> box = boxed(4);
    REQUIRE(box);
    CHECK(**box == 4);
    CHECK(*box->get() == 4);
    const std::unique_ptr<int> taken = std::move(box).value();
    CHECK(*taken == 4);
    CHECK(*boxed(9).value() == 9);
}

TEST_CASE("result: the macros unwrap or return the first error") {
    CHECK(eighth(80).value() == "10");
    CHECK(eighth(-8).error().code == ErrorCode::mismatch);
    CHECK(eighth(7).error().what == "7 is odd");
    CHECK(eighth(6).error().what == "3 is odd");
    CHECK(eighth(4).error().what == "1 is odd");
    CHECK(nothing(8));
    CHECK(nothing(4).error().what == "1 is odd");
}

TEST_CASE("result: value_or gives the value or the fallback") {
    CHECK(half(8).value_or(-1) == 4);
    CHECK(half(9).value_or(-1) == -1);
    CHECK(eighth(1).value_or("none") == "none");
}

TEST_CASE("result: value throws the error where exceptions are on") {
    try {
        static_cast<void>(half(3).value());
        FAIL("did not throw");
    } catch (const decant::Exception& exception) {
        CHECK(std::string(exception.what()) == "half: 3 is odd");
        CHECK(exception.error().code == ErrorCode::invalid_argument);
    }
    CHECK_THROWS_AS(positive(0).value(), std::exception);
    CHECK_NOTHROW(positive(1).value());
    Result<int> bad = half(3);
    CHECK_THROWS_AS(bad.value(), decant::Exception);
    CHECK_THROWS_AS(std::as_const(bad).value(), decant::Exception);
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/json.hpp>

#include "files/support.hpp"

#include <cerrno>
#include <string>
#include <vector>

using decant::Error;
using decant::ErrorCode;
using decant::parse_json;
using decant::Result;
using decant_test::contains;

namespace {

/// Writes the events down, in one line.
struct Log : decant::JsonEvents {
    std::string text;
    std::string refuse;

    Result<void> null() override { return add("null"); }
    Result<void> boolean(bool value) override { return add(value ? "true" : "false"); }
    Result<void> unsigned_integer(std::uint64_t value) override { return add("u" + std::to_string(value)); }
    Result<void> negative_integer(std::int64_t value) override { return add("i" + std::to_string(value)); }
    Result<void> real(double value) override { return add("r" + std::to_string(value)); }
    Result<void> string(std::string_view value) override { return add("'" + std::string(value) + "'"); }
    Result<void> begin_object() override { return add("{"); }
    Result<void> key(std::string_view value) override { return add(std::string(value) + ":"); }
    Result<void> end_object() override { return add("}"); }
    Result<void> begin_array() override { return add("["); }
    Result<void> end_array() override { return add("]"); }

    Result<void> add(const std::string& event) {
        text += event + " ";
        if (event == refuse) return Error{ErrorCode::mismatch, "refused", "", ""};
        return {};
    }
};

}  // namespace

TEST_CASE("JSON arrives as events in order", "[files][json]") {
    Log log;
    REQUIRE(parse_json(
        R"( {"a": [1, -2, 1.5, true, false, null], "b\u00e9": {"c": "x\"y"}, "big": 18446744073709551615} )", log));
    CHECK(log.text ==
          "{ a: [ u1 i-2 r1.500000 true false null ] b\xc3\xa9: { c: 'x\"y' } big: u18446744073709551615 } ");
}

TEST_CASE("numbers are exact from end to end of their range", "[files][json]") {
    struct Reals : decant::JsonEvents {
        std::vector<double> values;
        decant::Result<void> real(double value) override {
            values.push_back(value);
            return {};
        }
    } reals;
    REQUIRE(parse_json("[0.1, -1234567.875, 1e-05, 1.7976931348623157e308, 5e-324, 1e-999, -0.0, 18446744073709551616]",
                       reals));
    CHECK(reals.values == std::vector<double>{0.1, -1234567.875, 1e-05, 1.7976931348623157e308, 5e-324, 0.0, -0.0,
                                              18446744073709551616.0});
}

TEST_CASE("events that a handler does not hide are ignored", "[files][json]") {
    decant::JsonEvents nothing;
    CHECK(parse_json(R"({"a": [1, -1, 0.5, "s", null, true, {}]})", nothing));
}

TEST_CASE("what is not JSON is an error with a place; errno is left alone", "[files][json]") {
    for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "[1] 2", "nul", "\"\xff\"", "[1e999]", "\"open", "{1: 2}"}) {
        Log log;
        errno = 55;
        const auto result = parse_json(text, log);
        CHECK(errno == 55);
        INFO(text);
        REQUIRE_FALSE(result);
        CHECK(result.error().code == ErrorCode::bad_format);
        CHECK(contains(result.error().where, "byte "));
    }
}

TEST_CASE("depth is limited, without recursion", "[files][json]") {
    const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
    Log log;
    CHECK(parse_json(nested(64), log));
    CHECK_FALSE(parse_json(nested(65), log));
    CHECK(parse_json(nested(3), log, 3));
    CHECK_FALSE(parse_json(R"([{"a": [1]}])", log, 2));
    const auto deep = parse_json(nested(1'000'000), log);
    REQUIRE_FALSE(deep);
    CHECK(contains(deep.error().what, "64"));
    // Depth is that of the moment: many containers side by side are not deep.
    std::string wide = "[";
    for (int i = 0; i < 1000; ++i) wide += "[],";
    CHECK(parse_json(wide + "[]]", log, 2));
}

TEST_CASE("an error of the handler ends the parse and comes back", "[files][json]") {
    Log log;
    log.refuse = "'stop'";
    const auto result = parse_json(R"(["go", "stop", "never"])", log);
    REQUIRE_FALSE(result);
    CHECK(result.error().code == ErrorCode::mismatch);
    CHECK(log.text == "[ 'go' 'stop' ");
}

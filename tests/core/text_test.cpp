// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/text.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <limits>
#include <locale>
#include <string>
#include <string_view>

using decant::detail::quoted;
using decant::detail::text;

namespace {

/// What `quoted` showed, read back by its own rules.
std::string unquoted(std::string_view shown) {
    constexpr std::string_view hex = "0123456789abcdef";
    std::string raw;
    for (std::size_t i = 1; i + 1 < shown.size(); ++i) {
        if (shown[i] != '\\') {
            raw.push_back(shown[i]);
        } else if (shown[i + 1] == 'x') {
            raw.push_back(static_cast<char>(hex.find(shown[i + 2]) * 16 + hex.find(shown[i + 3])));
            i += 3;
        } else {
            raw.push_back(shown[++i]);
        }
    }
    return raw;
}

struct Commas : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
};

}  // namespace

TEST_CASE("text: strings and numbers are joined in their shortest decimal form") {
    CHECK(text().empty());
    CHECK(text("a", std::string("b"), std::string_view("c"), 'd') == "abcd");
    CHECK(text(0, " ", -7, " ", 42u) == "0 -7 42");
    CHECK(text((std::numeric_limits<std::int64_t>::min)()) == "-9223372036854775808");
    CHECK(text((std::numeric_limits<std::uint64_t>::max)()) == "18446744073709551615");
    CHECK(text(std::uint8_t{200}, " ", std::int8_t{-5}) == "200 -5");
    CHECK(text(true, false) == "truefalse");
    CHECK(text(0.5, " ", 1e30, " ", -2.25f) == "0.5 1e+30 -2.25");
    CHECK(text(1.0 / 3, " ", 1.0f / 3) == "0.3333333333333333 0.33333334");
    CHECK(text(1234567.875) == "1234567.875");
    CHECK(text(-(std::numeric_limits<double>::max)()) == "-1.7976931348623157e+308");
    CHECK(text(std::numeric_limits<float>::infinity()) == "inf");
}

TEST_CASE("text: the host's locale changes nothing") {
    const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Commas));
    const std::string shown = text(1234567, " ", 0.5);
    std::locale::global(before);
    CHECK(shown == "1234567 0.5");
}

TEST_CASE("text: quoted text is printable and loses nothing") {
    CHECK(quoted("") == "\"\"");
    CHECK(quoted("llama") == "\"llama\"");
    CHECK(quoted("say \"hi\"\\") == "\"say \\\"hi\\\"\\\\\"");
    CHECK(quoted(std::string_view("a\0b", 3)) == "\"a\\x00b\"");
    CHECK(quoted("\x1b[31m\r\n\t\x7f\xff") == "\"\\x1b[31m\\x0d\\x0a\\x09\\x7f\\xff\"");
    CHECK(quoted("%s%n%99999d{}") == "\"%s%n%99999d{}\"");
    for (int first = 0; first < 256; first += 32) {
        std::string raw;
        for (int i = 0; i < 32; ++i) raw.push_back(static_cast<char>(first + i));
        const std::string shown = quoted(raw);
        for (const char c : shown) CHECK((c >= 0x20 && c <= 0x7e));
        CHECK(shown.front() == '"');
        CHECK(shown.back() == '"');
        CHECK(unquoted(shown) == raw);
    }
}

TEST_CASE("text: quoted text is bounded") {
    const std::string fits(64, 'a');
    CHECK(quoted(fits) == "\"" + fits + "\"");
    CHECK(quoted(fits + "b") == "\"" + fits + "...\"");
    CHECK(quoted(std::string(1 << 20, '\x01')).size() == 64 * 4 + 5);
}

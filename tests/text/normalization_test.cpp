// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/text/normalization.hpp>

#include "../support/catch.hpp"
#include "../support/data.hpp"

#include <ctime>
#include <string>

namespace {

std::string nfc(std::string_view text) {
    std::string buffer;
    return std::string(decant::normalize_nfc(text, buffer));
}

}  // namespace

TEST_CASE("normalization form C is what Unicode data say", "[text][normalization]") {
    const auto cases = decant_test::read_json(decant_test::data("text/normalization.json"));
    REQUIRE(cases.size() > 2000);
    std::size_t changed = 0;
    for (const auto& c : cases) {
        const auto text = c.at("text").get<std::string>();
        const auto expected = c.at("nfc").get<std::string>();
        INFO(c.dump(-1, ' ', true));
        REQUIRE(nfc(text) == expected);
        REQUIRE(nfc(expected) == expected);
        changed += text != expected;
    }
    CHECK(changed > 1000);
}

TEST_CASE("bytes that are not UTF-8 stay, and block", "[text][normalization]") {
    CHECK(nfc("a\xFF\xCC\x81") == "a\xFF\xCC\x81");
    CHECK(nfc("\xCC\x81"
              "a\xCC\x81\xCC") == "\xCC\x81\xC3\xA1\xCC");
    CHECK(nfc("\xE2\x84") == "\xE2\x84");
    CHECK(nfc("\xF4\x90\x80\x80") == "\xF4\x90\x80\x80");
    CHECK(nfc("") == "");
}

TEST_CASE("a text of nothing but marks takes no quadratic time", "[text][normalization]") {
    std::string marks;
    for (int i = 0; i < 200'000; ++i) marks += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";
    const std::clock_t start = std::clock();
    CHECK(nfc(marks).size() == marks.size());
    CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < 2.0);
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "../support/catch.hpp"

#include <decant/text/byte_level.hpp>

#include <algorithm>
#include <string>

TEST_CASE("the alphabet spells every byte once", "[text][byte_level]") {
    std::string all;
    for (char32_t code = 0; code < 400; ++code) {
        std::string spelling;
        decant::append_utf8(spelling, code);
        (void)decant::detail::append_byte_level(spelling, all);
    }
    REQUIRE(all.size() == 256);
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

TEST_CASE("known spellings", "[text][byte_level]") {
    std::string out = "x";
    CHECK(decant::detail::append_byte_level("\xC4\xA0the\xC4\x8A", out));  // U+0120 the U+010A
    CHECK(out == "x the\n");
    CHECK(decant::detail::append_byte_level("\xC3\xA4\xC2\xB8\xC5\x83", out));
    CHECK(out == "x the\n\xE4\xB8\xAD");
    // Outside the alphabet, or not UTF-8: nothing is appended.
    for (const char* wrong : {"a b", "a\xE4\xB8\xAD", "a\xFF", "a\xC4"})
        CHECK_FALSE(decant::detail::append_byte_level(wrong, out));
    CHECK(out == "x the\n\xE4\xB8\xAD");
}

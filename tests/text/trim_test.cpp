// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/text/trim.hpp>

#include "../support/catch.hpp"

using decant::detail::trim;
using decant::detail::trim_left;
using decant::detail::trim_right;

TEST_CASE("white space at the ends goes, whatever it is made of", "[text][trim]") {
    CHECK(trim("") == "");
    CHECK(trim(" \n\t ") == "");
    CHECK(trim(" a b ") == "a b");
    CHECK(trim("\xE3\x80\x80 \xC2\xA0x\xE2\x80\xA8\xC2\x85") == "x");  // U+3000, U+00A0; U+2028, U+0085
    CHECK(trim("\x1Cx\x1F") == "x");                                   // as Python's strip
    CHECK(trim_left("\x1Cx") == "\x1Cx");                              // not as regular expressions
    CHECK(trim_left("  x ") == "x ");
    CHECK(trim_right("  x \n") == "  x");
    CHECK(trim("\xE2\x80\x8Bx\xE2\x80\x8B") == "\xE2\x80\x8Bx\xE2\x80\x8B");  // U+200B is none
}

TEST_CASE("bytes that are not UTF-8 are no white space", "[text][trim]") {
    for (const char* text : {"\x80", "\xFF", "\xE3\x80", "a\x85", "\xA0", "\x80\x80\x80\x80\x80", "\xC2\x85\x85"}) {
        const std::string_view kept = trim_right(text);
        CHECK(kept == text);
    }
    CHECK(trim("\x80 ") == "\x80");
}

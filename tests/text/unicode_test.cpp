// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "../support/catch.hpp"

#include <decant/text/unicode.hpp>

#include <cstddef>
#include <iterator>

using decant::char_kind;
using decant::CharKind;

TEST_CASE("ranges are sorted and disjoint, and ASCII agrees with them", "[text][unicode]") {
    const auto* previous = std::begin(decant::detail::char_ranges);
    for (const auto* range = previous + 1; range != std::end(decant::detail::char_ranges); previous = range++) {
        REQUIRE(previous->last < range->first);
        REQUIRE(range->first <= range->last);
    }
    for (char32_t code = 0; code < 0x80; ++code) {
        CharKind expected = CharKind::other;
        for (const auto& range : decant::detail::char_ranges)
            if (code >= range.first && code <= range.last) expected = range.kind;
        CHECK(char_kind(code) == expected);
    }
}

TEST_CASE("counts are those of Unicode 16.0", "[text][unicode]") {
    std::size_t letters = 0;
    std::size_t numbers = 0;
    std::size_t spaces = 0;
    for (char32_t code = 0; code <= 0x10FFFF; ++code) {
        letters += char_kind(code) == CharKind::letter;
        numbers += char_kind(code) == CharKind::number;
        spaces += char_kind(code) == CharKind::space;
    }
    // Totals of Lu + Ll + Lt + Lm + Lo and Nd + Nl + No as in DerivedGeneralCategory.txt; White_Space has 25 members.
    CHECK(letters == 1858u + 2258u + 31u + 404u + 136477u);
    CHECK(numbers == 760u + 236u + 915u);
    CHECK(spaces == 25);
}

TEST_CASE("characters on the edges of classes", "[text][unicode]") {
    CHECK(char_kind(0x00AA) == CharKind::letter);  // feminine ordinal
    CHECK(char_kind(0x00B2) == CharKind::number);  // superscript two
    CHECK(char_kind(0x0085) == CharKind::space);   // next line
    CHECK(char_kind(0x200B) == CharKind::other);   // zero width space is no white space
    CHECK(char_kind(0x180E) == CharKind::other);   // nor is the Mongolian vowel separator
    CHECK(char_kind(0x0301) == CharKind::other);   // a combining mark is no letter
    CHECK(char_kind(0x4E00) == CharKind::letter);
    CHECK(char_kind(0x2167) == CharKind::number);  // Roman numeral eight
    CHECK(char_kind(0x2FA1D) == CharKind::letter);
    CHECK(char_kind(0x10D40) == CharKind::number);  // Garay digit zero, new in 16.0
    CHECK(char_kind(0xD800) == CharKind::other);
    CHECK(char_kind(0x110000) == CharKind::other);
    CHECK(char_kind(0xFFFFFFFF) == CharKind::other);
}

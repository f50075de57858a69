// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "../support/catch.hpp"

#include <decant/text/special_tokens.hpp>

#include <string>
#include <vector>

using decant::Token;
using decant::detail::SpecialTokens;

TEST_CASE("the longest piece is found, control tokens only as far as they are allowed", "[text][special_tokens]") {
    const std::string long_piece(SpecialTokens::max_bytes + 1, 'x');
    const SpecialTokens specials({{"<a>", Token{1}, true},
                                  {"<a>b", Token{2}, true},
                                  {"<", Token{3}, false},
                                  {"<a", Token{4}, false},
                                  {"<a>", Token{5}, false},
                                  {"", Token{6}, false},
                                  {"\xC3\xA9", Token{7}, false},
                                  {long_piece, Token{8}, false}});
    const auto match = [&](std::string_view text, std::size_t control) {
        const auto* found = specials.match(text, control);
        return found == nullptr ? 0 : decant::id(found->token);
    };
    CHECK(match("<a>bc", 5) == 2);
    CHECK(match("<a>bc", 4) == 2);
    CHECK(match("<a>bc", 3) == 1);
    CHECK(match("<a>bc", 2) == 4);
    CHECK(match("<a>bc", 0) == 4);
    CHECK(match("<a>c", 4) == 1);
    CHECK(match("<", 1) == 3);
    CHECK(match("<b", 2) == 3);
    CHECK(match("\xC3\xA9", 0) == 7);
    CHECK(match("\xC3", 1) == 0);
    CHECK(match("", 0) == 0);
    CHECK(match("a<a>", 4) == 0);
    CHECK(match(long_piece, 0) == 0);
    CHECK(SpecialTokens().match("<a>", 3) == nullptr);
}

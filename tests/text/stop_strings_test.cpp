// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/text/stop_strings.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

using decant::StopStrings;
using decant_test::Random;

namespace {

/// What comes before the stop string that is complete first; of those, the one that begins first.
std::string expected(const std::string& text, const std::vector<std::string>& strings) {
    std::size_t first = text.size(), complete = text.size() + 1;
    for (const std::string& one : strings) {
        if (one.empty()) continue;
        const std::size_t at = text.find(one);
        if (at == std::string::npos || at + one.size() > complete) continue;
        first = at + one.size() == complete ? (std::min)(first, at) : at;
        complete = at + one.size();
    }
    return text.substr(0, first);
}

std::string random_text(Random& random, std::size_t most) {
    std::string text;
    for (std::size_t i = random.below(most + 1); i > 0; --i) text += static_cast<char>('a' + random.below(3));
    return text;
}

}  // namespace

TEST_CASE("stop strings: in whatever parts a text comes, it ends at the same place", "[text][stop_strings]") {
    Random random{5};
    for (int round = 0; round < 3000; ++round) {
        std::vector<std::string> strings;
        for (std::size_t i = random.below(4); i > 0; --i) strings.push_back(random_text(random, 4));
        const std::string text = random_text(random, 40);
        StopStrings stops(strings);
        std::string found;
        for (std::size_t at = 0; at < text.size() && !stops.found();) {
            const std::size_t n = 1;
            found += stops.push(std::string_view(text).substr(at, n));
            at += n;
            CHECK(text.starts_with(found));
        }
        found += stops.finish();
        CAPTURE(text, strings.size());
        CHECK(found == expected(text, strings));
    }
}

TEST_CASE("stop strings: text is given on as soon as it is certain", "[text][stop_strings]") {
    StopStrings stops({"</s>", "\n\n"});
    CHECK(stops.push("one < two") == "one < two");
    CHECK(stops.push("<") == "");
    CHECK(stops.held() == "<");
    CHECK(stops.push("b>\n") == "<b>");
    CHECK(stops.push("three\n\nfour") == "\nthree");
    CHECK(stops.found());
    CHECK(stops.push("five") == "");
    CHECK(stops.finish() == "");
}

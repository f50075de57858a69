// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/json_tree.hpp>

#include "files/support.hpp"

#include <string>

using decant::ErrorCode;
using decant::parse_json;
using decant::detail::JsonTree;

TEST_CASE("a JSON tree can be walked without asking", "[files][json]") {
    JsonTree tree;
    REQUIRE(parse_json(R"({"a": [1, {"b": "x"}, [], null], "t": true, "n": -1, "r": 2.5, "a": 3, "e": {}, "s": ""})",
                       tree));
    const auto root = tree.root();
    CHECK(root.kind() == JsonTree::Kind::object);
    CHECK(root["a"].kind() == JsonTree::Kind::array);  // the first of two
    CHECK(root["a"].first().uint(7) == 1);
    CHECK(root["a"].first().next()["b"].string() == "x");
    CHECK(root["a"].first().next().next().kind() == JsonTree::Kind::array);
    CHECK_FALSE(root["a"].first().next().next().first());
    const auto null = root["a"].first().next().next().next();
    CHECK((null && null.is_null() && !null.next()));
    CHECK(root["t"].boolean());
    CHECK_FALSE(root["n"].boolean());
    CHECK(root["n"].uint(7) == 7);
    CHECK(root["r"].uint(7) == 7);
    CHECK((root["s"].is_string() && root["s"].string().empty()));
    CHECK(root["t"].key() == "t");
    CHECK_FALSE(root["no"]["such"]["path"].first().next());
    CHECK(root["no"]["such"].string().empty());
    CHECK_FALSE(root["t"]["a"]);
    std::size_t members = 0;
    for (auto at = root.first(); at; at = at.next()) ++members;
    CHECK(members == 7);
}

TEST_CASE("an empty JSON tree is null, a huge one an error", "[files][json]") {
    CHECK_FALSE(JsonTree().root());
    JsonTree number;
    REQUIRE(parse_json("5", number));
    CHECK(number.root().uint(0) == 5);
    std::string many = "[0";
    for (std::size_t i = 0; i < JsonTree::max_values; ++i) many += ",0";
    JsonTree tree;
    CHECK(parse_json(many + "]", tree).error().code == ErrorCode::unsupported);
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/hash.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <vector>

namespace {

std::uint64_t hash(std::span<const std::byte> bytes) {
    decant::Hash64 made;
    made.add(bytes);
    return made.value();
}

}  // namespace

TEST_CASE("a hash changes with every bit, with the length and with the order", "[core][hash]") {
    std::set<std::uint64_t> seen;
    std::size_t count = 0;
    std::vector<std::byte> bytes(41);
    for (std::size_t size = 0; size <= bytes.size(); ++size, ++count)
        seen.insert(hash(std::span(bytes).first(size)));  // zeros alone
    for (std::byte& byte : bytes) {
        for (int bit = 0; bit < 8; ++bit, ++count) {
            byte = static_cast<std::byte>(1 << bit);
            seen.insert(hash(bytes));
        }
        byte = std::byte{0};
    }
    CHECK(seen.size() == count);
}

TEST_CASE("a hash tells where its pieces end", "[core][hash]") {
    decant::Hash64 a, b, c;
    a.add(std::string_view("ab"), std::string_view("c"));
    b.add(std::string_view("a"), std::string_view("bc"));
    c.add(std::string_view("ab"), std::string_view("c"));
    CHECK(a.value() != b.value());
    CHECK(a.value() == c.value());
}

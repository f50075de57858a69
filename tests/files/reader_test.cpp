// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/reader.hpp>

#include "files/support.hpp"

#include <array>
#include <limits>

using decant::ByteReader;
using decant_test::bytes_of;
using decant_test::contains;
using namespace std::string_view_literals;

TEST_CASE("numbers are little-endian at any alignment", "[files][reader]") {
    ByteReader in(bytes_of("\x01\x02\x01\xff\xff\xff\xff\x00\x00\x80\x3f"sv));
    CHECK(in.number<std::uint8_t>("a").value() == 1);
    CHECK(in.number<std::uint16_t>("b").value() == 0x0102);
    CHECK(in.number<std::int32_t>("c").value() == -1);
    CHECK(in.number<float>("d").value() == 1.0f);
    CHECK(in.remaining() == 0);
}

TEST_CASE("a read past the end fails, says what and where, and leaves the cursor", "[files][reader]") {
    ByteReader in(bytes_of("abcdef"sv));
    REQUIRE(in.take(4, "a head"));
    const auto number = in.number<std::uint32_t>("a tail");
    REQUIRE_FALSE(number);
    CHECK(contains(number.error().message(), "a tail needs 4 bytes"));
    CHECK(contains(number.error().message(), "2 are left"));
    CHECK(contains(number.error().message(), "byte 4"));
    CHECK(in.position() == 4);
    CHECK_FALSE(in.take(3, "three"));
    CHECK(in.take(2, "two"));
}

TEST_CASE("counts are compared with the bytes left, also where the product overflows", "[files][reader]") {
    std::array<std::byte, 8 + 24> bytes{};
    const auto count_is = [&](std::uint64_t count, std::uint64_t minimum) {
        for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(count >> (8 * i));
        ByteReader in(bytes);
        const bool accepted = in.count(minimum, "things").has_value();
        CHECK(in.position() == (accepted ? 8u : 0u));
        return accepted;
    };
    CHECK(count_is(0, 24));
    CHECK(count_is(1, 24));
    CHECK_FALSE(count_is(2, 24));
    CHECK(count_is(3, 8));
    CHECK_FALSE(count_is(4, 8));
    CHECK_FALSE(count_is(std::uint64_t{1} << 61, 8));  // times 8 is 0 in 64 bits
    CHECK_FALSE(count_is((std::numeric_limits<std::uint64_t>::max)(), 1));
}

TEST_CASE("elements are taken only if all of them are there", "[files][reader]") {
    ByteReader in(bytes_of("abcdefgh"sv));
    CHECK_FALSE(in.take(std::uint64_t{1} << 61, 8, "wide"));
    CHECK_FALSE(in.take(3, 4, "three"));
    CHECK(in.take(2, 4, "two").value().size() == 8);
}

TEST_CASE("strings must lie inside the bytes", "[files][reader]") {
    ByteReader good(bytes_of("\x03\0\0\0\0\0\0\0abcd"sv));
    CHECK(good.string("text").value() == "abc");
    CHECK(good.position() == 11);
    ByteReader bad(bytes_of("\x05\0\0\0\0\0\0\0abcd"sv));
    CHECK(contains(bad.string("text").error().message(), "text is 5, but only"));
    ByteReader huge(
        bytes_of("\xff\xff\xff\xff\xff\xff\xff\xff"
                 "abcd"sv));
    CHECK_FALSE(huge.string("text"));
    CHECK(huge.position() == 0);
}

TEST_CASE("checked arithmetic knows its limits", "[files][reader]") {
    constexpr auto max = (std::numeric_limits<std::uint64_t>::max)();
    using decant::detail::checked_add;
    using decant::detail::checked_multiply;
    CHECK(checked_add(max, 0) == max);
    CHECK_FALSE(checked_add(max, 1));
    CHECK(checked_multiply(max, 1) == max);
    CHECK(checked_multiply(max, 0) == 0u);
    CHECK(checked_multiply(0xffffffff, 0x100000001) == max);
    CHECK_FALSE(checked_multiply(std::uint64_t{1} << 32, std::uint64_t{1} << 32));
}

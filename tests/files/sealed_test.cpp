// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/sealed.hpp>

#include <decant/files/token_list.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using decant::ErrorCode;
using decant::Token;
using decant::detail::Seal;
using Bytes = std::vector<std::byte>;

namespace {

constexpr Seal letters{"ABCD", 3, "saved letter", "write it again", decant::detail::hash64};

Bytes sealed(const Seal& seal, std::uint32_t content) {
    Bytes out;
    seal.begin(out);
    decant::detail::put(out, content);
    seal.finish(out);
    return out;
}

}  // namespace

TEST_CASE("sealed bytes: FNV-1a gives its authors' values", "[files][sealed]") {
    const auto hash = [](std::string_view text) { return decant::detail::fnv1a(std::as_bytes(std::span(text))); };
    CHECK(hash("") == 0xcbf29ce484222325u);
    CHECK(hash("a") == 0xaf63dc4c8601ec8cu);
    CHECK(hash("foobar") == 0x85944171f73967e8u);
}

TEST_CASE("sealed bytes: the content comes back, and nothing but the content", "[files][sealed]") {
    for (const Seal& seal : {letters, Seal{"ABCD", 3, "x", "y", decant::detail::fnv1a}}) {
        const Bytes bytes = sealed(seal, 0x12345678);
        CHECK(bytes.size() == seal.size() + 4);
        auto in = seal.open(bytes).value();
        CHECK(in.number<std::uint32_t>("it").value() == 0x12345678);
        CHECK(in.remaining() == 0);
        CHECK(seal.open(sealed(seal, 1)).value().remaining() == 4);
    }
}

TEST_CASE("sealed bytes: what is damaged, cut, foreign or of another version is refused", "[files][sealed]") {
    const Bytes bytes = sealed(letters, 77);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        Bytes odd = bytes;
        odd[i] ^= std::byte{1};
        CHECK(letters.open(odd).error().code == ErrorCode::bad_format);
        CHECK(letters.open(std::span(bytes).first(i)).error().code == ErrorCode::bad_format);
    }
    Seal other = letters;
    other.mark = "ABCE";
    CHECK(other.open(bytes).error().message().find("these bytes are no saved letter") != std::string::npos);
    other = letters;
    other.version = 4;
    const auto newer = letters.open(sealed(other, 77)).error();
    CHECK(newer.code == ErrorCode::unsupported);
    CHECK(newer.message().find("version 4 of a saved letter") != std::string::npos);
    CHECK(newer.message().find("reads version 3") != std::string::npos);
    CHECK(letters.damaged("it is wrong").message().find("write it again") != std::string::npos);
}

TEST_CASE("lists of tokens come back, and a count of more than there are is refused", "[files][sealed]") {
    const std::vector<Token> tokens{Token{3}, Token{-1}, Token{1 << 30}};
    Bytes bytes;
    decant::detail::put_tokens(bytes, tokens);
    REQUIRE(bytes.size() == 8 + 3 * 4);
    decant::ByteReader in(bytes);
    CHECK(decant::detail::read_tokens(in, "the number of tokens").value() == tokens);
    CHECK(in.remaining() == 0);
    for (const std::byte count : {std::byte{4}, std::byte{255}}) {
        bytes[0] = count;
        bytes[7] = count;
        decant::ByteReader odd(bytes);
        CHECK(decant::detail::read_tokens(odd, "the number of tokens").error().code == ErrorCode::bad_format);
    }
}

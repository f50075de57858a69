// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/config.hpp>

#include "support/catch.hpp"

#include <string_view>

#define TEXT_OF_(...) #__VA_ARGS__
#define TEXT_OF(...) TEXT_OF_(__VA_ARGS__)

TEST_CASE("config: the version and the inline namespace agree") {
    CHECK(decant::version == decant::Version{DECANT_VERSION_MAJOR, DECANT_VERSION_MINOR, DECANT_VERSION_PATCH});
    CHECK(&decant::version == &decant::DECANT_ABI::version);

    constexpr std::string_view abi = TEXT_OF(DECANT_ABI);
    CHECK(abi.starts_with("abi" TEXT_OF(DECANT_VERSION_MAJOR) "_" TEXT_OF(DECANT_VERSION_MINOR) "_"));
    // One digit per option: five up to SSE, seven up to AVX2, eleven of AVX-512, three rarer sets, five of the build.
    REQUIRE(abi.size() == std::string_view("abi0_1_00000_0000000_00000000000_000_00000").size());
#if defined(__AVX2__)
    CHECK(abi[16] == '1');
#else
    CHECK(abi[16] == '0');
#endif
#if defined(NDEBUG)
    CHECK(abi[abi.size() - 3] == '1');
#else
    CHECK(abi[abi.size() - 3] == '0');
#endif
    CHECK(abi.back() == '1');  // Catch needs exceptions
}

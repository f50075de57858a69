// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/mapping.hpp>

#include "files/support.hpp"

#include <cerrno>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#endif

using decant::ErrorCode;
using decant::Mapping;
using decant_test::bytes_of;
using decant_test::contains;
using decant_test::TemporaryFolder;

TEST_CASE("a mapping shows the file's bytes, and empty files are empty", "[files][mapping]") {
    const TemporaryFolder folder("mapping");
    const auto file = folder.write("some bytes", bytes_of("hello"));
    const auto mapping = Mapping::open(file);
    REQUIRE(mapping);
    const auto bytes = mapping->bytes();
    CHECK(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == "hello");
    CHECK(Mapping::open(folder.write("empty", {})).value().bytes().empty());
}

TEST_CASE("moving a mapping keeps the range and leaves an empty one", "[files][mapping]") {
    const TemporaryFolder folder("mapping-move");
    Mapping first = Mapping::open(folder.write("a", bytes_of("aaaa"))).value();
    const auto* address = first.bytes().data();
    Mapping second = std::move(first);
    CHECK(second.bytes().data() == address);
    Mapping third;
    third = std::move(second);
    CHECK(third.bytes().data() == address);
    CHECK(third.bytes().size() == 4);
}

TEST_CASE("what cannot be mapped is an error that names the path; errno is left alone", "[files][mapping]") {
    const TemporaryFolder folder("mapping-errors");
    errno = 77;
    const auto absent = Mapping::open(folder.path() / "absent");
    CHECK(errno == 77);
    REQUIRE_FALSE(absent);
    CHECK(absent.error().code == ErrorCode::missing);
    CHECK(contains(absent.error().message(), "absent"));
    const auto directory = Mapping::open(folder.path());
    REQUIRE_FALSE(directory);
    CHECK(directory.error().code == ErrorCode::io);
#if defined(__unix__) || defined(__APPLE__)
    const auto pipe = folder.path() / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    CHECK_FALSE(Mapping::open(pipe));  // and does not wait for a writer
#endif
}

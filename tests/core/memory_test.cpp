// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/memory.hpp>

#include "core/sanitizers.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

using decant::ErrorCode;
using decant::HostMemory;

static_assert(!std::is_copy_constructible_v<HostMemory> && std::is_nothrow_move_constructible_v<HostMemory>);

TEST_CASE("memory: is zeroed, aligned and writable to its last byte") {
    for (const std::size_t size : {1u, 63u, 64u, 4096u, 4097u, 1000003u}) {
        HostMemory memory = HostMemory::allocate(size).value();
        REQUIRE(memory.data() != nullptr);
        CHECK(memory.size() == size);
        CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % 64 == 0);
        CHECK(std::all_of(memory.data(), memory.data() + size, [](std::byte b) { return b == std::byte{0}; }));
        std::fill_n(memory.data(), size, std::byte{0xA5});
    }
}

TEST_CASE("memory: nothing is reserved for size 0") {
    const HostMemory memory = HostMemory::allocate(0).value();
    CHECK(memory.data() == nullptr);
    CHECK(memory.size() == 0);
}

TEST_CASE("memory: moving hands it over") {
    HostMemory first = HostMemory::allocate(100).value();
    std::byte* const data = first.data();
    data[99] = std::byte{7};
    HostMemory second = std::move(first);
    CHECK(first.data() == nullptr);
    CHECK(first.size() == 0);
    CHECK(second.data() == data);
    HostMemory third = HostMemory::allocate(50).value();
    third = std::move(second);
    CHECK(third.data() == data);
    CHECK(third.size() == 100);
    CHECK(third.data()[99] == std::byte{7});
}

TEST_CASE("memory: an absurd size is an error that names it") {
    constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)();
    for (const std::size_t size : {most, most - 63, most / 2, most / 4}) {
        errno = 12345;
        const auto memory = HostMemory::allocate(size);
        CHECK(errno == 12345);
        REQUIRE(!memory);
        CHECK(memory.error().code == ErrorCode::out_of_memory);
        CHECK(memory.error().what.find(std::to_string(size)) != std::string::npos);
        CHECK(!memory.error().hint.empty());
    }
}

#if defined(__linux__) && !DECANT_TEST_SANITIZED
namespace {

/// Resident pages of this process.
long resident() {
    std::ifstream statm("/proc/self/statm");
    long total = 0;
    long pages = 0;
    statm >> total >> pages;
    return pages;
}

}  // namespace

TEST_CASE("memory: only touched pages cost memory, and all are given back") {
    constexpr std::size_t size = std::size_t{512} << 20;
    constexpr long slack = 512;  // pages that the rest of the process may touch meanwhile
    const long before = resident();
    {
        const HostMemory memory = HostMemory::allocate(size).value();
        CHECK(resident() - before < slack);
        for (std::size_t megabyte = 0; megabyte < 512; ++megabyte) memory.data()[megabyte << 20] = std::byte{1};
        CHECK(resident() - before < 512 + slack);
        std::fill_n(memory.data(), std::size_t{32} << 20, std::byte{1});
        CHECK(resident() - before > 8192 - slack);
    }
    CHECK(resident() - before < slack);
}
#endif

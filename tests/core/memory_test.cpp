// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/memory.hpp>

#include "core/sanitizers.hpp"
#include "support/arena.hpp"
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
using decant_test::Arena;

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

TEST_CASE("memory: a limit is kept over all copies of the handle, and what is given back can be taken again") {
    const decant::Memory memory(decant::MemoryOptions{.limit = 1000});
    const decant::Memory copy = memory;
    CHECK(memory.limit() == 1000);
    HostMemory first = memory.allocate(600).value();
    CHECK(copy.used() == 600);
    const auto second = copy.allocate(401);
    REQUIRE(!second);
    CHECK(second.error().code == ErrorCode::out_of_memory);
    for (const char* number : {"401", "1000", "600"}) CHECK(second.error().message().find(number) != std::string::npos);
    CHECK(!copy.allocate((std::numeric_limits<std::size_t>::max)()));
    CHECK(memory.used() == 600);
    HostMemory rest = copy.allocate(400).value();
    CHECK(memory.used() == 1000);
    first = HostMemory();
    CHECK(memory.used() == 400);
    HostMemory moved = std::move(rest);
    CHECK(memory.used() == 400);
    moved = memory.allocate(500).value();
    CHECK(memory.used() == 500);
}

TEST_CASE("memory: the default handle has no limit and does not count") {
    const decant::Memory memory;
    CHECK(memory.limit() == (std::numeric_limits<std::size_t>::max)());
    const HostMemory block = memory.allocate(1 << 20).value();
    CHECK(memory.used() == 0);
}

TEST_CASE("memory: a host supplies it and gets everything back") {
    Arena arena;
    {
        const decant::Memory memory(decant::MemoryOptions{.source = arena.source()});
        HostMemory a = memory.allocate(100).value();
        const HostMemory b = memory.allocate(5000).value();
        CHECK(a.data()[99] == std::byte{0xff});
        CHECK(arena.bytes == 5100);
        CHECK(memory.used() == 5100);
        a = HostMemory::allocate(10).value();  // from the system
        CHECK(arena.bytes == 5000);
        arena.left = 0;
        const auto refused = memory.allocate(1);
        REQUIRE(!refused);
        CHECK(refused.error().code == ErrorCode::out_of_memory);
        CHECK(memory.used() == 5000);
    }
    CHECK(arena.bytes == 0);
    CHECK(arena.blocks == 0);
}

TEST_CASE("memory: a buffer keeps its origin alive") {
    Arena arena;
    HostMemory block;
    {
        const decant::Memory memory(decant::MemoryOptions{.source = arena.source()});
        block = memory.allocate(64).value();
    }
    CHECK(arena.blocks == 1);
    block = HostMemory();
    CHECK(arena.blocks == 0);
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Arena`: memory that a host supplies.

#include <decant/core/memory.hpp>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace decant_test {

/// A host's arena that counts, poisons what it hands out, and refuses after `left` allocations.
struct Arena {
    std::size_t left = (std::numeric_limits<std::size_t>::max)();
    std::size_t bytes = 0;
    std::size_t blocks = 0;

    static void* allocate(void* self, std::size_t size) {
        auto& arena = *static_cast<Arena*>(self);
        if (arena.left == 0) return nullptr;
        --arena.left;
        void* data = std::aligned_alloc(decant::HostMemory::alignment, (size + 63) / 64 * 64);
        std::memset(data, 0xff, size);
        arena.bytes += size;
        ++arena.blocks;
        return data;
    }
    static void release(void* self, void* data, std::size_t size) {
        auto& arena = *static_cast<Arena*>(self);
        arena.bytes -= size;
        --arena.blocks;
        std::free(data);
    }
    decant::MemorySource source() { return {this, &allocate, &release}; }
};

}  // namespace decant_test

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `HostMemory`: one block of zeroed memory that is reserved once and costs only the pages that are touched.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#define DECANT_DETAIL_MMAP 1
#else
#define DECANT_DETAIL_MMAP 0
#endif

namespace decant::inline DECANT_ABI {

/// Zeroed, 64-byte aligned memory. On POSIX systems it comes straight from the system, so that untouched pages take no
/// memory (a large KV pool costs what is used of it) and releasing gives everything back. Move-only.
class HostMemory {
 public:
    HostMemory() = default;
    HostMemory(HostMemory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    HostMemory& operator=(HostMemory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~HostMemory() { release(); }

    /// Errors: `out_of_memory`, with the number of bytes.
    [[nodiscard]] static Result<HostMemory> allocate(std::size_t size) {
        HostMemory memory;
        if (size == 0) return memory;
#if DECANT_DETAIL_MMAP
        const int saved = errno;
        void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) data = nullptr;
#if defined(MADV_NOHUGEPAGE)
        // Huge pages would make one touched row cost two megabytes.
        if (data != nullptr) static_cast<void>(madvise(data, size, MADV_NOHUGEPAGE));
#endif
        errno = saved;
#else
        void* data = size > SIZE_MAX - alignment ? nullptr : std::calloc(size + alignment, 1);
#endif
        if (data == nullptr) {
            return Error{ErrorCode::out_of_memory,
                         detail::text("the system refused ", size, " bytes"),
                         {},
                         "use a smaller cache or batch, or free memory"};
        }
        memory.data_ = static_cast<std::byte*>(data);
        memory.size_ = size;
        return memory;
    }

    [[nodiscard]] std::byte* data() const noexcept {
#if DECANT_DETAIL_MMAP
        return data_;
#else
        const auto address = reinterpret_cast<std::uintptr_t>(data_);
        return data_ == nullptr ? nullptr : data_ + (alignment - address % alignment) % alignment;
#endif
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
    static constexpr std::size_t alignment = 64;

    void release() noexcept {
        if (data_ == nullptr) return;
#if DECANT_DETAIL_MMAP
        munmap(data_, size_);
#else
        std::free(data_);
#endif
    }

    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace decant::inline DECANT_ABI

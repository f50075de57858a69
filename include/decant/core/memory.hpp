// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Memory`: where a backend's buffers come from and how many bytes they may take in all. `HostMemory`: one such
/// buffer.

#include <decant/core/config.hpp>
#include <decant/core/errno.hpp>
#include <decant/core/result.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#define DECANT_DETAIL_MMAP 1
#else
#define DECANT_DETAIL_MMAP 0
#endif

namespace decant::inline DECANT_ABI {

/// Memory that the host supplies. `allocate` returns `bytes` bytes aligned to `HostMemory::alignment`, with any
/// content, or null; `release` gets the same pointer and size back. Both are called by whichever thread makes or
/// destroys a model's parts, never during a pass. `object` is handed to both and must outlive every buffer.
struct MemorySource {
    void* object = nullptr;
    void* (*allocate)(void* object, std::size_t bytes) = nullptr;
    void (*release)(void* object, void* data, std::size_t bytes) = nullptr;
};

struct MemoryOptions {
    std::size_t limit = (std::numeric_limits<std::size_t>::max)();  ///< bytes of all buffers together
    MemorySource source = {};                                       ///< null functions: the system
};

class HostMemory;

/// A cheap shared handle: KV pools, workspaces and kernels' scratch of every backend that holds a copy are drawn from
/// it and counted. Thread-safe. A default one is the system's memory without a limit. Weights do not come from here:
/// they stay in the mapped file.
class Memory {
 public:
    Memory() = default;
    explicit Memory(const MemoryOptions& options) : state_(std::make_shared<State>(options)) {}

    /// Errors: `out_of_memory` with the numbers, when the limit would be passed or the source refuses.
    [[nodiscard]] Result<HostMemory> allocate(std::size_t size) const;

    /// Bytes in use now; always 0 for a default object, which does not count.
    [[nodiscard]] std::size_t used() const noexcept {
        return state_ ? state_->used.load(std::memory_order_relaxed) : 0;
    }
    [[nodiscard]] std::size_t limit() const noexcept {
        return state_ ? state_->options.limit : (std::numeric_limits<std::size_t>::max)();
    }

 private:
    friend class HostMemory;

    struct State {
        explicit State(const MemoryOptions& wanted) : options(wanted) {
            DECANT_ASSERT((wanted.source.allocate == nullptr) == (wanted.source.release == nullptr));
        }
        [[nodiscard]] bool charge(std::size_t size) noexcept {
            std::size_t now = used.load(std::memory_order_relaxed);
            do {
                if (size > options.limit - (std::min)(now, options.limit)) return false;
            } while (!used.compare_exchange_weak(now, now + size, std::memory_order_relaxed));
            return true;
        }
        void refund(std::size_t size) noexcept { used.fetch_sub(size, std::memory_order_relaxed); }

        MemoryOptions options;
        std::atomic<std::size_t> used{0};
    };

    std::shared_ptr<State> state_;
};

/// 64-byte aligned memory from a `Memory`, which it keeps alive. From the system it is zeroed, and on POSIX systems
/// untouched pages take no memory (a large KV pool costs what is used of it) and releasing gives everything back.
/// Move-only.
class HostMemory {
 public:
    static constexpr std::size_t alignment = 64;

    HostMemory() = default;
    HostMemory(HostMemory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)),
          origin_(std::move(other.origin_)) {}
    HostMemory& operator=(HostMemory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(origin_, other.origin_);
        return *this;
    }
    ~HostMemory() { release(); }

    /// From the system, without a limit. Errors: `out_of_memory`, with the number of bytes.
    [[nodiscard]] static Result<HostMemory> allocate(std::size_t size) { return Memory().allocate(size); }

    [[nodiscard]] std::byte* data() const noexcept {
#if DECANT_DETAIL_MMAP
        return data_;
#else
        if (data_ == nullptr || foreign()) return data_;
        const auto address = reinterpret_cast<std::uintptr_t>(data_);
        return data_ + (alignment - address % alignment) % alignment;
#endif
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
    friend class Memory;

    [[nodiscard]] bool foreign() const noexcept { return origin_ && origin_->options.source.allocate != nullptr; }

    static void* from_system(std::size_t size) noexcept {
#if DECANT_DETAIL_MMAP
        const detail::ErrnoGuard guard;
        void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) data = nullptr;
#if defined(MADV_NOHUGEPAGE)
        // Huge pages would make one touched row cost two megabytes.
        if (data != nullptr) static_cast<void>(madvise(data, size, MADV_NOHUGEPAGE));
#endif
        return data;
#else
        return size > SIZE_MAX - alignment ? nullptr : std::calloc(size + alignment, 1);
#endif
    }

    void release() noexcept {
        if (data_ == nullptr) return;
        if (foreign()) {
            origin_->options.source.release(origin_->options.source.object, data_, size_);
        } else {
#if DECANT_DETAIL_MMAP
            const detail::ErrnoGuard guard;
            munmap(data_, size_);
#else
            std::free(data_);
#endif
        }
        if (origin_) origin_->refund(size_);
    }

    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::shared_ptr<Memory::State> origin_;
};

inline Result<HostMemory> Memory::allocate(std::size_t size) const {
    HostMemory memory;
    if (size == 0) return memory;
    if (state_ && !state_->charge(size)) {
        return Error{ErrorCode::out_of_memory,
                     detail::text(size, " bytes pass the limit of ", limit(), ", of which ", used(), " are in use"),
                     "Memory", "raise MemoryOptions::limit, or use a smaller cache or batch"};
    }
    struct Charge {  // refunded unless the memory is there, also if the host's source throws
        State* state;
        std::size_t size;
        ~Charge() {
            if (state != nullptr) state->refund(size);
        }
    } charge{state_.get(), size};
    memory.origin_ = state_;
    void* data = memory.foreign() ? state_->options.source.allocate(state_->options.source.object, size)
                                  : HostMemory::from_system(size);
    if (data == nullptr) {
        return Error{ErrorCode::out_of_memory,
                     detail::text(memory.foreign() ? "the host" : "the system", " refused ", size, " bytes"),
                     {},
                     "use a smaller cache or batch, or free memory"};
    }
    DECANT_ASSERT(!memory.foreign() || reinterpret_cast<std::uintptr_t>(data) % HostMemory::alignment == 0);
    charge.state = nullptr;
    memory.data_ = static_cast<std::byte*>(data);
    memory.size_ = size;
    return memory;
}

}  // namespace decant::inline DECANT_ABI

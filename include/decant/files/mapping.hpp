// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Mapping`: a whole file as a read-only range of memory. Mapped where the system is POSIX, so that pages are read
/// when touched and processes share them; read into memory elsewhere.

#include <decant/core/errno.hpp>
#include <decant/core/result.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#else
#include <cstdio>
#include <memory>
#include <new>
#endif

namespace decant::inline DECANT_ABI {
namespace detail {

/// A path as UTF-8 for messages; never throws for names that the locale cannot spell.
[[nodiscard]] inline std::string display(const std::filesystem::path& path) {
    const std::u8string utf8 = path.u8string();
    return {reinterpret_cast<const char*>(utf8.data()), utf8.size()};
}

[[nodiscard]] inline Error system_error(const std::filesystem::path& path, std::string_view action, int number) {
    if (number == ENOENT || number == ENOTDIR)
        return {ErrorCode::missing, "there is no such file", display(path), "check the path"};
    if (number == EACCES || number == EPERM)
        return {ErrorCode::io, "the system denies permission to read it", display(path), "check its permissions"};
    return {ErrorCode::io, text("the system refused to ", action, " it (error ", number, ")"), display(path), ""};
}

}  // namespace detail

/// Owns the range; movable. The bytes must not be changed or cut by anyone while it lives: the system would show the
/// change, or end the process when a page is no longer there.
class Mapping {
 public:
    Mapping() noexcept = default;
    Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
    Mapping& operator=(Mapping&& other) noexcept {
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Mapping() { release(); }

    /// Maps a regular file; an empty one gives an empty range. `missing` if there is none, `io` if the system refuses.
    [[nodiscard]] static Result<Mapping> open(const std::filesystem::path& path);

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

    /// Asks the system to read a range soon. `first` is a multiple of the page.
    void prefetch(std::size_t first, std::size_t size) const noexcept;

 private:
    void release() noexcept;

    std::span<const std::byte> bytes_;
};

#if defined(__unix__) || defined(__APPLE__)

inline Result<Mapping> Mapping::open(const std::filesystem::path& path) {
    const detail::ErrnoGuard guard;
    struct Descriptor {
        int value;
        ~Descriptor() {
            if (value >= 0) ::close(value);
        }
    };
    // Non-blocking: opening a pipe that nobody writes to must fail below, not wait.
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.value < 0) return detail::system_error(path, "open", errno);
    struct stat status {};
    if (::fstat(file.value, &status) != 0) return detail::system_error(path, "examine", errno);
    if (!S_ISREG(status.st_mode))
        return Error{ErrorCode::io, "it is not a regular file", detail::display(path), "give the path of a file"};
    Mapping mapping;
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size == 0) return mapping;
    if (size > (std::numeric_limits<std::size_t>::max)())
        return Error{ErrorCode::out_of_memory, detail::text("its ", size, " bytes do not fit the address space"),
                     detail::display(path), ""};
    void* address = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_SHARED, file.value, 0);
    if (address == MAP_FAILED) return detail::system_error(path, "map", errno);
    mapping.bytes_ = {static_cast<const std::byte*>(address), static_cast<std::size_t>(size)};
    return mapping;
}

inline void Mapping::release() noexcept {
    if (bytes_.empty()) return;
    const detail::ErrnoGuard guard;
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

inline void Mapping::prefetch(std::size_t first, std::size_t size) const noexcept {
    const detail::ErrnoGuard guard;
    static_cast<void>(::madvise(const_cast<std::byte*>(bytes_.data()) + first, size, MADV_WILLNEED));
}

#else

inline Result<Mapping> Mapping::open(const std::filesystem::path& path) {
    const detail::ErrnoGuard guard;
    std::error_code failure;
    const std::uint64_t size = std::filesystem::file_size(path, failure);
    if (failure) return detail::system_error(path, "examine", failure.default_error_condition().value());
    Mapping mapping;
    if (size == 0) return mapping;
    if (size > (std::numeric_limits<std::size_t>::max)())
        return Error{ErrorCode::out_of_memory, detail::text("its ", size, " bytes do not fit the address space"),
                     detail::display(path), ""};
    std::unique_ptr<std::byte[]> content(new (std::nothrow) std::byte[static_cast<std::size_t>(size)]);
    if (!content)
        return Error{ErrorCode::out_of_memory, detail::text("the system refused ", size, " bytes to read it into"),
                     detail::display(path), ""};
#if defined(_WIN32)
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(::_wfopen(path.c_str(), L"rb"), &std::fclose);
#else
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
#endif
    if (!file) return detail::system_error(path, "open", errno);
    if (std::fread(content.get(), 1, static_cast<std::size_t>(size), file.get()) != size)
        return detail::system_error(path, "read", errno);
    mapping.bytes_ = {content.release(), static_cast<std::size_t>(size)};
    return mapping;
}

inline void Mapping::release() noexcept { delete[] bytes_.data(); }
inline void Mapping::prefetch(std::size_t, std::size_t) const noexcept {}

#endif

}  // namespace decant::inline DECANT_ABI

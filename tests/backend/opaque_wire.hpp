// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the two ends of the `Opaque` backend say to each other: commands, and values as bytes with checked sizes.

#include <decant/core/error.hpp>
#include <decant/core/specs.hpp>

#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace decant_test::opaque {

/// Those up to `write` are answered; the others are queued, and what goes wrong with them is told by the next `fetch`
/// or `read`.
enum class Command : std::uint32_t {
    allocate,
    weight,
    constant,
    reserve,
    fetch,
    read,
    write,
    pass,
    record,
    upload,
    run,
    copy,
    download,
    release
};

struct Header {
    Command command = Command::release;
    std::uint64_t bytes = 0;  ///< that follow
};

/// [rows of the row set, columns] floats, `offset` floats into a buffer of the device.
struct View {
    std::uint64_t buffer = 0;
    std::uint64_t offset = 0;
    std::uint32_t columns = 0;
    decant::RowSet rows = decant::RowSet::tokens;
};

/// Plain values only: whatever has `data` holds an address, which means nothing to the other process.
template <class T>
concept Plain = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !requires(T value) {
    value.data();
}
&&!requires(T value) { value.data; };

class Writer {
 public:
    template <Plain T>
    void put(const T& value) {
        append(&value, sizeof value);
    }
    template <Plain T>
    void list(std::span<const T> values) {
        put(std::uint64_t{values.size()});
        append(values.data(), values.size_bytes());
    }
    void text(std::string_view value) { list(std::span<const char>(value)); }
    void error(const decant::Error& error) {
        put(error.code);
        for (const std::string* part : {&error.what, &error.where, &error.hint}) text(*part);
    }
    void append(std::span<const std::byte> bytes) { append(bytes.data(), bytes.size()); }
    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
    void append(const void* data, std::size_t size) {
        const auto* from = static_cast<const std::byte*>(data);
        bytes_.insert(bytes_.end(), from, from + size);
    }
    std::vector<std::byte> bytes_;
};

/// Zeros and empty lists once anything was missing.
class Reader {
 public:
    explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

    template <Plain T>
    [[nodiscard]] T get() {
        T value{};
        take(&value, sizeof value);
        return value;
    }
    template <Plain T>
    [[nodiscard]] std::vector<T> list() {
        const auto size = get<std::uint64_t>();
        if (size > left_.size() / sizeof(T)) {
            fail();
            return {};
        }
        std::vector<T> values(static_cast<std::size_t>(size));
        take(values.data(), values.size() * sizeof(T));
        return values;
    }
    [[nodiscard]] std::string text() {
        const auto letters = list<char>();
        return {letters.begin(), letters.end()};
    }
    [[nodiscard]] decant::Error error() {
        decant::Error error;
        error.code = get<decant::ErrorCode>();
        for (std::string* part : {&error.what, &error.where, &error.hint}) *part = text();
        return error;
    }
    void fail() {
        ok_ = false;
        left_ = {};
    }
    [[nodiscard]] bool ok() const { return ok_; }
    [[nodiscard]] bool empty() const { return left_.empty(); }

 private:
    void take(void* to, std::size_t size) {
        if (size > left_.size()) return fail();
        if (size > 0) std::memcpy(to, left_.data(), size);
        left_ = left_.subspan(size);
    }
    std::span<const std::byte> left_;
    bool ok_ = true;
};

/// False if the other end is gone; no SIGPIPE.
inline bool send_all(int socket, const void* data, std::size_t size) {
#if defined(MSG_NOSIGNAL)
    constexpr int flags = MSG_NOSIGNAL;
#else
    constexpr int flags = 0;  // the socket has SO_NOSIGPIPE
#endif
    for (const char* at = static_cast<const char*>(data); size > 0;) {
        const ssize_t sent = ::send(socket, at, size, flags);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        size -= static_cast<std::size_t>(sent);
    }
    return true;
}

inline bool receive_all(int socket, void* data, std::size_t size) {
    for (char* at = static_cast<char*>(data); size > 0;) {
        const ssize_t got = ::recv(socket, at, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        size -= static_cast<std::size_t>(got);
    }
    return true;
}

}  // namespace decant_test::opaque

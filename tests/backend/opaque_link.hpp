// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The parent's end of the `Opaque` backend: starts and ends the child, sends commands, and knows which buffers an
/// unfinished pass may still write.

#include "backend/opaque_device.hpp"
#include "backend/opaque_wire.hpp"

#include <decant/core/result.hpp>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace decant_test::opaque {

/// What has gone over the wire so far.
struct Counts {
    std::uint64_t messages = 0;  ///< commands, without releases
    std::uint64_t bytes = 0;     ///< of their arguments
    std::uint64_t weights = 0;
    std::uint64_t recordings = 0;
    std::uint64_t uploads = 0;
    std::uint64_t replays = 0;
    std::uint64_t downloads = 0;
};

/// Thread-safe. A child that is gone is an error of every later answer, never a signal.
class Link {
 public:
    using Id = std::uint64_t;

    Link() {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return;
        for (const int end : ends) static_cast<void>(fcntl(end, F_SETFD, FD_CLOEXEC));
#if defined(SO_NOSIGPIPE)
        const int on = 1;
        for (const int end : ends) setsockopt(end, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
        child_ = fork();
        if (child_ == 0) be_the_device(ends[1]);
        close(ends[1]);
        socket_ = ends[0];
        alive_ = child_ > 0;
    }
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    ~Link() {
        if (socket_ >= 0) {
            static_cast<void>(shutdown(socket_, SHUT_RDWR));  // also when another child has inherited this end
            close(socket_);
        }
        while (child_ > 0 && waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
        }
    }

    [[nodiscard]] pid_t child() const { return child_; }
    [[nodiscard]] Counts counts() const {
        const std::lock_guard lock(mutex_);
        return counts_;
    }
    /// 0 names nothing.
    [[nodiscard]] Id fresh_id() {
        const std::lock_guard lock(mutex_);
        return ++last_id_;
    }

    /// Queues a command. While this thread records, nothing but the recording itself may be sent.
    template <class Fill>
    void tell(Command command, Id id, Fill&& fill) {
        const std::lock_guard lock(mutex_);
        if (recording()) {
            if (!misuse_) misuse_ = refused("a command to the device inside of record()");
            return;
        }
        send(command, id, fill);
    }
    void tell(Command command, Id id) {
        tell(command, id, [](Writer&) {});
    }

    /// Sends a command and waits for its answer.
    template <Plain T = float, class Fill>
    [[nodiscard]] decant::Result<std::vector<T>> ask(Command command, Id id, Fill&& fill) {
        const std::lock_guard lock(mutex_);
        if (recording()) return refused("a question to the device inside of record()");
        send(command, id, fill);
        return answer<T>();
    }
    template <class Fill>
    [[nodiscard]] decant::Result<void> request(Command command, Id id, Fill&& fill) {
        DECANT_TRY(const auto nothing, ask(command, id, fill));
        static_cast<void>(nothing);
        return {};
    }

    void release(Id id) {
        const std::lock_guard lock(mutex_);
        passes_.erase(id);
        results_.erase(id);
        send(Command::release, id, [](Writer&) {});
    }

    /// Between the two, this thread records.
    void begin_recording() {
        const std::lock_guard lock(mutex_);
        recorders_.insert(std::this_thread::get_id());
    }
    void end_recording() {
        const std::lock_guard lock(mutex_);
        recorders_.erase(std::this_thread::get_id());
    }

    /// A pass has its inputs and will write these buffers; earlier results of theirs are gone.
    void open_pass(Id pass, std::set<Id> buffers) {
        const std::lock_guard lock(mutex_);
        for (const Id buffer : buffers) results_.erase(buffer);
        passes_[pass] = std::move(buffers);
    }
    void close_pass(Id pass) {
        const std::lock_guard lock(mutex_);
        passes_.erase(pass);
    }

    /// Whether the host may read a buffer now.
    [[nodiscard]] decant::Result<void> readable(Id buffer) const {
        const std::lock_guard lock(mutex_);
        if (recording()) return refused("a read inside of record()");
        for (const auto& [pass, buffers] : passes_) {
            if (buffers.contains(buffer)) return refused("a read inside of a pass");
        }
        return {};
    }

    /// What a call that returns nothing did wrong; told once.
    [[nodiscard]] std::optional<decant::Error> take_misuse() {
        const std::lock_guard lock(mutex_);
        return std::exchange(misuse_, std::nullopt);
    }
    void blame(const char* what) {
        const std::lock_guard lock(mutex_);
        if (!misuse_) misuse_ = refused(what);
    }

    /// Host memory for a result, until a pass that writes the buffer gets its next inputs.
    [[nodiscard]] std::span<const float> keep(Id buffer, std::vector<float> values) {
        const std::lock_guard lock(mutex_);
        return results_[buffer].emplace_back(std::move(values));
    }

 private:
    /// The child's life. It shares no descriptor with the parent but its end and the standard ones, takes no signal
    /// handler along, and leaves without running what the parent wants run at exit.
    [[noreturn]] static void be_the_device(int socket) noexcept {
        for (const int signal : {SIGABRT, SIGFPE, SIGILL, SIGINT, SIGSEGV, SIGTERM}) std::signal(signal, SIG_DFL);
        std::vector<int> inherited;
        std::error_code none;
        for (std::filesystem::directory_iterator at("/dev/fd", none), end; at != end; at.increment(none))
            inherited.push_back(std::atoi(at->path().filename().c_str()));
        for (const int descriptor : inherited)
            if (descriptor > 2 && descriptor != socket) close(descriptor);
        Device(socket).serve();
        _exit(0);
    }

    static decant::Error refused(const char* what) {
        return {decant::ErrorCode::invalid_argument, what, "Opaque",
                "results can be read once the pass that writes them has finished"};
    }
    static decant::Error gone() { return {decant::ErrorCode::io, "the device's process is gone", "Opaque", {}}; }

    // The rest is called with the mutex held.

    [[nodiscard]] bool recording() const { return recorders_.contains(std::this_thread::get_id()); }

    template <class Fill>
    void send(Command command, Id id, Fill&& fill) {
        if (!alive_) return;
        Writer out;
        out.put(id);
        fill(out);
        const Header header{command, out.bytes().size()};
        alive_ = send_all(socket_, &header, sizeof header) && send_all(socket_, out.bytes().data(), out.bytes().size());
        switch (command) {
            case Command::release: return;
            case Command::record: ++counts_.recordings; break;
            case Command::upload: ++counts_.uploads; break;
            case Command::run: ++counts_.replays; break;
            case Command::download: ++counts_.downloads; break;
            case Command::weight: ++counts_.weights; break;
            default: break;
        }
        ++counts_.messages;
        counts_.bytes += out.bytes().size();
    }

    template <Plain T>
    decant::Result<std::vector<T>> answer() {
        std::uint64_t size = 0;
        alive_ = alive_ && receive_all(socket_, &size, sizeof size);
        if (!alive_) return gone();
        std::vector<std::byte> bytes(static_cast<std::size_t>(size));
        alive_ = receive_all(socket_, bytes.data(), bytes.size());
        if (!alive_) return gone();
        Reader in(bytes);
        std::optional<decant::Error> error;
        if (in.get<bool>()) error = in.error();
        std::vector<T> values = in.list<T>();
        if (!in.ok() || !in.empty()) return gone();
        if (error) return *std::move(error);
        return values;
    }

    mutable std::mutex mutex_;
    int socket_ = -1;
    pid_t child_ = -1;
    bool alive_ = false;
    Id last_id_ = 0;
    Counts counts_;
    std::set<std::thread::id> recorders_;
    std::map<Id, std::set<Id>> passes_;  // unfinished ones and the buffers that they name
    std::optional<decant::Error> misuse_;
    std::map<Id, std::deque<std::vector<float>>> results_;  // of each buffer
};

/// The name of something in the child, which lives as long as the handle. Move-only.
class Handle {
 public:
    Handle() = default;
    explicit Handle(std::shared_ptr<Link> link) : link_(std::move(link)), id_(link_->fresh_id()) {}
    Handle(Handle&& other) noexcept : link_(std::move(other.link_)), id_(std::exchange(other.id_, 0)) {}
    Handle& operator=(Handle&& other) noexcept {
        std::swap(link_, other.link_);
        std::swap(id_, other.id_);
        return *this;
    }
    ~Handle() {
        if (link_) link_->release(id_);
    }
    [[nodiscard]] Link::Id id() const { return id_; }
    [[nodiscard]] Link& link() const { return *link_; }

 private:
    std::shared_ptr<Link> link_;
    Link::Id id_ = 0;
};

}  // namespace decant_test::opaque

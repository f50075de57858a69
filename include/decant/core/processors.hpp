// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `available_processors`: how many threads can really work at once in this process.

#include <decant/core/config.hpp>

#include <algorithm>
#include <bitset>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
#endif

namespace decant::inline DECANT_ABI {

#if defined(__linux__)
namespace detail::processors {

/// Numbers of processors; the kernel supports no more.
using ProcessorMask = std::bitset<8192>;

inline constexpr std::size_t unlimited = (std::numeric_limits<std::size_t>::max)();

/// A path in bounded memory.
class PathText {
 public:
    PathText& append(std::string_view part) noexcept {
        fits_ = fits_ && part.size() < sizeof text_ - size_;
        if (!fits_ || part.empty()) return *this;
        std::memcpy(text_ + size_, part.data(), part.size());
        cut(size_ + part.size());
        return *this;
    }
    PathText& append(std::size_t number) noexcept {
        char digits[24];
        return append(
            {digits, static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, number).ptr - digits)});
    }
    void cut(std::size_t size) noexcept {
        size_ = size;
        text_[size_] = '\0';
    }
    [[nodiscard]] std::string_view view() const noexcept { return {text_, size_}; }
    /// Null if it did not fit.
    [[nodiscard]] const char* c_str() const noexcept { return fits_ ? text_ : nullptr; }

 private:
    char text_[4096] = {};
    std::size_t size_ = 0;
    bool fits_ = true;
};

/// The lines of a file in bounded memory: longer ones than any of use are left out, and so is all beyond `most` bytes.
/// A file that cannot be read has none.
class Lines {
 public:
    explicit Lines(const PathText& path) noexcept {
        if (path.c_str() != nullptr) file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    }
    ~Lines() {
        if (file_ >= 0) ::close(file_);
    }
    Lines(const Lines&) = delete;
    Lines& operator=(const Lines&) = delete;

    /// False at the end. The line is valid until the next call.
    [[nodiscard]] bool next(std::string_view& line) noexcept {
        while (true) {
            const std::string_view rest(data_ + begin_, end_ - begin_);
            const std::size_t length = rest.find('\n');
            if (length != std::string_view::npos) {
                line = rest.substr(0, length);
                begin_ += length + 1;
                if (!std::exchange(too_long_, false)) return true;
                continue;
            }
            std::memmove(data_, rest.data(), rest.size());
            begin_ = 0;
            end_ = rest.size();
            if (end_ == sizeof data_) {
                too_long_ = true;
                end_ = 0;
            }
            if (!fill()) {
                line = {data_, end_};
                end_ = 0;
                return !line.empty() && !too_long_;
            }
        }
    }

 private:
    static constexpr std::size_t most = std::size_t{4} << 20;

    bool fill() noexcept {
        if (file_ < 0 || total_ >= most) return false;
        const ssize_t count = ::read(file_, data_ + end_, sizeof data_ - end_);
        if (count <= 0) return false;
        end_ += static_cast<std::size_t>(count);
        total_ += static_cast<std::size_t>(count);
        return true;
    }

    int file_ = -1;
    char data_[4096];
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
    std::size_t total_ = 0;
    bool too_long_ = false;
};

/// Takes the text before the next separator off the front.
[[nodiscard]] inline std::string_view take(std::string_view& rest, char separator) noexcept {
    const std::size_t length = (std::min)(rest.find(separator), rest.size());
    const std::string_view taken = rest.substr(0, length);
    rest.remove_prefix((std::min)(length + 1, rest.size()));
    return taken;
}

[[nodiscard]] inline bool lists(std::string_view list, std::string_view word) noexcept {
    while (!list.empty())
        if (take(list, ',') == word) return true;
    return false;
}

/// True if the whole text is a number.
template <class T>
[[nodiscard]] bool to_number(std::string_view text, T& number) noexcept {
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
    return parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size();
}

/// The whole processors in `quota` microseconds of time per `period`, at least 1. "max" and -1 say no limit.
[[nodiscard]] inline std::size_t quota_processors(std::string_view quota, std::string_view period) noexcept {
    std::uint64_t time = 0;
    std::uint64_t per = 0;
    if (!to_number(quota, time) || !to_number(period, per) || per == 0) return unlimited;
    return static_cast<std::size_t>((std::min)((std::max)(time / per, std::uint64_t{1}), std::uint64_t{unlimited}));
}

/// The quota of one control group. Formats: cgroup-v2.rst (`cpu.max`: "quota period") and sched-bwc.rst (a file each)
/// of the Linux kernel's documentation.
[[nodiscard]] inline std::size_t group_quota(const PathText& group, bool unified) noexcept {
    const auto file = [&](std::string_view name) { return PathText(group).append(name); };
    std::string_view line;
    if (unified) {
        Lines lines(file("/cpu.max"));
        if (!lines.next(line)) return unlimited;
        const std::string_view quota = take(line, ' ');
        return quota_processors(quota, line);
    }
    Lines quotas(file("/cpu.cfs_quota_us"));
    Lines periods(file("/cpu.cfs_period_us"));
    std::string_view period;
    return quotas.next(line) && periods.next(period) ? quota_processors(line, period) : unlimited;
}

/// Appends a path of mountinfo, which writes blanks and backslashes as \ and three octal digits.
inline void append_mount(PathText& path, std::string_view text) noexcept {
    while (!text.empty()) {
        char c = text[0];
        std::size_t length = 1;
        if (c == '\\' && text.size() >= 4) {
            unsigned code = 0;
            if (std::from_chars(text.data() + 1, text.data() + 4, code, 8).ptr == text.data() + 4 && code < 256) {
                c = static_cast<char>(code);
                length = 4;
            }
        }
        path.append({&c, 1});
        text.remove_prefix(length);
    }
}

/// The tightest quota from a group up to the root of every mount of its hierarchy. `group` is as /proc/self/cgroup has
/// it; a mount may show a part of the hierarchy only, from a root of its own.
[[nodiscard]] inline std::size_t hierarchy_quota(std::string_view root, std::string_view group, bool unified) noexcept {
    std::size_t limit = unlimited;
    Lines mounts(PathText().append(root).append("/proc/self/mountinfo"));
    for (std::string_view line; mounts.next(line);) {
        for (int skipped = 0; skipped < 3; ++skipped) static_cast<void>(take(line, ' '));
        const std::string_view shown = take(line, ' ');
        const std::string_view at = take(line, ' ');
        while (!line.empty() && take(line, ' ') != "-") {
        }
        const std::string_view type = take(line, ' ');
        static_cast<void>(take(line, ' '));
        if (unified ? type != "cgroup2" : type != "cgroup" || !lists(line, "cpu")) continue;

        PathText top;
        append_mount(top, shown);
        std::string_view below = group;
        if (top.view() != "/") {
            const bool inside = group.substr(0, top.view().size()) == top.view();
            below = inside ? group.substr(top.view().size()) : std::string_view{};
            if (!below.empty() && below[0] != '/') below = {};
        }
        // Outside of what this mount shows: its own root is the best guess.
        if (below == "/" || below.find("/..") != std::string_view::npos) below = {};

        PathText path;
        path.append(root);
        append_mount(path, at);
        const std::size_t end = path.view().size();
        limit = (std::min)(limit, group_quota(path, unified));
        for (path.append(below); path.view().size() > end; path.cut((std::max)(end, path.view().rfind('/'))))
            limit = (std::min)(limit, group_quota(path, unified));
    }
    return limit;
}

/// The whole processors that the control groups of this process leave it.
[[nodiscard]] inline std::size_t cgroup_processors(std::string_view root) noexcept {
    std::size_t limit = unlimited;
    Lines groups(PathText().append(root).append("/proc/self/cgroup"));
    for (std::string_view line; groups.next(line);) {
        const bool unified = take(line, ':') == "0";
        const std::string_view controllers = take(line, ':');
        if (unified || lists(controllers, "cpu")) limit = (std::min)(limit, hierarchy_quota(root, line, unified));
    }
    return limit;
}

/// Physical cores among the allowed processors: each is counted at its first one. A processor whose siblings are
/// unknown counts as a core.
[[nodiscard]] inline std::size_t physical_cores(std::string_view root, const ProcessorMask& allowed) noexcept {
    std::size_t cores = 0;
    for (std::size_t cpu = 0; cpu < allowed.size(); ++cpu) {
        if (!allowed[cpu]) continue;
        PathText path;
        path.append(root).append("/sys/devices/system/cpu/cpu").append(cpu).append("/topology/thread_siblings_list");
        bool first = true;
        Lines lines(path);
        if (std::string_view list; lines.next(list)) {
            while (!list.empty()) {
                std::string_view range = take(list, ',');
                std::size_t from = 0;
                std::size_t to = 0;
                if (!to_number(take(range, '-'), from)) continue;
                if (range.empty()) {
                    to = from;
                } else if (!to_number(range, to)) {
                    continue;
                }
                for (std::size_t sibling = from; sibling <= to && sibling < cpu; ++sibling)
                    first = first && !allowed[sibling];
            }
        }
        if (first) ++cores;
    }
    return cores;
}

/// `available_processors` for a thread that may run on the allowed ones, by the files under `root`.
[[nodiscard]] inline std::size_t available(std::string_view root, const ProcessorMask& allowed,
                                           bool siblings = false) noexcept {
    const std::size_t most = siblings ? allowed.count() : physical_cores(root, allowed);
    return (std::max)(std::size_t{1}, (std::min)(cgroup_processors(root), most));
}

}  // namespace detail::processors
#endif

/// How many threads can work at once: the physical cores that this thread may run on (its affinity mask), but no more
/// than the whole processors in the CPU quota of its container (Linux control groups, versions 1 and 2, up to their
/// root). With `siblings` every hardware thread of a core counts: more than that run only in turns. What the system
/// does not tell is no limit. At least 1. Reads files, so ask once.
[[nodiscard]] inline std::size_t available_processors(bool siblings = false) noexcept {
#if defined(__linux__)
    const int saved = errno;
    detail::processors::ProcessorMask allowed;
    cpu_set_t set[allowed.size() / CPU_SETSIZE] = {};
    const bool known = sched_getaffinity(0, sizeof set, set) == 0;
    const std::size_t count =
        known ? allowed.size() : (std::min)(allowed.size(), std::size_t{std::thread::hardware_concurrency()});
    for (std::size_t cpu = 0; cpu < count; ++cpu) allowed[cpu] = !known || CPU_ISSET_S(cpu, sizeof set, set) != 0;
    const std::size_t available = detail::processors::available("", allowed, siblings);
    errno = saved;
    return available;
#else
    static_cast<void>(siblings);
    return (std::max)(1u, std::thread::hardware_concurrency());
#endif
}

}  // namespace decant::inline DECANT_ABI

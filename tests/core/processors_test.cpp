// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/processors.hpp>

#include "support/catch.hpp"

#include <cerrno>
#include <cstddef>
#include <string>

TEST_CASE("processors: at least one, and errno stays") {
    errno = 77;
    const std::size_t available = decant::available_processors();
    const int after = errno;
    CHECK(available >= 1);
    CHECK(after == 77);
}

#if defined(__linux__)

#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>

namespace {

using decant::detail::processors::available;
using decant::detail::processors::ProcessorMask;

constexpr const char* v2_mount = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw\n";
constexpr const char* v1_mounts =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
    "34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:10 - cgroup cgroup rw,cpuacct,cpu\n";

/// The files of a made-up system, for as long as it lives.
class System {
 public:
    System() : root_(std::filesystem::temp_directory_path() / ("decant_processors_" + std::to_string(getpid()))) {
        std::filesystem::remove_all(root_);
    }
    ~System() { std::filesystem::remove_all(root_); }
    System(const System&) = delete;
    System& operator=(const System&) = delete;

    System& file(const std::string& path, const std::string& text) {
        const std::filesystem::path at = root_ / path;
        std::filesystem::create_directories(at.parent_path());
        std::ofstream(at, std::ios::binary) << text;
        return *this;
    }
    /// A process in `group` of a unified hierarchy.
    System& v2(const std::string& group) {
        return file("proc/self/cgroup", "0::" + group + "\n").file("proc/self/mountinfo", v2_mount);
    }
    System& v1(const std::string& group) {
        return file("proc/self/cgroup", "9:cpuset:/other\n4:cpuacct,cpu:" + group + "\n1:name=systemd:/\n")
            .file("proc/self/mountinfo", v1_mounts);
    }
    System& v1_quota(const std::string& folder, const std::string& quota, const std::string& period = "100000") {
        const std::string at = "sys/fs/cgroup/cpu,cpuacct" + folder;
        return file(at + "/cpu.cfs_quota_us", quota + "\n").file(at + "/cpu.cfs_period_us", period + "\n");
    }
    System& siblings(std::initializer_list<const char*> lists) {
        std::size_t cpu = 0;
        for (const char* list : lists) {
            file("sys/devices/system/cpu/cpu" + std::to_string(cpu++) + "/topology/thread_siblings_list",
                 std::string(list) + "\n");
        }
        return *this;
    }

    /// Of a thread that may run on these processors.
    std::size_t count(std::initializer_list<std::size_t> processors = {0, 1, 2, 3, 4, 5, 6, 7}) const {
        ProcessorMask allowed;
        for (const std::size_t processor : processors) allowed[processor] = true;
        return available(root_.string(), allowed);
    }

 private:
    std::filesystem::path root_;
};

/// What `cpu.max` of the process's own group makes of 8 processors.
std::size_t with_cpu_max(const std::string& text) {
    return System().v2("/app").file("sys/fs/cgroup/app/cpu.max", text).count();
}

}  // namespace

// Case EH-03 of ../shared/cases: the default number of threads where processors are limited. What more threads than
// processors do is in thread_pool_test.cpp.
TEST_CASE("processors: the quota of control groups version 2") {
    CHECK(with_cpu_max("300000 100000\n") == 3);
    CHECK(with_cpu_max("545000 100000\n") == 5);
    CHECK(with_cpu_max("300000 100000") == 3);
    CHECK(with_cpu_max("150000 50000\n") == 3);
    CHECK(with_cpu_max("99999 100000\n") == 1);
    CHECK(with_cpu_max("1000 1000000\n") == 1);
    CHECK(with_cpu_max("6400000 100000\n") == 8);
    CHECK(with_cpu_max("max 100000\n") == 8);
}

TEST_CASE("processors: what is not a quota is no limit") {
    for (const char* text : {"", "\n", "max\n", "300000\n", "300000 \n", "300000 0\n", "-1 100000\n", "x 100000\n",
                             "300000 x\n", "3e5 100000\n", " 300000 100000\n", "300000 100000 1\n", "300000,0 100000\n",
                             "99999999999999999999999 100000\n"}) {
        CAPTURE(text);
        CHECK(with_cpu_max(text) == 8);
    }
    CHECK(with_cpu_max(std::string(100000, '1')) == 8);
}

TEST_CASE("processors: the tightest quota up to the root wins") {
    System system;
    system.v2("/a/b/c").file("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
    CHECK(system.count() == 8);
    CHECK(system.file("sys/fs/cgroup/a/cpu.max", "600000 100000\n").count() == 6);
    CHECK(system.file("sys/fs/cgroup/a/b/cpu.max", "700000 100000\n").count() == 6);
    CHECK(system.file("sys/fs/cgroup/a/b/c/cpu.max", "200000 100000\n").count() == 2);
    CHECK(system.file("sys/fs/cgroup/a/b/c/cpu.max", "700000 100000\n").count() == 6);
    CHECK(system.file("sys/fs/cgroup/cpu.max", "400000 100000\n").count() == 4);  // what a container sees as its root
    CHECK(system.file("sys/fs/cgroup/a/sibling/cpu.max", "100000 100000\n").count() == 4);
    CHECK(system.file("proc/self/cgroup", "0::/\n").count() == 4);
}

TEST_CASE("processors: the quota of control groups version 1") {
    System system;
    system.v1("/job/1");
    CHECK(system.count() == 8);
    CHECK(system.v1_quota("/job/1", "545000").count() == 5);
    CHECK(system.v1_quota("/job/1", "50000").count() == 1);
    CHECK(system.v1_quota("/job/1", "-1").count() == 8);
    CHECK(system.v1_quota("/job", "400000").count() == 4);
    CHECK(system.v1_quota("", "15000", "5000").count() == 3);
    CHECK(system.v1_quota("", "15000", "0").count() == 4);
    // Groups of other controllers say nothing about the processors.
    CHECK(system.v1_quota("/other", "100000").count() == 4);
    CHECK(system.file("sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "100000").count() == 4);
}

TEST_CASE("processors: both versions side by side") {
    System system;
    system.v1("/job").file("proc/self/cgroup", "4:cpu,cpuacct:/job\n0::/unit\n");
    system.file("proc/self/mountinfo",
                std::string(v1_mounts) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 c rw\n");
    CHECK(system.v1_quota("/job", "300000").count() == 3);
    CHECK(system.file("sys/fs/cgroup/unified/unit/cpu.max", "200000 100000\n").count() == 2);
}

TEST_CASE("processors: a mount may show a part of the hierarchy, anywhere") {
    const auto shown = [](const std::string& root, const std::string& group) {
        System system;
        system.file("proc/self/cgroup", "0::" + group + "\n");
        system.file("proc/self/mountinfo", "35 24 0:30 " + root + " /my\\040groups rw - cgroup2 none rw\n");
        system.file("my groups/cpu.max", "600000 100000\n");
        system.file("my groups/inner/cpu.max", "300000 100000\n");
        system.file("my groups/docker/x/cpu.max", "200000 100000\n");
        system.file("my groupsr/cpu.max", "100000 100000\n");
        system.file("cpu.max", "100000 100000\n");
        return system.count();
    };
    CHECK(shown("/docker/x", "/docker/x") == 6);
    CHECK(shown("/docker/x", "/docker/x/inner") == 3);
    CHECK(shown("/docker\\057x", "/docker/x/inner") == 3);
    CHECK(shown("/", "/docker/x") == 2);
    CHECK(shown("/docker/x", "/elsewhere/inner") == 6);  // its own root is all that it can tell
    CHECK(shown("/docke", "/docker") == 6);              // not a part of it
    CHECK(shown("/", "/..") == 6);                       // never above the mount
    CHECK(shown("/..", "/") == 6);
    CHECK(shown("/", "/" + std::string(4060, 'n')) == 6);  // its path is too long to be read
}

TEST_CASE("processors: long and broken lists of mounts and groups") {
    System system;
    system.v2("/app").file("sys/fs/cgroup/app/cpu.max", "300000 100000\n");
    system.file("proc/self/cgroup", "\n::\n0\nx\n7:" + std::string(9000, 'c') + ":/\n0::/app");
    const std::string overlay = "1 2 0:1 / / rw - overlay overlay rw,lowerdir=" + std::string(9000, 'l') + "\n";
    std::string mounts = "\n-\n1 2 3\n 1 - cgroup2\n" + overlay;
    for (int i = 0; i < 5000; ++i) mounts += "1 2 0:1 / /mount/" + std::to_string(i) + " rw - tmpfs tmpfs rw\n";
    CHECK(system.file("proc/self/mountinfo", mounts).count() == 8);
    CHECK(system.file("proc/self/mountinfo", mounts + v2_mount).count() == 3);
    CHECK(system.file("proc/self/mountinfo", v2_mount + overlay).count() == 3);
}

TEST_CASE("processors: the affinity mask, and physical cores within it") {
    System system;
    CHECK(system.count() == 8);
    CHECK(system.count({2, 5}) == 2);
    CHECK(system.count({8191}) == 1);
    system.siblings({"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"});
    CHECK(system.count() == 4);
    CHECK(system.count({2, 5}) == 2);
    CHECK(system.count({1, 5}) == 1);  // both threads of one core
    CHECK(system.count({5}) == 1);
    CHECK(system.count({4, 5, 6, 7}) == 4);
    CHECK(system.count({0, 4, 5, 7}) == 3);
    system.siblings({"0-1", "0-1", "2-3", "2-3", "4-7", "4-7", "4-7", "4-7"});
    CHECK(system.count() == 3);
    CHECK(system.count({1, 3, 6, 7}) == 3);
    system.siblings({"0", "1", "", "x-", "4-", "-", "6-5,", "0-99999999999999999999"});  // unknown: a core each
    CHECK(system.count() == 8);

    system.siblings({"0", "1", "2", "3", "4", "5", "6-7", "6-7"});
    CHECK(system.count() == 7);
    CHECK(system.v2("/app").file("sys/fs/cgroup/app/cpu.max", "300000 100000\n").count() == 3);
    CHECK(system.count({6, 7}) == 1);
}

TEST_CASE("processors: the mask of the calling thread counts") {
    cpu_set_t before;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    CHECK(decant::available_processors() <= static_cast<std::size_t>(CPU_COUNT(&before)));
    cpu_set_t one;
    CPU_ZERO(&one);
    int processor = 0;
    while (!CPU_ISSET(processor, &before)) ++processor;
    CPU_SET(processor, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    const std::size_t allowed = decant::available_processors();
    REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
    CHECK(allowed == 1);
}

#endif

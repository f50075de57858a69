// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/gguf.hpp>

#include "files/support.hpp"

#include <chrono>
#include <cstdlib>
#include <string>

#if defined(__linux__)
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <climits>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define DECANT_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DECANT_TEST_ASAN 1
#endif
#endif

using decant::DType;
using decant::ErrorCode;
using decant::Weights;
using decant_test::as_floats;
using decant_test::case_file;
using decant_test::contains;
using decant_test::refused;

namespace {

const char* const mf06[] = {"magic-only",    "empty",       "nkv-2p32",   "nkv-max",   "ntensors-2p59",
                            "ntensors-neg",  "keylen-2p48", "keylen-max", "keylen-0",  "strlen-2p40",
                            "arrcount-2p40", "kvtype-77",   "version-0",  "version-99"};

std::string mf06_file(const char* name) { return std::string("MF-06-") + name + ".gguf"; }

template <class Work>
double milliseconds(Work&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// The fastest of some runs: what the work costs when the machine does nothing else.
template <class Work>
double best_milliseconds(Work&& work) {
    double best = milliseconds(work);
    for (int i = 0; i < 4; ++i) best = (std::min)(best, milliseconds(work));
    return best;
}

}  // namespace

TEST_CASE("MF-01: the alignment must be a power of two", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    refused("MF-01-align0.gguf", {"general.alignment", "is 0,"});
    refused("MF-01-align0-notensor.gguf", {"general.alignment", "is 0,"});
    refused("MF-01-align24.gguf", {"general.alignment", "24"});
    const Weights ok = Weights::open(case_file("MF-01-align64-ok.gguf")).value();
    REQUIRE(ok.tensors().size() == 1);
    CHECK(as_floats(ok.tensors()[0]) == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("MF-03: dimensions of zero are refused, none are a scalar", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    for (const char* name : {"0", "4x0", "0x4", "4x1x0x1"})
        CHECK(refused(std::string("MF-03-dims-") + name + ".gguf", {"tensor \"t\"", "zero"}) == ErrorCode::bad_format);
    const Weights scalar = Weights::open(case_file("MF-03-ndims0.gguf")).value();
    const decant::Tensor tensor = scalar.tensor("t").value();
    CHECK(tensor.shape.rank == 0);
    CHECK(tensor.rows() == 1);
    CHECK(tensor.columns() == 1);
    CHECK(as_floats(tensor) == std::vector<float>{1});
}

TEST_CASE("MF-04: impossible sizes, ranks and types are refused", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    for (const char* name : {"prod-0", "prod-1", "prod-2", "prod-3", "prod-4"})
        CHECK(refused(std::string("MF-04-") + name + ".gguf", {"tensor \"t\""}) == ErrorCode::bad_format);
    refused("MF-04-ndims5.gguf", {"tensor \"t\"", "5 dimensions"});
    refused("MF-04-ndims-4g.gguf", {"tensor \"t\"", "4294967295 dimensions"});
    refused("MF-04-type-99.gguf", {"tensor \"t\"", "unknown tensor type 99"});
    refused("MF-04-type-removed-4.gguf", {"tensor \"t\"", "unknown tensor type 4"});
}

TEST_CASE("MF-06: counts and lengths are compared with the bytes left", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    for (const char* name : mf06) {
        refused(mf06_file(name), {});
        CHECK(best_milliseconds([&] { (void)Weights::open(case_file(mf06_file(name))).has_value(); }) < 10);
    }
    refused("MF-06-version-0.gguf", {"unsupported version 0"});
    refused("MF-06-version-99.gguf", {"unsupported version 99"});
    refused("MF-06-kvtype-77.gguf", {"unknown value type 77"});
    refused("MF-06-strlen-2p40.gguf", {"general.name", "1099511627776"});
    refused("MF-06-arrcount-2p40.gguf", {"tokenizer.ggml.tokens", "1099511627776"});
}

#if defined(__linux__) && !defined(DECANT_TEST_ASAN)
namespace {

/// Runs `work` in a child process whose address space may grow by `bytes` only; true if it ended with success.
template <class Work>
bool succeeds_within(std::size_t bytes, Work&& work) {
    const pid_t child = ::fork();
    if (child == 0) {
        std::size_t pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        const rlim_t limit = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + bytes;
        const rlimit limits{limit, limit};
        if (::setrlimit(RLIMIT_AS, &limits) != 0) ::_exit(3);
        ::_exit(work() ? 0 : 1);
    }
    int status = -1;
    return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("MF-06: a refusal needs less than one megabyte", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    constexpr std::size_t megabyte = 1 << 20;
    for (const char* name : mf06) {
        INFO(name);
        const auto path = case_file(mf06_file(name));
        CHECK(succeeds_within(megabyte, [&] { return !Weights::open(path).has_value(); }));
    }
    // The measure can fail: two megabytes do not fit.
    CHECK_FALSE(succeeds_within(megabyte, [&] {
        void* volatile block = std::malloc(2 * megabyte);  // volatile, or the compiler leaves the allocation out
        const bool fits = block != nullptr;
        std::free(block);
        return fits;
    }));
}
#endif

#if defined(__linux__)
TEST_CASE("MF-08: deep nesting is refused on a stack of 64 KiB", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    struct Job {
        std::filesystem::path path = case_file("MF-08-nest-6000.gguf");
        std::string message;
        static void* run(void* self) {
            auto& job = *static_cast<Job*>(self);
            const auto weights = Weights::open(job.path);
            if (!weights) job.message = weights.error().message();
            return nullptr;
        }
    } job;
    pthread_attr_t attributes;
    REQUIRE(pthread_attr_init(&attributes) == 0);
    const auto least = static_cast<std::size_t>(PTHREAD_STACK_MIN);
    REQUIRE(pthread_attr_setstacksize(&attributes, (std::max)(least, std::size_t{64} << 10)) == 0);
    pthread_t thread{};
    REQUIRE(pthread_create(&thread, &attributes, &Job::run, &job) == 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    CHECK(contains(job.message, "levels deep"));
}
#endif

TEST_CASE("MF-08: shallow nesting parses, wide nesting in linear time", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    CHECK(Weights::open(case_file("MF-08-nest-2.gguf")));
    CHECK(best_milliseconds([] { (void)Weights::open(case_file("MF-08-wide-empty-4096.gguf")).value(); }) < 10);
}

TEST_CASE("MF-09: tensor data must lie in the file, aligned, each byte in one tensor", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    refused("MF-09-cut1.gguf", {"tensor \"blk.0.ffn_down.weight\"", "33888 to 35936", "35935"});
    refused("MF-09-cut100.gguf", {"tensor \"blk.0.ffn_down.weight\"", "33888 to 35936", "35836"});
    refused("MF-09-half.gguf", {"tensor \"token_embd.weight\"", "17968"});
    refused("MF-09-off-beyond.gguf", {"tensor \"b\"", "4096", "208"});
    refused("MF-09-off-wrap.gguf", {"tensor \"b\"", "18446744073709551584", "208"});
    refused("MF-09-off-huge.gguf", {"tensor \"b\"", "9223372036854775808", "208"});
    refused("MF-09-off-unaligned.gguf", {"tensor \"b\"", "17", "32"});
    refused("MF-09-off-overlap.gguf", {"tensor \"a\"", "tensor \"b\"", "overlap"});
}

TEST_CASE("MF-14: byte order, magic and version are told apart", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    CHECK(refused("MF-14-bigendian.gguf", {"big-endian"}) == ErrorCode::unsupported);
    CHECK(refused("MF-14-fugg.gguf", {"FUGG", "not a GGUF file"}) == ErrorCode::bad_format);
    CHECK(refused("MF-14-v1.gguf", {"unsupported version 1 "}) == ErrorCode::unsupported);
    const Weights v2 = Weights::open(case_file("MF-14-v2-ok.gguf")).value();
    REQUIRE(v2.tensors().size() == 1);
    CHECK(as_floats(v2.tensors()[0]) == std::vector<float>{1, 2, 3, 4});
}

TEST_CASE("MF-17: names are unique, and checking that is fast", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    refused("MF-17-dup-tensor.gguf", {"tensor \"t\"", "twice"});
    refused("MF-17-dup-key.gguf", {"llama.block_count", "twice"});
    refused("MF-17-dup-key-type.gguf", {"llama.block_count", "twice"});
    const auto path = case_file("MF-17-4000-keys-ok.gguf");
    CHECK(Weights::open(path).value().metadata().size() >= 4000);
    CHECK(best_milliseconds([&] { (void)Weights::open(path).value(); }) < 20);
}

TEST_CASE("MF-18: containers with odd hyper-parameters still open", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    for (const char* name : {"head0", "blockcount-str", "no-tensors", "block-4g", "arch-empty", "arch-percent",
                             "eps-nan", "shape-mismatch"}) {
        const auto weights = Weights::open(case_file(std::string("MF-18-") + name + ".gguf"));
        INFO(name);
        CHECK(weights);
    }
    const Weights nan = Weights::open(case_file("MF-18-eps-nan.gguf")).value();
    CHECK(nan.metadata().number("llama.attention.layer_norm_rms_epsilon").error().code == ErrorCode::bad_format);
}

TEST_CASE("QZ-01: a row must be whole blocks", "[files][gguf][cases]") {
    DECANT_NEEDS_CASES();
    refused("QZ-01-q4k-320.gguf", {"tensor \"w\"", "320", "Q4_K", "256"});
    refused("QZ-01-q6k-896.gguf", {"tensor \"w\"", "896", "Q6_K", "256"});
    refused("QZ-01-q8_0-48.gguf", {"tensor \"w\"", "48", "Q8_0", "32"});
    refused("QZ-01-q4_0-1.gguf", {"tensor \"w\"", "Q4_0", "32"});
    refused("QZ-01-q4k-128x2.gguf", {"tensor \"w\"", "128", "Q4_K", "256"});
    const Weights ok = Weights::open(case_file("QZ-01-q4k-512-ok.gguf")).value();
    CHECK(ok.tensor("w").value().dtype == DType::q4_k);
    CHECK(ok.tensor("w").value().rows() == 2);
    CHECK(ok.tensor("w").value().columns() == 512);
}

TEST_CASE("files made by other tools open", "[files][gguf]") {
    const auto folder = decant_test::shared("truth/tiny-gguf");
    if (!std::filesystem::exists(folder)) DECANT_SKIP("tiny models absent: ../shared/truth/tiny-gguf");
    int opened = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() != ".gguf") continue;
        INFO(entry.path().filename().string());
        const auto weights = Weights::open(entry.path());
        REQUIRE(weights);
        CHECK(weights->mapped_bytes() == std::filesystem::file_size(entry.path()));
        CHECK_FALSE(weights->tensors().empty());
        CHECK(weights->metadata().string("general.architecture"));
        ++opened;
    }
    CHECK(opened > 0);
}

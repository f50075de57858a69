// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// What loading costs, and what a model takes in memory: step by step, each run in a process of its own. Linux only.
//
//     loading --model FILE [--runs N] [--threads N] [--tokens N] [--rows N]
//         Milliseconds and bytes of every step, from a cold and from a cached file, lazily and with `warm_up`; then a
//         cache of `tokens` filled in passes of `rows`, beside its `MemoryPlan`.
//     loading --model FILE --answer N [--start cold|cached] [--threads N]
//         N tokens after a prompt: their ids, their speed, and what was read from the disk. For memory_limit.sh.

#include <decant/decant.hpp>

#include "../examples/support/options.hpp"
#include "../tests/support/process_memory.hpp"

#include <cstdint>
#include <cstdio>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}
double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

constexpr std::string_view prompt = "The capital of France is";

/// Asks the system to forget the file's pages, and returns the share of them that it kept: those that another process
/// maps, or that the file system does not let go of.
double drop_pages(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw std::runtime_error("cannot open " + path);
    struct stat status {};
    ::fstat(file, &status);
    ::fdatasync(file);  // dirty pages are not dropped
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    const auto size = static_cast<std::size_t>(status.st_size);
    void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
    ::close(file);
    if (data == MAP_FAILED) throw std::runtime_error("cannot map " + path);
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> in_memory((size + page - 1) / page);
    ::mincore(data, size, in_memory.data());
    ::munmap(data, size);
    const auto kept = std::count_if(in_memory.begin(), in_memory.end(), [](unsigned char c) { return (c & 1) != 0; });
    return static_cast<double>(kept) / static_cast<double>(in_memory.size());
}

/// Runs `body` in a child and returns its result, a plain struct: memory is measured from a fresh start each time.
template <class F>
auto in_child(F body) {
    using Report = decltype(body());
    static_assert(std::is_trivially_copyable_v<Report>);
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("no child process");
    if (child == 0) {
        ::close(ends[0]);
        int code = 1;
        try {
            const Report report = body();
            code = ::write(ends[1], &report, sizeof report) == static_cast<ssize_t>(sizeof report) ? 0 : 1;
        } catch (const std::exception& error) {
            std::fprintf(stderr, "loading: %s\n", error.what());
        }
        ::_exit(code);
    }
    ::close(ends[1]);
    Report report{};
    const bool whole = ::read(ends[0], &report, sizeof report) == static_cast<ssize_t>(sizeof report);
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!whole || status != 0) throw std::runtime_error("a run failed");
    return report;
}

constexpr std::array<const char*, 7> steps = {"Weights::open",    "warm_up",       "Tokenizer::from", "Model::bind",
                                              "Context, KvCache", "first prefill", "the same again"};

struct Step {
    double milliseconds = 0.0;
    std::uint64_t file = 0;  // resident bytes of the model's file
    std::uint64_t own = 0;   // private dirty bytes, more than at the start
};
using Run = std::array<Step, steps.size()>;

Run load(const std::string& path, std::size_t threads, std::size_t tokens, bool warm_up) {
    Run run;
    const std::string name = std::filesystem::path(path).filename().string();
    const std::uint64_t at_start = (decant_test::measure(), decant_test::measure().private_dirty);
    std::size_t next = 0;
    Clock::time_point start = Clock::now();
    const auto done = [&] {
        run[next].milliseconds = milliseconds_since(start);
        run[next].file = decant_test::measure(name).resident;
        const std::uint64_t own = decant_test::measure().private_dirty;
        run[next++].own = own - (std::min)(own, at_start);
        start = Clock::now();
    };
    const auto weights = decant::Weights::open(path).value();
    done();
    if (warm_up) weights.warm_up().value();
    done();
    const auto tokenizer = decant::Tokenizer::from(weights).value();
    done();
    const auto model = decant::Model<decant::Simd>::bind(weights).value();
    done();
    decant::Context context(model, decant::ThreadPool{threads});
    const decant::KvCache cache(context, {.tokens = tokens});
    auto sequence = cache.sequence().value();
    done();
    const auto text = tokenizer.encode(prompt);
    for (int i = 0; i < 2; ++i) {
        static_cast<void>(context.prefill(sequence, text).value());
        done();
        sequence.truncate(0);
    }
    return run;
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

void time_loading(const std::string& path, std::size_t runs, std::size_t threads, std::size_t tokens) {
    struct Case {
        const char* name;
        bool cold, warm_up;
        std::vector<Run> runs = {};
    };
    std::array<Case, 4> cases{Case{"cold, lazy", true, false}, Case{"cold, warm_up", true, true},
                              Case{"cached, lazy", false, false}, Case{"cached, warm_up", false, true}};
    double kept = 0.0;
    for (std::size_t i = 0; i < runs; ++i) {
        for (Case& c : cases) {
            if (c.cold) kept = (std::max)(kept, drop_pages(path));
            if (!c.cold && !c.warm_up) in_child([&] { return load(path, threads, tokens, true); });  // into the cache
            c.runs.push_back(in_child([&] { return load(path, threads, tokens, c.warm_up); }));
        }
    }
    std::printf("milliseconds       ");
    for (const Case& c : cases) std::printf("%17s", c.name);
    std::printf("\n");
    const auto row = [&](const char* name, auto of_run) {
        std::printf("%-19s", name);
        for (const Case& c : cases) {
            std::vector<double> values;
            for (const Run& run : c.runs) values.push_back(of_run(run));
            std::printf("%17.2f", median(std::move(values)));
        }
        std::printf("\n");
    };
    for (std::size_t s = 0; s < steps.size(); ++s) row(steps[s], [s](const Run& run) { return run[s].milliseconds; });
    row("until first logits", [](const Run& run) {
        double sum = 0.0;
        for (std::size_t s = 0; s + 1 < steps.size(); ++s) sum += run[s].milliseconds;
        return sum;
    });
    std::printf("cold: posix_fadvise(POSIX_FADV_DONTNEED) dropped all but %.1f %% of the file's pages\n\n", 100 * kept);

    std::printf("MB after the step  %17s%17s%17s\n", "file, cold lazy", "file, warm_up", "private");
    const auto figure = [](const Case& c, std::size_t s, std::uint64_t Step::*member) {
        std::vector<double> values;
        for (const Run& run : c.runs) values.push_back(megabytes(run[s].*member));
        return median(std::move(values));
    };
    for (std::size_t s = 0; s < steps.size(); ++s) {
        std::printf("%-19s%17.2f%17.2f%17.2f\n", steps[s], figure(cases[0], s, &Step::file),
                    figure(cases[1], s, &Step::file), figure(cases[0], s, &Step::own));
    }
}

/// A full cache and full passes, which is what a plan counts.
void compare_with_plan(const std::string& path, std::size_t threads, std::size_t tokens, std::uint32_t rows) {
    struct Report {
        decant::MemoryPlan plan;
        std::uint64_t reserved, file, own;
    };
    const decant::ContextOptions capacities{.rows = rows, .sequences = 1, .logits = (std::min)(rows, 16u)};
    const Report report = in_child([&] {
        const std::string name = std::filesystem::path(path).filename().string();
        const decant::Memory memory{decant::MemoryOptions{}};
        const decant::Simd backend{memory};
        const auto weights = decant::Weights::open(path).value();
        Report made{decant::MemoryPlan::of(weights, capacities, {.tokens = tokens}, threads, backend).value(), 0, 0, 0};
        const auto model = decant::Model<decant::Simd>::bind(weights, backend).value();
        const std::uint64_t before = (decant_test::measure(), decant_test::measure().private_dirty);
        decant::Context context(model, decant::ThreadPool{threads}, capacities);
        const decant::KvCache cache(context, {.tokens = tokens});
        auto sequence = cache.sequence().value();
        std::vector<decant::Token> text(tokens);
        for (std::size_t i = 0; i < tokens; ++i) text[i] = decant::Token{static_cast<std::int32_t>(i * 7 % 1000)};
        const std::span<const decant::Token> all(text);
        if (tokens > capacities.logits)
            static_cast<void>(context.prefill(sequence, all.first(tokens - capacities.logits)).value());
        const auto last = all.last((std::min)(tokens, std::size_t{capacities.logits}));
        static_cast<void>(context.pass({{&sequence, last, decant::Want::all}}).value());
        made.reserved = memory.used();
        made.file = decant_test::measure(name).resident;
        made.own = decant_test::measure().private_dirty - before - tokens * sizeof(decant::Token);
        return made;
    });
    const decant::MemoryPlan& plan = report.plan;
    std::printf("\nMB, %zu tokens in passes of %u rows     planned   measured\n", tokens, rows);
    std::printf("weights (resident of the file)     %10.2f %10.2f\n", megabytes(plan.weights), megabytes(report.file));
    std::printf("cache + workspace (reserved)       %10.2f %10.2f   %.2f + %.2f\n", megabytes(plan.limited()),
                megabytes(report.reserved), megabytes(plan.cache), megabytes(plan.workspace));
    std::printf("... + bookkeeping (private dirty)  %10.2f %10.2f\n", megabytes(plan.limited() + plan.bookkeeping),
                megabytes(report.own));
}

std::uint64_t bytes_from_disk() {
    std::ifstream in("/proc/self/io");
    for (std::string key; in >> key;) {
        std::uint64_t value = 0;
        in >> value;
        if (key == "read_bytes:") return value;
    }
    return 0;
}

void answer(const std::string& path, std::size_t threads, std::size_t count, bool cold) {
    if (cold) {
        static_cast<void>(drop_pages(path));
    } else {
        decant::Weights::open(path).value().warm_up().value();
    }
    const std::uint64_t read_at_start = bytes_from_disk();
    const auto start = Clock::now();
    const auto weights = decant::Weights::open(path).value();
    const auto tokenizer = decant::Tokenizer::from(weights).value();
    const auto model = decant::Model<decant::Simd>::bind(weights).value();
    decant::Context context(model, decant::ThreadPool{threads});
    const auto text = tokenizer.encode(prompt);
    const decant::KvCache cache(context, {.tokens = text.size() + count});
    auto sequence = cache.sequence().value();
    decant::Sampler sampler;
    auto logits = context.prefill(sequence, text).value();
    std::printf("first logits after %.0f ms, %.0f MB from the disk\n", milliseconds_since(start),
                megabytes(bytes_from_disk() - read_at_start));
    const auto decoding = Clock::now();
    const std::uint64_t read_before = bytes_from_disk();
    std::printf("tokens");
    for (std::size_t i = 0; i < count; ++i) {
        const decant::Token token = sampler.pick(logits, sequence.tokens()).value();
        std::printf(" %d", static_cast<int>(id(token)));
        logits = context.decode(sequence, token).value();
    }
    const double seconds = milliseconds_since(decoding) / 1e3;
    std::printf("\ndecode %.2f tokens/s, %.0f MB from the disk per token\n", static_cast<double>(count) / seconds,
                megabytes(bytes_from_disk() - read_before) / static_cast<double>(count));
}

void run(const examples::Options& options) {
    const std::string path = options.text("--model", "");
    if (path.empty()) throw examples::UsageError("--model is missing");
    const std::size_t threads = options.count("--threads", decant::available_processors(), 1, 1024);
    const std::size_t count = options.count("--answer", 0, 0, 100000);
    if (count > 0) {
        const std::string start = options.text("--start", "cold");
        if (start != "cold" && start != "cached") throw examples::UsageError("--start takes cold or cached");
        return answer(path, threads, count, start == "cold");
    }
    const std::size_t runs = options.count("--runs", 5, 1, 1000);
    const std::size_t tokens = options.count("--tokens", 512, 1, 1000000);
    const auto rows = static_cast<std::uint32_t>(options.count("--rows", 128, 1, 65536));
    std::printf("%zu threads, medians of %zu runs\n\n", threads, runs);
    time_loading(path, runs, threads, tokens);
    compare_with_plan(path, threads, tokens, rows);
}

}  // namespace

int main(int argc, char** argv) try {
    run(examples::Options(argc, argv, {"--model", "--runs", "--threads", "--tokens", "--rows", "--answer", "--start"}));
} catch (const examples::UsageError& error) {
    std::fprintf(stderr,
                 "loading: %s\n"
                 "usage: loading --model FILE [--runs N] [--threads N] [--tokens N] [--rows N]\n"
                 "       loading --model FILE --answer N [--start cold|cached] [--threads N]\n",
                 error.what());
    return 2;
} catch (const std::exception& error) {
    std::fprintf(stderr, "loading: %s\n", error.what());
    return 1;
}

#else

int main() {
    std::fputs("loading: it reads /proc, which only Linux has\n", stderr);
    return 2;
}

#endif

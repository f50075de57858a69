// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The library leaves the host's process alone: no output, no environment, no locale, errno, floating-point control and
// signal mask as they were, no thread left. Run in a locale with decimal commas, while another thread changes it.
//
//     quiet MODEL [CASES]
#include "contract/program.hpp"

#include <atomic>
#include <cerrno>
#include <cfenv>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <locale>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#if DECANT_X86
#include <immintrin.h>
#endif

namespace {

std::atomic<int> environment_reads{0};

}  // namespace

extern "C" char* getenv(const char*) noexcept {
    ++environment_reads;
    return nullptr;
}

namespace {

using decant_test::check;
using decant_test::Host;
using decant_test::question;

/// Decimal commas and grouping dots, whether or not the system has such a locale installed.
struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
};

void set_comma_locale() {
    std::locale::global(std::locale(std::locale::classic(), new Comma));
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"})
        if (std::setlocale(LC_ALL, name) != nullptr) return;
}

/// What a library could leave behind.
struct State {
    int rounding = std::fegetround();
#if DECANT_X86
    unsigned control = _mm_getcsr() & ~0x3fu;  // without the sticky flags, which any arithmetic raises
#endif
    sigset_t mask{};
    std::string locale = std::setlocale(LC_ALL, nullptr);

    State() { sigprocmask(SIG_BLOCK, nullptr, &mask); }
    bool operator==(const State& other) const {
        bool same = rounding == other.rounding && locale == other.locale;
#if DECANT_X86
        same = same && control == other.control;
#endif
        for (int signal = 1; signal < 32; ++signal)
            same = same && sigismember(&mask, signal) == sigismember(&other.mask, signal);
        return same;
    }
};

/// Everything that is written to standard output and error meanwhile.
class Capture {
 public:
    Capture() {
        std::fflush(nullptr);
        for (int i = 0; i < 2; ++i) {
            saved_[i] = dup(i + 1);
            dup2(fileno(file_), i + 1);
        }
    }
    std::size_t finish() {
        std::fflush(nullptr);
        for (int i = 0; i < 2; ++i) {
            dup2(saved_[i], i + 1);
            close(saved_[i]);
        }
        struct stat status {};
        fstat(fileno(file_), &status);
        std::fclose(file_);
        return static_cast<std::size_t>(status.st_size);
    }

 private:
    std::FILE* file_ = std::tmpfile();
    int saved_[2] = {-1, -1};
};

/// Runs `body` with a chosen errno and checks that it is still there.
template <class F>
auto untouched(const char* what, F body) {
    const State before;
    errno = 4711;
    auto result = body();
    check(errno == 4711, std::string("errno was changed by ") + what);
    check(State() == before, std::string("the process's state was changed by ") + what);
    return result;
}

std::string everything(const std::filesystem::path& model) {
    using decant::Simd;
    std::string seen;
    const auto note = [&](const decant::Error& error) { seen += error.message() + '\n'; };
    note(untouched("opening a missing file", [&] { return decant::Weights::open("no/such/file"); }).error());
    note(untouched("opening a folder", [&] { return decant::Weights::open(model.parent_path()); }).error());
    auto host = untouched("loading", [&] { return std::make_unique<Host<Simd>>(model); });
    static_cast<void>(untouched("warming up", [&] { return host->weights.warm_up().has_value(); }));
    seen += untouched("answering", [&] { return host->answer(question, 12); }) + '\n';
    // Every kind of step, on sharp and on flat distributions: logarithms and exponentials at their limits.
    const std::vector<std::vector<decant::SamplerStep>> chains{
        {decant::Typical{0.9f}},
        {decant::TopP{0.9f}, decant::Temperature{0.01f}},
        {decant::Penalties{.repetition = 1.3f, .frequency = 0.2f, .last_n = -1},
         decant::Dry{.multiplier = 5.0f, .base = 4.0f}, decant::TopK{2}, decant::Temperature{0.01f}},
        {decant::TopNSigma{1.0f}, decant::MinP{0.1f}, decant::DynamicTemperature{0.1f, 2.0f}, decant::Xtc{1.0f, 0.0f}},
        {decant::Mirostat{}}};
    for (const auto& chain : chains) {
        decant::Request request(host->cache.sequence().value(),
                                untouched("a chain", [&] { return decant::Sampler::chain(chain, 1); }).value(),
                                decant::TextStream(host->tokenizer));
        request.push(host->tokenizer.encode(question));
        for (int i = 0; i < 4; ++i) {
            const auto step = untouched("a step of a request", [&] { return request.step(host->context); });
            seen += step ? std::string(step->text) : step.error().message();
        }
        const auto saved = untouched("saving", [&] { return request.save(); });
        seen += std::to_string(saved.size()) + '\n';
    }
    const std::vector<float> flat(1000, -3.0f), sharp{1000.0f, -1000.0f, 0.0f};
    for (const auto* row : {&flat, &sharp})
        seen += decant::detail::text(untouched("log_sum_exp", [&] { return decant::log_sum_exp(*row); }), '\n');
    decant::Sampler plain{{.temperature = 0.3f, .seed = 5}};
    for (const auto* row : {&flat, &sharp})
        seen += decant::detail::text(
            untouched("a distribution", [&] { return plain.distribution(*row, {}).value()[0].probability; }), '\n');
    const decant::Token outside{1 << 20};
    note(untouched("a bad token", [&] { return host->context.decode(host->sequence, outside); }).error());
    const std::vector<decant::Token> long_prompt(300, decant::Token{504});
    note(untouched("a full cache", [&] { return host->context.prefill(host->sequence, long_prompt); }).error());
    note(untouched("a bad temperature", [&] {
             return decant::Sampler{{.temperature = -1.5f}}.pick(std::vector<float>{1.0f}, {});
         }).error());
    static_cast<void>(untouched("unloading", [&] {
        host.reset();
        return true;
    }));
    return seen;
}

/// The numbers of a config file, read and written in any locale.
std::string numbers(const std::filesystem::path& cases) {
    std::ifstream in(cases / "EH-01-config.json", std::ios::binary);
    const std::string config{std::istreambuf_iterator<char>(in), {}};
    struct Numbers : decant::JsonEvents {
        std::string text;
        decant::Result<void> real(double value) override {
            text += decant::detail::text(value, ' ');
            return {};
        }
        decant::Result<void> unsigned_integer(std::uint64_t value) override {
            text += decant::detail::text(value, ' ');
            return {};
        }
    } events;
    const auto parsed = decant::parse_json(config, events);
    check(static_cast<bool>(parsed), "the config of the case parses");
    return events.text;
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 2) return 2;
    const std::string expected = everything(arguments[1]);
    environment_reads = 0;

    set_comma_locale();
    {
        Capture capture;
        const std::string found = everything(arguments[1]);
        check(capture.finish() == 0, "something was written to standard output or error");
        check(found == expected, "a locale changed the text: " + found + "instead of: " + expected);
    }
    check(environment_reads == 0, "the environment was read");

    std::atomic<bool> end{false};
    std::thread changer([&] {
        while (!end) {
            std::locale::global(std::locale::classic());
            set_comma_locale();
        }
    });
    {
        Host<decant::Simd> host(arguments[1]);
        const std::string answer = host.answer(question, 12);
        check(expected.find(answer) != std::string::npos, "an answer differs while the locale changes");
    }
    if (count > 2 && std::filesystem::exists(std::filesystem::path(arguments[2]) / "EH-01-config.json")) {
        const std::string found = numbers(arguments[2]);
        check(found == "1e-05 10000.5 128256 8 -0.00125 1234567.875 ", "numbers of EH-01: " + found);
    }
    end = true;
    changer.join();

#if DECANT_X86
    // A game's settings: subnormal numbers flushed, rounding towards zero. They stay as they are.
    const unsigned control = _mm_getcsr();
    _mm_setcsr(control | 0x8040u | 0x6000u);
    check(everything(arguments[1]) == expected, "the host's floating-point mode changed the text");
    check((_mm_getcsr() & 0xe040u) == 0xe040u, "the floating-point control register was changed");
    _mm_setcsr(control);
#endif
    const auto threads = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
    check(threads == 1, "a thread stayed behind");
    return decant_test::failures == 0 ? 0 : 1;
}

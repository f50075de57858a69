// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Tokens per second of a model, test by test, with the meaning that llama-bench and llama-batched-bench give them, and
// how near each comes to what this machine can do.

#include <decant/decant.hpp>

#include "../examples/support/dtype_named.hpp"
#include "../examples/support/machine_limits.hpp"
#include "../examples/support/options.hpp"
#include "../examples/support/progress.hpp"
#include "../examples/support/random.hpp"
#include "../examples/support/timing.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

constexpr const char* usage =
    "usage: decant-bench [--model FILE] [--threads N] [--tests LIST] [--repeat N] [--isa SET]\n"
    "                    [--cache DTYPE] [--csv]\n"
    "\n"
    "  --model FILE   a GGUF file or a Hugging Face folder (default: the SmolLM2 that setup.sh fetches)\n"
    "  --threads N    threads, the caller's included (default: as many processors as this process may use)\n"
    "  --tests LIST   with commas between (default: pp512,tg128,bd1,bd4,bd8,bd16)\n"
    "                   ppN  a prompt of N tokens in one call, which wants the logits of the last\n"
    "                   tgN  N tokens decoded one by one\n"
    "                   bdN  N sequences with prompts of 128 tokens decode 64 tokens each, a token of every\n"
    "                        sequence per step; all sequences' tokens per second, without the prompts\n"
    "                 NAME@D is the same with D tokens in the cache of every sequence before, untimed\n"
    "  --repeat N     timed repetitions, after one that is not timed; their mean is reported (default: 2)\n"
    "  --isa SET      only this instruction set: portable, avx2, avxvnni, avx512, avx512bf16, amx (default: the\n"
    "                 best of the machine; amx only if named)\n"
    "  --cache DTYPE  entries of the cache: F16 (default), F32, BF16, Q8_0 or Q4_0\n"
    "  --csv          lines of test,tokens_per_second alone; else a table that says, too, which share of the "
    "machine's\n"
    "                 limit this is, measured before and after each test on the same threads: of the bytes that can "
    "be\n"
    "                 read per second for decoding (weights and cache that a step needs), of the\n"
    "                 multiply-accumulates per second for prompts (products with weights alone)\n";

constexpr std::size_t batch_prompt = 128;
constexpr std::size_t batch_tokens = 64;

struct Test {
    std::string name;
    bool prefill = false;  ///< all tokens in one call, otherwise one per step
    std::size_t sequences = 1;
    std::size_t before = 0;  ///< tokens of each sequence before the clock starts
    std::size_t tokens = 0;  ///< and timed
};

struct Settings {
    std::filesystem::path model;
    decant::Isa isa = decant::Isa::portable;
    std::size_t threads = 1;
    std::size_t repeat = 2;
    std::vector<Test> tests;
    decant::DType cache = decant::DType::f16;
    bool csv = false;
};

/// A whole number in [least, most] that is all of the text.
std::size_t number(std::string_view text, std::size_t least, std::size_t most, std::string_view test) {
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
        throw examples::UsageError("test \"" + std::string(test) + "\": \"" + std::string(text) +
                                   "\" is not a whole number from " + std::to_string(least) + " to " +
                                   std::to_string(most));
    }
    return value;
}

Test parse_test(std::string_view text) {
    constexpr std::size_t most = 1'000'000, most_sequences = 1024;
    Test test;
    test.name = text;
    std::string_view rest = text;
    if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
        test.before = number(rest.substr(at + 1), 0, most, text);
        rest = rest.substr(0, at);
    }
    const std::string_view kind = rest.substr(0, 2);
    rest = rest.substr(kind.size());
    if (kind == "pp" || kind == "tg") {
        test.prefill = kind == "pp";
        test.tokens = number(rest, 1, most, text);
    } else if (kind == "bd") {
        test.sequences = number(rest, 1, most_sequences, text);
        test.before += batch_prompt;
        test.tokens = batch_tokens;
    } else {
        throw examples::UsageError("unknown test \"" + test.name +
                                   "\": there are ppN, tgN and bdN, and @D behind them");
    }
    return test;
}

std::vector<Test> parse_tests(std::string_view list) {
    std::vector<Test> tests;
    while (true) {
        const std::size_t comma = list.find(',');
        tests.push_back(parse_test(list.substr(0, comma)));
        if (comma == std::string_view::npos) return tests;
        list.remove_prefix(comma + 1);
    }
}

/// Where setup.sh keeps the model of the tests.
std::filesystem::path default_model() {
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::filesystem::path(value == nullptr ? "" : value);
    };
    std::filesystem::path folder = variable("DECANT_CACHE");
    if (folder.empty()) {
        const std::filesystem::path cache = variable("XDG_CACHE_HOME");
        folder = (cache.empty() ? variable("HOME") / ".cache" : cache) / "decant";
    }
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

std::vector<decant::Token> random_tokens(std::size_t count, std::size_t vocabulary, examples::Random& random) {
    std::vector<decant::Token> tokens(count);
    for (decant::Token& token : tokens) token = decant::Token{static_cast<std::int32_t>(random.below(vocabulary))};
    return tokens;
}

/// Runs tests of one model and prints what they say.
class Bench {
 public:
    explicit Bench(const Settings& settings)
        : settings_(settings),
          model_(decant::Model<decant::Simd>::bind(decant::Weights::open(settings.model).value(),
                                                   decant::Simd(decant::SimdKernels(settings.isa)))
                     .value()),
          pool_(settings.threads),
          cost_(model_.weights(), model_.spec(), settings.cache) {}

    void run() {
        std::optional<examples::MachineLimits> limits;
        if (!settings_.csv) {
            double most = 0.0;
            for (const Test& test : settings_.tests) most = test.prefill ? most : (std::max)(most, step_bytes(test));
            limits.emplace(pool_, model_.backend().kernels().isa(), static_cast<std::size_t>(most));
            const std::string name = std::filesystem::path(model_.weights().name()).filename().string();
            const std::string_view isa = decant::name(model_.backend().kernels().isa());
            std::printf("%s, %.0f MB, %s, %zu threads, %.*s\n", name.c_str(),
                        static_cast<double>(model_.weights().bytes()) / 1e6, model_.spec().family.c_str(),
                        pool_.concurrency(), static_cast<int>(isa.size()), isa.data());
            std::printf("%-16s %10s %12s\n", "test", "tok/s", "of limit");
        }
        for (const Test& test : settings_.tests) {
            if (settings_.csv) {
                std::printf("%s,%.2f\n", test.name.c_str(), measure(test));
            } else {
                const Limit before = limit(*limits, test);
                const double speed = measure(test);
                print_row(test, speed, before, limit(*limits, test));
            }
            std::fflush(stdout);
        }
    }

 private:
    using Sequence = decant::Sequence<decant::Simd>;
    using Context = decant::Context<decant::Simd>;

    /// The fastest that a test could be, and what sets it.
    struct Limit {
        double speed = 0.0;  ///< tokens per second
        double rate = 0.0;   ///< bytes or multiply-accumulates per second
        std::string of;
    };

    /// Mean tokens per second of the timed repetitions.
    double measure(const Test& test) {
        decant::ContextOptions options;
        const auto sequences = static_cast<std::uint32_t>(test.sequences);
        options.rows = (std::max)(options.rows, sequences);
        options.sequences = (std::max)(options.sequences, sequences);
        options.logits = (std::max)(options.logits, sequences);
        Context context(model_, pool_, options);
        decant::CacheOptions room;
        room.dtype = settings_.cache;
        const std::size_t blocks = test.before / room.block_tokens + test.tokens / room.block_tokens + 3;
        room.tokens = test.sequences * blocks * room.block_tokens;
        room.sequences = 2 * sequences;  // the pasts and the forks that go on from them
        const decant::KvCache<decant::Simd> cache(context, room);

        const std::size_t warm_up = test.prefill ? test.tokens : (std::min)(test.tokens, std::size_t{8});
        const std::size_t total = test.sequences * (test.before + warm_up + settings_.repeat * test.tokens);
        examples::Progress line(test.name);
        std::size_t done = 0;
        const auto prefill = [&](Sequence& sequence, std::span<const decant::Token> tokens) {
            const auto tell = [&](decant::Progress p) { line.show(done + tokens.size() * p.done / p.total, total); };
            static_cast<void>(context.prefill(sequence, tokens, {.progress = tell}).value());
            done += tokens.size();
        };

        examples::Random random(1);
        const std::size_t vocabulary = model_.spec().vocabulary;
        std::vector<Sequence> pasts;
        for (std::size_t s = 0; s < test.sequences; ++s) {
            pasts.push_back(cache.sequence().value());
            if (test.before > 0) prefill(pasts.back(), random_tokens(test.before, vocabulary, random));
        }
        const auto seconds = [&](std::size_t tokens) {
            const std::vector<decant::Token> text = random_tokens(tokens * test.sequences, vocabulary, random);
            std::vector<Sequence> now;
            std::vector<typename Context::Part> parts;
            for (const Sequence& past : pasts) now.push_back(past.fork());
            for (Sequence& sequence : now) parts.push_back({.sequence = &sequence});
            const examples::Stopwatch watch;
            if (test.prefill) {
                prefill(now.front(), text);
                return watch.seconds();
            }
            const decant::Token* next = text.data();
            for (std::size_t i = 0; i < tokens; ++i, done += parts.size()) {
                for (auto& part : parts) part.tokens = {next++, 1};
                static_cast<void>(context.pass(parts).value());
                line.show(done, total);
            }
            return watch.seconds();
        };
        static_cast<void>(seconds(warm_up));
        double sum = 0.0;
        for (std::size_t i = 0; i < settings_.repeat; ++i)
            sum += static_cast<double>(test.sequences * test.tokens) / seconds(test.tokens);
        return sum / static_cast<double>(settings_.repeat);
    }

    /// Bytes that a decode step reads, on average over the timed ones.
    [[nodiscard]] double step_bytes(const Test& test) const {
        double cache = 0.0;
        for (std::size_t i = 1; i <= test.tokens; ++i) cache += cost_.cache_read(test.before + i - 1, 1);
        return cost_.weight_bytes(test.sequences, test.sequences) +
               static_cast<double>(test.sequences) * cache / static_cast<double>(test.tokens);
    }

    /// As fast as the machine is now.
    [[nodiscard]] Limit limit(examples::MachineLimits& limits, const Test& test) const {
        if (!test.prefill) {
            const double bytes = step_bytes(test);
            const double rate = limits.read_speed(static_cast<std::size_t>(bytes));
            return {rate / bytes * static_cast<double>(test.sequences), rate, "GB/s read"};
        }
        const decant::ModelCost::Products macs = cost_.products(test.tokens, 1);
        using examples::Arithmetic;
        constexpr std::array arithmetic{Arithmetic::int8, Arithmetic::bf16, Arithmetic::f32};  // of each ProductKind
        static_assert(arithmetic.size() == decant::product_kinds);
        double seconds = 0.0, all = 0.0;
        std::size_t most = 0;
        for (std::size_t kind = 0; kind < macs.size(); ++kind) {
            if (macs[kind] == 0.0) continue;
            seconds += macs[kind] / limits.mac_speed(arithmetic[kind]);
            all += macs[kind];
            if (macs[kind] > macs[most]) most = kind;
        }
        return {static_cast<double>(test.tokens) / seconds, all / seconds,
                "GMAC/s " + std::string(examples::name(arithmetic[most]))};
    }

    /// Against the better of the limits before and after.
    static void print_row(const Test& test, double speed, const Limit& before, const Limit& after) {
        const Limit& best = before.speed > after.speed ? before : after;
        std::printf("%-16s %10.2f %10.1f %% of %.1f %s\n", test.name.c_str(), speed, 100.0 * speed / best.speed,
                    best.rate / 1e9, best.of.c_str());
    }

    const Settings& settings_;
    decant::Model<decant::Simd> model_;
    decant::ThreadPool pool_;
    decant::ModelCost cost_;
};

/// The instruction set of a name, or the best that this machine runs.
decant::Isa isa_of(const examples::Options& options) {
    if (!options.given("--isa")) return decant::SimdKernels().isa();
    constexpr std::pair<std::string_view, decant::Isa> sets[] = {
        {"portable", decant::Isa::portable},      {"avx2", decant::Isa::avx2},
        {"avxvnni", decant::Isa::avx_vnni},       {"avx512", decant::Isa::avx512_vnni},
        {"avx512bf16", decant::Isa::avx512_bf16}, {"amx", decant::Isa::amx},
    };
    const std::string wanted = options.text("--isa", "");
    std::string names;
    for (const auto& [name, isa] : sets) {
        if (name == wanted) {
            if (isa == decant::Isa::amx) (void)decant::allow_amx();  // or it is not supported
            if (!decant::supported(isa)) throw examples::UsageError("this machine does not run " + wanted);
            return isa;
        }
        names += std::string(names.empty() ? "" : ", ") + std::string(name);
    }
    throw examples::UsageError("--isa takes one of " + names + ", not \"" + wanted + "\"");
}

}  // namespace

int main(int argc, char** argv) try {
    const examples::Options options(argc, argv, {"--model", "--threads", "--tests", "--repeat", "--isa", "--cache"},
                                    {"--csv", "--help"});
    if (options.given("--help")) {
        std::fputs(usage, stdout);
        return 0;
    }
    Settings settings;
    settings.model = options.given("--model") ? std::filesystem::path(options.text("--model", "")) : default_model();
    settings.threads = options.count("--threads", decant::available_processors(), 1, decant::ThreadPool::max_threads);
    settings.repeat = options.count("--repeat", 2, 1, 1000);
    settings.tests = parse_tests(options.text("--tests", "pp512,tg128,bd1,bd4,bd8,bd16"));
    settings.csv = options.given("--csv");
    settings.isa = isa_of(options);
    settings.cache = examples::dtype_named("--cache", options.text("--cache", "F16"));
    Bench(settings).run();
} catch (const examples::UsageError& error) {
    std::fprintf(stderr, "decant-bench: %s\ndecant-bench --help tells what there is\n", error.what());
    return 2;
} catch (const std::exception& error) {
    std::fprintf(stderr, "decant-bench: %s\n", error.what());
    return 1;
}

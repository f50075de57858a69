// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// experiment --model FILE [--prompt TEXT] [--threads N] [--tokens N]
// Streams the model's answer, then says what it cost: time to the first token, speed of both phases, memory.

#include <decant/decant.hpp>

#include "support/options.hpp"
#include "support/process.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
double megabytes(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

/// A line on standard error that replaces itself, shown once a task has taken half a second.
class Progress {
 public:
    explicit Progress(const char* task) : task_(task) {}
    ~Progress() { clear(); }
    void show(std::size_t done, std::size_t all) {
        if (seconds_since(start_) < 0.5 && !shown_) return;
        shown_ = true;
        std::fprintf(stderr, "\r%s %3zu %%", task_, 100 * done / all);
        std::fflush(stderr);
    }
    void clear() {
        if (shown_) std::fprintf(stderr, "\r\033[K");
        shown_ = false;
    }

 private:
    const char* task_;
    Clock::time_point start_ = Clock::now();
    bool shown_ = false;
};

/// The prompt in the model's chat format, or as it stands if the file has none that is known.
std::vector<decant::Token> encode_prompt(const decant::Weights& weights, const decant::Tokenizer& tokenizer,
                                         const std::string& prompt) {
    if (const auto chat = decant::ChatTemplate::from(weights)) {
        const std::array messages{decant::Message{"user", prompt}};
        return chat->encode(tokenizer, messages).value();
    }
    return tokenizer.encode(prompt, {.bos = true});
}

std::uint64_t parameters(const decant::Weights& weights) {
    std::uint64_t sum = 0;
    for (const decant::Tensor& tensor : weights.tensors()) sum += tensor.rows() * tensor.columns();
    return sum;
}

void run(const std::string& path, const std::string& prompt, std::size_t threads, std::size_t most) {
    const auto opening = Clock::now();
    const auto weights = decant::Weights::open(path).value();
    const auto tokenizer = decant::Tokenizer::from(weights).value();
    const auto model = decant::Model<decant::Simd>::bind(weights).value();
    auto context = decant::Context{model, decant::ThreadPool{threads}};
    const double open_seconds = seconds_since(opening);

    const auto title = weights.metadata().string("general.name").value_or("a model without a name");
    std::printf("%.*s: %zu layers, %.0f million weights, opened in %.0f ms\n", static_cast<int>(title.size()),
                title.data(), model.spec().layers.size(), static_cast<double>(parameters(weights)) / 1e6,
                open_seconds * 1e3);
    const auto isa = decant::name(model.backend().kernels().isa());
    std::printf("%zu thread%s, %.*s\n\n> %s\n\n", threads, threads == 1 ? "" : "s", static_cast<int>(isa.size()),
                isa.data(), prompt.c_str());

    const auto start = Clock::now();
    const std::vector<decant::Token> tokens = encode_prompt(weights, tokenizer, prompt);
    if (tokens.size() + most > model.spec().context_length) {
        std::fprintf(
            stderr,
            "note: %zu tokens of prompt and up to %zu of answer exceed the %llu that the model was trained for\n",
            tokens.size(), most, static_cast<unsigned long long>(model.spec().context_length));
    }
    const auto cache = decant::KvCache{context, {.tokens = tokens.size() + most}};
    auto sequence = cache.sequence().value();
    decant::Sampler sampler;
    decant::TextStream text(tokenizer);

    // In chunks of our own, so that a long prompt shows how far it is.
    decant::Logits logits;
    Progress progress("reading the prompt");
    for (std::span<const decant::Token> rest = tokens; !rest.empty();) {
        const auto chunk = rest.first((std::min)(rest.size(), std::size_t{128}));
        rest = rest.subspan(chunk.size());
        const auto want = rest.empty() ? decant::Want::last : decant::Want::none;
        logits = context.pass({{&sequence, chunk, want}}).value();
        progress.show(tokens.size() - rest.size(), tokens.size());
    }
    progress.clear();
    const double prefill_seconds = seconds_since(start);

    double first_seconds = 0.0;
    std::size_t decoded = 0;
    bool cut = false;
    const auto decoding = Clock::now();
    for (std::size_t made = 0; made < most; ++made) {
        const decant::Token token = sampler.pick(logits, sequence.tokens()).value();
        if (made == 0) first_seconds = seconds_since(start);
        if (tokenizer.ends(token)) break;
        const auto piece = text.push(token);
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
        cut = made + 1 == most;
        if (cut) break;
        logits = context.decode(sequence, token).value();
        ++decoded;
    }
    const double decode_seconds = seconds_since(decoding);
    const auto rest = text.finish();
    std::printf("%.*s%s\n\n", static_cast<int>(rest.size()), rest.data(), cut ? " [...] (cut by --tokens)" : "");

    std::printf("time to first token  %8.1f ms\n", first_seconds * 1e3);
    std::printf("prefill              %8.1f tokens/s  (%zu tokens of prompt)\n",
                static_cast<double>(tokens.size()) / prefill_seconds, tokens.size());
    if (decoded > 0) {
        std::printf("decode               %8.1f tokens/s  (%zu tokens)\n",
                    static_cast<double>(decoded) / decode_seconds, decoded);
    }
    std::printf("weights mapped       %8.1f MB  (as they lie in the file, never copied)\n", megabytes(weights.bytes()));
    if (const auto memory = examples::resident_memory()) {
        std::printf("resident memory      %8.1f MB  (%.1f MB of mapped files, %.1f MB of its own)\n",
                    megabytes(memory->total()), megabytes(memory->file), megabytes(memory->own));
    }
}

constexpr const char* usage =
    "usage: experiment --model FILE.gguf [--prompt TEXT] [--threads N] [--tokens N]\n"
    "  --prompt   the question (default: why the sky is blue)\n"
    "  --threads  how many threads work (default: one per processor)\n"
    "  --tokens   longest answer, in tokens (default: 200)\n";

}  // namespace

int main(int argc, char** argv) try {
    const examples::Options options(argc, argv, {"--model", "--prompt", "--threads", "--tokens"});
    const std::string model = options.text("--model", "");
    if (model.empty()) throw examples::UsageError("--model is missing");
    run(model, options.text("--prompt", "Why is the sky blue? Explain it in three sentences."),
        options.count("--threads", decant::available_processors(), 1, 1024),
        options.count("--tokens", 200, 1, 1000000));
} catch (const examples::UsageError& error) {
    std::fprintf(stderr, "experiment: %s\n%s", error.what(), usage);
    return 2;
} catch (const std::exception& error) {
    std::fprintf(stderr, "experiment: %s\n", error.what());
    return 1;
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// How well a model predicts a text, and how far its predictions are from those of another one.
//
//     evaluate --model FILE --text FILE [--reference eigen|f32|FILE] [--as DTYPE] [--cache DTYPE]
//              [--tokens N] [--chunk N] [--threads N] [--json FILE]
//
// The text is cut into chunks, each read by an empty cache; if the tokenizer asks for a beginning-of-sequence token, it
// takes the place of a chunk's first token. The first half of a chunk is context, the tokens of the second half are
// scored (the protocol of llama.cpp's perplexity program, so that numbers can be compared).

#include <decant/decant.hpp>
#include <decant/quant/requantize.hpp>

#include "support/dtype_named.hpp"
#include "support/options.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Tokens = std::span<const decant::Token>;

constexpr std::uint32_t context_rows = 256;
constexpr std::uint32_t scored_rows = 32;  // logits that are kept at once, whatever the length of a chunk

/// A model that reads one chunk after the other.
class Reader {
 public:
    Reader() = default;
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    virtual ~Reader() = default;
    virtual void clear() = 0;
    virtual void skip(Tokens tokens) = 0;
    virtual decant::Logits score(Tokens tokens) = 0;
    [[nodiscard]] virtual const decant::ModelSpec& spec() const = 0;
};

template <class B>
class ReaderOn final : public Reader {
 public:
    ReaderOn(const decant::Weights& weights, decant::ThreadPool& pool, std::size_t chunk, decant::DType cache)
        : context_(decant::Model<B>::bind(weights).value(), pool,
                   {.rows = context_rows, .sequences = 1, .logits = scored_rows}),
          cache_(context_, {.tokens = chunk, .dtype = cache}),
          sequence_(cache_.sequence().value()) {}

    void clear() override { sequence_.truncate(0); }
    void skip(Tokens tokens) override {
        while (!tokens.empty()) {
            const Tokens piece = tokens.first((std::min)(tokens.size(), std::size_t{context_rows}));
            tokens = tokens.subspan(piece.size());
            static_cast<void>(context_.pass({{&sequence_, piece, decant::Want::none}}).value());
        }
    }
    decant::Logits score(Tokens tokens) override {
        return context_.pass({{&sequence_, tokens, decant::Want::all}}).value();
    }
    [[nodiscard]] const decant::ModelSpec& spec() const override { return context_.spec(); }

 private:
    decant::Context<B> context_;
    decant::KvCache<B> cache_;
    decant::Sequence<B> sequence_;
};

/// What one row of logits says.
struct Prediction {
    std::size_t best = 0;
    double log_sum = 0.0;  // of the exponentials of all logits

    explicit Prediction(std::span<const float> logits) {
        best = static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        const double highest = logits[best];
        double sum = 0.0;
        for (const float logit : logits) sum += std::exp(logit - highest);
        log_sum = highest + std::log(sum);
    }
};

/// What is kept of one scored token.
struct Score {
    double surprise = 0.0;            // -log probability of the token that came, by the model
    double reference_surprise = 0.0;  // and by the reference
    double divergence = 0.0;          // KL(reference || model)
    bool agrees = false;              // the same most probable token
};

Score score_row(std::span<const float> logits, std::span<const float> reference, std::size_t next) {
    Score score;
    const Prediction model(logits);
    score.surprise = model.log_sum - logits[next];
    if (reference.empty()) return score;
    const Prediction expected(reference);
    score.reference_surprise = expected.log_sum - reference[next];
    score.agrees = model.best == expected.best;
    double sum = 0.0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const double log_probability = reference[i] - expected.log_sum;
        sum += std::exp(log_probability) * (log_probability - (logits[i] - model.log_sum));
    }
    score.divergence = sum;
    return score;
}

struct Mean {
    double value = 0.0;
    double error = 0.0;  // standard error, as if tokens were independent
};

template <class Value>
Mean mean_of(const std::vector<Score>& scores, Value value) {
    const auto count = static_cast<double>(scores.size());
    Mean mean;
    for (const Score& score : scores) mean.value += value(score) / count;
    double variance = 0.0;
    for (const Score& score : scores) variance += std::pow(value(score) - mean.value, 2) / count;
    if (scores.size() > 1) mean.error = std::sqrt(variance / (count - 1));
    return mean;
}

Mean perplexity_of(Mean surprise) {
    const double perplexity = std::exp(surprise.value);
    return {perplexity, perplexity * surprise.error};
}

/// The value that a share of sorted values lies below, interpolated.
double quantile(const std::vector<double>& sorted, double share) {
    const double at = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const auto above = (std::min)(below + 1, sorted.size() - 1);
    return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

/// All that is reported.
struct Summary {
    std::size_t tokens = 0;
    Mean perplexity;
    Mean reference_perplexity;
    Mean log_ratio;  // of the perplexities, model to reference
    Mean divergence;
    double median = 0.0, most_of = 0.0, largest = 0.0;  // of the divergences; `most_of`: 99 %
    Mean agreement;

    Summary(const std::vector<Score>& scores, bool compared) : tokens(scores.size()) {
        perplexity = perplexity_of(mean_of(scores, [](const Score& s) { return s.surprise; }));
        if (!compared) return;
        reference_perplexity = perplexity_of(mean_of(scores, [](const Score& s) { return s.reference_surprise; }));
        log_ratio = mean_of(scores, [](const Score& s) { return s.surprise - s.reference_surprise; });
        divergence = mean_of(scores, [](const Score& s) { return s.divergence; });
        agreement = mean_of(scores, [](const Score& s) { return s.agrees ? 1.0 : 0.0; });
        std::vector<double> sorted;
        for (const Score& score : scores) sorted.push_back(score.divergence);
        std::sort(sorted.begin(), sorted.end());
        median = quantile(sorted, 0.5);
        most_of = quantile(sorted, 0.99);
        largest = sorted.back();
    }

    void print(bool compared) const {
        std::printf("%zu tokens scored\n", tokens);
        std::printf("perplexity            %12.5f +- %.5f\n", perplexity.value, perplexity.error);
        if (!compared) return;
        std::printf("  of the reference    %12.5f +- %.5f\n", reference_perplexity.value, reference_perplexity.error);
        std::printf("  ratio               %12.5f +- %.5f\n", std::exp(log_ratio.value),
                    std::exp(log_ratio.value) * log_ratio.error);
        std::printf("KL divergence, mean   %12.6f +- %.6f nats\n", divergence.value, divergence.error);
        std::printf("  median, 99 %%, most  %12.6f, %.6f, %.6f\n", median, most_of, largest);
        std::printf("same first choice     %12.2f +- %.2f %%\n", 100.0 * agreement.value, 100.0 * agreement.error);
    }

    [[nodiscard]] nlohmann::json json(bool compared) const {
        const auto pair = [](Mean mean) { return nlohmann::json{{"value", mean.value}, {"error", mean.error}}; };
        nlohmann::json out{{"tokens", tokens}, {"perplexity", pair(perplexity)}};
        if (!compared) return out;
        out["reference_perplexity"] = pair(reference_perplexity);
        out["log_perplexity_ratio"] = pair(log_ratio);
        out["kl_divergence"] = pair(divergence);
        out["kl_divergence_median"] = median;
        out["kl_divergence_99"] = most_of;
        out["kl_divergence_most"] = largest;
        out["agreement"] = pair(agreement);
        return out;
    }
};

std::string read_text(const std::string& path) {
    std::ifstream in(std::filesystem::path(path), std::ios::binary);
    if (!in) throw std::runtime_error(path + " cannot be read");
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Scores the second half of a chunk.
void read_chunk(Tokens chunk, Reader& model, Reader* reference, decant::ThreadPool& pool, std::vector<Score>& scores) {
    const std::size_t first = chunk.size() / 2;
    for (Reader* reader : {&model, reference}) {
        if (reader == nullptr) continue;
        reader->clear();
        reader->skip(chunk.first(first));
    }
    // The last token has no successor here.
    for (std::size_t at = first; at + 1 < chunk.size();) {
        const Tokens piece = chunk.subspan(at, (std::min)(std::size_t{scored_rows}, chunk.size() - 1 - at));
        const decant::Logits logits = model.score(piece);
        const decant::Logits expected = reference != nullptr ? reference->score(piece) : decant::Logits();
        const std::size_t base = scores.size();
        scores.resize(base + piece.size());
        auto task = [&](std::size_t row) {
            const auto next = static_cast<std::size_t>(decant::id(chunk[at + row + 1]));
            scores[base + row] =
                score_row(logits.row(row), expected.rows() == 0 ? std::span<const float>() : expected.row(row), next);
        };
        pool.parallel_for(piece.size(),
                          {&task, [](void* object, std::size_t row) { (*static_cast<decltype(task)*>(object))(row); }});
        at += piece.size();
    }
}

void run(const examples::Options& options) {
    const std::string path = options.text("--model", "");
    const std::string text_path = options.text("--text", "");
    if (path.empty()) throw examples::UsageError("--model is missing");
    if (text_path.empty()) throw examples::UsageError("--text is missing");
    const std::string reference_path = options.text("--reference", "");
    const std::string build = options.text("--as", "");
    const decant::DType cache = examples::dtype_named("--cache", options.text("--cache", "f16"));
    const std::size_t chunk = options.count("--chunk", 512, 8, 1 << 20);
    const std::size_t most = options.count("--tokens", ~std::size_t{0}, chunk, ~std::size_t{0});
    decant::ThreadPool pool(options.count("--threads", 0, 0, 1024));

    const auto file = decant::Weights::open(path).value();
    const auto tokenizer = decant::Tokenizer::from(file).value();
    std::vector<decant::Token> tokens = tokenizer.encode(read_text(text_path), {.bos = true});

    auto judged = file;
    if (!build.empty()) judged = decant::requantize(file, examples::dtype_named("--as", build)).value();
    ReaderOn<decant::Simd> model(judged, pool, chunk, cache);
    std::unique_ptr<Reader> reference;
    if (reference_path == "eigen") {
        reference = std::make_unique<ReaderOn<decant::Eigen>>(file, pool, chunk, decant::DType::f32);
    } else if (reference_path == "f32") {
        const auto exact = decant::requantize(file, decant::DType::f32).value();
        reference = std::make_unique<ReaderOn<decant::Simd>>(exact, pool, chunk, decant::DType::f32);
    } else if (!reference_path.empty()) {
        const auto other = decant::Weights::open(reference_path).value();
        const auto their = decant::Tokenizer::from(other).value();
        if (their.size() != tokenizer.size() || their.encode(read_text(text_path), {.bos = true}) != tokens)
            throw std::runtime_error("the tokenizers of " + path + " and " + reference_path + " do not agree");
        reference = std::make_unique<ReaderOn<decant::Simd>>(other, pool, chunk, decant::DType::f32);
    }
    if (reference && reference->spec().vocabulary != model.spec().vocabulary)
        throw std::runtime_error("the models have vocabularies of different sizes");
    if (chunk > model.spec().context_length) throw examples::UsageError("--chunk is longer than the model's context");

    const std::size_t chunks = (std::min)(most, tokens.size()) / chunk;
    if (chunks == 0) {
        throw std::runtime_error(text_path + " has " + std::to_string(tokens.size()) + " tokens, and one chunk takes " +
                                 std::to_string(chunk));
    }
    for (const decant::Token token : tokens) {
        if (static_cast<std::size_t>(decant::id(token)) < model.spec().vocabulary) continue;
        throw std::runtime_error(judged.name() + ": the tokenizer gives token " + std::to_string(decant::id(token)) +
                                 ", the model has " + std::to_string(model.spec().vocabulary));
    }
    std::printf("%s on %s, cache %s\n", judged.name().c_str(),
                std::string(decant::name(decant::Simd().kernels().isa())).c_str(),
                std::string(decant::name(cache)).c_str());
    if (reference) {
        std::printf("against %s, cache F32\n", reference_path == "eigen" ? "the file on Eigen"
                                               : reference_path == "f32" ? "the file expanded to F32"
                                                                         : reference_path.c_str());
    }
    std::printf("%zu chunks of %zu tokens of %s\n\n", chunks, chunk, text_path.c_str());
    std::fflush(stdout);

    std::vector<Score> scores;
    const auto start = Clock::now();
    for (std::size_t i = 0; i < chunks; ++i) {
        const auto piece = std::span(tokens).subspan(i * chunk, chunk);
        if (tokenizer.adds_bos() && tokenizer.bos()) piece.front() = *tokenizer.bos();
        read_chunk(piece, model, reference.get(), pool, scores);
        const Summary now(scores, reference != nullptr);
        std::fprintf(stderr, "chunk %zu of %zu: perplexity %.4f", i + 1, chunks, now.perplexity.value);
        if (reference) std::fprintf(stderr, ", KL %.6f", now.divergence.value);
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        std::fprintf(stderr, ", %.0f s left\n",
                     seconds / static_cast<double>(i + 1) * static_cast<double>(chunks - i - 1));
    }

    const Summary summary(scores, reference != nullptr);
    summary.print(reference != nullptr);
    if (const std::string json = options.text("--json", ""); !json.empty()) {
        auto out = summary.json(reference != nullptr);
        out["model"] = judged.name();
        out["reference"] = reference_path;
        out["chunk"] = chunk;
        std::ofstream stream{std::filesystem::path(json)};
        stream << out.dump(2) << '\n';
        if (!stream.flush()) throw std::runtime_error(json + " cannot be written");
    }
}

constexpr const char* usage =
    "usage: evaluate --model FILE --text FILE [options]\n"
    "  --model      a GGUF file\n"
    "  --reference  eigen: the same file in F32 arithmetic, on the Eigen backend;\n"
    "               f32: the same, of an expansion to F32 on the Simd backend (faster, more memory); or another file\n"
    "  --as         judge a build made of the file: Q4_0, Q4_1, Q8_0, BF16, F16 or F32\n"
    "  --cache      entries of the judged model's cache: f16 (default), f32, bf16, q8_0 or q4_0\n"
    "  --tokens     how much of the text is read, in tokens (default: all)\n"
    "  --chunk      tokens of a chunk, whose second half is scored (default: 512)\n"
    "  --threads    how many threads work (default: one per processor)\n"
    "  --json       where to write the numbers\n";

}  // namespace

int main(int argc, char** argv) try {
    run({argc,
         argv,
         {"--model", "--text", "--reference", "--as", "--cache", "--tokens", "--chunk", "--threads", "--json"}});
} catch (const examples::UsageError& error) {
    std::fprintf(stderr, "evaluate: %s\n%s", error.what(), usage);
    return 2;
} catch (const std::exception& error) {
    std::fprintf(stderr, "evaluate: %s\n", error.what());
    return 1;
}

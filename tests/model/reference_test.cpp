// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Whole models against what transformers computed from the same files in F32 (tests/data/real). The tiny models:
// architectures_test.cpp.
#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/thread_pool.hpp>
#include <decant/model/context.hpp>

#include "core/sanitizers.hpp"
#include "model/support.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

using decant::Context;
using decant::DType;
using decant::KvCache;
using decant::PassPart;
using decant::Sequence;
using decant::ThreadPool;
using decant::Token;
using decant::Want;
using decant_test::Floats;

namespace {

struct Peak {
    std::int32_t id = 0;
    float gap = 0.0f;  // to the second
};

Peak peak_of(std::span<const float> logits) {
    const auto best = std::max_element(logits.begin(), logits.end());
    float second = -INFINITY;
    for (auto at = logits.begin(); at != logits.end(); ++at)
        if (at != best) second = (std::max)(second, *at);
    return {static_cast<std::int32_t>(best - logits.begin()), *best - second};
}

/// -log of the probability of `token`.
double surprise(std::span<const float> logits, Token token) {
    const double highest = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(logit - highest);
    return highest + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(decant::id(token))]);
}

/// A vector of F16 numbers in NumPy's format, version 1.0: magic, version, u16 header length, header, data.
Floats read_npy_halves(const std::filesystem::path& path) {
    const std::vector<char> file = decant_test::read_file(path);
    REQUIRE(file.size() > 10);
    std::uint16_t header = 0;
    std::memcpy(&header, file.data() + 8, sizeof header);
    REQUIRE(decant_test::contains(std::string(file.data() + 10, header), "'<f2'"));
    Floats values((file.size() - 10 - header) / 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, file.data() + 10 + header + 2 * i, sizeof bits);
        values[i] = decant::half_to_float(bits);
    }
    return values;
}

/// What one model made of one prompt of the reference.
struct Run {
    std::vector<Peak> peaks;        // at every position of the prompt
    std::vector<double> surprises;  // of every token but the first
    Floats last;
    std::vector<Peak> steps;  // 48 greedy steps, fed with the reference's tokens
};

/// All prompts in passes of many rows, then their continuations together, one token of each per pass. Feeding the
/// reference's tokens makes every step comparable, also after a near tie.
template <class B>
std::vector<Run> run_all(const std::filesystem::path& file, const nlohmann::json& prompts, DType dtype,
                         std::size_t steps) {
    constexpr std::uint32_t rows = 128;
    const auto model = decant_test::bind<B>(decant_test::taken(decant::Weights::open(file)));
    Context context(model, ThreadPool{}, {.rows = rows, .sequences = 8, .logits = rows});
    const KvCache cache(context, {.tokens = 2048, .dtype = dtype});
    std::vector<Sequence<B>> sequences;
    std::vector<Run> runs(prompts.size());
    for (std::size_t p = 0; p < prompts.size(); ++p) {
        const auto tokens = decant_test::tokens_of(prompts[p]["ids"]);
        sequences.push_back(decant_test::taken(cache.sequence()));
        for (std::size_t first = 0; first < tokens.size(); first += rows) {
            const auto chunk = std::span(tokens).subspan(first, (std::min)(tokens.size() - first, std::size_t{rows}));
            const auto logits = decant_test::taken(context.pass({{&sequences.back(), chunk, Want::all}}));
            REQUIRE(logits.rows() == chunk.size());
            for (std::size_t r = 0; r < chunk.size(); ++r) {
                runs[p].peaks.push_back(peak_of(logits.row(r)));
                if (first + r + 1 < tokens.size())
                    runs[p].surprises.push_back(surprise(logits.row(r), tokens[first + r + 1]));
            }
            runs[p].last = decant_test::row(logits, chunk.size() - 1);
        }
        runs[p].steps.push_back(runs[p].peaks.back());
    }
    for (std::size_t step = 1; step < steps; ++step) {
        std::vector<Token> fed;
        for (const auto& prompt : prompts) fed.push_back(Token{prompt["greedy_ids"][step - 1].get<int>()});
        std::vector<PassPart<B>> parts;
        for (std::size_t p = 0; p < prompts.size(); ++p) parts.push_back({&sequences[p], {&fed[p], 1}, Want::last});
        const auto logits = decant_test::taken(context.pass(parts));
        for (std::size_t p = 0; p < prompts.size(); ++p) runs[p].steps.push_back(peak_of(logits.row(p)));
    }
    return runs;
}

double mean(const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
}

/// Largest difference to the twenty likeliest logits of the reference.
double top_difference(const nlohmann::json& prompt, const Floats& logits) {
    double most = 0.0;
    for (const auto& entry : prompt["last_top20"])
        most = (std::max)(most, std::abs(logits[entry[0].get<std::size_t>()] - entry[1].get<double>()));
    return most;
}

std::size_t argmax_flips(const nlohmann::json& prompt, const Run& run) {
    std::size_t flips = 0;
    for (std::size_t i = 0; i < run.peaks.size(); ++i) flips += run.peaks[i].id != prompt["argmax"][i].get<int>();
    return flips;
}

}  // namespace

namespace {

/// The model against the reference in tests/data/real/<folder>; with `Eigen` only the prompts of at most `longest`
/// tokens.
void check_real(const std::filesystem::path& file, const std::string& folder, std::size_t longest) {
    const auto reference = decant_test::read_json(decant_test::data("real/" + folder + "/reference.json"));
    // Eigen takes a quarter of an hour for all of it under a sanitizer: there the shortest prompt must do.
    constexpr bool all = !DECANT_TEST_SANITIZED;
    nlohmann::json prompts = nlohmann::json::array();
    for (const auto& prompt : reference["prompts"])
        if (prompt["ids"].size() <= longest) prompts.push_back(prompt);
    if (!all) prompts = nlohmann::json::array({prompts[0]});
    const std::size_t steps = all ? prompts[0]["greedy_ids"].size() : 3;
    const std::vector<Run> exact = run_all<decant::Eigen>(file, prompts, DType::f32, steps);
    const std::vector<Run> fast = run_all<decant::Simd>(file, prompts, DType::f16, steps);

    std::size_t positions = 0;
    std::size_t flips = 0;
    for (std::size_t p = 0; p < prompts.size(); ++p) {
        const auto& prompt = prompts[p];
        const std::string name = prompt["name"];
        INFO(name);
        const double deviation = prompt["last_logits_stats"]["std"];
        const double tolerance = 1e-3 * deviation;
        {
            const Run& run = exact[p];
            REQUIRE(run.peaks.size() == prompt["argmax"].size());
            CHECK(top_difference(prompt, run.last) <= tolerance);
            if (prompt.contains("last_logits_f16")) {
                const Floats whole =
                    read_npy_halves(decant_test::data("real/" + folder + "/" + name + ".last_logits.f16.npy"));
                REQUIRE(whole.size() == run.last.size());
                double most = 0.0;
                for (std::size_t i = 0; i < whole.size(); ++i) {
                    const double rounding = std::abs(whole[i]) * 0x1.0p-11;  // half a unit of F16
                    most = (std::max)(most, std::abs(static_cast<double>(whole[i]) - run.last[i]) - rounding);
                }
                CHECK(most <= tolerance);
            }
            // The reference keeps its gap for the last position and the greedy steps; in between ours stands for it,
            // which the logits' tolerance makes the same within 2e-3 deviations.
            for (std::size_t i = 0; i < run.peaks.size(); ++i) {
                INFO("position " << i << ", our gap " << run.peaks[i].gap);
                CHECK((run.peaks[i].id == prompt["argmax"][i].get<int>() || run.peaks[i].gap <= 0.01f));
            }
            for (std::size_t i = 0; i < run.steps.size(); ++i) {
                INFO("step " << i << ", gap " << prompt["greedy_top1_margin"][i].get<float>());
                CHECK((run.steps[i].id == prompt["greedy_ids"][i].get<int>() ||
                       prompt["greedy_top1_margin"][i].get<float>() <= 0.01f));
            }
            CHECK(mean(run.surprises) == Approx(prompt["mean_nll"].get<double>()).margin(1e-4));
            if (prompt.contains("token_nll")) {
                REQUIRE(run.surprises.size() == prompt["token_nll"].size());
                for (std::size_t i = 0; i < run.surprises.size(); ++i)
                    CHECK(run.surprises[i] == Approx(prompt["token_nll"][i].get<double>()).margin(tolerance));
            }
        }
        {
            const Run& run = fast[p];
            CHECK(top_difference(prompt, run.last) <= 2.2);
            CHECK(mean(run.surprises) == Approx(prompt["mean_nll"].get<double>()).margin(0.05));
            CHECK(mean(run.surprises) == Approx(mean(exact[p].surprises)).margin(0.05));
            positions += run.peaks.size();
            flips += argmax_flips(prompt, run);
            // Eigen's own gap, known at every position: the 8-bit path may flip near ties only.
            for (std::size_t i = 0; i < run.peaks.size(); ++i) {
                INFO("position " << i);
                CHECK((run.peaks[i].id == exact[p].peaks[i].id || exact[p].peaks[i].gap <= 2.2f));
            }
            std::size_t agree = 0;
            for (std::size_t i = 0; i < run.steps.size(); ++i) agree += run.steps[i].id == exact[p].steps[i].id;
            if (all) CHECK(agree * 100 >= run.steps.size() * 85);
        }
    }
    INFO(flips << " of " << positions << " argmaxes differ");
    if (all) CHECK(flips * 100 < positions * 9);
}

}  // namespace

TEST_CASE("SmolLM2 on Eigen equals the F32 reference; Simd stays within the bounds of 8-bit activations", "[model]") {
    check_real(decant_test::smollm2(), "smollm2", 10'000);
}

TEST_CASE("Gemma 3 on Eigen equals the F32 reference; Simd stays within the bounds of 8-bit activations", "[model]") {
    if (!std::filesystem::exists(decant_test::gemma3()))
        DECANT_SKIP("Gemma 3 absent: ../shared/tools/models.sh fetches it");
    check_real(decant_test::gemma3(), "gemma3", 40);
}

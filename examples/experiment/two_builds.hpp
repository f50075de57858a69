// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Chapter 1: full precision and few bits, side by side.

#include "format.hpp"
#include "lab.hpp"
#include "terminal.hpp"

#include "../support/process.hpp"

#include <decant/core/memory.hpp>
#include <decant/quant/requantize.hpp>
#include <decant/text/stream.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace experiment {

/// What the matrices of a file are stored as.
class Storage {
 public:
    explicit Storage(const decant::Weights& weights) {
        for (const decant::Tensor& tensor : weights.tensors()) {
            const std::uint64_t elements = tensor.rows() * tensor.columns();
            parameters_ += elements;
            bytes_ += tensor.bytes.size();
            if (tensor.rows() < 2) continue;
            ++matrices_[std::string(tensor.type_name)];
            by_type_[std::string(tensor.type_name)] += tensor.bytes.size();
            matrix_bytes_ += tensor.bytes.size();
            if (decant::traits(tensor.dtype).block_elements > 1) in_blocks_ += elements;
        }
    }

    [[nodiscard]] std::uint64_t parameters() const { return parameters_; }
    [[nodiscard]] bool full() const { return 2 * in_blocks_ < parameters_; }
    [[nodiscard]] double bits_per_weight() const {
        return 8.0 * static_cast<double>(bytes_) / static_cast<double>(parameters_);
    }
    /// One word: the type that most matrices have.
    [[nodiscard]] std::string label() const {
        const auto most = std::max_element(matrices_.begin(), matrices_.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
        return most == matrices_.end() ? "F32" : most->first;
    }
    /// "Q4_1", or "67 % Q8_0, 20 % Q5_0, ...".
    [[nodiscard]] std::string composition() const {
        std::vector<std::pair<std::uint64_t, std::string>> parts;
        for (const auto& [type, bytes] : by_type_) parts.emplace_back(bytes, type);
        std::sort(parts.rbegin(), parts.rend());
        if (parts.size() == 1) return parts[0].second;
        std::string text;
        for (const auto& [bytes, type] : parts) {
            const double share = static_cast<double>(bytes) / static_cast<double>(matrix_bytes_);
            if (share < 0.005) continue;
            text += (text.empty() ? "" : ", ") + percent(share) + " " + type;
        }
        return text;
    }

 private:
    std::map<std::string, std::size_t> matrices_;
    std::map<std::string, std::uint64_t> by_type_;  // bytes of them
    std::uint64_t parameters_ = 0;
    std::uint64_t bytes_ = 0;
    std::uint64_t matrix_bytes_ = 0;
    std::uint64_t in_blocks_ = 0;
};

class TwoBuilds {
 public:
    explicit TwoBuilds(Lab& lab)
        : lab_(lab),
          text_(lab.tokenizer.encode(essay, {.bos = true})),
          question_(lab.encode_prompt(lab.settings.prompt)) {}

    void run() {
        lab_.results.builds.prompt = lab_.settings.prompt;
        const bool full = Storage(lab_.weights).full();
        add(true, [&] { return lab_.weights; });
        std::string refused;
        if (auto made = try_add(full ? decant::DType::q4_1 : decant::DType::f32); !made.empty()) refused = made;
        compare(refused);
    }

 private:
    struct Choices {
        Tokens answer;
        Tokens scored;  ///< for every position of the text, what the build thinks comes next
    };

    /// Makes another build and adds it, or says why it cannot.
    std::string try_add(decant::DType dtype) {
        decant::MemoryOptions options;
        if (const auto available = examples::available_memory())
            options.limit = static_cast<std::size_t>(static_cast<double>(*available) * 0.7);
        std::optional<decant::Error> error;
        add(false, [&]() -> std::optional<decant::Weights> {
            examples::Progress line("making a second build");
            auto made = decant::requantize(lab_.weights, dtype,
                                           {.progress = [&](decant::Progress p) { line.show(p.done, p.total); }},
                                           decant::Memory(options));
            if (made) return *std::move(made);
            error = made.error();
            return {};
        });
        return error ? error->message() : std::string();
    }

    template <class Open>
    void add(bool given, Open open) {
        const auto before = examples::resident_memory();
        const examples::Stopwatch opening;
        std::optional<decant::Weights> weights = open();
        if (!weights) return;
        auto engine = std::make_unique<Engine>(*weights, lab_.pool);
        for (const decant::LayerSpec& layer : engine->spec().layers) {
            if (layer.attends()) continue;
            throw decant::Exception({decant::ErrorCode::unsupported, "layers without attention", weights->name(),
                                     "the experiment is about keys and values: take a model of attention layers"});
        }

        Build build;
        build.ready_seconds = opening.seconds();
        build.given = given;
        const Storage storage(*weights);
        build.full = storage.full();
        build.label = storage.label();
        build.weight_bytes = weights->bytes();
        build.bits_per_weight = storage.bits_per_weight();
        build.origin = origin(build, storage);
        if (given) {
            lab_.results.parameters = storage.parameters();
            lab_.results.family = engine->spec().family;
            lab_.results.context_length = engine->spec().context_length;
            lab_.results.layers = engine->spec().layers.size();
        }
        print_line("\n  " + printable(build.label) + ": " + printable(build.origin) + ", " +
                   megabytes(build.weight_bytes) + ", ready in " + duration(build.ready_seconds));

        Choices choices;
        answer(*engine, build, choices);
        time_both_phases(*engine, build);
        if (const auto after = examples::resident_memory(); before && after) {
            const auto growth = [](std::uint64_t from, std::uint64_t to) { return to > from ? to - from : 0; };
            build.resident = Resident{growth(before->own, after->own), growth(before->file, after->file)};
        }
        score(*engine, choices);

        // Full precision comes first in the reports.
        const bool first = build.full;
        auto& builds = lab_.results.builds.builds;
        builds.insert(first ? builds.begin() : builds.end(), std::move(build));
        lab_.engines.insert(first ? lab_.engines.begin() : lab_.engines.end(), std::move(engine));
        choices_.push_back(std::move(choices));
    }

    static std::string origin(const Build& build, const Storage& storage) {
        if (build.given) return "as it lies in the file (" + storage.composition() + ")";
        if (build.full) return "made in memory: every weight of the file, expanded exactly to 32-bit floats";
        return "made in memory: every matrix of the file, rounded to " + storage.composition();
    }

    /// The greedy answer to the user's prompt.
    void answer(Engine& engine, Build& build, Choices& choices) {
        const std::size_t most = lab_.settings.tokens.value_or(lab_.settings.quick ? 40 : 120);
        const Cache cache = engine.cache(question_.size() + most);
        Sequence sequence = cache.sequence().value();
        decant::TextStream stream(lab_.tokenizer);
        print("  > " + printable(lab_.settings.prompt) + "\n  ");
        const auto show = [&](std::string_view piece) {
            if (build.answer.empty()) piece.remove_prefix((std::min)(piece.find_first_not_of(" \n"), piece.size()));
            build.answer += piece;
            print(printable(piece));
        };
        decant::Token token = best_token(engine.prefill(sequence, question_, "reading the question"));
        const examples::Stopwatch writing;
        while (!lab_.tokenizer.ends(token)) {
            choices.answer.push_back(token);
            show(stream.push(token));
            build.answer_cut =
                choices.answer.size() == most || (!lab_.settings.tokens && writing.seconds() > longest_answer);
            if (build.answer_cut) break;
            token = best_token(engine.decode(sequence, token));
        }
        show(stream.finish());
        build.answer_tokens = choices.answer.size();
        print_line(build.answer_cut ? " [...]" : "");
    }

    /// The beginning of the essay is read, best round of a few; the tokens after it are fed one by one.
    void time_both_phases(Engine& engine, Build& build) {
        const std::size_t room = (std::min)(text_.size(), lab_.context_length());
        build.decode_tokens = (std::min)(std::size_t{lab_.settings.quick ? 8u : 32u}, room / 4);
        build.prefill_tokens = (std::min)(room - build.decode_tokens, std::size_t{Engine::chunk} - 64);
        const std::span<const decant::Token> prompt(text_.data(), build.prefill_tokens);
        const std::span<const decant::Token> rest(text_.data() + prompt.size(), build.decode_tokens);

        const Cache cache = engine.cache(room + 1);
        Sequence sequence = cache.sequence().value();
        const auto read = [&] {
            sequence.truncate(0);
            engine.prefill(sequence, prompt, "reading a page");
        };
        build.prefill_work = engine.meter().count(read);
        build.prefill_seconds = examples::seconds_of(read);
        const std::size_t rounds = lab_.settings.quick || build.prefill_seconds > 3.0 ? 0 : 2;
        for (std::size_t round = 0; round < rounds; ++round)
            build.prefill_seconds = (std::min)(build.prefill_seconds, examples::seconds_of(read));

        std::vector<double> seconds;
        examples::Progress line("writing a few words");
        const examples::Stopwatch watch;
        for (const decant::Token token : rest) {
            if (seconds.size() >= 5 && watch.seconds() > 4.0) break;
            seconds.push_back(examples::seconds_of([&] { engine.decode(sequence, token); }));
            line.show(seconds.size(), rest.size());
        }
        build.decode_seconds = examples::median(seconds);
        build.decode_tokens = seconds.size();
        sequence.truncate(prompt.size() + seconds.size() / 2);
        build.decode_work = engine.meter().count([&] { engine.decode(sequence, rest.front()); });
    }

    /// Teacher-forced: whatever a build would have said, the essay goes on as it is written.
    void score(Engine& engine, Choices& choices) {
        const std::size_t count = (std::min)(text_.size(), lab_.context_length());
        const Cache cache = engine.cache(count);
        Sequence sequence = cache.sequence().value();
        examples::Progress line("guessing every next word of a page");
        for (std::size_t first = 0; first < count; first += Engine::scored_rows) {
            const std::size_t rows = (std::min)(std::size_t{Engine::scored_rows}, count - first);
            const std::span<const decant::Token> tokens(text_.data() + first, rows);
            const auto logits = engine.context().pass({{&sequence, tokens, decant::Want::all}}).value();
            for (std::size_t r = 0; r < logits.rows(); ++r) choices.scored.push_back(best_token(logits.row(r)));
            line.show(first, count);
        }
    }

    void compare(const std::string& refused) {
        Builds& builds = lab_.results.builds;
        builds.missing = refused;
        print_line();
        for (const Build& build : builds.builds) {
            print_fact(build.label + ", speed", rate(build.decode_speed()) + " writing",
                       rate(build.prefill_speed()) + " reading");
            if (build.resident) {
                print_fact(build.label + ", resident memory",
                           megabytes(build.resident->own_bytes + build.resident->file_bytes),
                           megabytes(build.resident->own_bytes) + " of its own, " +
                               megabytes(build.resident->file_bytes) + " of the mapped file");
            }
        }
        if (choices_.size() < 2) {
            print_line("  There is no second build: " + printable(refused));
            return;
        }
        const Choices& a = choices_[0];
        const Choices& b = choices_[1];
        builds.scored = a.scored.size();
        for (std::size_t i = 0; i < builds.scored; ++i) builds.agreed += a.scored[i] == b.scored[i] ? 1 : 0;
        const std::size_t shorter = (std::min)(a.answer.size(), b.answer.size());
        while (builds.common_tokens < shorter && a.answer[builds.common_tokens] == b.answer[builds.common_tokens])
            ++builds.common_tokens;
        print_fact("same next word", exact_percent(builds.agreed, builds.scored),
                   "of " + count(builds.scored) + " places in one text that both read");
    }

    static constexpr double longest_answer = 12.0;  // seconds, unless the user said how many tokens

    Lab& lab_;
    Tokens text_;
    Tokens question_;
    std::vector<Choices> choices_;
};

}  // namespace experiment

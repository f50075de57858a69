// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Chapter 6: several tokens of one answer in one pass over the weights, because somebody has guessed them.

#include "format.hpp"
#include "lab.hpp"
#include "terminal.hpp"

#include "../support/contrary.hpp"

#include <decant/serve/engine.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace experiment {

class GuessingAhead {
 public:
    explicit GuessingAhead(Lab& lab) : lab_(lab), large_(*lab.engines.front()) {
        const double patience = lab.settings.quick ? 1.0 : 2.0;  // seconds for one answer
        const auto affordable =
            static_cast<std::size_t>(lab.results.builds.builds.front().decode_speed() * patience) + 16;
        tokens_ = (std::min)({std::size_t{128}, affordable, lab.context_length() / 4});
    }

    void run() {
        Speculation& found = lab_.results.speculation;
        using Drafts = Speculation::Drafts;
        const std::string page(essay.substr(0, essay.find("\n\n")));
        work(found, "copying", "Copy this text word for word:\n\n" + page, {Drafts::none, Drafts::lookup});
        std::vector<Drafts> ways{Drafts::none, Drafts::lookup};
        if (lab_.engines.size() > 1) {
            ways.push_back(Drafts::small);
            if (auto weights = examples::contrary(lab_.engines.back()->weights())) {
                contrary_ = std::make_unique<Engine>(*weights, lab_.pool);
                ways.push_back(Drafts::contrary);
            }
        }
        work(found, "explaining", lab_.settings.prompt, ways);
    }

 private:
    struct Answer {
        Tokens tokens;
        Speculation::Way way;
    };

    void work(Speculation& found, const char* name, const std::string& prompt,
              const std::vector<Speculation::Drafts>& ways) {
        Speculation::Task task;
        task.name = name;
        const Tokens question = lab_.encode_prompt(prompt);
        examples::Progress line(std::string(name) + " with drafts");
        const std::size_t rounds = lab_.settings.quick ? 2 : 3;
        Tokens expected;
        // In turns, so that a moment in which the machine is busy meets all ways.
        for (std::size_t round = 0; round < rounds; ++round) {
            for (std::size_t w = 0; w < ways.size(); ++w) {
                line.show(round * ways.size() + w, rounds * ways.size());
                const bool counted = round == 0;  // counting takes a little time, so that round has none
                Answer answer = write(question, ways[w], counted);
                if (counted) {
                    task.ways.push_back(answer.way);
                    task.ways.back().seconds = 0;
                } else {
                    double& best = task.ways[w].seconds;
                    best = best == 0 ? answer.way.seconds : (std::min)(best, answer.way.seconds);
                }
                if (expected.empty()) expected = answer.tokens;
                task.same = task.same && answer.tokens == expected;
            }
        }
        report(task);
        found.tasks.push_back(std::move(task));
    }

    /// One answer on an engine of its own, so that no way profits from what another has learned or cached.
    Answer write(const Tokens& question, Speculation::Drafts drafts, bool counted) {
        Engine* const drafter = drafts == Speculation::Drafts::small      ? lab_.engines.back().get()
                                : drafts == Speculation::Drafts::contrary ? contrary_.get()
                                                                          : nullptr;
        decant::EngineOptions options;
        options.cache_tokens = options.draft_cache_tokens = question.size() + tokens_ + 64;
        options.sequences = 1;
        options.prefix_cache = false;
        auto engine =
            decant::Engine<Metered>::create(large_.model(), lab_.tokenizer, lab_.pool, options,
                                            drafter != nullptr ? std::optional(drafter->model()) : std::nullopt)
                .value();
        Answer made;
        decant::Ask ask;
        ask.prompt = question;
        ask.sampler = decant::Sampler({.temperature = 0.0f});
        ask.max_tokens = tokens_;
        ask.ignore_end = true;
        ask.draft_tokens = drafts == Speculation::Drafts::none ? 0 : 8;
        ask.listener = [&](const decant::Delta& delta) {
            if (delta.token) made.tokens.push_back(*delta.token);
        };
        static_cast<void>(engine.ask(std::move(ask)).value());
        while (made.tokens.empty()) static_cast<void>(engine.step().value());
        const decant::EngineMetrics before = engine.metrics();
        const std::size_t first = made.tokens.size();
        const auto rest = [&] {
            while (engine.step().value()) {
            }
        };
        Work large, small;
        made.way.seconds = examples::seconds_of([&] {
            if (!counted) return rest();
            const auto with_large = [&] { large = large_.meter().count(rest); };
            drafter != nullptr ? static_cast<void>(small = drafter->meter().count(with_large)) : with_large();
        });
        const decant::EngineMetrics after = engine.metrics();
        made.way.drafts = drafts;
        made.way.tokens = made.tokens.size() - first;
        made.way.passes = after.steps - before.steps;
        made.way.drafted = after.counts.draft_tokens;
        made.way.accepted = after.counts.accepted_tokens;
        made.way.weight_bytes = large.weight_bytes + small.weight_bytes;
        return made;
    }

    void report(const Speculation::Task& task) const {
        const Speculation::Way& plain = task.ways.front();
        for (const Speculation::Way& way : task.ways) {
            std::string note = megabytes(way.weight_bytes_per_token()) + " of weights per token";
            if (way.drafted > 0) {
                note += ", " + rounded(way.tokens_per_pass()) + " tokens per pass, " + percent(way.accepted_share()) +
                        " of " + count(static_cast<std::size_t>(way.drafted)) + " guesses right, " +
                        rounded(way.speed() / plain.speed()) + " times as fast";
            }
            print_fact(task.name + ": " + drafts_text(way.drafts, lab_.small().label), rate(way.speed()), note);
        }
        print_line(task.same ? "  All wrote the same, token for token." : "  They wrote DIFFERENT texts.");
    }

    Lab& lab_;
    Engine& large_;
    std::unique_ptr<Engine> contrary_;
    std::size_t tokens_;
};

}  // namespace experiment

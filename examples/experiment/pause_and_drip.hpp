// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Chapter 2: a long prompt, the pause before the first token, and the rhythm of those after it.

#include "format.hpp"
#include "lab.hpp"
#include "terminal.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace experiment {

/// A prompt of nearly `tokens` tokens: the diary, cut after a day.
[[nodiscard]] inline std::string diary_of(const Lab& lab, std::size_t tokens) {
    constexpr std::size_t sample = 20;
    const std::size_t frame = lab.encode_prompt(diary(0)).size();
    const std::size_t per_day = (lab.encode_prompt(diary(sample)).size() - frame) / sample + 1;
    std::size_t days = tokens > frame ? (tokens - frame) / per_day : 0;
    while (days > 0 && lab.encode_prompt(diary(days)).size() > tokens) days -= 1 + days / 50;
    return diary(days);
}

[[nodiscard]] inline std::size_t words_of(std::string_view text) {
    std::size_t words = 0;
    char before = ' ';
    for (const char c : text) {
        words += (before == ' ' || before == '\n') && c != ' ' && c != '\n' ? 1 : 0;
        before = c;
    }
    return words;
}

inline void pause_and_drip(Lab& lab) {
    PauseAndDrip& found = lab.results.pause;
    Engine& engine = lab.small_engine();
    const std::size_t answer = (std::min)(std::size_t{lab.settings.quick ? 32u : 128u}, lab.context_length() / 4);

    // As long as the model and the reader's patience allow.
    const double patience = lab.settings.quick ? 4.0 : 24.0;  // seconds
    const auto affordable = static_cast<std::size_t>(lab.small().prefill_speed() * patience);
    const std::size_t longest = lab.settings.quick ? 1000 : 4300;
    const std::size_t tokens = (std::min)({longest, lab.context_length() - answer, affordable + 512});
    const std::string prompt = diary_of(lab, tokens);

    const examples::Stopwatch watch;
    lab.long_text = lab.encode_prompt(prompt);
    std::span<const decant::Token> text(lab.long_text);
    const Cache cache = engine.cache(text.size() + answer + 1);
    Sequence sequence = cache.sequence().value();
    decant::Token token{};
    {
        examples::Progress line("reading " + count(words_of(prompt)) + " words");
        found.prefill_work = engine.meter().count([&] {
            for (std::size_t first = 0; first < text.size(); first += Engine::chunk) {
                const auto chunk = text.subspan(first, (std::min)(std::size_t{Engine::chunk}, text.size() - first));
                // Long texts slow down as they go on: what takes too long ends with the next chunk.
                if (watch.seconds() > patience) text = text.first(first + chunk.size());
                const bool last = first + chunk.size() == text.size();
                const auto show = [&](decant::Progress p) {
                    line.show(first * p.total + chunk.size() * p.done, text.size() * p.total);
                };
                const auto logits =
                    engine.context()
                        .pass({{&sequence, chunk, last ? decant::Want::last : decant::Want::none}}, {.progress = show})
                        .value();
                if (last) token = best_token(logits);
                found.chunks.push_back({first + chunk.size(), watch.seconds(), bytes_in_use(cache)});
            }
        });
    }
    found.first_token_seconds = watch.seconds();
    found.prompt_tokens = text.size();
    found.prompt_words = text.size() == lab.long_text.size() ? words_of(prompt) : words_of(lab.tokenizer.decode(text));

    examples::Progress line("writing " + count(answer) + " tokens");
    for (std::size_t i = 0; i < answer; ++i) {
        found.token_seconds.push_back(
            examples::seconds_of([&] { token = best_token(engine.decode(sequence, token)); }));
        line.show(i, answer);
    }
    found.median_seconds = examples::median(found.token_seconds);
    found.chunks.push_back({sequence.size(), watch.seconds(), bytes_in_use(cache)});
    sequence.truncate(text.size() + answer / 2);
    found.decode_work = engine.meter().count([&] { engine.decode(sequence, token); });

    print_fact("the prompt", count(found.prompt_words) + " words", count(found.prompt_tokens) + " tokens");
    print_fact("the pause", duration(found.first_token_seconds), "until the first token");
    print_fact("the drip", duration(found.median_seconds) + " per token",
               "reads " + megabytes(found.decode_work.bytes()) +
                   " each time: " + megabytes(found.decode_work.weight_bytes) + " of weights, " +
                   megabytes(found.decode_work.cache_bytes) + " of cache");
}

}  // namespace experiment

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// An agent that looks after a greenhouse: it calls a tool again and again, and its context grows. The tool is played
/// by a table; what counts is the work that a call of the model makes.

#include "progress.hpp"
#include "timing.hpp"

#include <decant/serve/engine.hpp>
#include <decant/text/tokenizer.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace examples {

class Greenhouse {
 public:
    /// One call of the model.
    struct Call {
        std::size_t context = 0;     ///< tokens of the prompt
        std::size_t added = 0;       ///< of them, what the tool said since the last call; in the first, all
        std::uint64_t computed = 0;  ///< of them
        double first = 0.0;          ///< seconds to the first token
        double bytes = 0.0;          ///< moved by the passes of the call, by the engine's metrics
        double operations = 0.0;     ///< of them, multiply-adds
    };
    struct Run {
        std::vector<Call> calls;
        std::vector<decant::Token> written;  ///< by the model, in all calls
        double seconds = 0.0;

        [[nodiscard]] std::uint64_t computed() const {
            std::uint64_t all = 0;
            for (const Call& call : calls) all += call.computed;
            return all;
        }
        /// What the calls may compute at most with the cache of prefixes: what was added, and in each call a block,
        /// since only full ones are remembered.
        [[nodiscard]] std::uint64_t most_with_cache(std::uint32_t block_tokens) const {
            std::uint64_t all = 0;
            for (const Call& call : calls) all += call.added + block_tokens;
            return all;
        }
    };

    /// `calls` of the model, each of `answer` tokens.
    Greenhouse(const decant::Tokenizer& tokenizer, std::size_t calls, std::size_t answer)
        : first_(tokenizer.encode(system_prompt, {.bos = true})), answer_(answer) {
        for (std::size_t call = 0; call < calls; ++call) results_.push_back(tokenizer.encode(tool_result(call)));
    }

    [[nodiscard]] decant::EngineOptions options(bool prefix_cache) const {
        decant::EngineOptions made;
        made.cache_tokens = tokens() + 2 * made.block_tokens;
        made.rows = 512;
        made.prefix_cache = prefix_cache;
        return made;
    }
    /// Of the context in the end.
    [[nodiscard]] std::size_t tokens() const {
        std::size_t all = first_.size();
        for (const auto& result : results_) all += result.size() + answer_;
        return all;
    }

    /// All calls, one after another, on an engine made with `options`. Throws `decant::Exception`.
    template <decant::Backend B>
    [[nodiscard]] Run play(decant::Engine<B>& engine, const char* task) const {
        Progress progress(task);
        Run run;
        std::vector<decant::Token> context = first_;
        const Stopwatch all;
        for (const std::vector<decant::Token>& result : results_) {
            progress.show(run.calls.size(), results_.size());
            context.insert(context.end(), result.begin(), result.end());
            const decant::EngineMetrics before = engine.metrics();
            Call call;
            call.context = context.size();
            call.added = result.size() + (run.calls.empty() ? first_.size() : 0);
            const Stopwatch watch;
            decant::Ask ask;
            ask.prompt = context;
            ask.max_tokens = answer_;
            ask.ignore_end = true;
            ask.listener = [&](const decant::Delta& delta) {
                if (!delta.token) return;
                if (call.first == 0.0) call.first = watch.seconds();
                context.push_back(*delta.token);
                run.written.push_back(*delta.token);
            };
            static_cast<void>(engine.ask(std::move(ask)).value());
            while (engine.step().value()) {
            }
            const decant::EngineMetrics after = engine.metrics();
            call.computed = after.counts.prompt_tokens - before.counts.prompt_tokens;
            call.bytes = after.bytes - before.bytes;
            call.operations = after.operations - before.operations;
            run.calls.push_back(call);
        }
        run.seconds = all.seconds();
        return run;
    }

 private:
    static constexpr std::string_view system_prompt =
        "You look after a greenhouse. You have these tools:\n"
        "read_sensor(bed): temperature, moisture and light of a bed.\n"
        "water(bed, litres): opens the valve of a bed.\n"
        "open_roof(percent): lets warm air out.\n"
        "note(text): writes into the gardener's book.\n"
        "Answer with one call of a tool, in one line, and wait for its result.\n\n";

    static std::string tool_result(std::size_t call) {
        constexpr std::string_view beds[] = {"tomatoes", "basil", "cucumbers", "orchids", "seedlings"};
        return "\nResult " + std::to_string(call + 1) + ": bed of " + std::string(beds[call % std::size(beds)]) +
               ", temperature " + std::to_string(17 + call * 7 % 15) + " degrees, moisture " +
               std::to_string(20 + call * 13 % 60) + " percent, light " + std::to_string(200 + call * 37 % 700) +
               " lux. The next call:\n";
    }

    std::vector<decant::Token> first_;
    std::vector<std::vector<decant::Token>> results_;
    std::size_t answer_;
};

}  // namespace examples

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Intake`: what an engine is asked, or is to go on with, becomes a `Job`, once it has been looked at; and a `Job`
/// becomes bytes.

#include <decant/backend/concept.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/model/context.hpp>
#include <decant/model/model.hpp>
#include <decant/serve/ask.hpp>
#include <decant/serve/block_manager.hpp>
#include <decant/serve/draft.hpp>
#include <decant/serve/job.hpp>
#include <decant/serve/metrics.hpp>
#include <decant/serve/request.hpp>
#include <decant/serve/saved_answer.hpp>
#include <decant/text/stop_strings.hpp>
#include <decant/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Refers to the other parts of its engine.
template <Backend B>
class Intake {
 public:
    Intake(const EngineOptions& options, const Model<B>& model, const Tokenizer& tokenizer,
           const BlockManager<B>& blocks, const EngineMetrics& metrics)
        : options_(options), model_(model), tokenizer_(tokenizer), blocks_(blocks), metrics_(metrics) {}

    /// A job without a name that has not run. Errors: `invalid_argument` as `Engine::ask` says.
    [[nodiscard]] Result<std::unique_ptr<Job<B>>> make(Ask wanted) const {
        DECANT_CHECK(validate(wanted));
        auto job = begin(wanted);
        job->ask = std::make_shared<const Ask>(std::move(wanted));
        return job;
    }

    [[nodiscard]] std::vector<std::byte> save(const Job<B>& job) const {
        SavedAnswer state{{}, job.answer, job.split, job.written, std::string(job.stops.held()), {}};
        if (job.request) state.request = job.request->save();
        return save_answer(*job.ask, state, model_.fingerprint());
    }
    /// What `save` made, anywhere, and a sequence with what is known of its cache. Errors: as `Engine::restore` says.
    [[nodiscard]] Result<std::unique_ptr<Job<B>>> load(std::span<const std::byte> saved,
                                                       std::function<void(const Delta&)> listener,
                                                       std::optional<Sequence<B>> computed) const {
        DECANT_TRY(SavedAnswer state, read_answer(saved, model_.fingerprint()));
        DECANT_CHECK(validate(state.ask));
        Sequence<B> sequence = blocks_.empty_sequence();
        if (computed && !computed->shares_cache(sequence)) {
            return Error{ErrorCode::mismatch, "a sequence of another cache", {}, "import into what `room` gives"};
        }
        auto job = begin(state.ask);
        const bool free_text = !job->stops.push(state.held).empty();
        if (free_text || job->stops.found() || state.written >= (std::max)(state.ask.max_tokens, std::size_t{1})) {
            return Error{ErrorCode::bad_format, "its state is none that an answer can have", {}, "save it again"};
        }
        job->answer = state.answer;
        job->split = state.split;
        job->written = static_cast<std::size_t>(state.written);
        job->last = Job<B>::Clock::now();
        if (!state.request.empty()) {
            DECANT_TRY(auto request,
                       Request<B>::load(state.request, std::move(computed).value_or(std::move(sequence)), tokenizer_));
            DECANT_CHECK(check_tokens(request.tokens(), model_.spec().vocabulary, "its tokens"));
            if (request.waiting().empty()) {
                return Error{
                    ErrorCode::mismatch, "a sequence of all its tokens", {}, "import the frames saved with it"};
            }
            job->request.emplace(std::move(request));
        }
        state.ask.listener = std::move(listener);
        job->ask = std::make_shared<const Ask>(std::move(state.ask));
        return job;
    }

 private:
    [[nodiscard]] Result<void> validate(const Ask& wanted) const {
        const auto invalid = [](std::string what, std::string hint) {
            return Error{ErrorCode::invalid_argument, std::move(what), "Engine::ask", std::move(hint)};
        };
        if (wanted.prompt.empty()) return invalid("a prompt without tokens", "pass at least one token");
        DECANT_CHECK(check_tokens(wanted.prompt, model_.spec().vocabulary, "Engine::ask"));
        if (wanted.prompt.size() > blocks_.capacity()) {
            return invalid(
                text("a prompt of ", wanted.prompt.size(), " tokens, the whole cache holds ", blocks_.capacity()),
                "raise EngineOptions::cache_tokens");
        }
        if (wanted.answers == 0 || wanted.answers > options_.sequences) {
            return invalid(text(wanted.answers, " answers to one prompt, ", options_.sequences, " are written at once"),
                           "raise EngineOptions::sequences");
        }
        return {};
    }

    /// What follows from the ask alone.
    [[nodiscard]] std::unique_ptr<Job<B>> begin(const Ask& wanted) const {
        auto job = std::make_unique<Job<B>>();
        job->rank = rank(wanted.priority);
        job->stops = StopStrings(wanted.stop);
        if (!blocks_.keeps_state()) job->by_lookup = job->by_model = DraftLength(wanted.draft_tokens);
        return job;
    }
    [[nodiscard]] std::uint64_t rank(int priority) const noexcept {
        // Far from 0, and a level worth so little that no priority wraps: at most 2^31 of them.
        const std::uint64_t now = (std::uint64_t{1} << 62) + metrics_.steps;
        const std::uint64_t level = (std::min)(options_.steps_per_priority, std::uint64_t{1} << 31);
        const auto shift =
            static_cast<std::uint64_t>(priority < 0 ? -static_cast<std::int64_t>(priority) : priority) * level;
        return priority < 0 ? now + shift : now - shift;
    }

    const EngineOptions& options_;
    const Model<B>& model_;
    const Tokenizer& tokenizer_;
    const BlockManager<B>& blocks_;
    const EngineMetrics& metrics_;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

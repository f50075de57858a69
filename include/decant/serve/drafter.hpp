// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Drafter`: what the answers of an engine may say next, from what was written before or from a draft model, and
/// whether it is worth asking for.

#include <decant/backend/concept.hpp>
#include <decant/core/config.hpp>
#include <decant/core/token.hpp>
#include <decant/model/context.hpp>
#include <decant/serve/ask.hpp>
#include <decant/serve/draft.hpp>
#include <decant/serve/draft_model.hpp>
#include <decant/serve/job.hpp>
#include <decant/serve/metrics.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Works in rounds: `advance` until it says so, then `found` for each job.
template <Backend B>
class Drafter {
 public:
    Drafter(std::optional<DraftModel<B>> model, const EngineOptions& options, EngineMetrics& metrics)
        : model_(std::move(model)),
          rows_(options.draft_rows),
          ledger_(static_cast<double>(options.draft_loss)),
          metrics_(metrics) {}

    /// Goes on with a round, or begins one for those that run. Returns whether it is done.
    bool advance(const Jobs<B>& running, RunLimits limits) {
        if (!std::exchange(under_way_, false)) plan(running);
        if (!model_) return true;
        const auto start = Job<B>::Clock::now();
        under_way_ = !model_->advance(limits);
        const double seconds = std::chrono::duration<double>(Job<B>::Clock::now() - start).count();
        metrics_.draft_seconds += seconds;
        ledger_.spend(seconds);
        return !under_way_;
    }
    /// Valid until the next round.
    [[nodiscard]] std::span<const Token> found(const Job<B>& job) const {
        return job.from_model ? model_->found(key(job)) : std::span<const Token>(job.draft);
    }

    /// A pass for `answers` answers has accepted so many of the tokens drafted for one of them.
    void learn(Job<B>& job, std::size_t drafted, std::size_t accepted, std::size_t answers) {
        (job.from_model ? job.by_model : job.by_lookup).learn(drafted, accepted);
        if (job.from_model) ledger_.save(accepted, answers);
    }
    /// As `DraftLedger::pass`.
    void pass(double seconds, bool plain) noexcept { ledger_.pass(seconds, plain); }

    /// Gives back what the draft model keeps of a job.
    void release(const Job<B>& job) {
        if (model_) model_->release(key(job));
    }
    [[nodiscard]] std::size_t blocks() const noexcept { return model_ ? model_->blocks() : 0; }
    [[nodiscard]] std::size_t free_blocks() const noexcept { return model_ ? model_->free_blocks() : 0; }

 private:
    static typename DraftModel<B>::Key key(const Job<B>& job) { return {job.id, job.answer}; }

    void plan(const Jobs<B>& running) {
        std::size_t left = rows_;
        if (model_) model_->begin();
        for (const auto& job : running) {
            job->draft.clear();
            job->from_model = false;
            if (!job->split || job->cancelled || job->request->waiting().size() != 1) continue;
            const std::size_t wanted = job->ask->max_tokens - (std::min)(job->written, job->ask->max_tokens);
            const std::size_t most = (std::min)(left, wanted > 0 ? wanted - 1 : 0);
            const Request<B>& request = *job->request;
            const std::span<const Token> found =
                prompt_lookup(request.tokens(), (std::min)(most, job->by_lookup.next()));
            job->draft.assign(found.begin(), found.end());
            left -= found.size();
            if (!found.empty() || !model_ || !ledger_.pays()) continue;
            const std::size_t length = (std::min)(most, job->by_model.next());
            job->from_model = model_->want(key(*job), request.tokens(), length, request.sampler());
            if (job->from_model) left -= length;
        }
    }

    std::optional<DraftModel<B>> model_;
    std::size_t rows_;
    DraftLedger ledger_;
    EngineMetrics& metrics_;
    bool under_way_ = false;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

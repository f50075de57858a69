// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Scheduler`: who is in an engine's next pass and with how many tokens, who makes room for whom, and who leaves.

#include <decant/backend/concept.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/token.hpp>
#include <decant/model/context.hpp>
#include <decant/serve/ask.hpp>
#include <decant/serve/batch.hpp>
#include <decant/serve/block_manager.hpp>
#include <decant/serve/drafter.hpp>
#include <decant/serve/job.hpp>
#include <decant/serve/metrics.hpp>
#include <decant/serve/outbox.hpp>
#include <decant/serve/request.hpp>
#include <decant/text/stream.hpp>
#include <decant/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Refers to the other parts of its engine.
template <Backend B>
class Scheduler {
 public:
    Scheduler(const EngineOptions& options, const Tokenizer& tokenizer, JobQueues<B>& jobs, BlockManager<B>& blocks,
              Drafter<B>& drafter, Outbox& outbox, EngineMetrics& metrics)
        : options_(options),
          tokenizer_(tokenizer),
          jobs_(jobs),
          blocks_(blocks),
          drafter_(drafter),
          outbox_(outbox),
          metrics_(metrics) {}

    /// Answers that write first, then prompts that have begun, then new ones.
    void fill(Batch<B>& batch) {
        end_late();
        retire();
        std::size_t rows = options_.rows, drafted = options_.draft_rows;
        for (const auto& job : jobs_.running)
            if (rows > 0 && job->request->waiting().size() == 1 && make_room(*job, 1))
                rows -= add_token(batch, *job, (std::min)(drafted, rows - 1), drafted);
        if (!batch.empty()) rows = (std::min)(rows, std::size_t{options_.prompt_rows});
        std::size_t behind = jobs_.waiting.size();
        for (const auto& job : jobs_.running) behind += job->in_pass ? 0 : 1;
        for (const auto& job : jobs_.running)
            if (rows > 0 && !job->in_pass) rows -= add_prompt(batch, *job, share(rows, --behind));
        retire();
        while (rows > 0 && !jobs_.waiting.empty()) {
            Job<B>* const job = admit();
            if (job == nullptr) break;
            rows -= add_prompt(batch, *job, share(rows, jobs_.waiting.size()));
        }
    }

    /// Takes away what has ended, but for what a pass is working on, and lets wait what gave its blocks away.
    void retire() {
        for (Jobs<B>* const jobs : {&jobs_.waiting, &jobs_.running}) {
            for (auto at = jobs->begin(); at != jobs->end();) {
                Job<B>& job = **at;
                if (job.in_pass) {
                    ++at;
                    continue;
                }
                if (job.cancelled && !job.ended()) outbox_.end(job, FinishReason::cancelled);
                if (job.broken && !job.ended()) outbox_.end(job, FinishReason::failed, "a token was lost");
                if (job.ended()) {
                    count_ended(job);
                    drafter_.release(job);
                    at = jobs->erase(at);
                } else if (job.preempted) {
                    job.preempted = false;
                    jobs_.place(*jobs, at++, jobs_.waiting);
                } else {
                    ++at;
                }
            }
        }
    }

 private:
    /// What the first of several prompts gets of a step's tokens: most, but the next one begins meanwhile, for it may
    /// be short.
    static std::size_t share(std::size_t rows, std::size_t behind) noexcept {
        return behind > 0 ? rows - rows / 4 : rows;
    }

    /// The token that waits, and the draft of those after it: up to `most`, where there is room without taking it from
    /// anybody. Returns how many tokens these are.
    std::size_t add_token(Batch<B>& batch, Job<B>& job, std::size_t most, std::size_t& drafted) {
        std::span<const Token> draft = drafter_.found(job);
        draft = draft.first((std::min)(draft.size(), most));
        const std::size_t blocks = jobs_.running.size() + draft.size() / options_.block_tokens;  // of a group
        const bool room = blocks_.pool().free_blocks() > blocks * blocks_.pool().groups();
        if (!draft.empty() && room && job.request->reserve(1 + draft.size())) {
            job.request->draft(draft);
            drafted -= draft.size();
            metrics_.counts.draft_tokens += draft.size();
        }
        const std::size_t count = job.request->waiting().size();
        batch.add(job, count, count > 1 ? Want::all : Want::last);
        return count;
    }

    /// Returns how many tokens it could add.
    std::size_t add_prompt(Batch<B>& batch, Job<B>& job, std::size_t most) {
        const std::size_t count = (std::min)(job.request->waiting().size(), most);
        if (!make_room(job, count)) return 0;
        batch.add(job, count);
        return count;
    }

    /// Room for so many more tokens: remembered prefixes go first, then the blocks of those behind. Whoever is first
    /// gets room or fails, so that something always goes on.
    bool make_room(Job<B>& job, std::size_t count) {
        if (job.preempted || job.ended()) return false;
        while (!blocks_.reserve(job, count)) {
            Job<B>* const victim = last_behind(job);
            if (victim == nullptr) {
                if (alone(job)) outbox_.end(job, FinishReason::full);
                return false;
            }
            preempt(*victim);
        }
        return true;
    }
    Job<B>* last_behind(const Job<B>& job) const {
        for (auto at = jobs_.running.rbegin(); at != jobs_.running.rend() && at->get() != &job; ++at)
            if ((*at)->has_blocks() && !(*at)->in_pass) return at->get();
        return nullptr;
    }
    [[nodiscard]] bool alone(const Job<B>& job) const {
        return std::none_of(jobs_.running.begin(), jobs_.running.end(),
                            [&](const auto& other) { return other.get() != &job && other->has_blocks(); });
    }
    void preempt(Job<B>& job) {
        blocks_.swap_out(job, jobs_);
        drafter_.release(job);
        job.preempted = true;
        ++metrics_.counts.preemptions;
    }

    /// The first of those that wait, if it fits. Nobody behind it goes before it.
    Job<B>* admit() {
        Job<B>& job = *jobs_.waiting.front();
        if (!jobs_.has_place(job, options_.sequences)) return nullptr;
        const std::span<const Token> tokens =
            job.request ? job.request->tokens() : std::span<const Token>(job.ask->prompt);
        Sequence<B> known = blocks_.known(tokens, job.ask->cache_salt);
        if (!blocks_.can_hold(tokens.size(), known) && !jobs_.running.empty()) return nullptr;
        job.published = {};
        if (blocks_.swap_in(job, tokens.size(), known)) {
            metrics_.counts.swapped_tokens += known.size();
        } else {
            metrics_.counts.cached_tokens += known.size();
            job.published.blocks = known.table().size();
        }
        const std::span<const Token> rest = tokens.subspan(known.size());
        const auto now = Job<B>::Clock::now();
        if (job.request) {
            job.request->restart(std::move(known));
        } else {
            Request<B> request(std::move(known), job.ask->sampler, TextStream(tokenizer_));
            request.push(rest);
            job.request.emplace(std::move(request));
            job.cached_tokens = job.request->computed();
            metrics_.queue.add(now - job.asked);
        }
        if (!job.started) job.started = now;
        jobs_.place(jobs_.waiting, jobs_.waiting.begin(), jobs_.running);
        return &job;
    }

    void count_ended(const Job<B>& job) {
        metrics_.counts.finished += job.answers();
        if (job.end == FinishReason::full) metrics_.counts.full += job.answers();
        if (job.timed > 0) metrics_.answer.add(job.last - job.asked);
        if (job.timed > 1)
            metrics_.pace.add((job.last - job.first) / static_cast<typename Job<B>::Clock::rep>(job.timed - 1));
    }

    void end_late() {
        const auto now = Job<B>::Clock::now();
        for (Jobs<B>* const jobs : {&jobs_.waiting, &jobs_.running})
            for (const auto& job : *jobs)
                if (!job->ended() && job->ask->deadline && *job->ask->deadline <= now)
                    outbox_.end(*job, FinishReason::deadline);
    }

    const EngineOptions& options_;
    const Tokenizer& tokenizer_;
    JobQueues<B>& jobs_;
    BlockManager<B>& blocks_;
    Drafter<B>& drafter_;
    Outbox& outbox_;
    EngineMetrics& metrics_;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `AnswerWriter`: what an engine's pass has brought. Logits become tokens, tokens texts, and both what listeners are
/// told.

#include <decant/backend/concept.hpp>
#include <decant/core/config.hpp>
#include <decant/model/context.hpp>
#include <decant/sample/log_probabilities.hpp>
#include <decant/serve/ask.hpp>
#include <decant/serve/batch.hpp>
#include <decant/serve/block_manager.hpp>
#include <decant/serve/drafter.hpp>
#include <decant/serve/job.hpp>
#include <decant/serve/metrics.hpp>
#include <decant/serve/outbox.hpp>
#include <decant/serve/request.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Refers to the other parts of its engine.
template <Backend B>
class AnswerWriter {
 public:
    AnswerWriter(JobQueues<B>& jobs, BlockManager<B>& blocks, Drafter<B>& drafter, Outbox& outbox,
                 EngineMetrics& metrics)
        : jobs_(jobs), blocks_(blocks), drafter_(drafter), outbox_(outbox), metrics_(metrics) {}

    /// The next part of a pass that is done. Where an exception ends it, the answer has lost a token (`Job::broken`).
    void take_next(Batch<B>& batch) {
        const typename Batch<B>::Taken taken = batch.take_next();
        taken.job->broken = true;
        take(batch, taken);
        taken.job->broken = false;
    }

 private:
    void take(const Batch<B>& batch, const typename Batch<B>::Taken& taken) {
        Job<B>& job = *taken.job;
        const PassPart<B>& part = taken.part;
        if (job.written == 0 || (part.tokens.size() > 1 && part.want != Want::all))
            metrics_.counts.prompt_tokens += part.tokens.size();
        if (part.want == Want::all) return take_draft(batch, taken);
        if (job.cancelled) return;
        blocks_.publish(job);
        if (part.want == Want::none) return;
        const std::span<const float> scores = batch.row(taken.row);
        if (!job.split) split(job, scores);
        write(job, scores);
    }
    void take_draft(const Batch<B>& batch, const typename Batch<B>::Taken& taken) {
        Job<B>& job = *taken.job;
        std::size_t row = taken.row;
        const auto right = [&] {
            const TimeInto timer(metrics_.sample_seconds);
            return job.request->take_draft([&](std::size_t i) { return batch.row(taken.row + i); },
                                           [&](const Step& step) {
                                               if (job.cancelled) return false;
                                               write(job, step, batch.row(row++));
                                               return !job.ended();
                                           });
        }();
        if (!right) return outbox_.end(job, FinishReason::failed, right.error().message());
        drafter_.learn(job, taken.part.tokens.size() - 1, *right, batch.parts().size());
        metrics_.counts.accepted_tokens += *right;
        blocks_.publish(job);
    }

    /// The other answers to a prompt, once it is computed.
    void split(Job<B>& job, std::span<const float> scores) {
        Jobs<B> others;
        for (std::uint32_t n = 1; n < job.ask->answers; ++n) {
            auto other = std::make_unique<Job<B>>();
            other->id = job.id;
            other->ask = job.ask;
            other->answer = n;
            other->rank = job.rank;
            other->asked = job.asked;
            other->started = job.started;
            other->cached_tokens = job.cached_tokens;
            other->request.emplace(job.request->fork(job.ask->sampler.seed() + n));
            other->stops = job.stops;
            other->by_lookup = other->by_model = job.by_lookup;
            other->published = job.published;
            other->split = true;
            other->broken = true;
            others.push_back(std::move(other));
        }
        std::vector<Job<B>*> placed;
        for (const auto& other : others) placed.push_back(other.get());
        job.split = true;
        while (!others.empty()) jobs_.place(others, others.begin(), jobs_.running);
        for (Job<B>* const other : placed) {
            write(*other, scores);
            other->broken = false;
        }
    }

    void write(Job<B>& job, std::span<const float> scores) {
        const TimeInto timer(metrics_.sample_seconds);
        const auto step = job.request->take(scores);
        if (!step) return outbox_.end(job, FinishReason::failed, step.error().message());
        write(job, *step, scores);
    }
    void write(Job<B>& job, const Step& step, std::span<const float> scores) {
        const auto now = Job<B>::Clock::now();
        if (job.written == 0) {
            metrics_.first_token.add(now - job.asked);
        } else {
            metrics_.between_tokens.add(now - job.last);
            job.between_tokens.add(now - job.last);
        }
        if (job.timed == 0) job.first = now;
        job.last = now;
        ++job.written;
        ++job.timed;
        ++metrics_.counts.answer_tokens;
        const Ask& ask = *job.ask;
        std::string text(job.stops.push(step.text));
        const bool stops = (step.ends && !ask.ignore_end) || std::find(ask.stop_tokens.begin(), ask.stop_tokens.end(),
                                                                       step.token) != ask.stop_tokens.end();
        FinishReason end = FinishReason::none;
        if (job.stops.found() || stops) {
            end = FinishReason::stop;
        } else if (job.written >= ask.max_tokens) {
            end = FinishReason::length;
        }
        if (end != FinishReason::none) text += job.rest();
        std::vector<LogProbability> likeliest;
        if (ask.log_probabilities > 0) likeliest = log_probabilities(scores, step.token, ask.log_probabilities);
        outbox_.add(job, step.token, std::move(text), end, std::move(likeliest));
    }

    JobQueues<B>& jobs_;
    BlockManager<B>& blocks_;
    Drafter<B>& drafter_;
    Outbox& outbox_;
    EngineMetrics& metrics_;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

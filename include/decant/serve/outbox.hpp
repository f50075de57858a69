// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Outbox`: what an `Engine` has to tell its listeners, until all state is consistent and they may be called.

#include <decant/backend/concept.hpp>
#include <decant/core/config.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/log_probabilities.hpp>
#include <decant/serve/ask.hpp>
#include <decant/serve/job.hpp>

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

class Outbox {
 public:
    [[nodiscard]] bool empty() const noexcept { return deltas_.empty(); }
    /// Whether a `Delta` of this answer has not been given.
    [[nodiscard]] bool owes(AskId ask, std::uint32_t answer) const {
        return std::any_of(deltas_.begin(), deltas_.end(),
                           [&](const Held& held) { return held.delta.ask == ask && held.delta.answer == answer; });
    }

    /// A token, and whether the answer ends with it.
    template <Backend B>
    void add(Job<B>& job, Token token, std::string text, FinishReason end,
             std::vector<LogProbability> log_probabilities) {
        Held held{job.ask, {job.id, job.answer, token, {}, end}, std::move(text), std::move(log_probabilities)};
        if (end != FinishReason::none) held.delta.times = job.times();
        deltas_.push_back(std::move(held));
        job.end = end;
    }
    /// An end without another token, of all answers that the job stands for. `what`: what failed.
    template <Backend B>
    void end(Job<B>& job, FinishReason why, const std::string& what = {}) {
        const std::string text = why == FinishReason::failed ? what : job.rest();
        std::list<Held> last;
        const AnswerTimes times = job.times();
        for (std::uint32_t n = 0; n < job.answers(); ++n)
            last.push_back({job.ask, {job.id, job.answer + n, {}, {}, why, {}, times}, text});
        deltas_.splice(deltas_.end(), last);
        job.end = why;
    }

    /// Calls the listener of the first. It counts as told, whatever becomes of the call.
    void deliver_next() {
        Held held = std::move(deltas_.front());
        deltas_.pop_front();
        held.delta.text = held.text;
        held.delta.log_probabilities = held.log_probabilities;
        if (held.ask->listener) held.ask->listener(held.delta);
    }

 private:
    /// A `Delta` with text of its own.
    struct Held {
        std::shared_ptr<const Ask> ask;
        Delta delta;
        std::string text;
        std::vector<LogProbability> log_probabilities = {};
    };

    std::list<Held> deltas_;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

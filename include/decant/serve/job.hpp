// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Job`: an answer under way in an `Engine`; `JobQueues`: those that wait and those that run, by rank.

#include <decant/backend/concept.hpp>
#include <decant/cache/prefix_cache.hpp>
#include <decant/core/config.hpp>
#include <decant/core/token.hpp>
#include <decant/serve/ask.hpp>
#include <decant/serve/draft.hpp>
#include <decant/serve/metrics.hpp>
#include <decant/serve/request.hpp>
#include <decant/text/stop_strings.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// One answer; or all of an ask's, until its prompt is computed.
template <Backend B>
struct Job {
    using Clock = std::chrono::steady_clock;

    AskId id{};
    std::shared_ptr<const Ask> ask;
    std::uint32_t answer = 0;
    std::uint64_t rank = 0;             // lower goes first
    std::optional<Request<B>> request;  // once it has run
    StopStrings stops;
    DraftLength by_lookup, by_model;
    std::vector<Token> draft = {};  // of the next pass
    bool from_model = false;        // this draft
    std::size_t written = 0;        // tokens of the answer
    typename PrefixCache<B>::Mark published = {};
    bool split = false;  // it is one answer
    bool in_pass = false;
    bool preempted = false;  // it goes back to those that wait
    bool cancelled = false;
    std::vector<std::byte> swapped = {};  // what its blocks held
    bool broken = false;                  // unless what is made of a pass comes to its end
    FinishReason end = FinishReason::none;
    Clock::time_point asked = Clock::now();
    std::optional<Clock::time_point> started = {};  // it had a place
    Clock::time_point first = {}, last = {};        // token
    std::size_t timed = 0;                          // tokens since it was asked or restored
    std::size_t cached_tokens = 0;                  // of the prompt
    Latencies between_tokens = {};

    [[nodiscard]] std::uint32_t answers() const noexcept { return split ? 1 : ask->answers; }
    [[nodiscard]] bool ended() const noexcept { return end != FinishReason::none; }
    /// Whether it has blocks that others could get. It has run.
    [[nodiscard]] bool has_blocks() const { return !preempted && !request->sequence().table().empty(); }
    /// At its end, or as if it were now.
    [[nodiscard]] AnswerTimes times() const {
        const Clock::time_point now = Clock::now();
        const auto since = [&](Clock::time_point then) { return std::chrono::duration<double>(then - asked).count(); };
        AnswerTimes found;
        found.queue = since(started.value_or(now));
        if (timed > 0) found.first_token = since(first), found.last_token = since(last);
        found.end = since(now);
        found.tokens = timed;
        found.cached_tokens = cached_tokens;
        found.between_p50 = between_tokens.quantile(0.5);
        found.between_p95 = between_tokens.quantile(0.95);
        found.between_p99 = between_tokens.quantile(0.99);
        return found;
    }
    /// Text that was held back.
    [[nodiscard]] std::string rest() {
        if (!request) return {};
        std::string text(stops.push(request->finish()));
        return text += stops.finish();
    }
};

template <Backend B>
using Jobs = std::list<std::unique_ptr<Job<B>>>;

/// All answers under way, each list in order of rank.
template <Backend B>
struct JobQueues {
    Jobs<B> waiting, running;

    /// Behind those of the same rank. Allocates nothing.
    static void place(Jobs<B>& from, typename Jobs<B>::iterator job, Jobs<B>& to) noexcept {
        const auto at =
            std::find_if(to.begin(), to.end(), [&](const auto& other) { return other->rank > (*job)->rank; });
        to.splice(at, from, job);
    }
    static void place(std::unique_ptr<Job<B>> job, Jobs<B>& to) {
        Jobs<B> one;
        one.push_back(std::move(job));
        place(one, one.begin(), to);
    }

    template <class Use>
    void each(Use use) const {
        for (const Jobs<B>* const jobs : {&waiting, &running})
            for (const auto& job : *jobs) use(*job);
    }
    [[nodiscard]] const Job<B>* find(AskId ask, std::uint32_t answer) const {
        for (const Jobs<B>* const jobs : {&waiting, &running})
            for (const auto& job : *jobs)
                if (job->id == ask && (job->split ? job->answer == answer : answer < job->ask->answers))
                    return job.get();
        return nullptr;
    }
    /// Whether one more may run beside those that do, where `sequences` answers are written at once.
    [[nodiscard]] bool has_place(const Job<B>& job, std::size_t sequences) const {
        std::size_t places = job.answers();
        for (const auto& other : running) places += other->answers();
        return places <= sequences;
    }
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

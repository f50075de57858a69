// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What an `Engine` measures about itself, and what that says.

#include <decant/core/config.hpp>
#include <decant/core/text.hpp>
#include <decant/serve/ask.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace decant::inline DECANT_ABI {

/// A histogram of times, of fixed size: eight buckets per factor of two from a microsecond to a day, so that a quantile
/// is at most 1/8 too high.
class Latencies {
 public:
    using Duration = std::chrono::steady_clock::duration;

    void add(Duration time) noexcept {
        const double seconds = (std::max)(std::chrono::duration<double>(time).count(), 0.0);
        ++counts_[bucket(seconds)];
        ++count_;
        sum_ += seconds;
    }
    [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
    /// Seconds.
    [[nodiscard]] double sum() const noexcept { return sum_; }
    /// The time in seconds that a share `q` of all does not exceed; 0 if there are none.
    [[nodiscard]] double quantile(double q) const noexcept {
        std::uint64_t seen = 0;
        for (std::size_t b = 0; b < counts_.size(); ++b) {
            seen += counts_[b];
            if (counts_[b] > 0 && static_cast<double>(seen) >= q * static_cast<double>(count_)) return end_of(b);
        }
        return 0.0;
    }

 private:
    static constexpr std::size_t each = 8;
    static constexpr std::size_t octaves = 37;

    static std::size_t bucket(double seconds) noexcept {
        const auto micros = static_cast<std::uint64_t>((std::min)(seconds * 1e6, 1e12));
        if (micros < each) return static_cast<std::size_t>(micros);
        const auto octave = static_cast<std::size_t>(std::bit_width(micros)) - 4;  // of 8 to 15: 0
        return (std::min)(octave * each + static_cast<std::size_t>(micros >> octave), octaves * each - 1);
    }
    /// Seconds.
    static double end_of(std::size_t b) noexcept {
        if (b < each) return static_cast<double>(b + 1) * 1e-6;
        const std::size_t octave = b / each - 1;
        return static_cast<double>((b % each + each + 1) << octave) * 1e-6;
    }

    std::array<std::uint64_t, octaves * each> counts_{};
    std::uint64_t count_ = 0;
    double sum_ = 0.0;
};

/// Since the engine was made. Times of answers are told when they happen, so that the last ones are in.
struct EngineMetrics {
    EngineCounts counts;
    Latencies queue;             ///< from `ask` to the first pass
    Latencies first_token;       ///< from `ask` to the first token
    Latencies between_tokens;    ///< from one token of an answer to the next
    double pass_seconds = 0.0;   ///< in passes over the weights
    double draft_seconds = 0.0;  ///< in passes of the draft model
    double own_seconds = 0.0;    ///< in scheduling, sampling and listeners

    /// What the numbers say, in a sentence: which part is the slowest, and what would help.
    [[nodiscard]] std::string diagnose() const {
        const double waited = queue.quantile(0.5), first = first_token.quantile(0.5),
                     between = between_tokens.quantile(0.5);
        const auto ms = [](double seconds) { return detail::text(std::llround(seconds * 1e3), " ms"); };
        if (counts.answer_tokens == 0) return "Nothing has been answered yet.";
        if (counts.preemptions * 4 > counts.finished + counts.running) {
            return detail::text("The cache is too small: ", counts.preemptions,
                                " times an answer gave its blocks away, to be computed again or swapped in. Raise "
                                "EngineOptions::cache_tokens, or lower EngineOptions::sequences.");
        }
        if (waited > 0.5 * first && counts.waiting > 0) {
            return "Slow first tokens: half of the asks wait " + ms(waited) + " of " + ms(first) +
                   " for a place. Raise EngineOptions::sequences (more answers share a pass) or use a smaller model.";
        }
        if (first > 10.0 * between && first > 0.2) {
            return "Slow first tokens: prompts take " + ms(first - waited) +
                   ". Raise EngineOptions::prompt_rows, shorten prompts, or let them share a beginning.";
        }
        if (between > 0.1) {
            return "Slow dribble: " + ms(between) + " from token to token, for " +
                   ms(pass_seconds / static_cast<double>((std::max)(counts.steps, std::uint64_t{1}))) +
                   " per pass. Use fewer bits per weight, lower EngineOptions::prompt_rows, or more threads.";
        }
        return "Nothing is ill: first tokens after " + ms(first) + ", then one every " + ms(between) + ".";
    }
};

namespace detail {

/// Calls `counter(name, text)`, `gauge(name, text)` and `times(name, latencies)` for all of them.
template <class Counter, class Gauge, class Times>
void each_metric(const EngineMetrics& m, Counter counter, Gauge gauge, Times times) {
    const EngineCounts& c = m.counts;
    counter("steps", text(c.steps));
    counter("prompt_tokens", text(c.prompt_tokens));
    counter("cached_tokens", text(c.cached_tokens));
    counter("answer_tokens", text(c.answer_tokens));
    counter("draft_tokens", text(c.draft_tokens));
    counter("accepted_tokens", text(c.accepted_tokens));
    counter("preemptions", text(c.preemptions));
    counter("swapped_tokens", text(c.swapped_tokens));
    counter("finished", text(c.finished));
    counter("pass_seconds", text(m.pass_seconds));
    counter("draft_seconds", text(m.draft_seconds));
    counter("own_seconds", text(m.own_seconds));
    gauge("waiting", text(c.waiting));
    gauge("running", text(c.running));
    gauge("free_blocks", text(c.free_blocks));
    gauge("remembered_blocks", text(c.remembered_blocks));
    gauge("blocks", text(c.blocks));
    gauge("free_draft_blocks", text(c.free_draft_blocks));
    gauge("draft_blocks", text(c.draft_blocks));
    times("queue_seconds", m.queue);
    times("first_token_seconds", m.first_token);
    times("between_tokens_seconds", m.between_tokens);
}

}  // namespace detail

/// All numbers as a JSON object, for a log or a page.
[[nodiscard]] inline std::string to_json(const EngineMetrics& metrics) {
    std::string out;
    const auto number = [&](std::string_view name, std::string_view value) {
        out += detail::text(out.empty() ? "{\"" : ",\"", name, "\":", value);
    };
    detail::each_metric(metrics, number, number, [&](std::string_view name, const Latencies& l) {
        const auto at = [&](double q) { return l.quantile(q); };
        number(name, detail::text("{\"count\":", l.count(), ",\"sum\":", l.sum(), ",\"p50\":", at(0.5),
                                  ",\"p95\":", at(0.95), ",\"p99\":", at(0.99), "}"));
    });
    return out += "}";
}

/// All numbers in the text format of Prometheus (exposition format 0.0.4), named `decant_...`.
[[nodiscard]] inline std::string to_prometheus(const EngineMetrics& metrics) {
    std::string out;
    const auto number = [&](std::string_view kind) {
        return [&out, kind](std::string_view name, std::string_view value) {
            out += detail::text("# TYPE decant_", name, " ", kind, "\ndecant_", name, " ", value, "\n");
        };
    };
    detail::each_metric(metrics, number("counter"), number("gauge"), [&](std::string_view name, const Latencies& l) {
        out += detail::text("# TYPE decant_", name, " summary\n");
        for (const auto& [q, label] : {std::pair{0.5, "0.5"}, std::pair{0.95, "0.95"}, std::pair{0.99, "0.99"}}) {
            out += detail::text("decant_", name, "{quantile=\"", label, "\"} ", l.quantile(q), "\n");
        }
        out += detail::text("decant_", name, "_sum ", l.sum(), "\ndecant_", name, "_count ", l.count(), "\n");
    });
    return out;
}

}  // namespace decant::inline DECANT_ABI

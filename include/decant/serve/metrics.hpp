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
#include <limits>
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

/// What a step did and what it cost; or all of them together.
struct StepMetrics {
    std::uint64_t steps = 0;
    std::uint64_t rows = 0;       ///< tokens in passes, drafted ones included
    std::uint64_t sequences = 0;  ///< answers in passes
    double bytes = 0.0;           ///< moved by passes: weights once, cache rows read and written (`ModelCost`)
    double operations = 0.0;      ///< multiply-adds of passes
    double pass_seconds = 0.0;    ///< in passes over the weights
    double draft_seconds = 0.0;   ///< in passes of the draft model
    double sample_seconds = 0.0;  ///< from logits to tokens and texts
    double listener_seconds = 0.0;
    double own_seconds = 0.0;  ///< all else: who is in the next pass, whose blocks go, what is remembered

    [[nodiscard]] double seconds() const noexcept {
        return pass_seconds + draft_seconds + sample_seconds + listener_seconds + own_seconds;
    }
    /// Of the time in steps, the engine's own.
    [[nodiscard]] double own_share() const noexcept { return seconds() > 0.0 ? own_seconds / seconds() : 0.0; }

    [[nodiscard]] StepMetrics operator-(const StepMetrics& before) const noexcept {
        return {steps - before.steps,
                rows - before.rows,
                sequences - before.sequences,
                bytes - before.bytes,
                operations - before.operations,
                pass_seconds - before.pass_seconds,
                draft_seconds - before.draft_seconds,
                sample_seconds - before.sample_seconds,
                listener_seconds - before.listener_seconds,
                own_seconds - before.own_seconds};
    }
};

/// What a step can do at most, and how much of that steps do: from 0 to 1, 0 where the limit is unknown.
struct EngineLimits {
    std::uint32_t rows = 0;       ///< `EngineOptions::rows`
    std::uint32_t sequences = 0;  ///< `EngineOptions::sequences`
    double bytes_per_second = 0.0;
    double operations_per_second = 0.0;

    [[nodiscard]] double row_share(const StepMetrics& of) const noexcept {
        return share(static_cast<double>(of.rows), static_cast<double>(of.steps) * rows);
    }
    [[nodiscard]] double sequence_share(const StepMetrics& of) const noexcept {
        return share(static_cast<double>(of.sequences), static_cast<double>(of.steps) * sequences);
    }
    [[nodiscard]] double bandwidth_share(const StepMetrics& of) const noexcept {
        return share(of.bytes, of.pass_seconds * bytes_per_second);
    }
    [[nodiscard]] double arithmetic_share(const StepMetrics& of) const noexcept {
        return share(of.operations, of.pass_seconds * operations_per_second);
    }

    /// Also 0 where the whole is so much less than the part that it cannot be meant.
    [[nodiscard]] static double share(double part, double whole) noexcept {
        return whole > 0.0 && whole >= part * 1e-15 ? part / whole : 0.0;
    }
};

/// All steps since the engine was made. Times of answers are told when they happen, so that the last ones are in.
struct EngineMetrics : StepMetrics {
    EngineCounts counts;
    EngineLimits limits;
    Latencies queue;           ///< from `ask` to a place
    Latencies first_token;     ///< from `ask` to the first token
    Latencies between_tokens;  ///< from one token of an answer to the next
    Latencies pace;            ///< the mean of that for each answer that has ended: 1 / its tokens per second
    Latencies answer;          ///< from `ask` to the last token, of answers that have ended
    StepMetrics last_step;
    EngineCounts last_counts;  ///< what the last step added to the numbers of tokens

    /// Tokens of answers per second of steps.
    [[nodiscard]] double tokens_per_second() const noexcept {
        return EngineLimits::share(static_cast<double>(counts.answer_tokens), seconds());
    }
    /// Of the prompts' tokens, those found in the cache; of those drafted, those accepted.
    [[nodiscard]] static double prefix_share(const EngineCounts& of) noexcept {
        return EngineLimits::share(static_cast<double>(of.cached_tokens),
                                   static_cast<double>(of.cached_tokens + of.prompt_tokens));
    }
    [[nodiscard]] static double accepted_share(const EngineCounts& of) noexcept {
        return EngineLimits::share(static_cast<double>(of.accepted_tokens), static_cast<double>(of.draft_tokens));
    }

    /// What the numbers say, in a sentence: which part is the slowest, and what would help.
    [[nodiscard]] std::string diagnose() const {
        const double waited = queue.quantile(0.5), first = first_token.quantile(0.5),
                     between = between_tokens.quantile(0.5);
        const auto ms = [](double time) { return detail::text(std::llround(time * 1e3), " ms"); };
        const auto percent = [](double share) { return detail::text(std::llround(share * 100.0), " %"); };
        if (counts.answer_tokens == 0 && counts.full == 0) return "Nothing has been answered yet.";
        if (counts.full > 0) {
            return detail::text("Out of memory: ", counts.full,
                                " answers ended because the cache held no more of them. Raise "
                                "EngineOptions::cache_tokens, or lower Ask::max_tokens.");
        }
        if (counts.preemptions * 4 > counts.finished + counts.running) {
            return detail::text("The cache is too small: ", counts.preemptions,
                                " times an answer gave its blocks away, to be computed again or swapped in. Raise "
                                "EngineOptions::cache_tokens, or lower EngineOptions::sequences.");
        }
        if (listener_seconds > 0.2 * seconds()) {
            return "Slow listeners: they take " + percent(listener_seconds / seconds()) +
                   " of the time. Let them hand over what they are told, and return.";
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
            std::string said = "Slow dribble: " + ms(between) + " from token to token, for " +
                               ms(pass_seconds / static_cast<double>((std::max)(steps, std::uint64_t{1}))) +
                               " per pass. ";
            const double memory = limits.bandwidth_share(*this), arithmetic = limits.arithmetic_share(*this);
            if (memory > 0.5 && memory >= arithmetic)
                return said + "It is the memory, which moves " + percent(memory) +
                       " of what it can: use fewer bits per weight, or a smaller model.";
            if (arithmetic > 0.5)
                return said + "It is the arithmetic, at " + percent(arithmetic) +
                       " of what the processor can: lower EngineOptions::prompt_rows, or use more threads.";
            return said + "Use fewer bits per weight, lower EngineOptions::prompt_rows, or more threads.";
        }
        return "Nothing is ill: first tokens after " + ms(first) + ", then one every " + ms(between) + ".";
    }
};

namespace detail {

/// Adds the time from its construction to its end, whatever ends it.
class TimeInto {
 public:
    using Clock = std::chrono::steady_clock;
    explicit TimeInto(double& seconds) noexcept : seconds_(seconds) {}
    TimeInto(const TimeInto&) = delete;
    TimeInto& operator=(const TimeInto&) = delete;
    ~TimeInto() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
    double& seconds_;
    Clock::time_point start_ = Clock::now();
};

/// What was added to the numbers of tokens.
[[nodiscard]] inline EngineCounts added_tokens(const EngineCounts& before, const EngineCounts& now) {
    EngineCounts added;
    added.prompt_tokens = now.prompt_tokens - before.prompt_tokens;
    added.cached_tokens = now.cached_tokens - before.cached_tokens;
    added.answer_tokens = now.answer_tokens - before.answer_tokens;
    added.draft_tokens = now.draft_tokens - before.draft_tokens;
    added.accepted_tokens = now.accepted_tokens - before.accepted_tokens;
    added.swapped_tokens = now.swapped_tokens - before.swapped_tokens;
    return added;
}

/// As JSON knows numbers: what is none (of metrics that a host made up) is 0.
[[nodiscard]] inline std::string number_text(double value) {
    constexpr double most = (std::numeric_limits<double>::max)();
    return text(value >= -most && value <= most ? value : 0.0);
}

/// Calls `counter(name, text)`, `gauge(name, text)` and `times(name, latencies)` for all of them.
template <class Counter, class Gauge, class Times>
void each_metric(const EngineMetrics& m, Counter counter, Gauge gauge, Times times) {
    const EngineCounts& c = m.counts;
    counter("steps", text(m.steps));
    counter("prompt_tokens", text(c.prompt_tokens));
    counter("cached_tokens", text(c.cached_tokens));
    counter("answer_tokens", text(c.answer_tokens));
    counter("draft_tokens", text(c.draft_tokens));
    counter("accepted_tokens", text(c.accepted_tokens));
    counter("preemptions", text(c.preemptions));
    counter("swapped_tokens", text(c.swapped_tokens));
    counter("finished", text(c.finished));
    counter("full", text(c.full));
    counter("pass_rows", text(m.rows));
    counter("pass_sequences", text(m.sequences));
    counter("pass_bytes", number_text(m.bytes));
    counter("pass_operations", number_text(m.operations));
    counter("pass_seconds", number_text(m.pass_seconds));
    counter("draft_seconds", number_text(m.draft_seconds));
    counter("sample_seconds", number_text(m.sample_seconds));
    counter("listener_seconds", number_text(m.listener_seconds));
    counter("own_seconds", number_text(m.own_seconds));
    gauge("waiting", text(c.waiting));
    gauge("running", text(c.running));
    gauge("free_blocks", text(c.free_blocks));
    gauge("remembered_blocks", text(c.remembered_blocks));
    gauge("used_blocks", text(c.used_blocks));
    gauge("most_used_blocks", text(c.most_used_blocks));
    gauge("blocks", text(c.blocks));
    gauge("free_draft_blocks", text(c.free_draft_blocks));
    gauge("draft_blocks", text(c.draft_blocks));
    gauge("tokens_per_second", number_text(m.tokens_per_second()));
    const auto shares = [&](std::string_view of, const StepMetrics& steps, const EngineCounts& counts) {
        const auto share = [&](std::string_view name, double value) { gauge(text(of, name), number_text(value)); };
        share("row_share", m.limits.row_share(steps));
        share("sequence_share", m.limits.sequence_share(steps));
        share("bandwidth_share", m.limits.bandwidth_share(steps));
        share("arithmetic_share", m.limits.arithmetic_share(steps));
        share("own_share", steps.own_share());
        share("prefix_share", EngineMetrics::prefix_share(counts));
        share("accepted_share", EngineMetrics::accepted_share(counts));
    };
    shares("", m, c);
    gauge("last_step_rows", text(m.last_step.rows));
    gauge("last_step_sequences", text(m.last_step.sequences));
    gauge("last_step_bytes", number_text(m.last_step.bytes));
    gauge("last_step_operations", number_text(m.last_step.operations));
    gauge("last_step_seconds", number_text(m.last_step.seconds()));
    shares("last_step_", m.last_step, m.last_counts);
    times("queue_seconds", m.queue);
    times("first_token_seconds", m.first_token);
    times("between_tokens_seconds", m.between_tokens);
    times("pace_seconds", m.pace);
    times("answer_seconds", m.answer);
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

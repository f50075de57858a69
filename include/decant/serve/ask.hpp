// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What a host asks of an `Engine`, and what comes back.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/log_probabilities.hpp>
#include <decant/sample/sampler.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Capacities and rules of an engine.
struct EngineOptions {
    /// Of all answers and of what is remembered, rounded up to whole blocks. Where layers have windows, more fit, since
    /// what these have passed goes: see `CacheOptions::forget_unseen`.
    std::size_t cache_tokens = 16384;
    std::uint32_t block_tokens = 16;  ///< tokens per block
    DType cache_dtype = DType::f16;   ///< as `CacheOptions::dtype`
    std::uint32_t sequences = 16;     ///< answers that are written at once; others wait
    std::uint32_t rows = 256;         ///< tokens of one step, those of prompts included
    /// Of a step's tokens, those that may belong to prompts while others write: a long prompt comes in parts, and the
    /// others wait no longer than such a part takes. A quarter of them is left to the prompts behind the first.
    std::uint32_t prompt_rows = 128;
    /// Tokens of one step that may be drafted (see `Ask::draft_tokens`), of all answers together.
    std::uint32_t draft_rows = 32;
    std::size_t draft_cache_tokens = 16384;  ///< of a draft model, as `cache_tokens`
    /// Of the time in passes, the share that a draft model may cost while its drafts do not pay, after a start of a few
    /// passes to try; beyond that it is not asked.
    float draft_loss = 0.02f;
    /// Of the host's memory, what may hold the keys and values of answers that gave their blocks to others. Beyond it
    /// they are computed again, with the same bits.
    std::size_t swap_bytes = 0;
    /// What the machine can do at best on the engine's threads, if the host knows (decant-bench measures it): metrics
    /// then tell the shares that passes reach. A multiply and an add are one operation. 0 = unknown.
    double bytes_per_second = 0.0;
    double operations_per_second = 0.0;
    bool prefix_cache = true;  ///< remember computed beginnings as long as there is room
    /// A level of priority goes before what arrived up to so many steps earlier; so everybody's turn comes. More than
    /// 2^31 steps are taken as so many.
    std::uint64_t steps_per_priority = 64;
};

/// Names what was asked, for `cancel`; never used twice.
enum class AskId : std::uint64_t {};

/// Why an answer ended.
enum class FinishReason : std::uint8_t {
    none,       ///< it goes on
    stop,       ///< the model ended its turn, or a stop string or token appeared
    length,     ///< `max_tokens`
    cancelled,  ///< by the host
    deadline,   ///< it passed
    full,       ///< the whole cache holds no more of it
    failed,     ///< see `Delta::text`: what was wrong
};

/// How long an answer took, in seconds from `ask` on (from `restore` on, where that was later).
struct AnswerTimes {
    double queue = 0.0;        ///< until it first had a place
    double first_token = 0.0;  ///< until its first token
    double last_token = 0.0;   ///< until its last one
    double end = 0.0;
    std::size_t tokens = 0;         ///< that came in this time
    std::size_t cached_tokens = 0;  ///< of the prompt, those found in the cache
    /// From one token to the next, the times that half of them, 95 % and 99 % do not exceed.
    double between_p50 = 0.0, between_p95 = 0.0, between_p99 = 0.0;

    /// Behind the first.
    [[nodiscard]] double tokens_per_second() const noexcept {
        const double seconds = last_token - first_token;
        return tokens > 1 && seconds > 0.0 ? static_cast<double>(tokens - 1) / seconds : 0.0;
    }
};

/// What a step brought one answer.
struct Delta {
    AskId ask{};
    std::uint32_t answer = 0;         ///< of several to one prompt
    std::optional<Token> token = {};  ///< none where an answer ends without one
    std::string_view text = {};       ///< whole characters that are certain now, often none; valid during the call
    FinishReason finish = FinishReason::none;
    /// Of `token` and then of the likeliest ones, as `log_probabilities` says, if `Ask::log_probabilities` is more than
    /// 0; valid during the call.
    std::span<const LogProbability> log_probabilities = {};
    std::optional<AnswerTimes> times = {};  ///< where `finish` says that it ends
};

/// One prompt, and how it is to be answered.
struct Ask {
    std::vector<Token> prompt = {};  ///< at least one token
    Sampler sampler{};
    std::size_t max_tokens = 256;         ///< of the answer; 0 is taken as 1
    std::vector<std::string> stop = {};   ///< texts that end an answer and are not part of it
    std::vector<Token> stop_tokens = {};  ///< besides those that end the model's turn
    bool ignore_end = false;              ///< go on after the model has ended its turn
    std::uint32_t answers = 1;            ///< the n-th has the sampler's seed plus n; the prompt is computed once
    /// Speculative decoding: up to so many tokens are drafted from what was written before (prompt lookup), or by the
    /// engine's draft model where that says nothing, and computed together, which costs little more than one. The
    /// answer is the same, bit for bit; fewer are drafted where drafts are wrong. Not for models whose layers keep a
    /// state.
    std::uint32_t draft_tokens = 0;
    /// So many of the likeliest tokens come with each token of the answer.
    std::uint32_t log_probabilities = 0;
    int priority = 0;  ///< higher goes first
    std::optional<std::chrono::steady_clock::time_point> deadline = {};
    std::string cache_salt = {};  ///< prefixes are shared within it alone: an adapter, a user
    /// Called from within `step`, after it; may ask and cancel, but not step.
    std::function<void(const Delta&)> listener = {};
};

/// What an engine has done since it was made, and what it holds.
struct EngineCounts {
    std::uint64_t prompt_tokens = 0;  ///< computed, those that were computed again included
    std::uint64_t cached_tokens = 0;  ///< found in the cache of prefixes instead
    std::uint64_t answer_tokens = 0;
    std::uint64_t draft_tokens = 0;  ///< tokens
    std::uint64_t accepted_tokens = 0;
    std::uint64_t preemptions = 0;     ///< answers that gave their blocks to others
    std::uint64_t swapped_tokens = 0;  ///< brought back from the host's memory, and not computed again
    std::uint64_t finished = 0;        ///< answers
    std::uint64_t full = 0;            ///< of these, those that ended because the cache held no more
    std::size_t waiting = 0;           ///< answers
    std::size_t running = 0;
    std::size_t free_blocks = 0;
    std::size_t remembered_blocks = 0;  ///< of prefixes, those that are in use included
    std::size_t used_blocks = 0;        ///< of answers that run
    std::size_t most_used_blocks = 0;   ///< in any pass
    std::size_t blocks = 0;
    std::size_t free_draft_blocks = 0;  ///< of the draft model's cache
    std::size_t draft_blocks = 0;
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Sampler`: picks the next token from a row of logits, greedily, by temperature, or by a chain of steps.

#include <decant/core/adjustment.hpp>
#include <decant/core/best.hpp>
#include <decant/core/config.hpp>
#include <decant/core/math_guard.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/adjust.hpp>
#include <decant/sample/candidates.hpp>
#include <decant/sample/filters.hpp>
#include <decant/sample/plan.hpp>
#include <decant/sample/random.hpp>
#include <decant/sample/steps.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace decant::inline DECANT_ABI {

struct SamplerOptions {
    float temperature = 0.0f;  ///< 0 = always the likeliest token (greedy)
    std::uint64_t seed = 0;    ///< names the stream of random numbers
};

/// All that a sampler remembers from token to token; copy it to save, fork or roll back.
struct SamplerState {
    double mu = 0.0;  ///< Mirostat's limit of surprise, in bits; 0 without Mirostat
    friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

/// The token is a function of logits, history, steps, seed and `state()`, and of nothing else: the random numbers are
/// `uniform(seed, history.size(), lane)`, lane 0 for the draw and lane 1 for `Xtc`. Equal logits go to the lower id.
///
/// The history that the caller passes is what penalties and `Dry` look at: pass all tokens of a sequence to count the
/// prompt, or only those after the prompt to leave it out. Its length is the position in the random stream.
///
/// An object serves one thread at a time; copies are independent, and share the stream if they share the seed. Once a
/// pick has been made, further ones of the same vocabulary allocate nothing (open-ended windows: until the history
/// outgrows the next power of two from 4096 on; see `reserve`).
class Sampler {
 public:
    /// A chain of one step, `Temperature`. A temperature that cannot be used is an error of every pick.
    explicit Sampler(SamplerOptions options = {}) : seed_(options.seed) {
        std::vector<SamplerStep> steps{Temperature{options.temperature}};
        usable_ = detail::check_steps(steps).has_value();
        plan_ = usable_ ? detail::plan(std::move(steps)) : detail::SamplerPlan{std::move(steps), 0, 0};
    }

    /// Steps run in the order given; without a temperature, T = 1; without a step, softmax(logits) is drawn from.
    /// Recommended: `Penalties`, `Dry`, `LogitBias`, `TopNSigma` or `TopK`, `Typical`, `TopP`, `MinP`, a temperature,
    /// `Xtc`. Penalties first, as they depend on the sign of the logit; `TopK` first among filters, as all later
    /// steps then work on few candidates (see `best`). With a `Temperature` of 0 the chain is greedy: penalties and
    /// biases count, random numbers do not. Errors: `invalid_argument` for a number that a step cannot use, and for
    /// `Mirostat` before another step or beside a filter.
    [[nodiscard]] static Result<Sampler> chain(std::vector<SamplerStep> steps, std::uint64_t seed = 0) {
        const detail::MathGuard guard;
        DECANT_CHECK(detail::check_steps(steps));
        return Sampler(detail::plan(std::move(steps)), seed);
    }

    /// One token: `distribution`, `draw` and `accept` in one, without making the list if no filter made one. Errors as
    /// in `distribution`.
    [[nodiscard]] Result<Token> pick(std::span<const float> logits, std::span<const Token> history) {
        DECANT_CHECK(narrow(logits, history));
        const Token token = draw(history.size());
        accept(token);
        return token;
    }

    /// The same token out of the `best()` best of the row (or more of them) after `adjustments(history)`. Errors:
    /// `invalid_argument` if the chain needs all logits, for fewer than `best()`, and as in `distribution`.
    [[nodiscard]] Result<Token> pick(const BestTokens& best, std::span<const Token> history) {
        DECANT_CHECK(narrow(best, history));
        const Token token = draw(history.size());
        accept(token);
        return token;
    }

    /// The candidates that the chain leaves, sorted by descending logit, then id, with probabilities above 0 and a sum
    /// of 1. `logits`: [vocabulary]. Valid until the next call that is not const, and not across a copy. Errors:
    /// `invalid_argument` for a NaN or +inf, naming the first; for a row that is empty or, adjustments applied, -inf
    /// alone; for a bias of a token outside the row.
    [[nodiscard]] Result<std::span<const Candidate>> distribution(std::span<const float> logits,
                                                                  std::span<const Token> history) & {
        const detail::MathGuard guard;
        DECANT_CHECK(narrow(logits, history));
        set_.list();
        return std::span<const Candidate>(set_.kept);
    }

    /// Draws from the last `distribution`; `position`: the length of its history. The token that `pick` would give.
    [[nodiscard]] Token draw(std::size_t position) const {
        DECANT_ASSERT(set_.total() > 0.0);
        const detail::MathGuard guard;
        return set_.draw(uniform(seed_, position, draw_lane));
    }

    /// Tells which token was taken from the last `distribution`, drawn or forced; matters to `Mirostat` only. A token
    /// that was no candidate changes nothing.
    void accept(Token token) noexcept {
        const detail::MathGuard guard;
        const Mirostat* step = mirostat();
        if (step == nullptr || set_.total() == 0.0) return;
        const double probability = set_.probability(token);
        if (probability == 0.0) return;
        state_.mu -= static_cast<double>(step->eta) * (-std::log2(probability) - static_cast<double>(step->tau));
    }

    [[nodiscard]] SamplerState state() const noexcept { return state_; }
    /// Back to a state of this sampler or of one with the same steps.
    void restore(SamplerState state) noexcept { state_ = state; }

    [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
    /// Another stream of random numbers from the next pick on: for several answers to one prompt.
    void reseed(std::uint64_t seed) noexcept { seed_ = seed; }

    /// The steps that run: those of the chain, without the ones that change nothing.
    [[nodiscard]] std::span<const SamplerStep> steps() const& noexcept { return plan_.steps; }
    std::span<const SamplerStep> steps() const&& = delete;

    /// How many of the best candidates `pick(BestTokens)` needs: 1 if greedy, k if `TopK` comes first after the
    /// adjusting steps; 0 if the chain needs all logits.
    [[nodiscard]] std::size_t best() const noexcept { return plan_.best; }

    /// The adjusting steps before any other, as one adjustment per token, sorted by token. They are all that must be
    /// applied before the best are chosen if `best()` is not 0.
    void adjustments(std::span<const Token> history, std::vector<LogitAdjustment>& out) {
        const detail::MathGuard guard;
        DECANT_ASSERT(plan_.prefix <= plan_.steps.size());  // not after a move
        const auto steps = std::span<const SamplerStep>(plan_.steps).first(plan_.prefix);
        out.reserve(detail::reserve_adjustments(plan_.steps, history.size(), scratch_));
        out.clear();
        for (const SamplerStep& step : steps) {
            detail::adjust_step(step, history, scratch_);
            detail::merge_step(scratch_, out);
        }
    }

    /// Allocates now what picks of this vocabulary and histories up to this length need.
    void reserve(std::size_t vocabulary, std::size_t history) {
        adjustments_.reserve(detail::reserve_adjustments(plan_.steps, history, scratch_));
        if (plan_.best == 0) {
            set_.reserve_row(vocabulary);
        } else {
            set_.kept.reserve((std::min)(2 * (std::min)(plan_.best, vocabulary), vocabulary));
        }
    }

 private:
    static constexpr std::uint32_t draw_lane = 0;
    static constexpr std::uint32_t xtc_lane = 1;

    /// Copies of a sampler start without its memory and last distribution.
    template <class T>
    struct Scratch : T {
        Scratch() = default;
        Scratch(const Scratch&) noexcept(noexcept(T())) : T() {}
        Scratch(Scratch&&) noexcept = default;
        Scratch& operator=(const Scratch& other) {
            if (this != &other) static_cast<T&>(*this) = T();
            return *this;
        }
        Scratch& operator=(Scratch&&) noexcept = default;
    };

    Sampler(detail::SamplerPlan plan, std::uint64_t seed) : plan_(std::move(plan)), seed_(seed) {
        if (const Mirostat* step = mirostat()) state_.mu = 2.0 * static_cast<double>(step->tau);
    }

    [[nodiscard]] const Mirostat* mirostat() const noexcept {
        return plan_.steps.empty() ? nullptr : std::get_if<Mirostat>(&plan_.steps.back());
    }

    Result<void> narrow(std::span<const float> logits, std::span<const Token> history) {
        if (!usable_) return detail::check_steps(plan_.steps);
        const detail::MathGuard guard;
        DECANT_CHECK(check_biases(logits.size()));
        reserve(logits.size(), history.size());
        adjustments(history, adjustments_);
        if (plan_.best > 0) {
            DECANT_CHECK(set_.load_best(logits, adjustments_, plan_.best));
        } else {
            DECANT_CHECK(set_.load_row(logits, adjustments_));
        }
        return run(history);
    }

    Result<void> narrow(const BestTokens& best, std::span<const Token> history) {
        if (!usable_) return detail::check_steps(plan_.steps);
        const detail::MathGuard guard;
        if (plan_.best == 0 || best.asked() < plan_.best) {
            return Error{ErrorCode::invalid_argument,
                         plan_.best == 0 ? std::string("the chain needs all logits")
                                         : detail::text("the best ", best.asked(), " for a chain of ", plan_.best),
                         "Sampler", "ask for as many as `best()` says, all logits if it says 0"};
        }
        if (best.bad() >= 0) return detail::bad_logit(best.bad());
        if (best.size() == 0) return detail::no_candidate(best.asked());
        reserve(best.asked(), history.size());
        set_.load_best(best, plan_.best);
        return run(history);
    }

    /// The steps after the prefix.
    Result<void> run(std::span<const Token> history) {
        DECANT_ASSERT(plan_.prefix <= plan_.steps.size());  // not after a move
        for (const SamplerStep& step : std::span<const SamplerStep>(plan_.steps).subspan(plan_.prefix)) {
            if (detail::is_adjusting(step)) {
                detail::adjust_step(step, history, scratch_);
                DECANT_CHECK(set_.adjust(scratch_.step));
                continue;
            }
            std::visit(
                [&]<class Step>(const Step& held) {
                    if constexpr (std::is_same_v<Step, Xtc>) {
                        detail::filter(held, set_, uniform(seed_, history.size(), xtc_lane));
                    } else if constexpr (std::is_same_v<Step, Mirostat>) {
                        detail::filter(held, set_, state_.mu);
                    } else if constexpr (!detail::adjusts<Step>) {
                        detail::filter(held, set_);
                    }
                },
                step);
        }
        set_.finish();
        return {};
    }

    Result<void> check_biases(std::size_t vocabulary) const {
        for (const SamplerStep& step : plan_.steps) {
            const auto* bias = std::get_if<LogitBias>(&step);
            if (bias == nullptr || static_cast<std::size_t>(id(bias->biases.back().first)) < vocabulary) continue;
            return Error{ErrorCode::invalid_argument,
                         detail::text("bias of token ", id(bias->biases.back().first), " for ", vocabulary, " logits"),
                         "Sampler", "is the bias meant for another vocabulary?"};
        }
        return {};
    }

    detail::SamplerPlan plan_;
    bool usable_ = true;
    std::uint64_t seed_ = 0;
    SamplerState state_;
    std::vector<LogitAdjustment> adjustments_;
    Scratch<detail::AdjustScratch> scratch_;
    Scratch<detail::CandidateSet> set_;
};

}  // namespace decant::inline DECANT_ABI

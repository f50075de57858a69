// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// From the steps that the host composed to those that will run: checks, and leaves out what is off.

#include <decant/core/config.hpp>
#include <decant/core/float_bits.hpp>
#include <decant/core/result.hpp>
#include <decant/sample/steps.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// What the planner knows of a step: a complaint about its numbers (empty = none), and whether it does nothing.
struct StepTraits {
    std::string_view name;
    std::string_view complaint;
    bool off = false;
};

inline bool finite_from(float x, float least) noexcept { return is_finite(x) && x >= least; }
/// A number from `least` up to infinity.
inline bool number_from(float x, float least) noexcept { return !is_nan(x) && x >= least; }

inline StepTraits traits(const Penalties& step) noexcept {
    StepTraits out{"Penalties", {}, step.last_n == 0};
    if (!(is_finite(step.repetition) && step.repetition > 0.0f)) out.complaint = "repetition must be above 0";
    if (!is_finite(step.frequency) || !is_finite(step.presence))
        out.complaint = "frequency and presence must be finite";
    if (step.last_n < -1) out.complaint = "last_n must be at least -1 (all)";
    if (step.repetition == 1.0f && step.frequency == 0.0f && step.presence == 0.0f) out.off = true;
    return out;
}
inline StepTraits traits(const LogitBias& step) noexcept {
    StepTraits out{"LogitBias", {}, step.biases.empty()};
    for (const auto& [token, bias] : step.biases) {
        if (id(token) < 0) out.complaint = "tokens must not be negative";
        if (is_nan_or_infinity(bias)) out.complaint = "a bias must be finite or -inf";
    }
    return out;
}
inline StepTraits traits(const Dry& step) noexcept {
    StepTraits out{"Dry", {}, step.multiplier == 0.0f || step.last_n == 0};
    if (!finite_from(step.multiplier, 0.0f)) out.complaint = "multiplier must be 0 or above";
    if (!finite_from(step.base, 1.0f)) out.complaint = "base must be at least 1";
    if (step.allowed_length < 1) out.complaint = "allowed_length must be at least 1";
    if (step.last_n < -1) out.complaint = "last_n must be at least -1 (all)";
    return out;
}
inline StepTraits traits(const TopK& step) noexcept { return {"TopK", {}, step.k <= 0}; }
inline StepTraits traits(const TopP& step) noexcept {
    return {"TopP", number_from(step.p, 0.0f) ? "" : "p must be 0 or above", step.p >= 1.0f};
}
inline StepTraits traits(const MinP& step) noexcept {
    return {"MinP", number_from(step.p, 0.0f) ? "" : "p must be 0 or above", step.p == 0.0f};
}
inline StepTraits traits(const Typical& step) noexcept {
    return {"Typical", number_from(step.p, 0.0f) ? "" : "p must be 0 or above", step.p >= 1.0f};
}
inline StepTraits traits(const TopNSigma& step) noexcept {
    return {"TopNSigma", is_finite(step.n) ? "" : "n must be finite", step.n <= 0.0f};
}
inline StepTraits traits(const Xtc& step) noexcept {
    StepTraits out{"Xtc", {}, step.probability == 0.0f || step.threshold > 0.5f};
    if (!finite_from(step.probability, 0.0f) || step.probability > 1.0f)
        out.complaint = "probability must lie in [0, 1]";
    if (!number_from(step.threshold, 0.0f)) out.complaint = "threshold must be 0 or above";
    return out;
}
inline StepTraits traits(const Temperature& step) noexcept {
    return {"Temperature", finite_from(step.t, 0.0f) ? "" : "use 0 (greedy) or a finite number above", step.t == 1.0f};
}
inline StepTraits traits(const DynamicTemperature& step) noexcept {
    StepTraits out{"DynamicTemperature", {}, false};
    if (!finite_from(step.min, 0.0f) || !finite_from(step.max, step.min))
        out.complaint = "0 <= min <= max, both finite, is needed";
    if (!finite_from(step.exponent, 0.0f)) out.complaint = "exponent must be 0 or above";
    return out;
}
inline StepTraits traits(const Mirostat& step) noexcept {
    const bool good = finite_from(step.tau, 0.0f) && finite_from(step.eta, 0.0f);
    return {"Mirostat", good ? "" : "tau and eta must be 0 or above", false};
}

inline StepTraits traits(const SamplerStep& step) noexcept {
    return std::visit([](const auto& held) { return traits(held); }, step);
}

/// Steps that change single logits, as against filters and temperatures.
template <class Step>
inline constexpr bool adjusts =
    std::is_same_v<Step, Penalties> || std::is_same_v<Step, LogitBias> || std::is_same_v<Step, Dry>;

template <class... Kinds>
bool is_any(const SamplerStep& step) noexcept {
    return (std::holds_alternative<Kinds>(step) || ...);
}
inline bool is_adjusting(const SamplerStep& step) noexcept { return is_any<Penalties, LogitBias, Dry>(step); }
inline bool is_greedy(const SamplerStep& step) noexcept {
    const auto* temperature = std::get_if<Temperature>(&step);
    return temperature != nullptr && temperature->t == 0.0f;
}

/// The steps that will run. The first `prefix` of them are adjusting and together one `LogitAdjustment` per token.
struct SamplerPlan {
    std::vector<SamplerStep> steps;
    std::size_t prefix = 0;
    std::size_t best = 0;  ///< candidates that the step after the prefix keeps, if it is `TopK` or temperature 0
};

/// Number of leading steps that can be written as x / repetition + bias: no repetition penalty may follow a bias.
inline std::size_t combinable(const std::vector<SamplerStep>& steps) noexcept {
    bool biased = false;
    std::size_t count = 0;
    for (; count < steps.size() && is_adjusting(steps[count]); ++count) {
        const auto* penalties = std::get_if<Penalties>(&steps[count]);
        if (penalties != nullptr && penalties->repetition != 1.0f && biased) break;
        if (penalties == nullptr || penalties->frequency != 0.0f || penalties->presence != 0.0f) biased = true;
    }
    return count;
}

/// Sorted by token, each token once.
inline void normalize(LogitBias& step) {
    auto& biases = step.biases;
    std::sort(biases.begin(), biases.end(), [](const auto& a, const auto& b) { return id(a.first) < id(b.first); });
    std::size_t count = 0;
    for (const auto& [token, bias] : biases) {
        if (count > 0 && biases[count - 1].first == token) {
            biases[count - 1].second = (std::min)(biases[count - 1].second + bias, (std::numeric_limits<float>::max)());
        } else {
            biases[count++] = {token, bias};
        }
    }
    biases.erase(biases.begin() + static_cast<std::ptrdiff_t>(count), biases.end());
}

/// A plan of steps whose numbers are good. At temperature 0 all that follows is moot, and so are filters before it that
/// never drop the likeliest candidate.
inline SamplerPlan plan(std::vector<SamplerStep> steps) {
    const bool greedy = std::any_of(steps.begin(), steps.end(), is_greedy);
    std::erase_if(steps, [&](const SamplerStep& step) { return traits(step).off || (greedy && is_any<Xtc>(step)); });
    for (SamplerStep& step : steps) {
        if (auto* bias = std::get_if<LogitBias>(&step)) normalize(*bias);
        if (auto* dry = std::get_if<Dry>(&step)) std::sort(dry->breakers.begin(), dry->breakers.end());
    }
    SamplerPlan out;
    out.prefix = combinable(steps);
    const auto prefix_end = steps.begin() + static_cast<std::ptrdiff_t>(out.prefix);
    const auto decides = std::find_if(prefix_end, steps.end(), [](const SamplerStep& step) {
        return is_greedy(step) || !is_any<TopK, TopP, MinP, TopNSigma, Temperature, DynamicTemperature>(step);
    });
    if (decides != steps.end() && is_greedy(*decides)) {
        steps.erase(decides + 1, steps.end());
        steps.erase(prefix_end, decides);
        out.best = 1;
    } else if (prefix_end != steps.end()) {
        if (const auto* top = std::get_if<TopK>(&*prefix_end)) out.best = static_cast<std::size_t>(top->k);
    }
    out.steps = std::move(steps);
    return out;
}

inline Error step_error(std::string_view what, std::string_view where, std::string_view hint) {
    return Error{ErrorCode::invalid_argument, std::string(what), text("Sampler, ", where), std::string(hint)};
}

/// Checks the numbers of all steps, the place of `Mirostat`, and that nothing is adjusted after all but one token are
/// gone.
inline Result<void> check_steps(const std::vector<SamplerStep>& steps) {
    const SamplerStep* mirostat = nullptr;
    bool greedy = false;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const StepTraits step = traits(steps[i]);
        const auto where = [&] { return text("step ", i, " (", step.name, ")"); };
        if (!step.complaint.empty()) return step_error(text(step.name, " cannot be used"), where(), step.complaint);
        if (mirostat != nullptr && !step.off)
            return step_error("a step follows Mirostat", where(), "Mirostat must be last");
        if (greedy && !step.off && is_adjusting(steps[i])) {
            return step_error("a step adjusts logits after a temperature of 0 has left one token", where(),
                              "put penalties and biases first");
        }
        greedy = greedy || is_greedy(steps[i]);
        if (is_any<Mirostat>(steps[i])) mirostat = &steps[i];
    }
    if (mirostat == nullptr) return {};
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const StepTraits step = traits(steps[i]);
        if (!step.off && is_any<TopK, TopP, MinP, Typical, TopNSigma, Xtc>(steps[i])) {
            return step_error("a filter is combined with Mirostat", text("step ", i, " (", step.name, ")"),
                              "Mirostat truncates by itself; leave the filter out");
        }
    }
    return {};
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// A sampler chain computed plainly, in double precision and with full sorts; and random chains to try.

#include <decant/sample/random.hpp>
#include <decant/sample/steps.hpp>

#include "support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace decant_test {

struct Reference {
    std::int32_t id;
    double logit;
    double probability;
};

inline void softmax(std::vector<Reference>& list) {
    std::sort(list.begin(), list.end(),
              [](const auto& a, const auto& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; });
    double sum = 0.0;
    for (auto& one : list) sum += one.probability = std::exp(one.logit - list.front().logit);
    for (auto& one : list) one.probability /= sum;
}
inline double entropy(const std::vector<Reference>& list) {
    double sum = 0.0;
    for (const auto& one : list)
        if (one.probability > 0.0) sum -= one.probability * std::log(one.probability);
    return sum;
}
inline std::span<const decant::Token> last(std::span<const decant::Token> history, int n) {
    return n < 0 || static_cast<std::size_t>(n) > history.size() ? history : history.last(static_cast<std::size_t>(n));
}
inline std::size_t reaching(const std::vector<Reference>& list, double goal) {
    double sum = 0.0;
    std::size_t count = 0;
    while (count < list.size()) {
        sum += list[count++].probability;
        if (sum >= goal) break;
    }
    return count;
}

struct ReferenceChain {
    std::vector<Reference> list;  // sorted, with probabilities
    std::span<const decant::Token> history;
    double random = 0.0;  // for XTC

    void operator()(const decant::Penalties& step) {
        std::map<std::int32_t, int> counts;
        for (const auto token : last(history, step.last_n)) ++counts[id(token)];
        for (auto& one : list) {
            if (!counts.contains(one.id)) continue;
            one.logit = one.logit > 0 ? one.logit / step.repetition : one.logit * step.repetition;
            one.logit -= counts[one.id] * static_cast<double>(step.frequency) + step.presence;
        }
    }
    void operator()(const decant::LogitBias& step) {
        for (auto& one : list)
            for (const auto& [token, bias] : step.biases)
                if (id(token) == one.id) one.logit += bias;
        std::erase_if(list, [](const auto& one) { return std::isinf(one.logit); });
    }
    void operator()(const decant::Dry& step) {
        const auto tokens = last(history, step.last_n);
        std::map<std::int32_t, std::size_t> lengths;
        for (std::size_t end = 0; end + 1 < tokens.size(); ++end) {
            std::size_t length = 0;
            while (length <= end && tokens[end - length] == tokens[tokens.size() - 1 - length]) ++length;
            auto& longest = lengths[id(tokens[end + 1])];
            longest = (std::max)(longest, length);
        }
        for (auto& one : list) {
            const auto found = lengths.find(one.id);
            if (found == lengths.end() || found->second < static_cast<std::size_t>(step.allowed_length)) continue;
            one.logit -= step.multiplier * std::pow(step.base, static_cast<int>(found->second) - step.allowed_length);
        }
    }
    void operator()(const decant::TopK& step) {
        if (step.k > 0 && list.size() > static_cast<std::size_t>(step.k)) list.resize(static_cast<std::size_t>(step.k));
    }
    void operator()(const decant::TopP& step) {
        if (step.p < 1.0f) list.resize(reaching(list, step.p));
    }
    void operator()(const decant::MinP& step) {
        const double least = (std::min)(1.0, static_cast<double>(step.p)) * list.front().probability;
        std::erase_if(list, [&](const auto& one) { return one.probability < least; });
    }
    void operator()(const decant::Typical& step) {
        if (step.p >= 1.0f) return;
        const double h = entropy(list);
        std::stable_sort(list.begin(), list.end(), [&](const auto& a, const auto& b) {
            return std::fabs(-std::log(a.probability) - h) < std::fabs(-std::log(b.probability) - h);
        });
        list.resize(reaching(list, step.p));
    }
    void operator()(const decant::TopNSigma& step) {
        if (step.n <= 0.0f) return;
        double mean = 0.0;
        for (const auto& one : list) mean += one.logit / static_cast<double>(list.size());
        double variance = 0.0;
        for (const auto& one : list)
            variance += (one.logit - mean) * (one.logit - mean) / static_cast<double>(list.size());
        const double least = list.front().logit - step.n * std::sqrt(variance) - 1e-9;
        std::erase_if(list, [&](const auto& one) { return one.logit < least; });
    }
    void operator()(const decant::Xtc& step) {
        if (random >= step.probability || step.threshold > 0.5f) return;
        std::size_t count = 0;
        while (count < list.size() && list[count].probability >= step.threshold) ++count;
        if (count > 1) list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count - 1));
    }
    void operator()(const decant::Temperature& step) {
        if (step.t == 0.0f) {
            list.resize(1);
        } else {
            for (auto& one : list) one.logit /= step.t;
        }
    }
    void operator()(const decant::DynamicTemperature& step) {
        if (list.size() < 2) return;
        const double share = entropy(list) / std::log(static_cast<double>(list.size()));
        const double t = step.min + (step.max - step.min) * std::pow(share, step.exponent);
        for (auto& one : list) one.logit /= t;
    }
    void operator()(const decant::Mirostat& step) {
        const double mu = 2.0 * step.tau;
        const std::size_t count = static_cast<std::size_t>(std::count_if(
            list.begin(), list.end(), [&](const auto& one) { return -std::log2(one.probability) <= mu; }));
        list.resize((std::max)(count, std::size_t{1}));
    }
};

/// Where single precision runs out is not compared.
inline constexpr double negligible = 1e-30;

inline std::vector<Reference> reference_distribution(const std::vector<decant::SamplerStep>& steps,
                                                     const std::vector<float>& logits,
                                                     std::span<const decant::Token> history, std::uint64_t seed) {
    ReferenceChain chain{{}, history, decant::uniform(seed, history.size(), 1)};
    for (std::size_t i = 0; i < logits.size(); ++i)
        if (!std::isinf(logits[i])) chain.list.push_back({static_cast<std::int32_t>(i), logits[i], 0.0});
    softmax(chain.list);
    for (const auto& step : steps) {
        if (chain.list.empty()) break;
        std::visit(chain, step);
        softmax(chain.list);
    }
    std::erase_if(chain.list, [](const auto& one) { return one.probability < negligible; });
    return chain.list;
}

/// On a grid of exact numbers, or a few, so that there are ties; now and then -inf.
inline std::vector<float> random_logits(Random& random, std::size_t most) {
    std::vector<float> logits(1 + random.below(most));
    const std::size_t values = 2 + random.below(random.below(2) == 0 ? 12 : 400);
    for (float& x : logits) {
        const auto steps = static_cast<float>(random.below(values));
        x = steps * (random.below(2) == 0 ? 0.015625f : 0.03125f) - 2.0f;
        if (random.below(30) == 0) x = -std::numeric_limits<float>::infinity();
    }
    logits[random.below(logits.size())] = 1.5f;
    return logits;
}
inline std::vector<decant::Token> random_history(Random& random, std::size_t vocabulary) {
    std::vector<decant::Token> history(random.below(100));
    const std::size_t used = 1 + random.below(vocabulary);
    for (auto& token : history) token = decant::Token{static_cast<std::int32_t>(random.below(used))};
    return history;
}

/// Numbers in (0, 1) that hit no probability of the grid by chance.
inline float share(Random& random) { return 0.0123f + 0.975f * 0.5f * (1.0f + random.number()); }

inline decant::SamplerStep random_adjusting(Random& random, std::size_t vocabulary) {
    switch (random.below(4)) {
        case 0: {
            decant::LogitBias bias;
            for (std::size_t i = random.below(4); i > 0; --i) {
                const auto token = static_cast<std::int32_t>(random.below(vocabulary));
                bias.biases.push_back({decant::Token{token}, random.below(3) == 0
                                                                 ? -std::numeric_limits<float>::infinity()
                                                                 : 2.0f * random.number()});
            }
            return bias;
        }
        case 1: return decant::Dry{.multiplier = 0.4f * share(random), .base = 1.2f, .allowed_length = 2};
        default:
            return decant::Penalties{.repetition = random.below(2) == 0 ? 1.0f : 0.8f + share(random),
                                     .frequency = random.below(2) == 0 ? 0.0f : 0.1f * random.number(),
                                     .presence = random.below(2) == 0 ? 0.0f : 0.5f * random.number(),
                                     .last_n = static_cast<int>(random.below(70)) - 1};
    }
}
inline decant::SamplerStep random_filter(Random& random) {
    switch (random.below(8)) {
        case 0: return decant::TopK{static_cast<int>(random.below(60)) - 2};
        case 1: return decant::TopP{share(random)};
        case 2: return decant::MinP{share(random) * share(random)};
        case 3: return decant::Typical{share(random)};
        case 4: return decant::TopNSigma{0.1f + 2.5f * share(random)};
        case 5: return decant::Xtc{share(random), 0.7f * share(random) * share(random)};
        case 6: return decant::Temperature{0.3f + share(random)};
        default: return decant::DynamicTemperature{0.3f, 0.3f + share(random), 0.5f + share(random)};
    }
}
/// A chain that runs; `top_k_first`: one that can do with the k best.
inline std::vector<decant::SamplerStep> random_steps(Random& random, std::size_t vocabulary, bool top_k_first) {
    std::vector<decant::SamplerStep> steps;
    for (std::size_t i = random.below(3); i > 0; --i) steps.push_back(random_adjusting(random, vocabulary));
    if (!top_k_first && random.below(8) == 0) {
        steps.push_back(decant::Temperature{0.5f + share(random)});
        steps.push_back(decant::Mirostat{0.5f + 4.0f * share(random), 0.1f});
        return steps;
    }
    if (top_k_first) steps.push_back(decant::TopK{1 + static_cast<int>(random.below(80))});
    for (std::size_t i = random.below(5); i > 0; --i)
        steps.push_back(random.below(6) == 0 ? random_adjusting(random, vocabulary) : random_filter(random));
    if (random.below(12) == 0) steps.push_back(decant::Temperature{0.0f});
    // The random number of XTC is not drawn in a greedy chain, wherever the temperature stands.
    const bool greedy = std::any_of(steps.begin(), steps.end(), [](const auto& step) {
        const auto* temperature = std::get_if<decant::Temperature>(&step);
        return temperature != nullptr && temperature->t == 0.0f;
    });
    if (greedy) std::erase_if(steps, [](const auto& step) { return std::holds_alternative<decant::Xtc>(step); });
    return steps;
}

inline std::string describe(const std::vector<decant::SamplerStep>& steps) {
    static const char* const names[] = {
        "Penalties",   "LogitBias",          "Dry",     "TopK", "TopP", "MinP", "Typical", "TopNSigma", "Xtc",
        "Temperature", "DynamicTemperature", "Mirostat"};
    std::string text;
    for (const auto& step : steps) text += std::string(" ") + names[step.index()];
    return text;
}

}  // namespace decant_test

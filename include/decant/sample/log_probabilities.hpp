// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `log_probabilities`: how sure a model was of a token, and of which others.

#include <decant/core/config.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/softmax.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {

struct LogProbability {
    Token token{};
    float value = 0.0f;  ///< natural logarithm, of the model's own distribution: before any sampler
};

/// Of `token`, and then of the `most` likeliest tokens: descending, equal ones by id. `logits`: one row, without NaN
/// and +inf, which holds `token`.
[[nodiscard]] inline std::vector<LogProbability> log_probabilities(std::span<const float> logits, Token token,
                                                                   std::size_t most) {
    const float whole = log_sum_exp(logits);
    std::vector<LogProbability> found{{token, logits[static_cast<std::size_t>(id(token))] - whole}};
    most = (std::min)(most, logits.size());
    found.reserve(1 + most);
    const auto better = [](const LogProbability& a, const LogProbability& b) {
        return a.value > b.value || (a.value == b.value && a.token < b.token);
    };
    // A heap of the best so far, the worst of them on top: behind a row's first tokens, few displace it.
    for (std::size_t i = 0; i < logits.size() && most > 0; ++i) {
        const LogProbability next{Token{static_cast<std::int32_t>(i)}, logits[i] - whole};
        const auto heap = found.begin() + 1;
        if (found.size() > most) {
            if (!better(next, *heap)) continue;
            std::pop_heap(heap, found.end(), better);
            found.pop_back();
        }
        found.push_back(next);
        std::push_heap(found.begin() + 1, found.end(), better);
    }
    std::sort_heap(found.begin() + 1, found.end(), better);
    return found;
}

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Sampler`: picks the next token from a row of logits, greedily or by temperature.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/random.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace decant::inline DECANT_ABI {

struct SamplerOptions {
    float temperature = 0.0f;  ///< 0 = always the likeliest token (greedy)
    std::uint64_t seed = 0;    ///< names the stream of random numbers
};

/// Stateless: the same logits at the same position give the same token. Copyable, thread-safe.
class Sampler {
 public:
    explicit Sampler(SamplerOptions options = {}) noexcept : options_(options) {}

    /// One token of softmax(logits / temperature). `logits`: [vocabulary]; `history`: the tokens so far, whose number
    /// is the position in the random stream. Equal logits go to the lower id when greedy. Errors: `invalid_argument`
    /// for a temperature below 0, an empty row, a NaN or +inf, or a row of -inf alone.
    [[nodiscard]] Result<Token> pick(std::span<const float> logits, std::span<const Token> history) const {
        if (!(options_.temperature >= 0.0f) || !std::isfinite(options_.temperature)) {
            return Error{ErrorCode::invalid_argument, detail::text("temperature ", options_.temperature), "Sampler",
                         "use 0 (greedy) or a finite number above"};
        }
        std::size_t best = logits.size();
        float highest = -std::numeric_limits<float>::infinity();
        for (std::size_t i = 0; i < logits.size(); ++i) {
            if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
                return Error{ErrorCode::invalid_argument, detail::text("logit ", logits[i], " of token ", i), "Sampler",
                             "the model's weights are damaged or its numbers overflowed"};
            }
            if (logits[i] > highest) {
                highest = logits[i];
                best = i;
            }
        }
        if (best == logits.size()) {
            return Error{ErrorCode::invalid_argument,
                         detail::text("no token can be picked from ", logits.size(), " logits"), "Sampler",
                         "at least one logit must be above -inf"};
        }
        if (options_.temperature == 0.0f) return Token{static_cast<std::int32_t>(best)};

        const double inverse = 1.0 / static_cast<double>(options_.temperature);
        const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - highest) * inverse); };
        double total = 0.0;
        for (const float logit : logits) total += weight(logit);
        double left = uniform(options_.seed, history.size()) * total;
        std::size_t picked = best;
        for (std::size_t i = 0; i < logits.size(); ++i) {
            const double share = weight(logits[i]);
            if (share > 0.0) picked = i;  // the last possible token, should rounding leave a rest
            if (left < share) break;
            left -= share;
        }
        return Token{static_cast<std::int32_t>(picked)};
    }

    [[nodiscard]] const SamplerOptions& options() const noexcept { return options_; }

 private:
    SamplerOptions options_;
};

}  // namespace decant::inline DECANT_ABI

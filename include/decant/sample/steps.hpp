// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The steps of a sampler chain, as data: one struct per step, `SamplerStep` is any of them.

#include <decant/core/config.hpp>
#include <decant/core/token.hpp>

#include <utility>
#include <variant>
#include <vector>

namespace decant::inline DECANT_ABI {

// Adjusting steps change the logits of a few tokens.

/// Penalties on the tokens of the history (repetition: Keskar et al., "CTRL", 2019): once per distinct token of the
/// window, a positive logit is divided by `repetition` and another is multiplied; then count * frequency + presence is
/// subtracted.
struct Penalties {
    float repetition = 1.0f;  ///< positive; 1 = none
    float frequency = 0.0f;   ///< per occurrence; negative encourages
    float presence = 0.0f;    ///< once; negative encourages
    int last_n = 64;          ///< window: the last tokens of the history; -1 = all, 0 = off
};

/// Added to single logits. -inf forbids a token. A token that is named twice gets the sum.
struct LogitBias {
    std::vector<std::pair<Token, float>> biases = {};
};

/// "Don't repeat yourself" (p-e-w, text-generation-webui pull request 5677, 2024): a token that would prolong a
/// repetition of at least `allowed_length` tokens loses multiplier * base^(length - allowed_length), where length is
/// the longest suffix of the history that was followed by that token before. Repetitions do not reach across a breaker,
/// and breakers are never penalized.
struct Dry {
    float multiplier = 0.0f;           ///< 0 = off
    float base = 1.75f;                ///< at least 1
    int allowed_length = 2;            ///< at least 1
    int last_n = -1;                   ///< window: the last tokens of the history; -1 = all, 0 = off
    std::vector<Token> breakers = {};  ///< such as the tokens of line ends and quotes
};

// Filters drop candidates. None ever drops the last one.

/// Keeps the k likeliest. 0 or less = off.
struct TopK {
    int k = 40;
};

/// Nucleus (Holtzman et al. 2019): keeps the likeliest tokens, as few as reach the probability p together; 0 keeps one,
/// 1 or more = off.
struct TopP {
    float p = 1.0f;
};

/// Keeps tokens of at least p times the probability of the likeliest; 0 = off, 1 or more keeps only tokens as likely.
struct MinP {
    float p = 0.0f;
};

/// Locally typical (Meister et al. 2022): keeps the tokens whose surprise is nearest to the entropy, as few as reach
/// the probability p together; 0 keeps one, 1 or more = off.
struct Typical {
    float p = 1.0f;
};

/// Keeps logits within n standard deviations of the highest (Tang et al., "Top-n-sigma", 2024). 0 or less = off.
struct TopNSigma {
    float n = 0.0f;
};

/// "Exclude top choices" (p-e-w, text-generation-webui pull request 6335, 2024): with the given probability, drops all
/// tokens of at least `threshold` but the least likely of these. Off in a chain of temperature 0.
struct Xtc {
    float probability = 0.0f;  ///< 0 = off
    float threshold = 0.1f;    ///< above 0.5 = off
};

// Temperatures divide the logits.

/// 0 keeps only the likeliest token (the lower id among equals); infinity is refused.
struct Temperature {
    float t = 1.0f;
};

/// Entropy-based: T = min + (max - min) * (H / Hmax)^exponent, with H the entropy of the candidates and Hmax that of as
/// many equally likely ones.
struct DynamicTemperature {
    float min = 1.0f;
    float max = 1.0f;
    float exponent = 1.0f;
};

/// Mirostat 2 (Basu et al. 2020): keeps tokens with a surprise of at most mu bits, and moves mu by eta * (tau -
/// surprise of the token taken). Must be the last step; filters cannot be combined with it.
struct Mirostat {
    float tau = 5.0f;
    float eta = 0.1f;
};

using SamplerStep = std::variant<Penalties, LogitBias, Dry, TopK, TopP, MinP, Typical, TopNSigma, Xtc, Temperature,
                                 DynamicTemperature, Mirostat>;

}  // namespace decant::inline DECANT_ABI

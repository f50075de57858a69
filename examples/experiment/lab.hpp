// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the chapters share: the model's builds, the threads, the texts, and the results so far.

#include "engine.hpp"
#include "results.hpp"
#include "settings.hpp"
#include "texts.hpp"

#include "../support/timing.hpp"

#include <decant/core/thread_pool.hpp>
#include <decant/files/weights.hpp>
#include <decant/text/chat.hpp>
#include <decant/text/tokenizer.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace experiment {

struct Lab {
    explicit Lab(const Settings& given)
        : settings(given),
          pool(given.threads),
          weights(decant::Weights::open(given.model).value()),
          tokenizer(decant::Tokenizer::from(weights).value()) {}

    /// The engine of the smallest build, and its results.
    Engine& small_engine() { return *engines.back(); }
    const Build& small() const { return results.builds.small(); }
    [[nodiscard]] std::size_t context_length() const {
        return static_cast<std::size_t>((std::max)(results.context_length, std::uint64_t{8}));
    }

    /// A question in the model's chat format, or as it stands if the file has none that is known.
    [[nodiscard]] Tokens encode_prompt(const std::string& prompt) const {
        if (const auto chat = decant::ChatTemplate::from(weights)) {
            const std::array messages{decant::Message{"user", prompt}};
            return chat->encode(tokenizer, messages).value();
        }
        return tokenizer.encode(prompt, {.bos = true});
    }

    Settings settings;
    decant::ThreadPool pool;
    decant::Weights weights;
    decant::Tokenizer tokenizer;
    std::vector<std::unique_ptr<Engine>> engines;  // in the order of results.builds
    Tokens long_text;                              // chapter 2's prompt, which later chapters cut from
    Results results;
};

}  // namespace experiment

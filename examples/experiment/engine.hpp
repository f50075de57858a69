// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// One build of the model, ready to run, and the few things that every chapter does with it.

#include "metered.hpp"

#include "../support/progress.hpp"

#include <decant/cache/kv_cache.hpp>
#include <decant/core/thread_pool.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/context.hpp>
#include <decant/model/model.hpp>
#include <decant/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace experiment {

using Tokens = std::vector<decant::Token>;
using Cache = decant::KvCache<Metered>;
using Sequence = decant::Sequence<Metered>;

class Engine {
 public:
    static constexpr std::uint32_t chunk = 512;       ///< tokens of a prompt in one pass
    static constexpr std::uint32_t scored_rows = 32;  ///< rows of logits in one pass

    /// The pool must outlive the engine. Throws `decant::Exception`.
    Engine(const decant::Weights& weights, decant::ThreadPool& pool)
        : meter_(std::make_unique<Meter>()),
          model_(decant::Model<Metered>::bind(weights, Metered(MeteredKernels(meter_.get()))).value()),
          context_(model_, pool, {.rows = chunk, .sequences = 16, .logits = scored_rows}) {}

    [[nodiscard]] const decant::Model<Metered>& model() const { return model_; }
    [[nodiscard]] const decant::ModelSpec& spec() const { return model_.spec(); }
    [[nodiscard]] const decant::Weights& weights() const { return model_.weights(); }
    [[nodiscard]] decant::Isa isa() const { return model_.backend().kernels().isa(); }
    [[nodiscard]] decant::Context<Metered>& context() { return context_; }
    [[nodiscard]] Meter& meter() { return *meter_; }

    [[nodiscard]] Cache cache(std::size_t tokens) const { return Cache(model_, {.tokens = tokens}); }

    /// `Context::prefill` that shows how far it is.
    decant::Logits prefill(Sequence& sequence, std::span<const decant::Token> tokens, const char* task) {
        examples::Progress line(task);
        return context_.prefill(sequence, tokens, {.progress = [&](decant::Progress p) { line.show(p.done, p.total); }})
            .value();
    }
    decant::Logits decode(Sequence& sequence, decant::Token token) { return context_.decode(sequence, token).value(); }

 private:
    std::unique_ptr<Meter> meter_;
    decant::Model<Metered> model_;
    decant::Context<Metered> context_;
};

/// The token rated highest.
[[nodiscard]] inline decant::Token best_token(std::span<const float> logits) {
    return static_cast<decant::Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Bytes of the blocks that hold something.
[[nodiscard]] inline std::uint64_t bytes_in_use(const Cache& cache) {
    return cache.bytes() / cache.blocks() * (cache.blocks() - cache.free_blocks());
}

}  // namespace experiment

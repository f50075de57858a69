// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// A memory plan against what is then reserved.

#include "model/support.hpp"

#include <decant/core/thread_pool.hpp>
#include <decant/model/plan.hpp>

#include <cstddef>

namespace decant_test {

/// Byte for byte, with a model whose vocabulary is at least `vocabulary`.
template <class B>
void check_plan(const decant::Weights& weights, const decant::ContextOptions& options,
                const decant::CacheOptions& cached, std::size_t threads, std::size_t vocabulary = 160) {
    const decant::Memory memory(decant::MemoryOptions{});
    const B backend{memory};
    const auto plan = taken(decant::MemoryPlan::of<B>(weights, options, cached, threads, backend));
    CHECK(memory.used() == 0);
    const auto model = taken(decant::Model<B>::bind(weights, backend));
    decant::Context context(model, decant::ThreadPool{threads, threads}, options);
    const decant::KvCache cache(context, cached);
    auto sequence = taken(cache.sequence());
    CHECK(cache.bytes() == plan.cache);
    REQUIRE(context.prefill(sequence, random_tokens(9, 11, vocabulary)));
    CHECK(context.workspace_bytes() == plan.workspace);
    CHECK(memory.used() == plan.limited());
    CHECK(plan.weights == weights.bytes());
    CHECK(plan.total() == plan.weights + plan.cache + plan.workspace + plan.bookkeeping);
}

}  // namespace decant_test

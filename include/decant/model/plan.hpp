// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `MemoryPlan`: what a model, its cache and a context will need, said before any of them is made.

#include <decant/backend/concept.hpp>
#include <decant/cache/kv_cache.hpp>
#include <decant/core/config.hpp>
#include <decant/core/math_guard.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/bind.hpp>
#include <decant/model/context.hpp>
#include <decant/model/families.hpp>
#include <decant/model/workspace.hpp>

#include <cstddef>
#include <cstdint>

namespace decant::inline DECANT_ABI {

/// Bytes when everything is in use: a full cache, a pass of as many rows as the context allows. Less is resident before
/// that, since memory is reserved and then taken page by page.
struct MemoryPlan {
    std::size_t weights = 0;    ///< mapped from the file, shared with other processes, taken back by the system at need
    std::size_t cache = 0;      ///< the KV cache, from the backend's `Memory`
    std::size_t workspace = 0;  ///< activations and kernels' scratch, from the backend's `Memory`
    std::size_t bookkeeping = 0;  ///< block tables, tokens and inputs of a pass, from operator new

    [[nodiscard]] std::size_t total() const noexcept { return weights + cache + workspace + bookkeeping; }
    /// What counts against `MemoryOptions::limit`.
    [[nodiscard]] std::size_t limited() const noexcept { return cache + workspace; }

    /// Reads the file's header alone. `threads` is the concurrency of the context's executor. A tokenizer is not in the
    /// figures (about 100 bytes per token of the vocabulary). Errors: those of `Model::bind` about the metadata, and
    /// `out_of_memory` for a cache that the address space does not hold.
    template <Backend B>
    [[nodiscard]] static Result<MemoryPlan> of(const Weights& weights, const ContextOptions& context,
                                               const CacheOptions& cache, std::size_t threads = 1,
                                               const B& backend = {}) {
        const detail::MathGuard guard;
        DECANT_TRY(ModelSpec spec, read_spec(weights));
        DECANT_TRY(spec.vocabulary, vocabulary_of(weights, spec));
        const CacheShape shape = cache.shape(spec.cache_layers());
        DECANT_TRY(const std::size_t blocks, BlockPool<B>::blocks_for(shape, cache.tokens));
        const std::size_t groups = shape.group_count(), longest = detail::longest_table(shape, blocks);
        const PassShape pass = Context<B>::shape_for(context, longest, groups);

        MemoryPlan plan;
        plan.weights = static_cast<std::size_t>(weights.bytes());
        plan.cache = shape.blocks_offset() + blocks * shape.block_bytes();
        plan.workspace = Workspace<B>::floats(spec, pass) * sizeof(float) +
                         backend.pass_bytes(pass, widest_input(spec), Context<B>::pass_participants(threads));
        const std::size_t table = groups * longest * sizeof(std::int32_t);
        plan.bookkeeping =
            2 * blocks * sizeof(std::int32_t)               // the pool's references and free list
            + longest * cache.block_tokens * sizeof(Token)  // the tokens of full sequences
            + table                                         // their block tables
            + pass.sequences * table                        // a pass's copy of them
            + ((3 + groups) * std::size_t{pass.rows} + pass.wanted + 2 * (std::size_t{pass.sequences} + shape.states)) *
                  sizeof(std::int32_t);
        return plan;
    }
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `BlockManager`: who gets the blocks of an engine's cache, what is remembered of those that are given back, and what
/// waits in the host's memory meanwhile.

#include <decant/backend/concept.hpp>
#include <decant/cache/frames.hpp>
#include <decant/cache/groups.hpp>
#include <decant/cache/pool.hpp>
#include <decant/cache/prefix_cache.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/model/model.hpp>
#include <decant/serve/ask.hpp>
#include <decant/serve/job.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

template <Backend B>
class BlockManager {
 public:
    BlockManager(Model<B> model, std::shared_ptr<BlockPool<B>> pool, const EngineOptions& options)
        : model_(std::move(model)),
          pool_(std::move(pool)),
          prefixes_(pool_),
          seen_(pool_->blocks(), 0),
          swap_bytes_(options.swap_bytes),
          rows_(options.rows),
          prefix_cache_(options.prefix_cache) {}

    [[nodiscard]] const BlockPool<B>& pool() const noexcept { return *pool_; }
    [[nodiscard]] std::size_t remembered_blocks() const noexcept { return prefixes_.blocks(); }
    [[nodiscard]] std::size_t block_tokens() const noexcept { return pool_->shape().block_tokens; }
    /// Tokens of the longest prompt that the whole cache holds.
    [[nodiscard]] std::size_t capacity() const {
        return longest_table(pool_->shape(), pool_->blocks(), rows_) * block_tokens();
    }
    [[nodiscard]] bool keeps_state() const noexcept { return pool_->shape().states > 0; }

    /// Different blocks of the jobs that run.
    [[nodiscard]] std::size_t used_blocks(const Jobs<B>& running) const {
        ++count_;
        std::size_t used = 0;
        for (const auto& job : running)
            job->request->sequence().each_block([&](std::int32_t block) {
                used += std::exchange(seen_[static_cast<std::size_t>(block)], count_) != count_ ? 1 : 0;
            });
        return used;
    }

    [[nodiscard]] Sequence<B> empty_sequence() const { return Sequence<B>(pool_); }
    /// An empty sequence with room for so many tokens, in the parts that passes have, at the cost of remembered
    /// prefixes alone. Errors: `cache_full`.
    [[nodiscard]] Result<Sequence<B>> room(std::size_t tokens) {
        Sequence<B> sequence(pool_);
        while (true) {
            auto reserved = sequence.reserve(tokens, rows_);
            if (reserved) return sequence;
            if (tokens > sequence.capacity() || !forget_for(tokens)) return std::move(reserved).error();
        }
    }
    /// Room for so many more tokens of a job, at the same cost. Returns whether there is.
    [[nodiscard]] bool reserve(Job<B>& job, std::size_t tokens) {
        while (true) {
            const auto room = job.request->reserve(tokens);
            if (room) return true;
            if (!forget_for(tokens)) return false;
        }
    }

    /// What is remembered of a text's beginning.
    [[nodiscard]] Sequence<B> known(std::span<const Token> tokens, std::string_view cache_salt) {
        return prefix_cache_ ? prefixes_.match(tokens, cache_salt) : Sequence<B>(pool_);
    }
    /// Whether blocks for `tokens` tokens, of which `known` are there, are free or remembered and unused.
    [[nodiscard]] bool can_hold(std::size_t tokens, const Sequence<B>& known) const {
        const std::size_t needed = blocks_needed(pool_->shape(), tokens, rows_), there = known.blocks();
        return needed <= there + pool_->free_blocks() + prefixes_.unused_blocks();
    }
    /// Remembers the full blocks of a job. Never before their pass has finished.
    void publish(Job<B>& job) {
        const std::size_t full = job.request->computed() / block_tokens();
        if (!prefix_cache_ || full <= job.published.blocks) return;
        prefixes_.publish(job.request->sequence(), job.ask->cache_salt, job.published);
        job.published.blocks = full;  // where layers keep a state, nothing is
    }

    /// Takes a job's blocks away: they are remembered, as far as they are full.
    void remember(Job<B>& job) {
        if (prefix_cache_) prefixes_.publish(job.request->sequence(), job.ask->cache_salt);
        job.request->restart(empty_sequence());
    }
    /// The same, but what they hold goes to the host's memory, as far as that may be used. `others`: all jobs.
    void swap_out(Job<B>& job, const JobQueues<B>& others) {
        if (fits_in_swap(job.request->sequence(), others)) {
            if (auto frame = export_frame(model_, job.request->sequence())) job.swapped = *std::move(frame);
        }
        job.request->restart(empty_sequence());
    }
    /// The other way. Returns whether `known` is now what had been swapped out, of `tokens` tokens; if not, it is to be
    /// computed again.
    bool swap_in(Job<B>& job, std::size_t tokens, Sequence<B>& known) {
        const std::vector<std::byte> frame = std::exchange(job.swapped, {});
        if (frame.empty() || known.size() + block_tokens() >= tokens) return false;
        auto sequence = room(tokens);
        if (!sequence || !import_frame(model_, *sequence, frame)) return false;
        known = *std::move(sequence);
        return true;
    }

 private:
    /// Prefixes that nobody uses make way. Returns whether any did.
    bool forget_for(std::size_t tokens) { return prefixes_.evict((tokens / block_tokens() + 2) * pool_->groups()) > 0; }

    [[nodiscard]] bool fits_in_swap(const Sequence<B>& sequence, const JobQueues<B>& others) const {
        const CacheShape& shape = pool_->shape();
        const std::size_t size = sequence.blocks() * shape.block_bytes() + shape.state_bytes();
        std::size_t used = 0;
        others.each([&](const Job<B>& other) { used += other.swapped.size(); });
        return sequence.size() > 0 && size <= swap_bytes_ - (std::min)(used, swap_bytes_);
    }

    Model<B> model_;
    std::shared_ptr<BlockPool<B>> pool_;
    PrefixCache<B> prefixes_;
    // Of `used_blocks` alone, so that it allocates nothing: [block] the last count that met it, and that count.
    mutable std::vector<std::uint32_t> seen_;
    mutable std::uint32_t count_ = 0;
    std::size_t swap_bytes_;
    std::size_t rows_;  // of a pass
    bool prefix_cache_;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

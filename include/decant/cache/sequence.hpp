// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Sequence`: the tokens of one conversation and the block table of their keys and values.

#include <decant/cache/pool.hpp>
#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

template <class B>
class Context;
template <class B, class Hash>
class PrefixCache;
namespace detail {
template <class B>
class Frames;
}

/// A handle on part of a KV cache. Move-only; its blocks go back when it is destroyed; it keeps the pool alive. Belongs
/// to one thread at a time, together with all other sequences of its cache.
template <class B>
class Sequence {
 public:
    /// Takes room for as many tokens as the pool holds, so that growing never allocates.
    explicit Sequence(std::shared_ptr<BlockPool<B>> pool) : pool_(std::move(pool)) {
        table_.reserve(pool_->blocks());
        tokens_.reserve(capacity());
    }
    Sequence(Sequence&& other) noexcept
        : pool_(std::move(other.pool_)),
          table_(std::move(other.table_)),
          tokens_(std::move(other.tokens_)),
          replaced_(std::exchange(other.replaced_, -1)),
          state_(std::exchange(other.state_, -1)),
          next_state_(std::exchange(other.next_state_, -1)) {}
    Sequence& operator=(Sequence&& other) noexcept {
        if (this == &other) return *this;
        clear();
        pool_ = std::move(other.pool_);
        table_ = std::move(other.table_);
        tokens_ = std::move(other.tokens_);
        replaced_ = std::exchange(other.replaced_, -1);
        state_ = std::exchange(other.state_, -1);
        next_state_ = std::exchange(other.next_state_, -1);
        return *this;
    }
    ~Sequence() { clear(); }

    /// Tokens whose keys and values are in the cache. Valid until the sequence changes, moves or ends.
    [[nodiscard]] std::span<const Token> tokens() const& noexcept { return tokens_; }
    std::span<const Token> tokens() const&& = delete;
    [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }

    /// Tokens that the whole cache holds.
    [[nodiscard]] std::size_t capacity() const noexcept {
        DECANT_ASSERT(attached());
        return pool_->blocks() * pool_->shape().block_tokens;
    }

    /// Whether both draw from one cache.
    [[nodiscard]] bool shares_cache(const Sequence& other) const noexcept { return pool_ == other.pool_; }

    /// Physical block of every `block_tokens` positions. Valid as `tokens`.
    [[nodiscard]] std::span<const std::int32_t> table() const& noexcept { return table_; }
    std::span<const std::int32_t> table() const&& = delete;

    /// Forgets all tokens from position `size` on, and room that was reserved; the blocks they alone used go back. No
    /// effect if there are fewer tokens. Where layers keep a state, it cannot be taken back: then all tokens are
    /// forgotten. Returns how many are left.
    std::size_t truncate(std::size_t size) noexcept {
        if (pool_ == nullptr || size > tokens_.size()) return tokens_.size();
        if (pool_->states().size() > 0) {
            if (size < tokens_.size()) {
                size = 0;
                drop(state_);
            }
            drop(next_state_);
        }
        tokens_.resize(size);
        release_from(blocks_for(size));
        return size;
    }

    /// A second sequence with the same past. Blocks are shared until one of the two writes into them.
    [[nodiscard]] Sequence fork() const {
        DECANT_ASSERT(pool_ != nullptr);
        Sequence copy(pool_);
        copy.tokens_ = tokens_;
        copy.table_.assign(table_.begin(), table_.begin() + static_cast<std::ptrdiff_t>(blocks_for(size())));
        for (const std::int32_t block : copy.table_) pool_->share(block);
        if (state_ >= 0) pool_->states().share(copy.state_ = state_);
        return copy;
    }

    /// Makes room for `count` more tokens, so that a pass cannot run out. Errors: `cache_full`; then nothing has
    /// changed. `invalid_argument` for a sequence that was moved from.
    [[nodiscard]] Result<void> reserve(std::size_t count) {
        DECANT_CHECK(make_room(count));
        settle();
        return {};
    }

 private:
    friend class Context<B>;
    template <class, class>
    friend class PrefixCache;
    friend class detail::Frames<B>;

    /// One more block, full, computed before and shared.
    void adopt(std::int32_t block, std::span<const Token> tokens) {
        pool_->share(block);
        table_.push_back(block);
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    }

    /// `reserve` that `restore` can take back until `settle`. `ignored`: how many sequences of the same call keep this
    /// one's last block in `replaced_`.
    [[nodiscard]] Result<void> make_room(std::size_t count, std::uint32_t ignored = 0) {
        if (pool_ == nullptr) {
            return Error{ErrorCode::invalid_argument, "a sequence that was moved from", "KvCache",
                         "use the one it was moved to"};
        }
        const std::size_t filled = blocks_for(size());
        if (count > capacity()) {  // also keeps the sum below from wrapping
            return Error{ErrorCode::cache_full, detail::text(count, " more tokens, the whole cache holds ", capacity()),
                         "KvCache", "make the cache larger"};
        }
        const std::size_t needed = blocks_for(size() + count);
        const bool split =
            count > 0 && size() % pool_->shape().block_tokens != 0 && pool_->shared(table_[filled - 1], ignored);
        const std::size_t fresh = (needed > table_.size() ? needed - table_.size() : 0) + (split ? 1 : 0);
        if (fresh > pool_->free_blocks()) {
            return Error{ErrorCode::cache_full,
                         detail::text(count, " more tokens need ", fresh, " blocks of ", pool_->shape().block_tokens,
                                      " tokens, ", pool_->free_blocks(), " of ", pool_->blocks(), " are free"),
                         "KvCache", "truncate or destroy sequences, or make the cache larger"};
        }
        if (split) {
            settle();
            replaced_ = std::exchange(table_[filled - 1], pool_->copy(table_[filled - 1]));
        }
        while (table_.size() < needed) table_.push_back(pool_->take());
        return {};
    }
    /// Room for the state after the next pass, where layers keep one. Errors: `cache_full`.
    [[nodiscard]] Result<void> make_state() {
        SharedNumbers& states = pool_->states();
        if (states.size() == 0 || next_state_ >= 0) return {};
        if (states.available() == 0) {
            return Error{ErrorCode::cache_full, detail::text("all ", states.size(), " states are in use"), "KvCache",
                         "truncate or destroy sequences, or raise CacheOptions::sequences"};
        }
        next_state_ = states.take();
        return {};
    }
    void drop(std::int32_t& state) noexcept {
        if (state >= 0) pool_->states().release(std::exchange(state, -1));
    }
    /// Whether `other` keeps this sequence's last block.
    [[nodiscard]] bool kept_by(const Sequence& other) const noexcept {
        return other.replaced_ >= 0 && size() > 0 && table_[blocks_for(size()) - 1] == other.replaced_;
    }
    /// What `make_room` replaced will not come back.
    void settle() noexcept {
        if (replaced_ >= 0) pool_->release(std::exchange(replaced_, -1));
    }

    /// Gives positions [first, last) blocks that no other sequence uses. Errors: `cache_full`; then nothing has
    /// changed.
    [[nodiscard]] Result<void> unshare(std::size_t first, std::size_t last) {
        const std::size_t begin = first / pool_->shape().block_tokens;
        const std::size_t end = blocks_for(last);
        std::size_t shared = 0;
        for (std::size_t b = begin; b < end; ++b) shared += pool_->shared(table_[b]) ? 1 : 0;
        if (shared > pool_->free_blocks()) {
            return Error{ErrorCode::cache_full,
                         detail::text("writing into ", shared, " shared blocks needs as many of its own, ",
                                      pool_->free_blocks(), " of ", pool_->blocks(), " are free"),
                         "KvCache", "truncate or destroy sequences, or make the cache larger"};
        }
        for (std::size_t b = begin; b < end; ++b) {
            if (!pool_->shared(table_[b])) continue;
            pool_->release(std::exchange(table_[b], pool_->copy(table_[b])));
        }
        return {};
    }
    /// The rows of [first + count, size) have moved to `first`.
    void close_gap(std::size_t first, std::size_t count) noexcept {
        const auto at = tokens_.begin() + static_cast<std::ptrdiff_t>(first);
        tokens_.erase(at, at + static_cast<std::ptrdiff_t>(count));
        release_from(blocks_for(tokens_.size()));
    }
    [[nodiscard]] std::size_t slot(std::size_t position) const noexcept {
        const std::size_t block = pool_->shape().block_tokens;
        return static_cast<std::size_t>(table_[position / block]) * block + position % block;
    }

    /// The pass has written the keys and values of these tokens, and the state after them.
    void append(std::span<const Token> tokens) {
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        if (next_state_ < 0) return;
        drop(state_);
        state_ = std::exchange(next_state_, -1);
    }

    [[nodiscard]] bool attached() const noexcept { return pool_ != nullptr; }
    [[nodiscard]] BlockPool<B>& pool() const noexcept { return *pool_; }
    [[nodiscard]] std::size_t blocks_for(std::size_t tokens) const noexcept {
        const std::size_t block = pool_->shape().block_tokens;
        return (tokens + block - 1) / block;
    }
    void release_from(std::size_t first) noexcept {
        for (; table_.size() > first; table_.pop_back()) pool_->release(table_.back());
    }
    void clear() noexcept {
        if (!pool_) return;
        settle();
        release_from(0);
        drop(state_);
        drop(next_state_);
    }

    /// What a call that fails brings back.
    struct Mark {
        std::size_t size = 0;
        std::size_t blocks = 0;
        std::int32_t replaced = -1;  // by a call further out
        std::int32_t state = -1;     // a reference of its own, until `restore` or `accept`
    };
    [[nodiscard]] Mark mark() const noexcept {
        if (state_ >= 0) pool_->states().share(state_);
        return {size(), table_.size(), replaced_, state_};
    }
    void restore(const Mark& mark) noexcept {
        if (pool_ == nullptr) return;
        tokens_.resize(mark.size);
        release_from(mark.blocks);
        drop(next_state_);
        drop(state_);
        state_ = mark.state;
        if (replaced_ == mark.replaced) return;
        pool_->release(std::exchange(table_[blocks_for(mark.size) - 1], std::exchange(replaced_, -1)));
    }
    void accept(const Mark& mark) noexcept {
        if (replaced_ != mark.replaced) settle();
        std::int32_t state = mark.state;
        drop(state);
    }

    std::shared_ptr<BlockPool<B>> pool_;  // null only after a move
    std::vector<std::int32_t> table_;
    std::vector<Token> tokens_;
    // The shared block of the last token that a call under way has replaced by a copy. Its reference is kept, so that
    // nobody else writes into it before the call is over and it may come back.
    std::int32_t replaced_ = -1;
    std::int32_t state_ = -1;       // the state after the last token
    std::int32_t next_state_ = -1;  // and where a pass under way writes the one after it
};

}  // namespace decant::inline DECANT_ABI

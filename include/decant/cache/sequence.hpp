// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Sequence`: the tokens of one conversation and the block table of their keys and values.

#include <decant/cache/groups.hpp>
#include <decant/cache/pool.hpp>
#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/specs.hpp>
#include <decant/core/token.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
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
///
/// Where the cache forgets what windows have passed (`CacheOptions::forget_unseen`), each group of layers has a table
/// of its own, all equally long, with -1 for blocks that are not there: those before the window, which go back when the
/// next tokens are made room for, and those of tokens that a later pass will bring.
template <class B>
class Sequence {
 public:
    /// Takes room for as many tokens as the pool holds, so that growing never allocates.
    explicit Sequence(std::shared_ptr<BlockPool<B>> pool) : pool_(std::move(pool)), groups_(pool_->groups()) {
        for (Group& group : groups_) group.table.reserve(pool_->table_blocks());
        tokens_.reserve(capacity());
    }
    Sequence(Sequence&& other) noexcept
        : pool_(std::move(other.pool_)),
          groups_(std::move(other.groups_)),
          tokens_(std::move(other.tokens_)),
          held_(other.held_),
          state_(std::exchange(other.state_, -1)),
          next_state_(std::exchange(other.next_state_, -1)) {}
    Sequence& operator=(Sequence&& other) noexcept {
        if (this == &other) return *this;
        clear();
        pool_ = std::move(other.pool_);
        groups_ = std::move(other.groups_);
        tokens_ = std::move(other.tokens_);
        held_ = other.held_;
        state_ = std::exchange(other.state_, -1);
        next_state_ = std::exchange(other.next_state_, -1);
        return *this;
    }
    ~Sequence() { clear(); }

    /// Tokens whose keys and values are in the cache. Valid until the sequence changes, moves or ends.
    [[nodiscard]] std::span<const Token> tokens() const& noexcept { return tokens_; }
    std::span<const Token> tokens() const&& = delete;
    [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }

    /// The most tokens that a sequence may have, with the whole cache to itself.
    [[nodiscard]] std::size_t capacity() const noexcept {
        DECANT_ASSERT(attached());
        return pool_->table_blocks() * pool_->shape().block_tokens;
    }

    /// Whether both draw from one cache.
    [[nodiscard]] bool shares_cache(const Sequence& other) const noexcept { return pool_ == other.pool_; }

    /// Physical block of every `block_tokens` positions, for the layers of a group; -1: none. Valid as `tokens`.
    [[nodiscard]] std::span<const std::int32_t> table(std::size_t group = 0) const& noexcept {
        return group < groups_.size() ? std::span<const std::int32_t>(groups_[group].table)
                                      : std::span<const std::int32_t>();
    }
    std::span<const std::int32_t> table(std::size_t = 0) const&& = delete;
    /// Calls `use(block)` for every block that it has, shared ones included.
    template <class Use>
    void each_block(Use use) const {
        for (const Group& group : groups_)
            for (std::size_t b = group.first / pool_->shape().block_tokens; b < group.table.size(); ++b)
                if (group.table[b] >= 0) use(group.table[b]);
    }
    /// How many these are.
    [[nodiscard]] std::size_t blocks() const noexcept {
        std::size_t count = 0;
        each_block([&](std::int32_t) { ++count; });
        return count;
    }

    /// Forgets all tokens from position `size` on, and room that was reserved; the blocks they alone used go back. No
    /// effect if there are fewer tokens. Where layers keep a state, it cannot be taken back, and where a cache forgets
    /// what windows have passed, there is no going back by more than 32 tokens from where a pass has begun, unless the
    /// window has not passed anything yet: then all tokens are forgotten. Returns how many are left.
    std::size_t truncate(std::size_t size) noexcept {
        if (pool_ == nullptr || size > tokens_.size()) return tokens_.size();
        if (size < tokens_.size() && !reaches(size)) size = 0;
        if (pool_->states().size() > 0) {
            if (size < tokens_.size()) {
                size = 0;
                drop(state_);
            }
            drop(next_state_);
        }
        cut(size);
        release_from(blocks_for(size));
        return size;
    }

    /// A second sequence with the same past. Blocks are shared until one of the two writes into them.
    [[nodiscard]] Sequence fork() const {
        DECANT_ASSERT(pool_ != nullptr);
        Sequence copy(pool_);
        copy.tokens_ = tokens_;
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            const std::vector<std::int32_t>& table = groups_[g].table;
            copy.groups_[g].first = groups_[g].first;
            copy.groups_[g].table.assign(table.begin(),
                                         table.begin() + static_cast<std::ptrdiff_t>(blocks_for(size())));
        }
        for (const Group& group : copy.groups_)
            for (const std::int32_t block : group.table)
                if (block >= 0) pool_->share(block);
        if (state_ >= 0) pool_->states().share(copy.state_ = state_);
        return copy;
    }

    /// Makes room for `count` more tokens, so that a pass cannot run out. `at_once`: how many of them the next pass has
    /// at most; layers that forget what their windows have passed take room for those alone. Errors: `cache_full`; then
    /// no token and no room is lost. `invalid_argument` for a sequence that was moved from.
    [[nodiscard]] Result<void> reserve(std::size_t count,
                                       std::size_t at_once = (std::numeric_limits<std::size_t>::max)()) {
        DECANT_CHECK(make_room(count, at_once));
        settle();
        return {};
    }

 private:
    friend class Context<B>;
    template <class, class>
    friend class PrefixCache;
    friend class detail::Frames<B>;

    /// The blocks of the layers of a group.
    struct Group {
        std::vector<std::int32_t> table;
        std::size_t first = 0;  // position before which rows are not there any more
        // The shared block of the last token that a call under way has replaced by a copy. Its reference is kept, so
        // that nobody else writes into it before the call is over and it may come back.
        std::int32_t replaced = -1;
    };

    /// Blocks of each group for `block_tokens` more tokens, full, computed before and shared; -1 where windows have
    /// passed.
    void adopt(std::span<const std::int32_t> blocks, std::span<const Token> tokens) {
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            if (blocks[g] >= 0) pool_->share(blocks[g]);
            groups_[g].table.push_back(blocks[g]);
            if (blocks[g] < 0) groups_[g].first = tokens_.size();
        }
    }

    /// `reserve` that `restore` can take back until `settle`; what windows have passed goes. `ignored(g)`: how many
    /// sequences of the same call keep this one's last block of a group in `replaced`.
    template <class Ignored>
    [[nodiscard]] Result<void> make_room(std::size_t count, std::size_t at_once, Ignored ignored) {
        if (pool_ == nullptr) {
            return Error{ErrorCode::invalid_argument, "a sequence that was moved from", "KvCache",
                         "use the one it was moved to"};
        }
        if (count > capacity()) {  // also keeps the sums below from wrapping
            return Error{ErrorCode::cache_full, detail::text(count, " more tokens, the whole cache holds ", capacity()),
                         "KvCache", "make the cache larger"};
        }
        give_up();
        const std::size_t filled = blocks_for(size()), now = blocks_for(size() + (std::min)(count, at_once));
        return take_blocks(count, ignored, [&](std::size_t g) {
            return pool_->window(g) > 0 ? std::pair(filled, now) : std::pair(filled, blocks_for(size() + count));
        });
    }
    [[nodiscard]] Result<void> make_room(std::size_t count,
                                         std::size_t at_once = (std::numeric_limits<std::size_t>::max)()) {
        return make_room(count, at_once, [](std::size_t) { return 0u; });
    }
    /// The same for tokens whose rows are there already, in each group from position `begins[g]` on: at the end of the
    /// sequence or behind it.
    [[nodiscard]] Result<void> make_room(std::size_t count, std::span<const std::size_t> begins) {
        const std::size_t block = pool_->shape().block_tokens;
        give_up();
        // What was reserved before that is of no use.
        for (std::size_t g = 0; g < groups_.size(); ++g) give_up(g, blocks_for(size()), begins[g] / block);
        return take_blocks(
            count, [](std::size_t) { return 0u; },
            [&](std::size_t g) { return std::pair(begins[g] / block, blocks_for(size() + count)); });
    }
    /// Makes tables long enough for `count` more tokens, with blocks in range(group) = [begin, end) at least.
    template <class Ignored, class Range>
    [[nodiscard]] Result<void> take_blocks(std::size_t count, Ignored ignored, Range range) {
        const std::size_t filled = blocks_for(size()), needed = blocks_for(size() + count);
        const bool partial = count > 0 && size() % pool_->shape().block_tokens != 0;
        const auto splits = [&](std::size_t g) {
            return partial && groups_[g].table[filled - 1] >= 0 &&
                   pool_->shared(groups_[g].table[filled - 1], ignored(g));
        };
        std::size_t fresh = 0;
        bool split = false;
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            const auto [begin, end] = range(g);
            for (std::size_t b = begin; b < end; ++b) fresh += has(g, b) ? 0 : 1;
            if (splits(g)) ++fresh, split = true;
        }
        if (fresh > pool_->free_blocks() || needed > pool_->table_blocks()) {
            return Error{ErrorCode::cache_full,
                         detail::text(count, " more tokens need ", fresh, " blocks of ", pool_->shape().block_tokens,
                                      " tokens, ", pool_->free_blocks(), " of ", pool_->blocks(), " are free"),
                         "KvCache", "truncate or destroy sequences, or make the cache larger"};
        }
        if (split) settle();
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            Group& group = groups_[g];
            if (splits(g))
                group.replaced = std::exchange(group.table[filled - 1], pool_->copy(group.table[filled - 1]));
            if (group.table.size() < needed) group.table.resize(needed, -1);
            const auto [begin, end] = range(g);
            for (std::size_t b = begin; b < end; ++b)
                if (group.table[b] < 0) group.table[b] = pool_->take();
        }
        return {};
    }
    /// Whether a group has a block.
    [[nodiscard]] bool has(std::size_t g, std::size_t block) const noexcept {
        return block < groups_[g].table.size() && groups_[g].table[block] >= 0;
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
    /// Whether `other` keeps this sequence's last block of a group.
    [[nodiscard]] bool kept_by(const Sequence& other, std::size_t g) const noexcept {
        return other.groups_[g].replaced >= 0 && size() > 0 &&
               groups_[g].table[blocks_for(size()) - 1] == other.groups_[g].replaced;
    }
    /// What `make_room` replaced will not come back.
    void settle() noexcept {
        for (Group& group : groups_)
            if (group.replaced >= 0) pool_->release(std::exchange(group.replaced, -1));
    }

    /// Gives back the blocks that windows have passed: no row from here on sees them, nor does one of the last few,
    /// should they be taken back.
    void give_up() noexcept {
        const std::size_t block = pool_->shape().block_tokens;
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            if (pool_->window(g) == 0) continue;
            const std::size_t end = first_seen(pool_->window(g) + detail::window_spare, size()) / block;
            give_up(g, held_ > 0 ? held_ : groups_[g].first / block, end);
            if (held_ == 0) groups_[g].first = (std::max)(groups_[g].first, end * block);
        }
    }
    void give_up(std::size_t g, std::size_t begin, std::size_t end) noexcept {
        std::vector<std::int32_t>& table = groups_[g].table;
        for (std::size_t b = begin; b < (std::min)(end, table.size()); ++b)
            if (table[b] >= 0) pool_->release(std::exchange(table[b], -1));
    }
    /// A call of several passes: what there is now stays until its end, for the call may fail.
    void hold() noexcept {
        if (pool_ == nullptr) return;
        give_up();
        held_ = table().size();
    }
    void let_go() noexcept { held_ = 0; }
    /// The same after success: what lies before a row that one of the passes gave up is gone as well.
    void let_passed_go() noexcept {
        held_ = 0;
        if (pool_ == nullptr) return;
        const std::size_t block = pool_->shape().block_tokens;
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            if (pool_->window(g) == 0) continue;
            const std::size_t first = groups_[g].first / block;
            std::size_t begin = blocks_for(size());
            while (begin > first && has(g, begin - 1)) --begin;
            give_up(g, first, begin);
            groups_[g].first = (std::max)(groups_[g].first, begin * block);
        }
    }
    /// Whether all rows are there that a token at this position sees.
    [[nodiscard]] bool reaches(std::size_t position) const noexcept {
        for (std::size_t g = 0; g < groups_.size(); ++g)
            if (first_seen(pool_->window(g), position) < groups_[g].first) return false;
        return true;
    }
    /// The first position of a group whose row is there.
    [[nodiscard]] std::size_t first_row(std::size_t g) const noexcept { return groups_[g].first; }

    /// Makes ready for moving positions [first + count, size) to `first`: blocks that no other sequence uses. Errors:
    /// `unsupported` where rows are gone that the next token would then see, `cache_full`; then nothing has changed.
    [[nodiscard]] Result<void> open_gap(std::size_t first, std::size_t count) {
        const std::size_t size = tokens_.size() - count, end = blocks_for(size);
        const auto begin = [&](std::size_t g) {
            return (std::max)(first, first_after(g, first, count)) / pool_->shape().block_tokens;
        };
        std::size_t fresh = 0;
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            if (first_seen(pool_->window(g), size) < first_after(g, first, count)) {
                return Error{ErrorCode::unsupported,
                             detail::text("windows of ", pool_->window(g), " tokens would see positions before ",
                                          groups_[g].first, ", which were given up"),
                             "erase",
                             "prefill a sequence without these tokens, or keep them: CacheOptions::forget_unseen"};
            }
            for (std::size_t b = begin(g); b < end; ++b)
                fresh += !has(g, b) || pool_->shared(groups_[g].table[b]) ? 1 : 0;
        }
        if (fresh > pool_->free_blocks()) {
            return Error{ErrorCode::cache_full,
                         detail::text("writing into ", fresh, " shared blocks needs as many of its own, ",
                                      pool_->free_blocks(), " of ", pool_->blocks(), " are free"),
                         "KvCache", "truncate or destroy sequences, or make the cache larger"};
        }
        for (std::size_t g = 0; g < groups_.size(); ++g) {
            for (std::size_t b = begin(g); b < end; ++b) {
                std::int32_t& block = groups_[g].table[b];
                if (block < 0) {
                    block = pool_->take();
                } else if (pool_->shared(block)) {
                    pool_->release(std::exchange(block, pool_->copy(block)));
                }
            }
        }
        return {};
    }
    /// The rows of [first + count, size) have moved to `first`.
    void close_gap(std::size_t first, std::size_t count) noexcept {
        for (std::size_t g = 0; g < groups_.size(); ++g) groups_[g].first = first_after(g, first, count);
        const auto at = tokens_.begin() + static_cast<std::ptrdiff_t>(first);
        tokens_.erase(at, at + static_cast<std::ptrdiff_t>(count));
        release_from(blocks_for(tokens_.size()));
    }
    /// `first_row` after that.
    [[nodiscard]] std::size_t first_after(std::size_t g, std::size_t first, std::size_t count) const noexcept {
        const std::size_t now = groups_[g].first;
        return now <= first ? now : (std::max)(first, now - (std::min)(now, count));
    }
    [[nodiscard]] std::size_t slot(std::size_t g, std::size_t position) const noexcept {
        const std::size_t block = pool_->shape().block_tokens;
        DECANT_ASSERT(has(g, position / block));
        return static_cast<std::size_t>(groups_[g].table[position / block]) * block + position % block;
    }

    /// The pass has written the keys and values of these tokens, and the state after them.
    void append(std::span<const Token> tokens) {
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        if (next_state_ < 0) return;
        drop(state_);
        state_ = std::exchange(next_state_, -1);
    }
    /// Rows of a group before `position` are not there.
    void begin_at(std::size_t g, std::size_t position) noexcept {
        give_up(g, 0, position / pool_->shape().block_tokens);
        groups_[g].first = position;
    }

    [[nodiscard]] bool attached() const noexcept { return pool_ != nullptr; }
    [[nodiscard]] BlockPool<B>& pool() const noexcept { return *pool_; }
    [[nodiscard]] std::size_t blocks_for(std::size_t tokens) const noexcept {
        const std::size_t block = pool_->shape().block_tokens;
        return (tokens + block - 1) / block;
    }
    void cut(std::size_t size) noexcept {
        tokens_.resize(size);
        if (size > 0) return;
        for (Group& group : groups_) group.first = 0;
    }
    void release_from(std::size_t first) noexcept {
        for (Group& group : groups_) {
            for (; group.table.size() > first; group.table.pop_back())
                if (group.table.back() >= 0) pool_->release(group.table.back());
        }
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
        bool replaced = false;    // a block, by a call further out
        std::int32_t state = -1;  // a reference of its own, until `restore` or `accept`
    };
    [[nodiscard]] Mark mark() const noexcept {
        if (state_ >= 0) pool_->states().share(state_);
        return {size(), table().size(), replaced(), state_};
    }
    [[nodiscard]] bool replaced() const noexcept {
        return std::any_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.replaced >= 0; });
    }
    void restore(const Mark& mark) noexcept {
        if (pool_ == nullptr) return;
        cut(mark.size);
        release_from(mark.blocks);
        drop(next_state_);
        drop(state_);
        state_ = mark.state;
        if (mark.replaced) return;
        for (Group& group : groups_)
            if (group.replaced >= 0)
                pool_->release(
                    std::exchange(group.table[blocks_for(mark.size) - 1], std::exchange(group.replaced, -1)));
    }
    void accept(const Mark& mark) noexcept {
        if (!mark.replaced) settle();
        std::int32_t state = mark.state;
        drop(state);
    }

    std::shared_ptr<BlockPool<B>> pool_;  // null only after a move
    std::vector<Group> groups_;           // of layers
    std::vector<Token> tokens_;
    std::size_t held_ = 0;          // blocks at the front of the tables that are not to be given up
    std::int32_t state_ = -1;       // the state after the last token
    std::int32_t next_state_ = -1;  // and where a pass under way writes the one after it
};

}  // namespace decant::inline DECANT_ABI

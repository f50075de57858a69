// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `PrefixCache`: keys and values of beginnings that were computed before, found again by their tokens.

#include <decant/cache/pool.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/token.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// A hash of a block's tokens after its parent. Only where to look: what is found is compared.
struct PrefixHash {
    [[nodiscard]] std::uint64_t operator()(std::uint64_t parent, std::span<const Token> tokens) const noexcept {
        std::uint64_t hash = parent * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
        for (const Token token : tokens) {
            hash = (hash ^ static_cast<std::uint32_t>(id(token))) * 0xff51afd7ed558ccdu;
            hash ^= hash >> 32;
        }
        return hash;
    }
};

/// A tree of full blocks: a path from a root is a text, cut into blocks. It keeps its blocks in the pool until `evict`;
/// a block that a sequence uses stays. Belongs to one pool, so to one model and one cache type; what else makes the
/// same tokens mean other keys and values (an adapter, another user's secret) goes into `cache_salt`, and a root is per
/// salt. Models whose layers keep a state have nothing that a block could hold: nothing is published. One thread at a
/// time, together with the sequences of the pool.
template <class B, class Hash = PrefixHash>
class PrefixCache {
 public:
    explicit PrefixCache(std::shared_ptr<BlockPool<B>> pool, Hash hash = {}) : pool_(std::move(pool)), hash_(hash) {}
    PrefixCache(PrefixCache&& other) noexcept = default;
    PrefixCache(const PrefixCache&) = delete;
    PrefixCache& operator=(const PrefixCache&) = delete;
    PrefixCache& operator=(PrefixCache&&) = delete;
    ~PrefixCache() {
        if (pool_ == nullptr) return;
        for (const auto& [key, node] : nodes_) pool_->release(node.block);
    }

    /// A sequence with the longest known beginning of `tokens`, in whole blocks, but never all of them: the last token
    /// is to be computed. It shares the blocks, so that they cannot go while it lives.
    [[nodiscard]] Sequence<B> match(std::span<const Token> tokens, std::string_view cache_salt = {}) {
        Sequence<B> sequence(pool_);
        const std::size_t block = pool_->shape().block_tokens;
        std::uint64_t parent = root(cache_salt);
        for (std::size_t at = 0; parent != 0 && at + block < tokens.size(); at += block) {
            Node* const node = find(parent, tokens.subspan(at, block));
            if (node == nullptr) break;
            touch(*node);
            sequence.adopt(node->block, tokens.subspan(at, block));
            parent = node->key;
        }
        return sequence;
    }

    /// How far a sequence has been published.
    struct Mark {
        std::size_t blocks = 0;
        std::uint64_t node = 0;  // of the last one
    };

    /// Remembers the full blocks of a sequence, which must have been computed. Where one of the same text is known,
    /// that one stays. `mark`: what this made of it last time, if the sequence still begins with the same blocks; then
    /// only those behind are looked at, unless some have been evicted meanwhile.
    void publish(const Sequence<B>& sequence, std::string_view cache_salt, Mark& mark) {
        if (pool_->states().size() > 0) return;
        DECANT_ASSERT(&sequence.pool() == pool_.get());
        const std::size_t block = pool_->shape().block_tokens;
        const std::span<const Token> tokens = sequence.tokens();
        DECANT_ASSERT(mark.blocks * block <= tokens.size());
        // Keys are never used twice, and a node goes after all below it: while this one is there, so is its path.
        if (!nodes_.contains(mark.node)) mark = {};
        for (; (mark.blocks + 1) * block <= tokens.size(); ++mark.blocks) {
            if (mark.blocks == 0) mark.node = made_root(cache_salt);
            const std::span<const Token> own = tokens.subspan(mark.blocks * block, block);
            Node* node = find(mark.node, own);
            if (node == nullptr) node = &add(mark.node, own, sequence.table()[mark.blocks]);
            touch(*node);
            mark.node = node->key;
        }
    }
    void publish(const Sequence<B>& sequence, std::string_view cache_salt = {}) {
        Mark mark;
        publish(sequence, cache_salt, mark);
    }

    /// Gives up to `count` blocks back to the pool, those first that were not used for the longest time. Blocks that a
    /// sequence uses, or that lie before such a block, stay. Returns how many went.
    std::size_t evict(std::size_t count) {
        std::size_t gone = 0;
        for (auto at = leaves_.begin(); gone < count && at != leaves_.end();) {
            const auto leaf = at++;
            if (pool_->shared(nodes_.at(leaf->second).block)) continue;
            const auto above = remove(leaf);
            ++gone;
            if (above != leaves_.end() && (at == leaves_.end() || *above < *at)) at = above;
        }
        return gone;
    }

    /// Blocks that it keeps, and those of them that nobody else uses.
    [[nodiscard]] std::size_t blocks() const noexcept { return nodes_.size(); }
    [[nodiscard]] std::size_t unused_blocks() const noexcept {
        std::size_t count = 0;
        for (const auto& [key, node] : nodes_) count += pool_->shared(node.block) ? 0 : 1;
        return count;
    }

 private:
    using Leaves = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // (used, key)

    struct Node {
        std::uint64_t key = 0;  // never used twice
        std::uint64_t parent = 0;
        std::uint64_t hash = 0;
        std::int32_t block = -1;
        std::size_t children = 0;
        std::uint64_t used = 0;
        std::vector<Token> tokens;
    };

    [[nodiscard]] std::uint64_t root(std::string_view cache_salt) const {
        const auto at = roots_.find(std::string(cache_salt));
        return at == roots_.end() ? 0 : at->second;
    }
    std::uint64_t made_root(std::string_view cache_salt) {
        std::uint64_t& key = roots_[std::string(cache_salt)];
        if (key == 0) key = ++last_key_;
        return key;
    }

    Node* find(std::uint64_t parent, std::span<const Token> tokens) {
        const auto [begin, end] = index_.equal_range(hash_(parent, tokens));
        for (auto at = begin; at != end; ++at) {
            Node& node = nodes_.at(at->second);
            if (node.parent == parent &&
                std::equal(tokens.begin(), tokens.end(), node.tokens.begin(), node.tokens.end()))
                return &node;
        }
        return nullptr;
    }

    Node& add(std::uint64_t parent, std::span<const Token> tokens, std::int32_t block) {
        const std::uint64_t key = ++last_key_;
        Node& node = nodes_[key];
        node.key = key;
        node.parent = parent;
        node.hash = hash_(parent, tokens);
        node.block = block;
        node.tokens.assign(tokens.begin(), tokens.end());
        index_.emplace(node.hash, key);
        pool_->share(block);
        if (const auto above = nodes_.find(parent); above != nodes_.end()) {
            if (above->second.children++ == 0) leaves_.erase({above->second.used, parent});
        }
        leaves_.insert({node.used, key});
        return node;
    }

    /// Returns its parent if that has become a leaf.
    Leaves::iterator remove(Leaves::iterator leaf) {
        const std::uint64_t key = leaf->second;
        leaves_.erase(leaf);
        const auto at = nodes_.find(key);
        const Node& node = at->second;
        const auto [begin, end] = index_.equal_range(node.hash);
        index_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == key; }));
        pool_->release(node.block);
        const std::uint64_t used = node.used;
        const auto above = nodes_.find(node.parent);
        nodes_.erase(at);
        if (above == nodes_.end()) return leaves_.end();
        Node& parent = above->second;
        parent.used = (std::max)(parent.used, used);  // whoever uses a text uses its beginning
        if (--parent.children > 0) return leaves_.end();
        return leaves_.insert({parent.used, parent.key}).first;
    }

    void touch(Node& node) {
        const std::uint64_t now = ++clock_;
        if (node.children == 0) {
            leaves_.erase({node.used, node.key});
            leaves_.insert({now, node.key});
        }
        node.used = now;
    }

    std::shared_ptr<BlockPool<B>> pool_;
    Hash hash_;
    std::unordered_map<std::uint64_t, Node> nodes_;
    std::unordered_multimap<std::uint64_t, std::uint64_t> index_;  // hash to key
    std::unordered_map<std::string, std::uint64_t> roots_;         // cache_salt to key
    Leaves leaves_;
    std::uint64_t last_key_ = 0;
    std::uint64_t clock_ = 0;
};

}  // namespace decant::inline DECANT_ABI

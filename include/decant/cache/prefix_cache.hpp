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
#include <functional>
#include <map>
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
/// salt. Models whose layers keep a state have nothing that a block could hold: nothing is published. One for a pool,
/// one thread at a time, together with the sequences of the pool.
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
        for (const auto& [key, node] : nodes_) pool_->give_up(node.block);
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
            Root* root = nullptr;
            if (mark.blocks == 0) {
                root = &made_root(cache_salt);
                mark.node = root->second.key;
            }
            const std::span<const Token> own = tokens.subspan(mark.blocks * block, block);
            Node* node = find(mark.node, own);
            if (node == nullptr) node = &add(mark.node, root, own, sequence.table()[mark.blocks]);
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

    /// Blocks that it keeps, those of them that nobody else uses, and the salts of all.
    [[nodiscard]] std::size_t blocks() const noexcept { return nodes_.size(); }
    [[nodiscard]] std::size_t unused_blocks() const noexcept { return pool_->idle_blocks(); }
    [[nodiscard]] std::size_t salts() const noexcept { return roots_.size(); }

 private:
    using Leaves = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // (used, key)

    struct RootState {
        std::uint64_t key = 0;
        std::size_t children = 0;
    };
    using Roots = std::map<std::string, RootState, std::less<>>;  // by salt
    using Root = typename Roots::value_type;

    struct Node {
        std::uint64_t key = 0;  // never used twice
        std::uint64_t parent = 0;
        Root* root = nullptr;  // of a first block: its parent
        std::uint64_t hash = 0;
        std::int32_t block = -1;
        std::size_t children = 0;
        std::uint64_t used = 0;
        std::vector<Token> tokens;
    };
    using Nodes = std::unordered_map<std::uint64_t, Node>;  // by key

    [[nodiscard]] std::uint64_t root(std::string_view cache_salt) const {
        const auto at = roots_.find(cache_salt);
        return at == roots_.end() ? 0 : at->second.key;
    }
    /// Goes with the last block after it.
    Root& made_root(std::string_view cache_salt) {
        Root& made = *roots_.try_emplace(std::string(cache_salt)).first;
        if (made.second.key == 0) made.second.key = ++last_key_;
        return made;
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

    Node& add(std::uint64_t parent, Root* root, std::span<const Token> tokens, std::int32_t block) {
        const std::uint64_t key = ++last_key_;
        Node fresh{key, parent, root, hash_(parent, tokens), block, 0, 0, {tokens.begin(), tokens.end()}};
        const auto at = nodes_.emplace(key, std::move(fresh)).first;
        Undo undo(*this, at);
        index_.emplace(at->second.hash, key);
        leaves_.insert({0, key});
        undo.dismiss();
        pool_->keep(block);
        if (root != nullptr) {
            ++root->second.children;
        } else if (Node& above = nodes_.at(parent); above.children++ == 0) {
            leaves_.erase({above.used, parent});
        }
        return at->second;
    }
    /// Takes back what an exception kept from being added.
    class Undo {
     public:
        Undo(PrefixCache& cache, typename Nodes::iterator node) noexcept : cache_(&cache), node_(node) {}
        Undo(const Undo&) = delete;
        Undo& operator=(const Undo&) = delete;
        ~Undo() {
            if (cache_ != nullptr) cache_->unlist(node_);
        }
        void dismiss() noexcept { cache_ = nullptr; }

     private:
        PrefixCache* cache_;
        typename Nodes::iterator node_;
    };
    void unlist(typename Nodes::iterator node) {
        const auto [begin, end] = index_.equal_range(node->second.hash);
        const auto entry = std::find_if(begin, end, [&](const auto& one) { return one.second == node->first; });
        if (entry != end) index_.erase(entry);
        nodes_.erase(node);
    }

    /// Returns its parent if that has become a leaf. Allocates nothing.
    Leaves::iterator remove(Leaves::iterator at) {
        auto leaf = leaves_.extract(at);
        const auto [used, key] = leaf.value();
        const auto node = nodes_.find(key);
        const std::uint64_t parent = node->second.parent;
        Root* const root = node->second.root;
        pool_->give_up(node->second.block);
        unlist(node);
        if (root != nullptr) {
            if (--root->second.children == 0) roots_.erase(roots_.find(root->first));
            return leaves_.end();
        }
        Node& above = nodes_.at(parent);
        above.used = (std::max)(above.used, used);  // whoever uses a text uses its beginning
        if (--above.children > 0) return leaves_.end();
        leaf.value() = {above.used, parent};
        return leaves_.insert(std::move(leaf)).position;
    }

    void touch(Node& node) {
        const std::uint64_t now = ++clock_;
        if (node.children == 0) {
            auto leaf = leaves_.extract({node.used, node.key});
            leaf.value().first = now;
            leaves_.insert(std::move(leaf));
        }
        node.used = now;
    }

    std::shared_ptr<BlockPool<B>> pool_;
    Hash hash_;
    Nodes nodes_;
    std::unordered_multimap<std::uint64_t, std::uint64_t> index_;  // hash to key
    Roots roots_;
    Leaves leaves_;
    std::uint64_t last_key_ = 0;
    std::uint64_t clock_ = 0;
};

}  // namespace decant::inline DECANT_ABI

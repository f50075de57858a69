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
/// a block that a sequence uses stays. Where the cache forgets what windows have passed, a text can be gone on with
/// behind any block whose window is kept; windows go before the rest of their text. Belongs to one pool, so to one
/// model and one cache type; what else makes the same tokens mean other keys and values (an adapter, another user's
/// secret) goes into `cache_salt`, and a root is per salt. Models whose layers keep a state have nothing that a block
/// could hold: nothing is published. One for a pool, one thread at a time, together with the sequences of the pool.
template <class B, class Hash = PrefixHash>
class PrefixCache {
 public:
    explicit PrefixCache(std::shared_ptr<BlockPool<B>> pool, Hash hash = {}) : pool_(std::move(pool)), hash_(hash) {
        for (std::size_t g = 0; g < pool_->groups(); ++g) window_ = (std::max)(window_, pool_->window(g));
    }
    PrefixCache(PrefixCache&& other) noexcept = default;
    PrefixCache(const PrefixCache&) = delete;
    PrefixCache& operator=(const PrefixCache&) = delete;
    PrefixCache& operator=(PrefixCache&&) = delete;
    ~PrefixCache() {
        if (pool_ == nullptr) return;
        for (const auto& [key, node] : nodes_)
            for (const std::int32_t block : node.blocks)
                if (block >= 0) pool_->give_up(block);
    }

    /// A sequence with the longest known beginning of `tokens` that can be gone on with, in whole blocks, but never all
    /// of them: the last token is to be computed. It shares the blocks, so that they cannot go while it lives.
    [[nodiscard]] Sequence<B> match(std::span<const Token> tokens, std::string_view cache_salt = {}) {
        Sequence<B> sequence(pool_);
        const std::size_t block = pool_->shape().block_tokens;
        std::vector<Node*> path;
        std::size_t known = 0, whole = 0;  // blocks to go on behind; those at the path's end whose windows are there
        for (std::uint64_t parent = root(cache_salt); parent != 0 && (path.size() + 1) * block < tokens.size();) {
            Node* const node = find(parent, tokens.subspan(path.size() * block, block));
            if (node == nullptr) break;
            path.push_back(node);
            whole = is_whole(*node) ? whole + 1 : 0;
            if (whole >= path.size() - seen_from(path.size())) known = path.size();
            parent = node->key;
        }
        for (std::size_t b = seen_from(path.size()); b < path.size(); ++b) path[b]->wanted = true;
        std::vector<std::int32_t> blocks;
        for (std::size_t b = 0; b < known; ++b) {
            touch(*path[b]);
            blocks = path[b]->blocks;
            if (b >= seen_from(known)) {
                touch_windows(*path[b], ++clock_);
            } else {
                for (std::size_t g = 0; g < blocks.size(); ++g) blocks[g] = pool_->window(g) > 0 ? -1 : blocks[g];
            }
            sequence.adopt(blocks, tokens.subspan(b * block, block));
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
            if (node == nullptr) {
                node = &add(mark.node, root, own, blocks_of(sequence, mark.blocks));
            } else if (!is_whole(*node)) {
                complete(*node, blocks_of(sequence, mark.blocks));
            }
            touch_windows(*node, ++clock_);
            pass(*node, mark.blocks + 1);
            touch(*node);
            mark.node = node->key;
        }
    }
    void publish(const Sequence<B>& sequence, std::string_view cache_salt = {}) {
        Mark mark;
        publish(sequence, cache_salt, mark);
    }

    /// Gives at least `count` blocks back to the pool, those first that were not used for the longest time; fewer where
    /// there are no more. Blocks that a sequence uses, or that lie before such a block, stay; windows go without the
    /// rest of their blocks. Returns how many went.
    std::size_t evict(std::size_t count) {
        std::size_t gone = 0;
        auto leaf = leaves_.begin(), window = windows_.begin();
        while (gone < count) {
            while (leaf != leaves_.end() && in_use(nodes_.at(leaf->second))) ++leaf;
            while (window != windows_.end() && !has_idle_windows(nodes_.at(window->second))) ++window;
            if (window != windows_.end() && (leaf == leaves_.end() || *window < *leaf)) {
                const auto at = window++;
                gone += drop_windows(nodes_.at(at->second));
                continue;
            }
            if (leaf == leaves_.end()) break;
            const auto at = leaf++;
            if (window != windows_.end() && window->second == at->second) ++window;
            const std::size_t before = kept_;
            const auto above = remove(at);
            gone += before - kept_;
            if (above != leaves_.end() && (leaf == leaves_.end() || *above < *leaf)) leaf = above;
        }
        return gone;
    }

    /// Blocks that it keeps, those of them that nobody else uses, and the salts of all.
    [[nodiscard]] std::size_t blocks() const noexcept { return kept_; }
    [[nodiscard]] std::size_t unused_blocks() const noexcept { return pool_->idle_blocks(); }
    [[nodiscard]] std::size_t salts() const noexcept { return roots_.size(); }

 private:
    using ByUse = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // (used, key)
    static constexpr std::uint64_t passed = 1;                        // a time before all others

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
        std::vector<std::int32_t> blocks;  // [groups]; -1: one with a window that has gone
        std::size_t children = 0;
        std::uint64_t used = 0;
        std::vector<Token> tokens;
        std::uint64_t windows_used = 0;  // 0: it has no blocks of groups with windows
        bool wanted = false;             // somebody would go on with its window
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

    Node& add(std::uint64_t parent, Root* root, std::span<const Token> tokens, std::vector<std::int32_t> blocks) {
        const std::uint64_t key = ++last_key_;
        Node fresh{key, parent, root, hash_(parent, tokens), std::move(blocks), 0, 0, {tokens.begin(), tokens.end()}};
        const auto at = nodes_.emplace(key, std::move(fresh)).first;
        Undo undo(*this, at);
        index_.emplace(at->second.hash, key);
        leaves_.insert({0, key});
        list_windows(at->second);
        undo.dismiss();
        for (const std::int32_t block : at->second.blocks)
            if (block >= 0) pool_->keep(block), ++kept_;
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
        if (node->second.windows_used > 0) windows_.erase({node->second.windows_used, node->first});
        nodes_.erase(node);
    }

    /// Those of a sequence, of groups with windows all or none.
    [[nodiscard]] std::vector<std::int32_t> blocks_of(const Sequence<B>& sequence, std::size_t b) const {
        std::vector<std::int32_t> blocks;
        for (std::size_t g = 0; g < pool_->groups(); ++g) blocks.push_back(sequence.table(g)[b]);
        if (std::find(blocks.begin(), blocks.end(), -1) == blocks.end()) return blocks;
        for (std::size_t g = 0; g < blocks.size(); ++g) blocks[g] = pool_->window(g) > 0 ? -1 : blocks[g];
        return blocks;
    }
    /// Whether all its blocks are there.
    [[nodiscard]] static bool is_whole(const Node& node) {
        return std::find(node.blocks.begin(), node.blocks.end(), -1) == node.blocks.end();
    }
    /// The first block that the token behind so many sees through the widest window.
    [[nodiscard]] std::size_t seen_from(std::size_t blocks) const {
        const std::size_t block = pool_->shape().block_tokens;
        return first_seen(window_, blocks * block) / block;
    }
    /// Keeps what is missing.
    void complete(Node& node, const std::vector<std::int32_t>& blocks) {
        for (std::size_t g = 0; g < blocks.size(); ++g) {
            if (node.blocks[g] >= 0 || blocks[g] < 0) continue;
            if (node.windows_used == 0) list_windows(node, true);
            pool_->keep(node.blocks[g] = blocks[g]);
            ++kept_;
        }
    }
    void list_windows(Node& node, bool any = false) {
        for (std::size_t g = 0; g < node.blocks.size() && !any; ++g) any = pool_->window(g) > 0 && node.blocks[g] >= 0;
        if (!any) return;
        windows_.insert({passed, node.key});
        node.windows_used = passed;
    }
    void touch_windows(Node& node, std::uint64_t when) {
        if (node.windows_used == 0) return;
        auto entry = windows_.extract({std::exchange(node.windows_used, when), node.key});
        entry.value().first = when;
        windows_.insert(std::move(entry));
    }
    /// Behind so many blocks, the last of which is this node's, the window has passed one further up: that goes first,
    /// unless somebody has gone on from there.
    void pass(Node& node, std::size_t blocks) {
        if (window_ == 0) return;
        Node* above = &node;
        for (std::size_t up = blocks - seen_from(blocks); above != nullptr && up > 0; --up) {
            const auto at = nodes_.find(above->parent);
            above = at == nodes_.end() ? nullptr : &at->second;
        }
        if (above != nullptr && !above->wanted) touch_windows(*above, passed);
    }
    /// Whether a sequence uses some of its blocks.
    [[nodiscard]] bool in_use(const Node& node) const {
        return std::any_of(node.blocks.begin(), node.blocks.end(),
                           [&](std::int32_t block) { return block >= 0 && pool_->shared(block); });
    }
    [[nodiscard]] bool has_idle_windows(const Node& node) const {
        for (std::size_t g = 0; g < node.blocks.size(); ++g)
            if (pool_->window(g) > 0 && node.blocks[g] >= 0 && !pool_->shared(node.blocks[g])) return true;
        return false;
    }
    /// Gives up those that no sequence uses. Returns how many.
    std::size_t drop_windows(Node& node) {
        std::size_t gone = 0, left = 0;
        for (std::size_t g = 0; g < node.blocks.size(); ++g) {
            if (pool_->window(g) == 0 || node.blocks[g] < 0) continue;
            if (pool_->shared(node.blocks[g])) {
                ++left;
            } else {
                pool_->give_up(std::exchange(node.blocks[g], -1));
                ++gone;
            }
        }
        kept_ -= gone;
        if (left == 0) windows_.erase({std::exchange(node.windows_used, 0), node.key});
        return gone;
    }

    /// Returns its parent if that has become a leaf. Allocates nothing.
    ByUse::iterator remove(ByUse::iterator at) {
        auto leaf = leaves_.extract(at);
        const auto [used, key] = leaf.value();
        const auto node = nodes_.find(key);
        const std::uint64_t parent = node->second.parent;
        Root* const root = node->second.root;
        for (const std::int32_t block : node->second.blocks)
            if (block >= 0) pool_->give_up(block), --kept_;
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
    ByUse leaves_;
    ByUse windows_;           // nodes with blocks of groups with windows
    std::size_t window_ = 0;  // the widest
    std::size_t kept_ = 0;    // blocks
    std::uint64_t last_key_ = 0;
    std::uint64_t clock_ = passed;
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Chapter 5, second half: a crowd of conversations of random length in one memory, kept in slots of the longest length
/// or in the library's paged cache. In every step each conversation in the cache grows by a token; those that are done
/// leave, and the next in the queue come in as soon as there is room.

#include "engine.hpp"
#include "results.hpp"

#include "../support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace experiment {

struct Conversation {
    std::size_t prompt = 0;  // tokens
    std::size_t total = 0;   // at its end
};

/// Lengths are exponentially distributed, as many short and few long ones.
[[nodiscard]] inline std::vector<Conversation> random_conversations(std::size_t count, std::size_t longest) {
    examples::Random random(42);
    std::vector<Conversation> made(count);
    const double mean = static_cast<double>(longest) / 8.0;
    for (Conversation& conversation : made) {
        const auto prompt = 1 + static_cast<std::size_t>(random.exponential(mean));
        const auto answer = 1 + static_cast<std::size_t>(random.exponential(mean));
        conversation.prompt = (std::min)(prompt, longest - 1);
        conversation.total = (std::min)(conversation.prompt + answer, longest);
    }
    return made;
}

/// A slot of the longest length for each.
class ContiguousStore {
 public:
    ContiguousStore(std::size_t tokens, std::size_t slot) : slots_(tokens / slot), slot_(slot) {}
    struct Room {};
    std::optional<Room> enter(std::size_t) {
        if (used_ == slots_) return {};
        ++used_;
        return Room{};
    }
    bool grow(Room&, std::size_t) { return true; }
    void leave(Room) { --used_; }
    [[nodiscard]] std::size_t taken_tokens() const { return used_ * slot_; }

 private:
    std::size_t slots_;
    std::size_t slot_;
    std::size_t used_ = 0;
};

/// The library's block pool: a sequence takes a block when it needs one.
class PagedStore {
 public:
    PagedStore(Cache& cache, std::size_t block_tokens) : cache_(cache), block_(block_tokens) {}
    using Room = Sequence;
    std::optional<Room> enter(std::size_t tokens) {
        Sequence sequence = cache_.sequence().value();
        if (!sequence.reserve(tokens)) return {};
        return sequence;
    }
    bool grow(Room& room, std::size_t tokens) { return static_cast<bool>(room.reserve(tokens)); }
    void leave(Room) {}  // its blocks go back as it ends
    [[nodiscard]] std::size_t taken_tokens() const { return (cache_.blocks() - cache_.free_blocks()) * block_; }

 private:
    Cache& cache_;
    std::size_t block_;
};

template <class Store>
Paging::Side serve(Store store, const std::vector<Conversation>& conversations, std::size_t cache_tokens) {
    struct Guest {
        Conversation conversation;
        std::size_t length;
        typename Store::Room room;
    };
    std::deque<Conversation> queue(conversations.begin(), conversations.end());
    std::vector<Guest> guests;  // oldest first
    Paging::Side side;
    std::size_t busy_steps = 0;
    while (!queue.empty() || !guests.empty()) {
        while (!queue.empty()) {
            auto room = store.enter(queue.front().prompt);
            if (!room) break;
            guests.push_back({queue.front(), queue.front().prompt, *std::move(room)});
            queue.pop_front();
        }

        // While others wait the memory should be full: only those steps say how well it is used.
        side.at_once.push_back(guests.size());
        if (!queue.empty()) {
            std::size_t used = 0;
            for (const Guest& guest : guests) used += guest.length;
            const auto whole = static_cast<double>(cache_tokens);
            side.used_share += static_cast<double>(used) / whole;
            side.wasted_share += static_cast<double>(store.taken_tokens() - used) / whole;
            side.mean_at_once += static_cast<double>(guests.size());
            ++busy_steps;
        }

        for (std::size_t i = 0; i < guests.size();) {
            if (guests[i].length == guests[i].conversation.total) {
                store.leave(std::move(guests[i].room));
                guests.erase(guests.begin() + static_cast<std::ptrdiff_t>(i));
                ++side.finished;
            } else if (store.grow(guests[i].room, guests[i].length + 1)) {
                ++guests[i++].length;
            } else {  // the youngest makes room and comes back later
                queue.push_front(guests.back().conversation);
                store.leave(std::move(guests.back().room));
                guests.pop_back();
                ++side.evicted;
            }
        }
    }
    for (double* mean : {&side.used_share, &side.wasted_share, &side.mean_at_once})
        if (busy_steps > 0) *mean /= static_cast<double>(busy_steps);
    return side;
}

[[nodiscard]] inline Paging compare_paging(const Engine& engine, std::size_t longest) {
    Paging paging;
    paging.slot_tokens = (std::max)((std::min)(longest, std::size_t{2048}), std::size_t{64});
    paging.cache_tokens = 16 * paging.slot_tokens;
    paging.block_tokens = decant::CacheOptions{}.block_tokens;
    paging.conversations = 400;
    const auto conversations = random_conversations(paging.conversations, paging.slot_tokens);
    paging.contiguous =
        serve(ContiguousStore(paging.cache_tokens, paging.slot_tokens), conversations, paging.cache_tokens);
    Cache cache = engine.cache(paging.cache_tokens);
    paging.paged = serve(PagedStore(cache, paging.block_tokens), conversations, paging.cache_tokens);
    return paging;
}

}  // namespace experiment

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// An immutable hash index whose worst case is a binary search: colliding keys from a hostile file cost O(log n), not a
/// chain. Built once in O(n) for ordinary keys.

#include <decant/core/config.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// A bijection of 64-bit numbers that spreads every input bit over the output (the finalizer of MurmurHash3).
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t x) noexcept {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

/// FNV-1a over the bytes, mixed.
[[nodiscard]] constexpr std::uint64_t hash_bytes(std::string_view bytes) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (const char c : bytes) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3ULL;
    return mix_bits(hash);
}

class HashIndex {
 public:
    struct Entry {
        std::uint64_t hash;
        std::uint32_t first;  // two values of the user's
        std::uint32_t second;
    };

    HashIndex() = default;

    /// `less` orders entries of equal hash; of entries that it holds equivalent, the one given first stays first.
    template <class Less>
    HashIndex(const std::vector<Entry>& entries, Less less) {
        DECANT_ASSERT(entries.size() <= (std::numeric_limits<std::uint32_t>::max)());
        const std::size_t buckets = std::bit_ceil((std::max)(entries.size(), std::size_t{2}));
        shift_ = 64 - std::countr_zero(buckets);
        starts_.assign(buckets + 1, 0);
        for (const Entry& entry : entries) ++starts_[bucket(entry.hash) + 1];
        for (std::size_t b = 0; b < buckets; ++b) starts_[b + 1] += starts_[b];
        entries_.resize(entries.size());
        std::vector<std::uint32_t> next(starts_.begin(), starts_.end() - 1);
        for (const Entry& entry : entries) entries_[next[bucket(entry.hash)]++] = entry;
        for (std::size_t b = 0; b < buckets; ++b) {
            if (starts_[b + 1] - starts_[b] < 2) continue;
            std::stable_sort(
                entries_.begin() + static_cast<std::ptrdiff_t>(starts_[b]),
                entries_.begin() + static_cast<std::ptrdiff_t>(starts_[b + 1]),
                [&](const Entry& x, const Entry& y) { return x.hash != y.hash ? x.hash < y.hash : less(x, y); });
        }
    }

    /// The first entry of that hash for which `compare(entry)` (negative: the entry lies before the key) gives 0.
    template <class Compare>
    [[nodiscard]] const Entry* find(std::uint64_t hash, Compare compare) const {
        if (entries_.empty()) return nullptr;
        const std::size_t b = bucket(hash);
        const Entry* const end = entries_.data() + starts_[b + 1];
        const Entry* const found = std::partition_point(entries_.data() + starts_[b], end, [&](const Entry& entry) {
            return entry.hash != hash ? entry.hash < hash : compare(entry) < 0;
        });
        return found != end && found->hash == hash && compare(*found) == 0 ? found : nullptr;
    }

 private:
    [[nodiscard]] std::size_t bucket(std::uint64_t hash) const noexcept {
        return static_cast<std::size_t>(hash >> shift_);
    }

    int shift_ = 63;
    std::vector<std::uint32_t> starts_;
    std::vector<Entry> entries_;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

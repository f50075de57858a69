// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Finding tokens that are written out in text (control and user-defined ones): the longest at a position.

#include <decant/core/token.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

class SpecialTokens {
 public:
    /// A longer piece is never found in text, so that a search costs a bounded number of steps per byte.
    static constexpr std::size_t max_bytes = 256;

    struct Entry {
        std::string_view piece;
        Token token;
        bool control;
        bool takes_left = false;  // white space beside it belongs to it
        bool takes_right = false;
    };

    SpecialTokens() = default;
    [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

    /// The pieces must outlive the object. Of equal pieces the first counts.
    explicit SpecialTokens(std::vector<Entry> entries) : entries_(std::move(entries)) {
        std::erase_if(entries_, [](const Entry& e) { return e.piece.empty() || e.piece.size() > max_bytes; });
        std::stable_sort(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.piece < b.piece; });
        const auto same = [](const Entry& a, const Entry& b) { return a.piece == b.piece; };
        entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
        for (const Entry& entry : entries_) starts_[static_cast<std::uint8_t>(entry.piece[0])] = true;
    }

    /// The longest piece that `text` begins with, or nullptr. Control tokens count only within the first
    /// `control_bytes` bytes.
    [[nodiscard]] const Entry* match(std::string_view text, std::size_t control_bytes) const {
        if (text.empty() || !starts_[static_cast<std::uint8_t>(text[0])]) return nullptr;
        // [low, high) are the entries that agree with the first `depth` bytes of the text.
        const Entry* low = entries_.data();
        const Entry* high = low + entries_.size();
        const Entry* longest = nullptr;
        for (std::size_t depth = 0; depth < text.size(); ++depth) {
            const auto byte = static_cast<std::uint8_t>(text[depth]);
            const auto at = [&](const Entry& e) { return static_cast<std::uint8_t>(e.piece[depth]); };
            low = std::partition_point(low, high, [&](const Entry& e) { return at(e) < byte; });
            high = std::partition_point(low, high, [&](const Entry& e) { return at(e) == byte; });
            if (low == high) break;
            if (low->piece.size() == depth + 1) {
                if (!low->control || depth < control_bytes) longest = low;
                if (++low == high) break;
            }
        }
        return longest;
    }

 private:
    std::vector<Entry> entries_;
    std::array<bool, 256> starts_{};
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

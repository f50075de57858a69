// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Drafts of what comes next, made of what was written before, and how far they are worth a try.

#include <decant/core/config.hpp>
#include <decant/core/token.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace decant::inline DECANT_ABI {

/// What followed the last time that the last few tokens stood together (prompt lookup: Saxena, "Prompt Lookup
/// Decoding", 2023): up to `most` tokens, none where they never did. Longer matches count more than recent ones.
[[nodiscard]] inline std::span<const Token> prompt_lookup(std::span<const Token> tokens, std::size_t most) noexcept {
    constexpr std::size_t longest = 3, shortest = 2, far_back = 4096;
    if (most == 0) return {};
    for (std::size_t n = longest; n >= shortest; --n) {
        if (tokens.size() <= n) continue;
        const std::span<const Token> key = tokens.last(n);
        const std::size_t oldest = tokens.size() > far_back ? tokens.size() - far_back : 0;
        for (std::size_t end = tokens.size() - 1; end >= oldest + n; --end) {
            if (!std::equal(key.begin(), key.end(), tokens.begin() + static_cast<std::ptrdiff_t>(end - n))) continue;
            return tokens.subspan(end, (std::min)(most, tokens.size() - end));
        }
    }
    return {};
}

/// How many tokens to draft: more after drafts that were right, fewer after wrong ones, and none for a while, each time
/// twice as long, where most are wrong. So drafts that are always wrong cost less and less.
class DraftLength {
 public:
    explicit DraftLength(std::size_t most = 0) noexcept : most_(most), length_((std::min)(most, std::size_t{4})) {}

    /// For the next step.
    [[nodiscard]] std::size_t next() noexcept {
        if (pause_ == 0) return length_;
        --pause_;
        return 0;
    }
    /// So many of the tokens that were drafted were accepted.
    void learn(std::size_t drafted, std::size_t accepted) noexcept {
        if (drafted == 0) return;
        if (accepted == drafted) {
            length_ = (std::min)(2 * length_, most_);
        } else {
            length_ = (std::max)(accepted, std::size_t{1});
        }
        score_ += (static_cast<float>(accepted) / static_cast<float>(drafted) - score_) * 0.25f;
        if (score_ > 0.3f) {
            rest_ = 16;
        } else if (accepted == 0) {
            pause_ = rest_;
            rest_ = (std::min)(2 * rest_, std::size_t{256});
        }
    }

 private:
    std::size_t most_;
    std::size_t length_;
    std::size_t pause_ = 0;
    std::size_t rest_ = 16;
    float score_ = 0.5f;
};

/// Whether the time that a draft model takes is made up for by the passes that it saves: an account in seconds, which
/// starts with some to try, gets a small share of the passes' time besides, and holds no more than the start. So drafts
/// that never pay cost that share and the start; where they begin to pay, it is noticed.
class DraftLedger {
 public:
    /// `share`: of the passes' time, what may be lost.
    explicit DraftLedger(double share = 0.0) noexcept : share_((std::max)(share, 0.0)) {}

    /// A draft took so long.
    void spend(double seconds) noexcept {
        balance_ -= seconds;
        if (balance_ <= 0.0) open_ = false;
    }
    /// A pass took so long. `plain`: one token for each answer. Others take longer, so they say less about those saved.
    void pass(double seconds, bool plain) noexcept {
        if (pass_ == 0.0) {
            pass_ = seconds;
            balance_ += start * pass_;
        } else if (plain) {
            pass_ += (seconds - pass_) * 0.125;
        } else {
            pass_ = (std::min)(pass_, seconds);
        }
        earn(share_ * seconds);
    }
    /// So many drafted tokens were accepted, in a pass for so many answers.
    void save(std::size_t accepted, std::size_t answers) noexcept {
        earn(pass_ * static_cast<double>(accepted) / static_cast<double>(answers));
    }
    /// Whether to draft now.
    [[nodiscard]] bool pays() const noexcept { return open_; }

 private:
    static constexpr double start = 16.0;  // passes
    static constexpr double enough = 8.0;  // for bringing the model up to the answers and some drafts, not for a part

    void earn(double seconds) noexcept {
        balance_ = (std::min)(balance_ + seconds, start * pass_);
        if (balance_ >= enough * pass_) open_ = true;
    }

    double share_;
    double balance_ = 0.0;
    double pass_ = 0.0;
    bool open_ = false;  // before the first pass there is nothing to save
};

}  // namespace decant::inline DECANT_ABI

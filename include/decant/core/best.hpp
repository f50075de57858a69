// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `BestTokens`: the k best tokens of a row of logits with their log-sum-exp, which is all that most samplers need.
/// What a backend hands over instead of a whole vocabulary.

#include <decant/core/config.hpp>
#include <decant/core/token.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace decant::inline DECANT_ABI {

/// A view of one row as a backend wrote it: k logits, descending, equal ones by id; their k ids; the log-sum-exp; the
/// id of the first logit that is no number. Ids lie there as bits. Lives as long as what it was made from.
class BestTokens {
 public:
    /// Numbers per row.
    [[nodiscard]] static constexpr std::uint32_t columns(std::uint32_t k) noexcept { return 2 * k + 2; }

    BestTokens() = default;
    /// `row`: [columns(k)].
    explicit BestTokens(std::span<const float> row) noexcept : row_(row), k_((row.size() - 2) / 2) {
        DECANT_ASSERT(row.size() >= columns(0) && row.size() % 2 == 0);
        while (size_ < k_ && bits(k_ + size_) >= 0) ++size_;
    }

    /// How many there are: k, or fewer if the vocabulary or the mask leaves fewer above -inf.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// How many were asked for.
    [[nodiscard]] std::size_t asked() const noexcept { return k_; }
    [[nodiscard]] Token token(std::size_t i) const noexcept {
        DECANT_ASSERT(i < size_);
        return Token{bits(k_ + i)};
    }
    /// With adjustments applied.
    [[nodiscard]] float logit(std::size_t i) const noexcept {
        DECANT_ASSERT(i < size_);
        return row_[i];
    }
    /// log of the sum of exp over all allowed tokens: logit - log_sum_exp is a token's log-probability.
    [[nodiscard]] float log_sum_exp() const noexcept {
        return row_.empty() ? -std::numeric_limits<float>::infinity() : row_[2 * k_];
    }
    /// The first token whose logit is NaN or +inf, or -1: then the rest means nothing.
    [[nodiscard]] std::int32_t bad() const noexcept { return row_.empty() ? -1 : bits(2 * k_ + 1); }

 private:
    [[nodiscard]] std::int32_t bits(std::size_t i) const noexcept { return std::bit_cast<std::int32_t>(row_[i]); }

    std::span<const float> row_;
    std::size_t k_ = 0;
    std::size_t size_ = 0;
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Logits`: the scores of every token of the vocabulary, for each row of a pass that asked for them. `BestRows`: the
/// best few of each row.

#include <decant/core/best.hpp>
#include <decant/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace decant::inline DECANT_ABI {

namespace detail {

/// Rows of numbers in a context, valid until its next pass or end; reading them later is a programmer error that debug
/// builds catch while the context lives.
class PassRows {
 public:
    PassRows() = default;
    PassRows(std::span<const float> values, std::size_t columns, const std::uint64_t* generation) noexcept
        : values_(values), columns_(columns), current_(generation), generation_(*generation) {}

    [[nodiscard]] std::size_t rows() const noexcept { return columns_ == 0 ? 0 : values_.size() / columns_; }
    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
    [[nodiscard]] std::span<const float> row(std::size_t r) const noexcept {
        DECANT_ASSERT(current_ != nullptr && *current_ == generation_);
        DECANT_ASSERT(r < rows());
        return values_.subspan(r * columns_, columns_);
    }

 private:
    std::span<const float> values_;
    std::size_t columns_ = 0;
    [[maybe_unused]] const std::uint64_t* current_ = nullptr;
    [[maybe_unused]] std::uint64_t generation_ = 0;
};

}  // namespace detail

/// A view into its context, valid until the context's next pass or end; reading it later is a programmer error that
/// debug builds catch while the context lives. One row converts to a span, which is what samplers take.
class Logits {
 public:
    Logits() = default;
    explicit Logits(detail::PassRows values) noexcept : values_(values) {}

    [[nodiscard]] std::size_t rows() const noexcept { return values_.rows(); }
    [[nodiscard]] std::size_t vocabulary() const noexcept { return values_.columns(); }

    /// Row `r` in [0, rows()): [vocabulary] floats, in the order in which the pass's parts asked.
    [[nodiscard]] std::span<const float> row(std::size_t r) const noexcept { return values_.row(r); }

    operator std::span<const float>() const noexcept {
        DECANT_ASSERT(rows() == 1);
        return row(0);
    }

 private:
    detail::PassRows values_;
};

/// The best tokens of each row that a pass was asked for. Valid as `Logits` are. One row converts to `BestTokens`.
class BestRows {
 public:
    BestRows() = default;
    explicit BestRows(detail::PassRows values) noexcept : values_(values) {}

    [[nodiscard]] std::size_t rows() const noexcept { return values_.rows(); }
    [[nodiscard]] BestTokens row(std::size_t r) const noexcept { return BestTokens(values_.row(r)); }

    operator BestTokens() const noexcept {
        DECANT_ASSERT(rows() == 1);
        return row(0);
    }

 private:
    detail::PassRows values_;
};

}  // namespace decant::inline DECANT_ABI

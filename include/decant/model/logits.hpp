// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Logits`: the scores of every token of the vocabulary, for each row of a pass that asked for them.

#include <decant/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace decant::inline DECANT_ABI {

/// A view into its context, valid until the context's next pass or end; reading it later is a programmer error that
/// debug builds catch while the context lives. One row converts to a span, which is what samplers take.
class Logits {
 public:
    Logits() = default;
    Logits(std::span<const float> values, std::size_t vocabulary, const std::uint64_t* generation) noexcept
        : values_(values), vocabulary_(vocabulary), current_(generation), generation_(*generation) {}

    [[nodiscard]] std::size_t rows() const noexcept { return vocabulary_ == 0 ? 0 : values_.size() / vocabulary_; }
    [[nodiscard]] std::size_t vocabulary() const noexcept { return vocabulary_; }

    /// Row `r` in [0, rows()): [vocabulary] floats, in the order in which the pass's parts asked.
    [[nodiscard]] std::span<const float> row(std::size_t r) const noexcept {
        DECANT_ASSERT(current_ != nullptr && *current_ == generation_);
        DECANT_ASSERT(r < rows());
        return values_.subspan(r * vocabulary_, vocabulary_);
    }

    operator std::span<const float>() const noexcept {
        DECANT_ASSERT(rows() == 1);
        return row(0);
    }

 private:
    std::span<const float> values_;
    std::size_t vocabulary_ = 0;
    [[maybe_unused]] const std::uint64_t* current_ = nullptr;
    [[maybe_unused]] std::uint64_t generation_ = 0;
};

}  // namespace decant::inline DECANT_ABI

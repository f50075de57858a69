// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `detail::CandidateSet`: what a chain's steps work on, the whole row of logits or a short sorted list.

#include <decant/core/adjustment.hpp>
#include <decant/core/best.hpp>
#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/scan.hpp>
#include <decant/sample/softmax.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Temperatures are not applied to the logits but collected in `inverse`: nothing overflows, no ties arise.
class CandidateSet {
 public:
    /// The list, sorted by `likelier`. Probabilities are those of the last `weigh` (then times `total()`) or `finish`.
    std::vector<Candidate> kept;

    /// The k best of a row. Errors of `best_of`.
    Result<void> load_best(std::span<const float> row, std::span<const LogitAdjustment> adjustments, std::size_t k) {
        start(false);
        DECANT_CHECK(best_of(row, adjustments, k, kept));
        highest_ = kept.front().logit;
        return {};
    }

    /// A whole row. Errors of `best_of`.
    Result<void> load_row(std::span<const float> row, std::span<const LogitAdjustment> adjustments) {
        start(true);
        reserve_row(row.size());
        DECANT_CHECK(best_of(row, adjustments, 1, kept));
        highest_ = kept.front().logit;
        size_ = row.size();
        row_.resize((row.size() + row_block - 1) / row_block * row_block);
        const auto padding = std::copy(row.begin(), row.end(), row_.begin());
        std::fill(padding, row_.end(), -std::numeric_limits<float>::infinity());
        adjust_row(adjustments);
        return {};
    }

    /// The k best of those that a backend chose; not empty.
    void load_best(const BestTokens& best, std::size_t k) {
        start(false);
        kept.clear();
        for (std::size_t i = 0; i < (std::min)(k, best.size()); ++i)
            kept.push_back({best.token(i), best.logit(i), 0.0f});
        highest_ = kept.front().logit;
    }

    void reserve_row(std::size_t row) {
        const std::size_t blocks = (row + row_block - 1) / row_block;
        kept.reserve(row);
        row_.reserve(blocks * row_block);
        weights_.reserve(blocks * row_block);
        sums_.reserve(blocks);
    }

    [[nodiscard]] bool whole() const noexcept { return whole_; }
    [[nodiscard]] double total() const noexcept { return total_; }  ///< sum of all weights of the last `weigh`
    [[nodiscard]] float highest() const noexcept { return highest_; }

    /// (logit - highest) / temperature: the exponent of a candidate's weight.
    [[nodiscard]] double exponent(float logit) const noexcept {
        return (static_cast<double>(logit) - static_cast<double>(highest_)) * inverse_;
    }
    /// The logit of a weight: the opposite of `exponent`.
    [[nodiscard]] float logit_at(double exponent) const noexcept {
        return saturated(static_cast<double>(highest_) + exponent / inverse_);
    }

    void divide_by(double temperature) noexcept { inverse_ = (std::clamp)(inverse_ / temperature, 1e-37, 1e37); }

    /// Weights exp((logit - highest) / temperature), and their sum.
    void weigh() {
        total_ = 0.0;
        if (!whole_) {
            for (Candidate& candidate : kept) {
                candidate.probability = static_cast<float>(std::exp(exponent(candidate.logit)));
                total_ += static_cast<double>(candidate.probability);
            }
            return;
        }
        weights_.resize(row_.size());
        sums_.clear();
        RowBlock weights;
        for (std::size_t start = 0; start < row_.size(); start += row_block) {
            weigh_block(&row_[start], highest_, static_cast<float>(inverse_), weights);
            std::copy(weights.begin(), weights.end(), &weights_[start]);
            sums_.push_back(sum_block(weights.data()));
            total_ += sums_.back();
        }
    }

    /// In nats; after `weigh`. H = log(total) - sum(weight * exponent) / total.
    [[nodiscard]] double entropy() const {
        double sum = 0.0;
        if (!whole_) {
            for (const Candidate& candidate : kept)
                sum += static_cast<double>(candidate.probability) * exponent(candidate.logit);
        } else {
            RowBlock products;
            for (std::size_t start = 0; start < row_.size(); start += row_block) {
                exponents_block(&row_[start], highest_, static_cast<float>(inverse_), products);
                for (std::size_t i = 0; i < row_block; ++i) products[i] *= weights_[start + i];
                sum += sum_block(products.data());
            }
        }
        return std::log(total_) - sum / total_;
    }

    /// Calls `use(logit)` for every candidate.
    template <class Use>
    void for_each(Use&& use) const {
        if (!whole_) {
            for (const Candidate& candidate : kept) use(candidate.logit);
        } else {
            for (const float logit : row_)
                if (logit > -std::numeric_limits<float>::infinity()) use(logit);
        }
    }

    /// Fills `kept` with the candidates of at least this logit, out of the whole row and not sorted.
    void gather(float least) {
        kept.clear();
        const float below = std::nextafter(least, -std::numeric_limits<float>::infinity());
        scan_above(row_, below, [&](std::size_t token, float logit) {
            kept.push_back({Token{static_cast<std::int32_t>(token)}, logit, 0.0f});
            return true;
        });
    }
    /// Goes over from the whole row to what `gather` found.
    void use_list() noexcept { whole_ = false; }

    /// After other changes of the list than cutting its end.
    void order() {
        std::sort(kept.begin(), kept.end(), likelier);
        if (!kept.empty()) highest_ = kept.front().logit;
    }

    /// Drops candidates below this logit, but never the likeliest.
    void keep_from(float least) {
        least = (std::min)(least, highest_);
        if (whole_) {
            gather(least);
            use_list();
            order();
        } else {
            while (kept.back().logit < least) kept.pop_back();
        }
    }

    /// The same, but a whole row stays one: nothing is sorted.
    void forbid_below(float least) {
        least = (std::min)(least, highest_);
        if (!whole_) return keep_from(least);
        for (float& logit : row_) logit = logit < least ? -std::numeric_limits<float>::infinity() : logit;
    }

    void keep_best(std::size_t k) {
        if (!whole_) {
            kept.resize((std::min)(k, kept.size()));
            return;
        }
        [[maybe_unused]] const auto found = best_of(row_, {}, k, kept);
        DECANT_ASSERT(found);
        use_list();
    }

    /// Drops the candidates of at least this weight (of `weigh`), but the last of them by `likelier`.
    void exclude_top(double weight) {
        if (!whole_) {
            const auto end = std::find_if(kept.begin(), kept.end(), [&](const Candidate& candidate) {
                return static_cast<double>(candidate.probability) < weight;
            });
            if (end - kept.begin() > 1) kept.erase(kept.begin(), end - 1);
            order();
            return;
        }
        gather(logit_at(std::log(weight)));
        if (kept.empty()) return;
        const auto last = std::max_element(kept.begin(), kept.end(), likelier);
        for (const Candidate& candidate : kept)
            if (candidate.token != last->token)
                row_[static_cast<std::size_t>(id(candidate.token))] = -std::numeric_limits<float>::infinity();
        highest_ = last->logit;
    }

    /// An adjusting step after another kind of step. Error: nothing is left.
    Result<void> adjust(std::span<const LogitAdjustment> adjustments) {
        settle();
        if (whole_) {
            adjust_row(adjustments);
            DECANT_CHECK(best_of(std::span(row_).first(size_), {}, 1, kept));
            highest_ = kept.front().logit;
            return {};
        }
        for (Candidate& candidate : kept) {
            const auto found = std::lower_bound(
                adjustments.begin(), adjustments.end(), candidate.token,
                [](const LogitAdjustment& adjustment, Token token) { return id(adjustment.token) < id(token); });
            if (found != adjustments.end() && found->token == candidate.token)
                candidate.logit = apply(*found, candidate.logit);
        }
        order();
        const std::size_t count = kept.size();
        while (!kept.empty() && kept.back().logit == -std::numeric_limits<float>::infinity()) kept.pop_back();
        if (kept.empty()) return no_candidate(count);
        return {};
    }

    /// After the last step: probabilities, and no candidate of probability 0.
    void finish() {
        weigh();
        if (whole_) return;
        for (Candidate& candidate : kept)
            candidate.probability = static_cast<float>(static_cast<double>(candidate.probability) / total_);
        while (kept.back().probability == 0.0f) kept.pop_back();
    }

    /// After `finish`, the list also of a whole row. `draw` goes on drawing from the row.
    void list() {
        if (!whole_) return;
        gather(-(std::numeric_limits<float>::max)());
        for (Candidate& candidate : kept) {
            const double weight = static_cast<double>(weights_[static_cast<std::size_t>(id(candidate.token))]);
            candidate.probability = static_cast<float>(weight / total_);
        }
        std::sort(kept.begin(), kept.end(), likelier);
        while (kept.back().probability == 0.0f) kept.pop_back();
    }

    /// After `finish`; 0 for a token that is no candidate.
    [[nodiscard]] double probability(Token token) const noexcept {
        if (whole_) {
            const auto place = static_cast<std::size_t>(id(token));
            return place < size_ ? static_cast<double>(weights_[place]) / total_ : 0.0;
        }
        const auto found = std::find_if(kept.begin(), kept.end(),
                                        [&](const Candidate& candidate) { return candidate.token == token; });
        return found == kept.end() ? 0.0 : static_cast<double>(found->probability);
    }

    /// After `finish`, the token at a number in [0, 1): by descending logit out of a list, by id out of a whole row.
    [[nodiscard]] Token draw(double number) const {
        if (!whole_) {
            double total = 0.0;
            for (const Candidate& candidate : kept) total += static_cast<double>(candidate.probability);
            double left = number * total;
            for (const Candidate& candidate : kept) {
                if (left < static_cast<double>(candidate.probability)) return candidate.token;
                left -= static_cast<double>(candidate.probability);
            }
            return kept.back().token;
        }
        double left = number * total_;
        std::size_t block = 0;
        for (std::size_t i = 0; i < sums_.size(); ++i) {
            if (sums_[i] > 0.0) block = i;  // the last possible one, should rounding leave a rest
            if (left < sums_[i]) break;
            left -= sums_[i];
        }
        std::size_t picked = 0;
        for (std::size_t i = block * row_block; i < (block + 1) * row_block; ++i) {
            const auto weight = static_cast<double>(weights_[i]);
            if (weight > 0.0) picked = i;
            if (left < weight) break;
            left -= weight;
        }
        return Token{static_cast<std::int32_t>(picked)};
    }

 private:
    void start(bool whole) noexcept {
        whole_ = whole;
        inverse_ = 1.0;
        total_ = 0.0;
    }
    void adjust_row(std::span<const LogitAdjustment> adjustments) {
        for (const LogitAdjustment& adjustment : adjustments) {
            const auto token = static_cast<std::size_t>(id(adjustment.token));
            if (token < size_) row_[token] = apply(adjustment, row_[token]);
        }
    }
    /// Applies the temperature to the logits.
    void settle() {
        if (inverse_ == 1.0) return;
        const auto scale = [&](float logit) { return saturated(static_cast<double>(logit) * inverse_); };
        if (!whole_) {
            for (Candidate& candidate : kept) candidate.logit = scale(candidate.logit);
        } else {
            for (float& logit : row_)
                if (logit > -std::numeric_limits<float>::infinity()) logit = scale(logit);
        }
        inverse_ = 1.0;
    }

    std::vector<float> row_;      // all logits while whole, padded with -inf to whole blocks
    std::vector<float> weights_;  // theirs
    std::vector<double> sums_;    // of the weights of each block
    std::size_t size_ = 0;        // logits without the padding
    bool whole_ = false;
    float highest_ = 0.0f;
    double inverse_ = 1.0;
    double total_ = 0.0;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

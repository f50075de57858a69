// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `detail::CandidateSet`: what a chain's steps work on, the whole row of logits or a short sorted list.

#include <decant/core/adjustment.hpp>
#include <decant/core/best.hpp>
#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/logit_row.hpp>
#include <decant/sample/scan.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Temperatures are not applied to the logits but collected in `scale_.inverse`: nothing overflows, no ties arise.
///
/// A filter turns a row into a list when it leaves few; more stay a row, as sorting them would cost the most.
class CandidateSet {
 public:
    static constexpr std::size_t few = 1024;

    /// The list, sorted by `likelier`. Probabilities are those of the last `weigh` (then times `total()`) or `finish`.
    std::vector<Candidate> kept;

    /// The k best of a row. Errors of `best_of`.
    Result<void> load_best(std::span<const float> row, std::span<const LogitAdjustment> adjustments, std::size_t k) {
        start(false);
        DECANT_CHECK(best_of(row, adjustments, k, kept));
        scale_.highest = kept.front().logit;
        return {};
    }

    /// A whole row. Errors of `best_of`.
    Result<void> load_row(std::span<const float> row, std::span<const LogitAdjustment> adjustments) {
        start(true);
        reserve_row(row.size());
        DECANT_CHECK(row_.load(row, adjustments));
        scale_.highest = row_.highest();
        return {};
    }

    /// The k best of those that a backend chose; not empty.
    void load_best(const BestTokens& best, std::size_t k) {
        start(false);
        kept.clear();
        for (std::size_t i = 0; i < (std::min)(k, best.size()); ++i)
            kept.push_back({best.token(i), best.logit(i), 0.0f});
        scale_.highest = kept.front().logit;
    }

    void reserve_row(std::size_t row) {
        kept.reserve(row);
        row_.reserve(row);
    }

    [[nodiscard]] double total() const noexcept { return total_; }  ///< sum of all weights of the last `weigh`
    [[nodiscard]] float highest() const noexcept { return scale_.highest; }

    /// (logit - highest) / temperature: the exponent of a candidate's weight.
    [[nodiscard]] double exponent(float logit) const noexcept { return scale_.exponent(logit); }
    /// The logit of a weight: the opposite of `exponent`.
    [[nodiscard]] float logit_at(double exponent) const noexcept {
        return saturated(static_cast<double>(scale_.highest) + exponent / scale_.inverse);
    }

    void divide_by(double temperature) noexcept {
        scale_.inverse = (std::clamp)(scale_.inverse / temperature, 1e-37, 1e37);
    }

    [[nodiscard]] LogitRow::Moments moments() const noexcept {
        if (whole_) return row_.moments(scale_.highest);
        LogitRow::Moments out;
        for (const Candidate& candidate : kept) {
            const double below = static_cast<double>(scale_.highest) - static_cast<double>(candidate.logit);
            out.count += 1.0;
            out.sum += below;
            out.squares += below * below;
        }
        return out;
    }
    [[nodiscard]] std::size_t count() const noexcept { return whole_ ? row_.candidates() : kept.size(); }

    /// Weights exp((logit - highest) / temperature), and their sum.
    void weigh() {
        if (whole_) {
            total_ = row_.weigh(scale_);
            return;
        }
        total_ = 0.0;
        for (Candidate& candidate : kept) {
            candidate.probability = static_cast<float>(std::exp(exponent(candidate.logit)));
            total_ += static_cast<double>(candidate.probability);
        }
    }

    /// `weigh`, and the entropy in nats: H = log(total) - sum(weight * exponent) / total.
    [[nodiscard]] double weigh_entropy() {
        double products = 0.0;
        if (whole_) {
            total_ = row_.weigh(scale_, products);
        } else {
            weigh();
            for (const Candidate& candidate : kept)
                products += static_cast<double>(candidate.probability) * exponent(candidate.logit);
        }
        return std::log(total_) - products / total_;
    }

    /// After `weigh`: keeps the candidates whose exponents are nearest to `center`, as few as have the share `p` of the
    /// weight; equally near ones by `likelier`.
    void keep_nearest(double center, double p) {
        // Candidates of less than (1 - p) / count have less than 1 - p together: without them there is enough, with
        // room for rounding, and so without all that are farther from the center than both these and the likeliest.
        const double least = std::log(0.99 * (1.0 - p) * total_ / static_cast<double>(count()));
        const double reach = (std::max)(-center, center - least);
        const double goal = p * total_;
        const auto before = [&](const Candidate& a, const Candidate& b) {
            const double first = std::fabs(exponent(a.logit) - center);
            const double second = std::fabs(exponent(b.logit) - center);
            return first != second ? first < second : likelier(a, b);
        };
        if (whole_) {
            if (!gather((std::min)(logit_at(center - reach), scale_.highest), few)) {
                row_.keep_nearest(scale_, {center, reach}, goal, before, kept);
                scale_.highest = row_.highest();
                use_list_if_few(lowest_finite);
                return;
            }
            whole_ = false;
            const double all = total_;
            weigh();
            total_ = all;
        }
        kept.resize(reach_weight(std::span(kept), goal, before));
        order();
    }

    /// Drops candidates below this logit, but never the likeliest.
    void keep_from(float least) {
        least = (std::min)(least, scale_.highest);
        if (whole_ && use_list_if_few(least)) return;
        forbid_below(least);
    }

    /// The same, but a row stays one.
    void forbid_below(float least) {
        least = (std::min)(least, scale_.highest);
        if (whole_) return row_.forbid_below(least);
        while (kept.back().logit < least) kept.pop_back();
    }

    void keep_best(std::size_t k) {
        if (!whole_) {
            kept.resize((std::min)(k, kept.size()));
            return;
        }
        row_.best(k, kept);
        whole_ = false;
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
        gather(logit_at(std::log(weight)), row_.size());
        if (kept.empty()) return;
        const auto last = std::max_element(kept.begin(), kept.end(), Likelier{});
        for (const Candidate& candidate : kept)
            if (candidate.token != last->token) row_.forbid(candidate.token);
        row_.refresh();
        scale_.highest = last->logit;
    }

    /// An adjusting step after another kind of step. Error: nothing is left.
    Result<void> adjust(std::span<const LogitAdjustment> adjustments) {
        settle();
        if (whole_) {
            DECANT_CHECK(row_.adjust(adjustments));
            scale_.highest = row_.highest();
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
        kept.clear();
        row_.for_each_weight(scale_, [&](Token token, float logit, float weight) {
            const auto probability = static_cast<float>(static_cast<double>(weight) / total_);
            if (probability > 0.0f) kept.push_back({token, logit, probability});
        });
        std::sort(kept.begin(), kept.end(), Likelier{});
    }

    /// After `finish`; 0 for a token that is no candidate.
    [[nodiscard]] double probability(Token token) const noexcept {
        if (whole_) return row_.weight(token, scale_) / total_;
        const auto found = std::find_if(kept.begin(), kept.end(),
                                        [&](const Candidate& candidate) { return candidate.token == token; });
        return found == kept.end() ? 0.0 : static_cast<double>(found->probability);
    }

    /// After `finish`, the token at a number in [0, 1): by descending logit out of a list, by id out of a whole row.
    [[nodiscard]] Token draw(double number) const {
        if (whole_) return row_.draw(number * total_, scale_);
        double total = 0.0;
        for (const Candidate& candidate : kept) total += static_cast<double>(candidate.probability);
        double left = number * total;
        for (const Candidate& candidate : kept) {
            if (left < static_cast<double>(candidate.probability)) return candidate.token;
            left -= static_cast<double>(candidate.probability);
        }
        return kept.back().token;
    }

 private:
    static constexpr float lowest_finite = -(std::numeric_limits<float>::max)();

    void start(bool whole) noexcept {
        whole_ = whole;
        scale_.inverse = 1.0;
        total_ = 0.0;
    }

    /// Fills `kept` with the candidates of at least this logit, out of the whole row and not sorted; whether `most`
    /// were enough for all.
    bool gather(float least, std::size_t most) {
        kept.clear();
        const float below = std::nextafter(least, -std::numeric_limits<float>::infinity());
        return row_.for_each_above(below, most, [&](Token token, float logit) {
            kept.push_back({token, logit, 0.0f});
        });
    }
    /// Goes over to the list of those of at least this logit if they are few.
    bool use_list_if_few(float least) {
        if (!gather(least, few)) return false;
        whole_ = false;
        order();
        return true;
    }

    /// After other changes of the list than cutting its end.
    void order() {
        std::sort(kept.begin(), kept.end(), Likelier{});
        if (!kept.empty()) scale_.highest = kept.front().logit;
    }

    /// Applies the temperature to the logits.
    void settle() {
        if (scale_.inverse == 1.0) return;
        const auto scaled = [&](float logit) { return saturated(static_cast<double>(logit) * scale_.inverse); };
        if (whole_) {
            row_.transform(scaled);
        } else {
            for (Candidate& candidate : kept) candidate.logit = scaled(candidate.logit);
        }
        scale_.inverse = 1.0;
    }

    LogitRow row_;  // meaningful while whole
    bool whole_ = false;
    WeightScale scale_;
    double total_ = 0.0;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

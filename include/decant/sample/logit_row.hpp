// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `detail::LogitRow`: a whole row of logits of which candidates are forbidden in place, in passes of linear time.

#include <decant/core/adjustment.hpp>
#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/sample/row_kernels.hpp>
#include <decant/sample/scan.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Where weights lie on the scale of logits: exp((logit - highest) * inverse).
struct WeightScale {
    float highest = 0.0f;
    double inverse = 1.0;

    [[nodiscard]] double exponent(float logit) const noexcept {
        return (static_cast<double>(logit) - static_cast<double>(highest)) * inverse;
    }
};

/// Which candidates come first: those whose exponent is nearest to `center`. None farther than `reach` is ever wanted.
struct Nearness {
    double center = 0.0;
    double reach = 0.0;
};

/// Reorders the list so that the first by `before`, as few as have the weight `goal` together and at least one, are its
/// first; returns how many. By bisection, so that the time is linear.
template <class Before>
[[nodiscard]] std::size_t reach_weight(std::span<Candidate> list, double goal, Before before) {
    constexpr std::size_t few = 256;
    const auto at = [&](std::size_t i) { return list.begin() + static_cast<std::ptrdiff_t>(i); };
    std::size_t begin = 0;
    std::size_t end = list.size();
    double sum = 0.0;  // of those before `begin`, which are wanted; those from `end` on are not
    while (end - begin > few) {
        const std::size_t middle = begin + (end - begin) / 2;
        std::nth_element(at(begin), at(middle), at(end), before);
        double lower = sum;
        for (std::size_t i = begin; i < middle; ++i) lower += static_cast<double>(list[i].probability);
        if (lower >= goal) {
            end = middle;
        } else {
            begin = middle;
            sum = lower;
        }
    }
    std::sort(at(begin), at(end), before);
    while (begin < end) {
        sum += static_cast<double>(list[begin++].probability);
        if (sum >= goal) break;
    }
    return begin;
}

class LogitRow {
 public:
    /// A copy of the row, adjusted. Errors: of `survey`, and if no logit is above -inf.
    Result<void> load(std::span<const float> row, std::span<const LogitAdjustment> adjustments) {
        reserve(row.size());
        size_ = row.size();
        maxima_.resize((row.size() + row_block - 1) / row_block);
        row_.resize(maxima_.size() * row_block);
        const auto padding = std::copy(row.begin(), row.end(), row_.begin());
        std::fill(padding, row_.end(), lowest);
        DECANT_CHECK(survey(row_, row_block, maxima_.data()));
        return adjust(adjustments);
    }

    void reserve(std::size_t row) {
        const std::size_t blocks = (row + row_block - 1) / row_block;
        row_.reserve(blocks * row_block);
        maxima_.reserve(blocks);
        sums_.reserve(blocks);
        places_.reserve(blocks * row_block);
        histogram_.reserve(2 * (bins + 1));
    }

    /// Error: no logit is above -inf.
    Result<void> adjust(std::span<const LogitAdjustment> adjustments) {
        adjust_maxima(row_, adjustments, row_block, maxima_);
        for (const LogitAdjustment& adjustment : adjustments) {
            const auto token = static_cast<std::size_t>(id(adjustment.token));
            if (token < size_) row_[token] = apply(adjustment, row_[token]);
        }
        if (highest() == lowest) return no_candidate(size_);
        return {};
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }  ///< logits, candidates or not
    [[nodiscard]] float highest() const noexcept { return highest_of(maxima_); }

    /// Sums over the candidates.
    struct Moments {
        double count = 0.0;
        double sum = 0.0;      ///< of what they lie below `top`
        double squares = 0.0;  ///< of the same
    };
    [[nodiscard]] Moments moments(float top) const noexcept {
        std::array<double, 2> sums{};  // in turns, so that additions need not wait for each other
        std::array<double, 2> squares{};
        for (std::size_t i = 0; i < row_.size(); i += 2) {
            for (std::size_t lane = 0; lane < 2; ++lane) {
                if (!(row_[i + lane] > lowest)) continue;
                const double below = static_cast<double>(top) - static_cast<double>(row_[i + lane]);
                sums[lane] += below;
                squares[lane] += below * below;
            }
        }
        return {static_cast<double>(candidates()), sums[0] + sums[1], squares[0] + squares[1]};
    }

    [[nodiscard]] std::size_t candidates() const noexcept {
        std::size_t count = 0;
        for (std::size_t start = 0; start < row_.size(); start += row_block) {
            std::uint32_t some = 0;
            for (std::size_t i = 0; i < row_block; ++i) some += row_[start + i] > lowest ? 1u : 0u;
            count += some;
        }
        return count;
    }

    /// Calls `use(token, logit)` for the candidates above `limit`, in order of ids, up to `most` of them; whether these
    /// are all.
    template <class Use>
    bool for_each_above(float limit, std::size_t most, Use&& use) const {
        std::size_t count = 0;
        for (std::size_t b = 0; b < maxima_.size(); ++b) {
            if (!(maxima_[b] > limit)) continue;
            if (count > most) return false;
            find_above(&row_[b * row_block], limit, [&](std::size_t i, float logit) {
                if (count++ < most) use(Token{static_cast<std::int32_t>(b * row_block + i)}, logit);
            });
        }
        return count <= most;
    }

    void forbid_below(float least) noexcept {
        for (std::size_t b = 0; b < maxima_.size(); ++b) {
            if (maxima_[b] == lowest) continue;
            float* const x = &row_[b * row_block];
            for (std::size_t i = 0; i < row_block; ++i) x[i] = x[i] < least ? lowest : x[i];
            maxima_[b] = maxima_[b] < least ? lowest : maxima_[b];
        }
    }
    /// The k best, without changing anything.
    void best(std::size_t k, std::vector<Candidate>& out) const {
        [[maybe_unused]] const auto found = best_of(std::span(row_).first(size_), {}, k, out);
        DECANT_ASSERT(found);
    }

    /// `refresh` must follow.
    void forbid(Token token) noexcept { row_[static_cast<std::size_t>(id(token))] = lowest; }
    void refresh() noexcept { row_kernels().survey(row_.data(), maxima_.size(), row_block, maxima_.data()); }

    /// Replaces every candidate's logit by `f` of it, which must not reverse the order of two.
    template <class F>
    void transform(F f) {
        for (float& logit : row_)
            if (logit > lowest) logit = f(logit);
        for (float& logit : maxima_)
            if (logit > lowest) logit = f(logit);
    }

    /// The sum of the weights. `draw` uses the last call, as long as the candidates are the same.
    double weigh(const WeightScale& scale) {
        return weigh(scale, [](Block&) {});
    }
    /// The same, and the sum of the products of weights and exponents.
    double weigh(const WeightScale& scale, double& products) {
        products = 0.0;
        return weigh(scale, [&](Block& block) {
            for (std::size_t i = 0; i < row_block; ++i) block.exponents[i] *= block.weights[i];
            products += sum_block(block.exponents.data());
        });
    }

    /// Calls `use(token, logit, weight)` for the candidates, in order of ids.
    template <class Use>
    void for_each_weight(const WeightScale& scale, Use&& use) const {
        Block block;
        for (std::size_t b = 0; b < maxima_.size(); ++b) {
            if (maxima_[b] == lowest) continue;
            block.weigh(*this, b, scale);
            for (std::size_t i = 0; i < row_block; ++i) {
                const std::size_t token = b * row_block + i;
                if (row_[token] > lowest) use(Token{static_cast<std::int32_t>(token)}, row_[token], block.weights[i]);
            }
        }
    }

    [[nodiscard]] double weight(Token token, const WeightScale& scale) const noexcept {
        const auto place = static_cast<std::size_t>(id(token));
        if (place >= size_) return 0.0;
        Block block;
        block.weigh(*this, place / row_block, scale);
        return static_cast<double>(block.weights[place % row_block]);
    }

    /// The first token that has more than `left` weight together with those of lower ids.
    [[nodiscard]] Token draw(double left, const WeightScale& scale) const noexcept {
        std::size_t b = 0;
        for (std::size_t i = 0; i < sums_.size(); ++i) {
            if (sums_[i] > 0.0) b = i;  // the last possible one, should rounding leave a rest
            if (left < sums_[i]) break;
            left -= sums_[i];
        }
        Block block;
        block.weigh(*this, b, scale);
        std::size_t picked = 0;
        for (std::size_t i = 0; i < row_block; ++i) {
            const auto weight = static_cast<double>(block.weights[i]);
            if (weight > 0.0) picked = i;
            if (left < weight) break;
            left -= weight;
        }
        return Token{static_cast<std::int32_t>(b * row_block + picked)};
    }

    /// Forbids all but the nearest candidates, as few as have the weight `goal` together; `before` is the exact order,
    /// `room` is overwritten. A histogram of the weights by distance says within a few bins where the goal is reached;
    /// only the candidates of these are ordered.
    template <class Before>
    void keep_nearest(const WeightScale& scale, const Nearness& nearness, double goal, Before before,
                      std::vector<Candidate>& room) {
        fill_histogram(scale, nearness);
        std::size_t bin = 0;
        double sum = in_bin(0);
        while (bin < bins && (sum < goal || sum == 0.0)) sum += in_bin(++bin);
        // Distances are rounded: a neighbour's candidates may belong before or after those of the bin.
        const auto first = static_cast<std::uint16_t>(bin > 0 ? bin - 1 : 0);
        const auto last = static_cast<std::uint16_t>(bin + 1);
        sum = 0.0;
        for (std::size_t i = 0; i < first; ++i) sum += in_bin(i);
        room.clear();
        for (std::size_t start = 0; start < row_.size(); start += row_block) {
            const std::uint16_t* const places = &places_[start];
            float* const x = &row_[start];
            std::uint16_t any = 0;
            for (std::size_t i = 0; i < row_block; ++i)
                any = static_cast<std::uint16_t>(any | (places[i] >= first && places[i] <= last ? 1 : 0));
            for (std::size_t i = 0; any != 0 && i < row_block; ++i) {
                if (places[i] < first || places[i] > last || !(x[i] > lowest)) continue;
                const float exponent = (x[i] - scale.highest) * static_cast<float>(scale.inverse);
                room.push_back({Token{static_cast<std::int32_t>(start + i)}, x[i],
                                exp_nonpositive((std::max)(exponent, least_exponent))});
            }
            for (std::size_t i = 0; i < row_block; ++i) x[i] = places[i] > last ? lowest : x[i];
        }
        const std::size_t kept = reach_weight(std::span(room), goal - sum, before);
        for (std::size_t i = kept; i < room.size(); ++i) forbid(room[i].token);
        refresh();
    }

 private:
    static constexpr float lowest = -std::numeric_limits<float>::infinity();
    static constexpr std::size_t bins = 2048;

    struct Block {
        RowBlock exponents;
        RowBlock weights;
        /// Returns the sum.
        double weigh(const LogitRow& row, std::size_t b, const WeightScale& scale) noexcept {
            const auto inverse = static_cast<float>(scale.inverse);
            if ((row.maxima_[b] - scale.highest) * inverse <= least_exponent) {
                exponents.fill(least_exponent);
                weights.fill(0.0f);
                return 0.0;
            }
            return row_kernels().weigh(&row.row_[b * row_block], scale.highest, inverse, exponents.data(),
                                       weights.data());
        }
    };

    template <class Use>
    double weigh(const WeightScale& scale, Use&& use) {
        double total = 0.0;
        sums_.clear();
        Block block;
        for (std::size_t b = 0; b < maxima_.size(); ++b) {
            sums_.push_back(block.weigh(*this, b, scale));
            total += sums_.back();
            if (sums_.back() > 0.0) use(block);
        }
        return total;
    }

    [[nodiscard]] double in_bin(std::size_t bin) const noexcept {
        return histogram_[2 * bin] + histogram_[2 * bin + 1];
    }

    /// The weights by distance, in bins up to the reach and one for all beyond; and the bin of every candidate. A bin
    /// is two sums, so that additions need not wait for each other.
    void fill_histogram(const WeightScale& scale, const Nearness& nearness) {
        const auto center = static_cast<float>(nearness.center);
        const auto per_unit = static_cast<float>(static_cast<double>(bins) / nearness.reach);
        constexpr auto beyond = static_cast<float>(bins);
        histogram_.assign(2 * (bins + 1), 0.0);
        places_.resize(row_.size());
        Block block;
        std::array<std::int32_t, row_block> places;
        for (std::size_t b = 0; b < maxima_.size(); ++b) {
            block.weigh(*this, b, scale);
            for (std::size_t i = 0; i < row_block; ++i) {
                const float distance = std::fabs(block.exponents[i] - center) * per_unit;
                places[i] = static_cast<std::int32_t>(distance < beyond ? distance : beyond);
            }
            std::uint16_t* const out = &places_[b * row_block];
            for (std::size_t i = 0; i < row_block; ++i) out[i] = static_cast<std::uint16_t>(places[i]);
            for (std::size_t i = 0; i < row_block; ++i)
                histogram_[2 * static_cast<std::size_t>(places[i]) + i % 2] += static_cast<double>(block.weights[i]);
        }
    }

    std::vector<float> row_;             // padded with -inf to whole blocks
    std::vector<float> maxima_;          // of each block
    std::vector<double> sums_;           // of the weights of each block
    std::vector<std::uint16_t> places_;  // of each logit in the histogram
    std::vector<double> histogram_;
    std::size_t size_ = 0;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

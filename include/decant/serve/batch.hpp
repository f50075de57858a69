// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Batch`: the parts of an engine's pass and whose they are; afterwards, the logits that each has brought.

#include <decant/backend/concept.hpp>
#include <decant/core/config.hpp>
#include <decant/model/context.hpp>
#include <decant/model/cost.hpp>
#include <decant/model/logits.hpp>
#include <decant/serve/job.hpp>
#include <decant/serve/metrics.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// A job is `in_pass` from `add` to `take_next`.
template <Backend B>
class Batch {
 public:
    /// Filling it allocates nothing.
    explicit Batch(std::size_t sequences) {
        parts_.reserve(sequences);
        jobs_.reserve(sequences);
    }

    /// The first `count` of a job's tokens. `want`: which logits, if these are all that wait; else none.
    void add(Job<B>& job, std::size_t count, Want want = Want::last) {
        PassPart<B> part = job.request->part();
        part.want = count < part.tokens.size() ? Want::none : want;
        part.tokens = part.tokens.first(count);
        parts_.push_back(part);
        jobs_.push_back(&job);
        job.in_pass = true;
    }

    [[nodiscard]] bool empty() const noexcept { return parts_.empty(); }
    [[nodiscard]] std::span<const PassPart<B>> parts() const noexcept { return parts_; }
    /// Whether each answer has one token in it.
    [[nodiscard]] bool plain() const {
        return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part.tokens.size() == 1; });
    }

    /// The pass is done: `context.finish` has given its logits.
    void computed(const Logits& logits) {
        logits_ = logits;
        taken_ = row_ = 0;
    }
    [[nodiscard]] bool is_computed() const noexcept { return logits_.has_value(); }

    /// Adds what the pass, which is done, took at least.
    void count(const ModelCost& cost, StepMetrics& metrics) const {
        std::size_t rows = 0, wanted = 0;
        for (const PassPart<B>& part : parts_) {
            const std::size_t tokens = part.tokens.size(), before = part.sequence->size() - tokens;
            metrics.bytes += cost.cache_read(before, tokens) + cost.cache_written(tokens);
            metrics.operations += cost.attention(before, tokens);
            rows += tokens;
            wanted += wanted_rows(part);
        }
        ++metrics.steps;
        metrics.rows += rows;
        metrics.sequences += parts_.size();
        metrics.bytes += cost.weight_bytes(rows, wanted);
        for (const double products : cost.products(rows, wanted)) metrics.operations += products;
    }

    /// A part that was computed; its rows of logits begin at `row`.
    struct Taken {
        Job<B>* job;
        PassPart<B> part;
        std::size_t row;
    };
    [[nodiscard]] bool all_taken() const noexcept { return taken_ == parts_.size(); }
    [[nodiscard]] Taken take_next() noexcept {
        const Taken next{jobs_[taken_], parts_[taken_], row_};
        ++taken_;
        row_ += wanted_rows(next.part);
        next.job->in_pass = false;
        return next;
    }
    /// Logits of a pass that is done, until the next one.
    [[nodiscard]] std::span<const float> row(std::size_t row) const { return logits_->row(row); }

    /// Whatever was not taken is as if it had not been added.
    void clear() noexcept {
        for (; taken_ < jobs_.size(); ++taken_) {
            jobs_[taken_]->in_pass = false;
            jobs_[taken_]->request->drop_draft();
        }
        parts_.clear();
        jobs_.clear();
        logits_.reset();
        taken_ = 0;
    }

 private:
    static std::size_t wanted_rows(const PassPart<B>& part) noexcept {
        return part.want == Want::all ? part.tokens.size() : part.want == Want::last ? 1 : 0;
    }

    std::vector<PassPart<B>> parts_;
    std::vector<Job<B>*> jobs_;
    std::optional<Logits> logits_;
    std::size_t taken_ = 0;  // parts
    std::size_t row_ = 0;    // of the logits
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

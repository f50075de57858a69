// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `host::Pass`: a pass of a backend whose memory the host can reach. A resumable list of (operation, row tile) steps.

#include <decant/backend/host/ops.hpp>
#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/math_guard.hpp>
#include <decant/core/memory.hpp>
#include <decant/core/progress.hpp>
#include <decant/core/result.hpp>
#include <decant/core/stop.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Limits of one call to `Pass::run`: it returns between two tiles once `stop` is requested, `tiles` are done or
/// `until` has passed, and between two steps once `progress` (steps of this pass) says so. However early `until` is, a
/// call computes at least one tile, so that who calls often enough comes to the end.
struct RunLimits {
    using Clock = std::chrono::steady_clock;

    const StopFlag* stop = nullptr;
    std::uint64_t tiles = (std::numeric_limits<std::uint64_t>::max)();
    ProgressRef progress = {};
    Clock::time_point until = (Clock::time_point::max)();
    /// Multiply-adds that a tile should not exceed, of a pass that begins with `until`: a call ends when the tiles
    /// under way do, and these take less than a tenth of a millisecond.
    std::uint64_t tile_work = 4'000'000;

    /// Between two tiles.
    [[nodiscard]] bool reached() const noexcept { return stopped() || late(); }
    [[nodiscard]] bool stopped() const noexcept { return stop != nullptr && stop->requested(); }
    [[nodiscard]] bool timed() const noexcept { return until != (Clock::time_point::max)(); }
    [[nodiscard]] bool late() const noexcept { return timed() && Clock::now() >= until; }
};

enum class RunState : std::uint8_t {
    finished,  ///< every step is done
    stopped,   ///< the limits were reached; `run` again goes on where it stood
};

namespace host {

/// Records operations once per shape and runs them as often as inputs are uploaded. One caller at a time.
///
/// `Kernels` computes: for every operation struct Op, `kernels.run(const Op&, const Frame&, tile, std::byte* scratch)`;
/// a tile's result depends on the tile alone, never on who runs it or when. `kernels.prepares(weight)` says whether a
/// product reads a prepared copy of x, and `Kernels::fuses` whether products may be merged with the gate that follows;
/// `scratch_bytes` and `prepared_bytes` size its workspace for rows of at most `columns`.
template <class Kernels>
class Pass {
 public:
    using Step = std::variant<Embed, Norm, Prepare, Linear, Angles, Rope, Store, Attend, Combine, Gate, Softcap, Copy,
                              Route, Experts, Mix, Convolve, Scan, Gather, Pick, Move>;

    Pass(Kernels kernels, std::size_t participants, Memory memory = {})
        : kernels_(std::move(kernels)), participants_(participants), memory_(std::move(memory)) {}

    /// Reserves workspace for passes of this shape whose rows (and heads) have at most `columns` columns. Forgets what
    /// was recorded.
    Result<void> reserve(const PassShape& shape, std::uint32_t columns) {
        scratch_bytes_ = scratch_bytes(kernels_, shape, columns);
        DECANT_TRY(scratch_, memory_.allocate(scratch_bytes_ * participants_));
        DECANT_TRY(prepared_, memory_.allocate(kernels_.prepared_bytes(shape, columns)));
        kernels_.use_prepared(prepared_.data(), shape, columns);
        frame_.shape = shape;
        for (std::vector<Step>& steps : recordings_) steps.clear();
        return {};
    }

    /// Records the operations that `body(*this)` enqueues as a variant, unless that was done since `reserve`.
    template <class Body>
    void record(PassVariant variant, Body&& body) {
        current_ = static_cast<std::size_t>(variant);
        if (recordings_[current_].empty()) body(*this);
    }
    template <class Body>
    void record(Body&& body) {
        record(PassVariant::forward, std::forward<Body>(body));
    }

    void embed(const Weight& table, View x, float scale = 1.0f) { add(Embed{&table, x, scale}); }
    /// In groups as long as the weight, or in `groups`.
    void norm(View x, const Weight& weight, const NormSpec& spec, View y, bool accumulate = false,
              const Weight* bias = nullptr, std::uint32_t groups = 1) {
        groups *= x.columns / weight.columns;
        DECANT_ASSERT(groups > 0 && x.columns % groups == 0);
        DECANT_ASSERT(weight.columns == x.columns || weight.columns == x.columns / groups);
        add(Norm{x, &weight, spec, y, accumulate, bias, groups});
    }
    void linear(View x, std::initializer_list<LinearTarget> targets) {
        DECANT_ASSERT(targets.size() <= Linear::max_targets);
        Linear step;
        step.x = x;
        step.count = static_cast<std::uint32_t>(targets.size());
        std::copy(targets.begin(), targets.end(), step.targets.begin());
        const auto prepares = [&](const LinearTarget& target) { return kernels_.prepares(*target.weight); };
        if (Linear* const gate = gate_before(x);
            gate != nullptr && std::all_of(targets.begin(), targets.end(), prepares)) {
            gate->prepares = true;
            step.reads = 1 - gate->reads;
        } else if (std::any_of(targets.begin(), targets.end(), prepares)) {
            add(Prepare{x});
        }
        add(step);
    }
    void angles(const Weight& frequencies, const RopeSpec& spec, View y) {
        add(Angles{&frequencies, spec.magnitude, y});
    }
    void rope(View x, View angles, const RopeSpec& spec) { add(Rope{x, angles, spec}); }
    void store(View k, View v, std::uint32_t layer) { add(Store{k, v, layer}); }
    void attend(View q, std::uint32_t layer, const AttentionSpec& spec, View y, const Weight* sinks = nullptr) {
        Attend step{q, layer, spec, y, sinks};
        if constexpr (requires { Kernels::attention_piece; }) {
            step.piece = Kernels::attention_piece;
            step.room = kernels_.partial_results(spec);
        }
        add(step);
        if (step.piece > 0) add(Combine{step});
    }
    /// What computes gate and up may be merged with it: they are not there afterwards, nor is y if a product is the
    /// next to read it.
    void gate(View gate, View up, const GateSpec& spec, View y) {
        // Its tiles read all of x and write part of y.
        if (Linear* const step = product_before(gate, up); step != nullptr && step->x.data != y.data) {
            step->gated = true;
            step->gate = spec;
            step->y = y;
        } else {
            add(Gate{gate, up, spec, y});
        }
    }
    void activate(View x, const GateSpec& spec, View y) {
        DECANT_ASSERT(spec.limit == 0.0f);  // a limit is about the other half of a gate
        add(Gate{x, {}, spec, y});
    }
    void softcap(View x, float cap) { add(Softcap{x, cap}); }
    void copy(View x, View y, const CopySpec& spec) { add(Copy{x, y, spec}); }
    void route(View scores, const Weight* bias, const RouteSpec& spec, View y) { add(Route{scores, bias, spec, y}); }
    /// The spans must stay where they are.
    void experts(View x, std::span<const Weight> weights, std::span<const Weight> biases, View routes, View out) {
        DECANT_ASSERT(!weights.empty());
        const bool prepare = std::any_of(weights.begin(), weights.end(),
                                         [&](const Weight& weight) { return kernels_.prepares(weight); });
        if (prepare) add(Prepare{x});
        add(Experts{x, weights, biases, routes, out});
    }
    void mix(View x, View routes, View y, bool accumulate) { add(Mix{x, routes, y, accumulate}); }
    void convolve(View x, const Weight& weight, const Weight* bias, std::uint32_t layer, View y) {
        add(Convolve{x, &weight, bias, layer, y});
    }
    void scan(View x, View steps, const Weight& a, const Weight& skip, const StateSpec& spec, std::uint32_t layer,
              View y) {
        add(Scan{x, steps, &a, &skip, spec, layer, y});
    }
    void gather(View x, View y) { add(Gather{x, y}); }
    void pick(View x, std::uint32_t k, View y) { add(Pick{x, k, y}); }
    void move(std::uint32_t layer, View angles, const RopeSpec& spec) { add(Move{layer, angles, spec}); }

    /// Takes the inputs of the next run (the spans must stay valid until it has finished) and starts it over.
    void upload(const PassInputs& inputs, std::byte* cache, const CacheShape& shape) {
        DECANT_ASSERT(inputs.rows <= frame_.shape.rows && inputs.wanted_rows <= inputs.rows);
        frame_.inputs = inputs;
        current_ = static_cast<std::size_t>(inputs.variant);
        frame_.cache = Cache(cache, shape);
        step_ = 0;
        next_.store(0, std::memory_order_relaxed);
    }

    /// Works through the steps from where the last call stopped.
    RunState run(const AnyExecutor& executor, RunLimits limits = {}) {
        if (step_ == 0 && next_.load(std::memory_order_relaxed) == 0) cut(limits);
        limits_ = limits;
        fresh_ = true;
        const std::vector<Step>& steps = recordings_[current_];
        while (step_ < steps.size()) {
            const std::uint64_t first = next_.load(std::memory_order_relaxed);
            const std::uint64_t tiles = tiles_of(steps[step_]);
            last_step_ = end_of_chain(step_);
            end_ = (std::min)(tiles, first + (std::min)(limits_.tiles, tiles));
            const std::size_t participants = static_cast<std::size_t>((std::min)(
                {std::uint64_t{executor.concurrency()}, std::uint64_t{participants_}, end_ - (std::min)(first, end_)}));
            share_ = 2 * (std::max)(participants, std::size_t{1});
            const TaskRef task{this, [](void* self, std::size_t who) { static_cast<Pass*>(self)->participate(who); }};
            if (participants == 1) {
                task(0);
            } else if (participants > 1) {
                executor.parallel_for(participants, task);
            }
            // Participants claim a tile before they finish it, and one that finds none left claims beyond the end.
            const std::uint64_t done = (std::min)(next_.load(std::memory_order_relaxed), end_);
            limits_.tiles -= done - first;
            fresh_ = fresh_ && done == first;
            if (done < tiles) {
                next_.store(done, std::memory_order_relaxed);
                return RunState::stopped;
            }
            step_ = last_step_;
            next_.store(0, std::memory_order_relaxed);
            if (!limits.progress({step_, steps.size()})) return RunState::stopped;
        }
        return RunState::finished;
    }

    [[nodiscard]] const Kernels& kernels() const noexcept { return kernels_; }
    /// Of the variant that was recorded or uploaded last.
    [[nodiscard]] std::span<const Step> steps() const noexcept { return recordings_[current_]; }
    [[nodiscard]] std::size_t workspace_bytes() const noexcept { return scratch_.size() + prepared_.size(); }

    /// What `workspace_bytes` will be for a pass of this shape.
    [[nodiscard]] static std::size_t workspace_bytes(const Kernels& kernels, const PassShape& shape,
                                                     std::uint32_t columns, std::size_t participants) {
        return scratch_bytes(kernels, shape, columns) * participants + kernels.prepared_bytes(shape, columns);
    }

 private:
    static std::size_t scratch_bytes(const Kernels& kernels, const PassShape& shape, std::uint32_t columns) {
        return (kernels.scratch_bytes(shape, columns) + 63) / 64 * 64;
    }
    void add(Step step) { recordings_[current_].push_back(step); }

    std::uint64_t tiles_of(const Step& step) const {
        return std::visit([this](const auto& op) -> std::uint64_t { return op.tiles(frame_); }, step);
    }
    /// The rows that a row-wise operation has a tile for.
    static std::optional<RowSet> row_wise_over(const Step& step) {
        return std::visit(
            []<class Op>(const Op& op) -> std::optional<RowSet> {
                if constexpr (requires { Op::row_wise; }) return rows_of(op);
                return std::nullopt;
            },
            step);
    }
    template <class Op>
    static RowSet rows_of(const Op& op) {
        if constexpr (requires { op.x; }) {
            if constexpr (std::same_as<Op, Gather>) return op.y.rows;
            return op.x.rows;
        } else if constexpr (requires { op.k.rows; }) {
            return op.k.rows;
        } else if constexpr (requires { op.scores; }) {
            return op.scores.rows;
        } else {
            return op.y.rows;
        }
    }
    /// Where the run of row-wise operations over the same rows ends that begins at a step.
    std::size_t end_of_chain(std::size_t step) const {
        const std::vector<Step>& steps = recordings_[current_];
        const std::optional<RowSet> rows = row_wise_over(steps[step]);
        std::size_t end = step + 1;
        while (rows && end < steps.size() && row_wise_over(steps[end]) == rows) ++end;
        return end;
    }

    /// The last step, if it is a product whose two results are the halves of a gate and nothing else.
    Linear* product_before(View gate, View up) {
        Linear* const step = last_product();
        if (!Kernels::fuses || step == nullptr || step->gated || step->count != 2) return nullptr;
        for (std::uint32_t n = 0; n < 2; ++n) {
            const LinearTarget& target = step->targets[n];
            if (target.accumulate || target.weight->columns != step->x.columns) return nullptr;
            if (target.out.data != (n == 0 ? gate : up).data || target.out.columns != gate.columns) return nullptr;
        }
        return step;
    }
    /// The last step, if it is a product with a gate whose result is x.
    Linear* gate_before(View x) {
        Linear* const step = last_product();
        return step != nullptr && step->gated && step->y.data == x.data ? step : nullptr;
    }
    Linear* last_product() {
        std::vector<Step>& steps = recordings_[current_];
        return steps.empty() ? nullptr : std::get_if<Linear>(&steps.back());
    }

    /// Claims the next tiles of a step: [begin, end), of which none is left if begin is beyond the last. Large shares
    /// first, then smaller ones (guided self-scheduling: Polychronopoulos and Kuck 1987).
    std::pair<std::uint64_t, std::uint64_t> claim(std::uint64_t most) {
        std::uint64_t begin = next_.load(std::memory_order_relaxed);
        while (true) {
            const std::uint64_t left = begin < end_ ? end_ - begin : 0;
            const std::uint64_t count = (std::min)((std::max)(left / share_, std::uint64_t{1}), most);
            if (next_.compare_exchange_weak(begin, begin + count, std::memory_order_relaxed))
                return {begin, begin + count};
        }
    }

    /// A pass that begins with a limit of time has small tiles to the end, for a call ends when its tiles under way do.
    /// Results do not depend on it.
    void cut(const RunLimits& limits) {
        frame_.most_work = limits.timed() ? (std::max)(limits.tile_work, std::uint64_t{1}) : 0;
        frame_.longest = 0;
        if (!limits.timed()) return;
        for (const std::int32_t position : frame_.inputs.positions.first(frame_.inputs.rows))
            frame_.longest = (std::max)(frame_.longest, static_cast<std::uint32_t>((std::max)(position, 0)) + 1);
    }

    void participate(std::size_t who) {
        const detail::MathGuard guard;
        std::byte* const scratch = scratch_.data() + who * scratch_bytes_;
        const std::vector<Step>& steps = recordings_[current_];
        if (last_step_ == step_ + 1) {
            std::visit(
                [&](const auto& op) {
                    std::uint32_t most = 1;
                    if constexpr (requires { op.tiles_at_once(frame_); }) most = op.tiles_at_once(frame_);
                    work(who, most, [&](std::uint32_t tile) { kernels_.run(op, frame_, tile, scratch); });
                },
                steps[step_]);
            return;
        }
        work(who, rows_at_once, [&](std::uint32_t row) {
            for (std::size_t s = step_; s < last_step_; ++s)
                std::visit([&](const auto& op) { kernels_.run(op, frame_, row, scratch); }, steps[s]);
        });
    }
    template <class Run>
    void work(std::size_t who, std::uint64_t most, Run run) {
        // One of them does not ask for the time before its first tiles: if there are none left, others did them.
        for (bool owed = fresh_ && who == 0; owed ? !limits_.stopped() : !limits_.reached(); owed = false) {
            const auto [begin, end] = claim(most);
            if (begin >= end_) return;
            for (std::uint64_t tile = begin; tile < end; ++tile) run(static_cast<std::uint32_t>(tile));
        }
    }

    static constexpr std::uint64_t rows_at_once = 4;

    Kernels kernels_;
    std::size_t participants_;
    Memory memory_;
    std::size_t scratch_bytes_ = 0;
    HostMemory scratch_;
    HostMemory prepared_;
    Frame frame_;
    std::array<std::vector<Step>, pass_variants> recordings_;
    std::size_t current_ = 0;
    std::size_t step_ = 0;
    std::atomic<std::uint64_t> next_{0};  // first tile of the current step that nobody has claimed
    std::uint64_t end_ = 0;
    std::size_t last_step_ = 0;  // where the steps end that a tile goes through
    std::uint64_t share_ = 1;    // a claim takes one of so many parts of what is left
    RunLimits limits_;
    bool fresh_ = false;  // this call has computed nothing yet
};

}  // namespace host
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The CPU backend with a meter: it runs `Simd`'s kernels and counts the bytes and operations of every tile as it runs.
/// A backend is a type argument, so the whole library works on this one unchanged.

#include "results.hpp"

#include <decant/backend/host/backend.hpp>
#include <decant/backend/host/ops.hpp>
#include <decant/backend/simd/simd.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace experiment {

/// Thread-safe. Counting costs a few percent of a token's time, so it is off unless asked for.
class Meter {
 public:
    /// What the passes that `call` runs ask of the machine.
    template <class F>
    Work count(F&& call) {
        weight_bytes_ = cache_bytes_ = integer_operations_ = float_operations_ = 0;
        on_ = true;
        call();
        on_ = false;
        return {weight_bytes_, cache_bytes_, integer_operations_, float_operations_};
    }

    [[nodiscard]] bool on() const { return on_.load(std::memory_order_relaxed); }

    void see(const decant::host::Embed& op, const decant::host::Frame&, std::uint32_t) {
        add(weight_bytes_, op.table->row_bytes);
    }
    void see(const decant::host::Linear& op, const decant::host::Frame& frame, std::uint32_t tile) {
        const auto place = op.place(tile, frame);
        for (std::uint32_t n = 0; n < (op.gated ? op.count : 1); ++n)  // a tile of a gate is one of both its targets
            see_product(*place.target[n].weight, place.columns, place.rows, place.row == 0);
    }
    void see(const decant::host::Experts& op, const decant::host::Frame& frame, std::uint32_t tile) {
        const auto place = op.place(tile, frame);
        std::uint64_t rows = 0;
        op.rows(frame, place.expert, [&](std::uint32_t, std::uint32_t, std::uint32_t) { ++rows; });
        if (rows > 0) see_product(op.weights[place.expert], place.columns, rows, true);
    }
    void see(const decant::host::Attend& op, const decant::host::Frame& frame, std::uint32_t tile) {
        op.runs(frame, tile, [&](std::uint32_t first, std::uint32_t last, std::uint32_t kv_head) {
            for (std::uint32_t row = first; row < last; ++row) see_row(op, frame, {op, frame, row, kv_head});
        });
    }
    void see_row(const decant::host::Attend& op, const decant::host::Frame& frame,
                 const decant::host::AttentionTile& work) {
        const std::uint64_t positions = work.length - work.begin;
        add(float_operations_, 2 * positions * (op.spec.head_dim + op.spec.value_dim()) * work.heads);
        // The rows of a sequence see nearly the same positions, which come from memory once: for its last row.
        const auto& sequences = frame.inputs.sequences;
        const bool last = work.row + 1 == frame.inputs.rows || sequences[work.row + 1] != sequences[work.row];
        const std::uint64_t entries = op.spec.key_skip > 0 ? op.spec.head_dim : 2 * op.spec.head_dim;
        if (last) add(cache_bytes_, positions * decant::row_bytes(frame.cache.shape->dtype, entries));
    }
    /// The other operations work on activations, which stay in the caches.
    template <class Op>
    void see(const Op&, const decant::host::Frame&, std::uint32_t) {}

 private:
    void see_product(const decant::host::Weight& weight, std::uint64_t columns, std::uint64_t rows, bool first) {
        if (first) add(weight_bytes_, columns * weight.row_bytes);
        const bool blocks = decant::traits(weight.dtype).block_elements > 1;
        add(blocks ? integer_operations_ : float_operations_, 2 * rows * columns * weight.columns);
    }

    using Counter = std::atomic<std::uint64_t>;
    static void add(Counter& counter, std::uint64_t amount) { counter.fetch_add(amount, std::memory_order_relaxed); }

    std::atomic<bool> on_{false};
    Counter weight_bytes_{0};
    Counter cache_bytes_{0};
    Counter integer_operations_{0};
    Counter float_operations_{0};
};

using SimdKernels = std::remove_cvref_t<decltype(std::declval<const decant::Simd&>().kernels())>;

class MeteredKernels : public SimdKernels {
 public:
    /// The meter must outlive the kernels and their copies.
    explicit MeteredKernels(Meter* meter = nullptr) : meter_(meter) {}

    template <class Op>
    void run(const Op& op, const decant::host::Frame& frame, std::uint32_t tile, std::byte* scratch) const {
        if (meter_ != nullptr && meter_->on()) meter_->see(op, frame, tile);
        SimdKernels::run(op, frame, tile, scratch);
    }

 private:
    Meter* meter_;
};

using Metered = decant::HostBackend<MeteredKernels>;

}  // namespace experiment

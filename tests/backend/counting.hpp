// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// How much work passes do. `Counting<B>` wraps a backend and counts the operations that its passes execute;
/// `CountingKernels<K>` stands in for the kernels of a host backend and counts the tiles, so the weight rows that are
/// truly read.

#include <decant/backend/concept.hpp>
#include <decant/backend/host/backend.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace decant_test {

/// Operations by kind, products by matrix, and the bytes of all matrices that products read.
struct Work {
    std::map<std::string_view, std::uint64_t> operations;
    std::map<const void*, std::uint64_t> products;  // of each weight
    std::uint64_t weight_bytes = 0;

    Work& operator+=(const Work& other) {
        for (const auto& [kind, count] : other.operations) operations[kind] += count;
        for (const auto& [weight, count] : other.products) products[weight] += count;
        weight_bytes += other.weight_bytes;
        return *this;
    }
    friend bool operator==(const Work&, const Work&) = default;
};

/// For one thread at a time.
template <class B>
class Counting {
    struct Tally {
        std::vector<Work> runs;  // that finished
        std::uint64_t recordings = 0;
    };

 public:
    using Buffer = typename B::Buffer;
    using View = typename B::View;
    using Weight = typename B::Weight;
    using LinearTarget = typename B::LinearTarget;
    using Ticket = typename B::Ticket;

    class Pass {
     public:
        Pass(const B& backend, std::size_t participants, std::shared_ptr<Tally> tally)
            : inner_(backend.pass(participants)), tally_(std::move(tally)) {}

        decant::Result<void> reserve(const decant::PassShape& shape, std::uint32_t columns) {
            for (Work& work : recorded_) work = {};
            return inner_.reserve(shape, columns);
        }
        template <class Body>
        void record(decant::PassVariant variant, Body&& body) {
            current_ = static_cast<std::size_t>(variant);
            inner_.record(variant, [&](typename B::Pass&) {
                ++tally_->recordings;
                body(*this);
            });
        }
        decant::RunState run(const decant::AnyExecutor& executor, decant::RunLimits limits = {}) {
            const decant::RunState state = inner_.run(executor, limits);
            if (state == decant::RunState::finished && std::exchange(uploaded_, false))
                tally_->runs.push_back(recorded_[current_]);
            return state;
        }

        void embed(const Weight& table, View x, float scale = 1.0f) {
            count("embed");
            inner_.embed(table, x, scale);
        }
        void norm(View x, const Weight& weight, const decant::NormSpec& spec, View y, bool accumulate = false,
                  const Weight* bias = nullptr, std::uint32_t groups = 1) {
            count("norm");
            inner_.norm(x, weight, spec, y, accumulate, bias, groups);
        }
        void linear(View x, std::initializer_list<LinearTarget> targets) {
            count("linear");
            for (const LinearTarget& target : targets) {
                ++recorded_[current_].products[target.weight];
                recorded_[current_].weight_bytes += target.weight->rows * target.weight->row_bytes;
            }
            inner_.linear(x, targets);
        }
        void angles(const Weight& frequencies, const decant::RopeSpec& spec, View y) {
            count("angles");
            inner_.angles(frequencies, spec, y);
        }
        void rope(View x, View angles, const decant::RopeSpec& spec) {
            count("rope");
            inner_.rope(x, angles, spec);
        }
        void store(View k, View v, std::uint32_t layer) {
            count("store");
            inner_.store(k, v, layer);
        }
        void attend(View q, std::uint32_t layer, const decant::AttentionSpec& spec, View y,
                    const Weight* sinks = nullptr) {
            count("attend");
            inner_.attend(q, layer, spec, y, sinks);
        }
        void gate(View gate, View up, const decant::GateSpec& spec, View y) {
            count("gate");
            inner_.gate(gate, up, spec, y);
        }
        void activate(View x, const decant::GateSpec& spec, View y) {
            count("activate");
            inner_.activate(x, spec, y);
        }
        void softcap(View x, float cap) {
            count("softcap");
            inner_.softcap(x, cap);
        }
        void copy(View x, View y, const decant::CopySpec& spec) {
            count("copy");
            inner_.copy(x, y, spec);
        }
        void route(View scores, const Weight* bias, const decant::RouteSpec& spec, View y) {
            count("route");
            inner_.route(scores, bias, spec, y);
        }
        /// Which of them are read depends on the inputs: `CountingKernels` counts their bytes.
        void experts(View x, std::span<const Weight> weights, std::span<const Weight> biases, View routes, View out) {
            count("experts");
            inner_.experts(x, weights, biases, routes, out);
        }
        void mix(View x, View routes, View y, bool accumulate) {
            count("mix");
            inner_.mix(x, routes, y, accumulate);
        }
        void convolve(View x, const Weight& weight, const Weight* bias, std::uint32_t layer, View y) {
            count("convolve");
            inner_.convolve(x, weight, bias, layer, y);
        }
        void scan(View x, View steps, const Weight& a, const Weight& skip, const decant::StateSpec& spec,
                  std::uint32_t layer, View y) {
            count("scan");
            inner_.scan(x, steps, a, skip, spec, layer, y);
        }
        void gather(View x, View y) {
            count("gather");
            inner_.gather(x, y);
        }
        void pick(View x, std::uint32_t k, View y) {
            count("pick");
            inner_.pick(x, k, y);
        }
        void move(std::uint32_t layer, View angles, const decant::RopeSpec& spec) {
            count("move");
            inner_.move(layer, angles, spec);
        }

        [[nodiscard]] std::size_t workspace_bytes() const { return inner_.workspace_bytes(); }

     private:
        friend class Counting;
        void count(std::string_view kind) { ++recorded_[current_].operations[kind]; }

        typename B::Pass inner_;
        std::shared_ptr<Tally> tally_;
        std::array<Work, decant::pass_variants> recorded_;
        std::size_t current_ = 0;
        bool uploaded_ = false;
    };

    Counting() = default;
    explicit Counting(B backend) : backend_(std::move(backend)) {}

    [[nodiscard]] decant::Result<Buffer> allocate(std::size_t bytes) const { return backend_.allocate(bytes); }
    [[nodiscard]] decant::Result<Weight> weight(const decant::Tensor& tensor) const { return backend_.weight(tensor); }
    [[nodiscard]] decant::Result<Weight> constant(std::vector<float> values) const {
        return backend_.constant(std::move(values));
    }
    [[nodiscard]] View view(Buffer& buffer, std::size_t offset, std::uint32_t columns, decant::RowSet rows) const {
        return backend_.view(buffer, offset, columns, rows);
    }
    [[nodiscard]] Pass pass(std::size_t participants) const { return Pass(backend_, participants, tally_); }
    [[nodiscard]] std::size_t pass_bytes(const decant::PassShape& shape, std::uint32_t columns,
                                         std::size_t participants) const {
        return backend_.pass_bytes(shape, columns, participants);
    }
    void upload(Pass& pass, const decant::PassInputs& inputs, Buffer& cache, const decant::CacheShape& shape) const {
        backend_.upload(pass.inner_, inputs, cache, shape);
        pass.uploaded_ = true;
        pass.current_ = static_cast<std::size_t>(inputs.variant);
    }
    void copy(Buffer& buffer, std::size_t from, std::size_t to, std::size_t bytes) const {
        backend_.copy(buffer, from, to, bytes);
    }
    [[nodiscard]] decant::Result<void> read(const Buffer& buffer, std::size_t offset, std::span<std::byte> to) const {
        return backend_.read(buffer, offset, to);
    }
    [[nodiscard]] decant::Result<void> write(Buffer& buffer, std::size_t offset,
                                             std::span<const std::byte> from) const {
        return backend_.write(buffer, offset, from);
    }
    [[nodiscard]] Ticket download(View view, std::size_t rows) const { return backend_.download(view, rows); }
    [[nodiscard]] decant::Result<std::span<const float>> wait(const Ticket& ticket) const {
        return backend_.wait(ticket);
    }

    /// What each pass that finished has executed, in order, of all copies of this backend.
    [[nodiscard]] const std::vector<Work>& runs() const { return tally_->runs; }
    [[nodiscard]] std::uint64_t recordings() const { return tally_->recordings; }

 private:
    B backend_;
    std::shared_ptr<Tally> tally_ = std::make_shared<Tally>();
};

/// Bytes of weight rows that the tiles of `linear` and of `experts` have read. For one thread at a time.
template <class K>
class CountingKernels : public K {
 public:
    template <class Op>
    void run(const Op& op, const decant::host::Frame& frame, std::uint32_t tile, std::byte* scratch) const {
        K::run(op, frame, tile, scratch);
    }
    void run(const decant::host::Linear& op, const decant::host::Frame& frame, std::uint32_t tile,
             std::byte* scratch) const {
        const auto place = op.place(tile, frame);
        *bytes_ += place.columns * place.target->weight->row_bytes;
        if (op.gated) *bytes_ += place.columns * op.targets[1].weight->row_bytes;
        K::run(op, frame, tile, scratch);
    }
    void run(const decant::host::Experts& op, const decant::host::Frame& frame, std::uint32_t tile,
             std::byte* scratch) const {
        const auto place = op.place(tile, frame);
        bool chosen = false;
        op.rows(frame, place.expert, [&](std::uint32_t, std::uint32_t, std::uint32_t) { chosen = true; });
        if (chosen) *bytes_ += place.columns * op.weights[place.expert].row_bytes;
        K::run(op, frame, tile, scratch);
    }
    [[nodiscard]] std::uint64_t weight_bytes() const { return *bytes_; }

 private:
    std::shared_ptr<std::uint64_t> bytes_ = std::make_shared<std::uint64_t>(0);
};

}  // namespace decant_test

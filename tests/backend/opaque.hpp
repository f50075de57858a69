// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Opaque`: a backend whose memory lies in another process, as a device's would. The child computes with the `Eigen`
/// backend, so the bits are its. A pass shape is recorded once and replayed; its grain is one pass; reads of what an
/// unfinished pass may write are refused. Nothing here holds an address of the child, so whatever runs on this backend
/// needs none. Needs `fork`.

#include "backend/opaque_device.hpp"
#include "backend/opaque_link.hpp"
#include "backend/opaque_wire.hpp"

#include <decant/backend/concept.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace decant_test {

namespace opaque {

struct Weight {
    std::shared_ptr<const Handle> handle;
    std::uint32_t rows = 0;
    std::size_t row_bytes = 0;
};

struct LinearTarget {
    const Weight* weight = nullptr;
    const Weight* bias = nullptr;
    View out;
    bool accumulate = false;
};

class Pass {
 public:
    explicit Pass(const std::shared_ptr<Link>& link) : handle_(link) { link->tell(Command::pass, handle_.id()); }

    decant::Result<void> reserve(const decant::PassShape& shape, std::uint32_t columns) {
        recorded_ = {};
        buffers_.clear();
        bytes_ = decant::Eigen().pass_bytes(shape, columns, 1);
        handle_.link().close_pass(handle_.id());
        return handle_.link().request(Command::reserve, handle_.id(), [&](Writer& out) {
            out.put(shape);
            out.put(columns);
        });
    }

    template <class Body>
    void record(decant::PassVariant variant, Body&& body) {
        bool& recorded = recorded_[static_cast<std::size_t>(variant)];
        if (recorded) return;
        script_.emplace();
        script_->put(variant);
        {
            const Recording recording(handle_.link());
            body(*this);
        }
        recorded = true;
        handle_.link().tell(Command::record, handle_.id(), [&](Writer& out) { out.append(script_->bytes()); });
        script_.reset();
    }

    template <class Body>
    void record(Body&& body) {
        record(decant::PassVariant::forward, std::forward<Body>(body));
    }

    void embed(const Weight& table, View x, float scale = 1.0f) { add<&EigenPass::embed>(table, x, scale); }
    void norm(View x, const Weight& weight, const decant::NormSpec& spec, View y, bool accumulate = false,
              const Weight* bias = nullptr, std::uint32_t groups = 1) {
        add<&EigenPass::norm>(x, weight, spec, y, accumulate, bias, groups);
    }
    void linear(View x, std::initializer_list<LinearTarget> targets) { add<&opaque::linear>(x, targets); }
    void angles(const Weight& frequencies, const decant::RopeSpec& spec, View y) {
        add<&EigenPass::angles>(frequencies, spec, y);
    }
    void rope(View x, View angles, const decant::RopeSpec& spec) { add<&EigenPass::rope>(x, angles, spec); }
    void store(View k, View v, std::uint32_t layer) { add<&EigenPass::store>(k, v, layer); }
    void attend(View q, std::uint32_t layer, const decant::AttentionSpec& spec, View y, const Weight* sinks = nullptr) {
        add<&EigenPass::attend>(q, layer, spec, y, sinks);
    }
    void gate(View gate, View up, const decant::GateSpec& spec, View y) { add<&EigenPass::gate>(gate, up, spec, y); }
    void activate(View x, const decant::GateSpec& spec, View y) { add<&EigenPass::activate>(x, spec, y); }
    void softcap(View x, float cap) { add<&EigenPass::softcap>(x, cap); }
    void copy(View x, View y, const decant::CopySpec& spec) { add<&EigenPass::copy>(x, y, spec); }
    void route(View scores, const Weight* bias, const decant::RouteSpec& spec, View y) {
        add<&EigenPass::route>(scores, bias, spec, y);
    }
    void experts(View x, std::span<const Weight> weights, std::span<const Weight> biases, View routes, View out) {
        add<&EigenPass::experts>(x, weights, biases, routes, out);
    }
    void mix(View x, View routes, View y, bool accumulate) { add<&EigenPass::mix>(x, routes, y, accumulate); }
    void convolve(View x, const Weight& weight, const Weight* bias, std::uint32_t layer, View y) {
        add<&EigenPass::convolve>(x, weight, bias, layer, y);
    }
    void scan(View x, View steps, const Weight& a, const Weight& skip, const decant::StateSpec& spec,
              std::uint32_t layer, View y) {
        add<&EigenPass::scan>(x, steps, a, skip, spec, layer, y);
    }
    void gather(View x, View y) { add<&EigenPass::gather>(x, y); }
    void pick(View x, std::uint32_t k, View y) { add<&EigenPass::pick>(x, k, y); }
    void move(std::uint32_t layer, View angles, const decant::RopeSpec& spec) {
        add<&EigenPass::move>(layer, angles, spec);
    }

    void upload(const decant::PassInputs& inputs, Link::Id cache, const decant::CacheShape& shape) {
        if (!recorded_[static_cast<std::size_t>(inputs.variant)])
            return handle_.link().blame("an upload to a pass that was not recorded");
        std::set<Link::Id> buffers = buffers_;
        buffers.insert(cache);
        handle_.link().open_pass(handle_.id(), std::move(buffers));
        handle_.link().tell(Command::upload, handle_.id(), [&](Writer& out) {
            out.put(inputs.rows);
            out.put(inputs.wanted_rows);
            for (const auto& values :
                 {inputs.tokens, inputs.positions, inputs.sequences, inputs.cache_slots, inputs.tables, inputs.wanted,
                  inputs.sources, inputs.states_from, inputs.states_to})
                out.list(values);
            out.put(inputs.variant);
            out.put(inputs.picks);
            out.list(inputs.pick.adjustments);
            out.list(inputs.pick.ends);
            out.list(inputs.pick.allowed);
            out.list(inputs.pick.masks);
            out.put(cache);
            out.list(std::span<const decant::CacheLayer>(shape.layers));
            out.put(shape.block_tokens);
            out.put(shape.dtype);
            out.put(shape.states);
            out.list(std::span<const std::uint32_t>(shape.groups));
        });
        state_ = State::uploaded;
    }

    /// Replays all of the recording, or nothing if a stop is requested before.
    decant::RunState run(const decant::AnyExecutor&, decant::RunLimits limits = {}) {
        if (state_ == State::uploaded) {
            if (limits.tiles == 0 || (limits.stop != nullptr && limits.stop->requested()))
                return decant::RunState::stopped;
            handle_.link().tell(Command::run, handle_.id());
            state_ = State::replayed;
            if (!limits.progress({1, 1})) return decant::RunState::stopped;
        }
        handle_.link().close_pass(handle_.id());
        state_ = State::finished;
        return decant::RunState::finished;
    }

    /// Of the child, for this pass.
    [[nodiscard]] std::size_t workspace_bytes() const { return bytes_; }

 private:
    enum class State { finished, uploaded, replayed };

    /// Ends also when the body throws.
    struct Recording {
        explicit Recording(Link& to) : link(to) { link.begin_recording(); }
        Recording(const Recording&) = delete;
        Recording& operator=(const Recording&) = delete;
        ~Recording() { link.end_recording(); }
        Link& link;
    };

    template <auto operation, class... A>
    void add(const A&... arguments) {
        if (!script_) return handle_.link().blame("an operation outside of record()");
        script_->put(Operations::code<operation>);
        (argument(arguments), ...);
    }
    void argument(const View& view) {
        buffers_.insert(view.buffer);
        script_->put(view);
    }
    void argument(const Weight& weight) { script_->put(weight.handle->id()); }
    void argument(const Weight* weight) { script_->put(weight != nullptr ? weight->handle->id() : Link::Id{0}); }
    void argument(std::span<const Weight> weights) {
        script_->put(std::uint64_t{weights.size()});
        for (const Weight& weight : weights) argument(weight);
    }
    void argument(std::initializer_list<LinearTarget> targets) {
        script_->put(static_cast<std::uint32_t>(targets.size()));
        for (const LinearTarget& target : targets) {
            argument(*target.weight);
            argument(target.bias);
            argument(target.out);
            script_->put(target.accumulate);
        }
    }
    template <Plain T>
    void argument(const T& value) {
        script_->put(value);
    }

    Handle handle_;
    std::size_t bytes_ = 0;
    std::array<bool, decant::pass_variants> recorded_{};
    std::optional<Writer> script_;  // while recording
    std::set<Link::Id> buffers_;    // that the recording names
    State state_ = State::finished;
};

}  // namespace opaque

/// A cheap shared handle on one child, which lives as long as anything that was made by it. Thread-safe.
class Opaque {
 public:
    using Buffer = opaque::Handle;
    using View = opaque::View;
    using Weight = opaque::Weight;
    using LinearTarget = opaque::LinearTarget;
    using Pass = opaque::Pass;

    /// Forks. A fork that fails is an error of the first operation.
    Opaque() : link_(std::make_shared<opaque::Link>()) {}

    [[nodiscard]] decant::Result<Buffer> allocate(std::size_t bytes) const {
        Buffer buffer(link_);
        DECANT_CHECK(link_->request(opaque::Command::allocate, buffer.id(),
                                    [&](opaque::Writer& out) { out.put(std::uint64_t{bytes}); }));
        return buffer;
    }

    /// The device's copy of a tensor, in the file's layout: its bytes go over once, here.
    [[nodiscard]] decant::Result<Weight> weight(const decant::Tensor& tensor) const {
        const auto rows = static_cast<std::uint32_t>(tensor.rows());
        auto handle = std::make_shared<const opaque::Handle>(link_);
        DECANT_CHECK(link_->request(opaque::Command::weight, handle->id(), [&](opaque::Writer& out) {
            out.text(tensor.name);
            out.text(tensor.type_name);
            out.put(tensor.dtype);
            out.put(tensor.shape);
            out.list(tensor.bytes);
        }));
        return Weight{std::move(handle), rows, tensor.bytes.size() / (rows == 0 ? 1 : rows)};
    }
    [[nodiscard]] decant::Result<Weight> constant(std::vector<float> values) const {
        auto handle = std::make_shared<const opaque::Handle>(link_);
        const std::span<const float> list(values);
        DECANT_CHECK(
            link_->request(opaque::Command::constant, handle->id(), [&](opaque::Writer& out) { out.list(list); }));
        return Weight{std::move(handle), 1, list.size_bytes()};
    }

    [[nodiscard]] View view(Buffer& buffer, std::size_t offset, std::uint32_t columns, decant::RowSet rows) const {
        return {buffer.id(), offset, columns, rows};
    }

    [[nodiscard]] Pass pass(std::size_t) const { return Pass(link_); }
    [[nodiscard]] std::size_t pass_bytes(const decant::PassShape& shape, std::uint32_t columns, std::size_t) const {
        return decant::Eigen().pass_bytes(shape, columns, 1);
    }

    void upload(Pass& pass, const decant::PassInputs& inputs, Buffer& cache, const decant::CacheShape& shape) const {
        pass.upload(inputs, cache.id(), shape);
    }

    /// Queued behind whatever was sent before; no read, so allowed beside an unfinished pass.
    void copy(Buffer& buffer, std::size_t from, std::size_t to, std::size_t bytes) const {
        link_->tell(opaque::Command::copy, buffer.id(), [&](opaque::Writer& out) {
            for (const std::size_t value : {from, to, bytes}) out.put(std::uint64_t{value});
        });
    }

    [[nodiscard]] decant::Result<void> read(const Buffer& buffer, std::size_t offset, std::span<std::byte> to) const {
        DECANT_CHECK(link_->readable(buffer.id()));
        if (auto misuse = link_->take_misuse()) return *std::move(misuse);
        DECANT_TRY(const auto bytes,
                   link_->ask<std::byte>(opaque::Command::read, buffer.id(), [&](opaque::Writer& out) {
                       for (const std::size_t value : {offset, to.size()}) out.put(std::uint64_t{value});
                   }));
        std::copy(bytes.begin(), bytes.end(), to.begin());
        return {};
    }
    [[nodiscard]] decant::Result<void> write(Buffer& buffer, std::size_t offset,
                                             std::span<const std::byte> from) const {
        return link_->request(opaque::Command::write, buffer.id(), [&](opaque::Writer& out) {
            out.put(std::uint64_t{offset});
            out.list(from);
        });
    }

    /// Queues a copy of the rows as they are at this point; `wait` brings it over. The span that `wait` returns is
    /// valid until a pass that names the view's buffer gets its next inputs, or the buffer is destroyed.
    struct Ticket {
        View view;
        decant::Result<std::shared_ptr<const opaque::Handle>> staged = std::shared_ptr<const opaque::Handle>{};
    };
    [[nodiscard]] Ticket download(View view, std::size_t rows) const {
        if (auto allowed = link_->readable(view.buffer); !allowed) return {view, std::move(allowed).error()};
        auto staged = std::make_shared<const opaque::Handle>(link_);
        link_->tell(opaque::Command::download, staged->id(), [&](opaque::Writer& out) {
            out.put(view);
            out.put(std::uint64_t{rows});
        });
        return {view, std::move(staged)};
    }
    [[nodiscard]] decant::Result<std::span<const float>> wait(const Ticket& ticket) const {
        if (!ticket.staged) return ticket.staged.error();
        DECANT_CHECK(link_->readable(ticket.view.buffer));
        if (auto misuse = link_->take_misuse()) return *std::move(misuse);
        DECANT_TRY(auto values, link_->ask(opaque::Command::fetch, (*ticket.staged)->id(), [](opaque::Writer&) {}));
        return link_->keep(ticket.view.buffer, std::move(values));
    }

    [[nodiscard]] pid_t child() const { return link_->child(); }
    [[nodiscard]] opaque::Counts counts() const { return link_->counts(); }

 private:
    std::shared_ptr<opaque::Link> link_;
};

}  // namespace decant_test

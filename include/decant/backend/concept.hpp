// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The `Backend` concept: about twenty operations on memory that the host may not be able to reach.
///
/// A backend is a cheap, copyable handle. `Buffer` owns memory, reserved once; a `View` is a handle into one and is not
/// dereferenced outside the backend; a `Weight` is a mapped tensor as the backend sees it. Operations write into given
/// views, return nothing, and are enqueued only inside `Pass::record`; nothing reads a result in the middle of a pass.
/// What each computes is stated beside its struct in host/ops.hpp and host/attend.hpp and by the `Eigen` backend.

#include <decant/backend/host/ops.hpp>
#include <decant/backend/host/pass.hpp>
#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/result.hpp>
#include <decant/core/specs.hpp>
#include <decant/files/tensor.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// What a model enqueues. Specs travel by value: a recorded pass keeps them.
template <class P, class View, class Weight, class Target>
concept Operations = requires(P& pass, View view, const Weight& weight, std::initializer_list<Target> targets,
                              const NormSpec& norm, const RopeSpec& rope, const AttentionSpec& attention,
                              const GateSpec& gate, const CopySpec& copy, const RouteSpec& route,
                              const StateSpec& state, std::span<const Weight> experts, std::uint32_t layer,
                              std::uint32_t k) {
    pass.embed(weight, view, 1.0f);
    pass.norm(view, weight, norm, view, false, &weight, k);  // add to y instead of writing it; bias or null; groups
    pass.linear(view, targets);                              // several weights share one prepared x
    pass.angles(weight, rope, view);
    pass.rope(view, view, rope);
    pass.store(view, view, layer);
    pass.attend(view, layer, attention, view, &weight);  // sinks or null
    pass.gate(view, view, gate, view);
    pass.activate(view, gate, view);
    pass.softcap(view, 1.0f);
    pass.copy(view, view, copy);
    pass.route(view, &weight, route, view);             // bias or null
    pass.experts(view, experts, experts, view, view);   // biases or none
    pass.mix(view, view, view, true);                   // add to y
    pass.convolve(view, weight, &weight, layer, view);  // bias or null
    pass.scan(view, view, weight, weight, state, layer, view);
    pass.gather(view, view);
    pass.pick(view, k, view);
    pass.move(layer, view, rope);
};

/// A pass: `reserve` once per shape, `record` once, then `upload`, `run` as often as there are inputs. The host may
/// change the inputs once `run` has finished: a device that still computes then has copied them. What `wait` returns
/// stays as it is until the next `upload` to a pass that writes the same buffer.
template <class P>
concept ResumablePass = requires(P& pass, const PassShape& shape, std::uint32_t columns, const AnyExecutor& executor,
                                 RunLimits limits) {
    { pass.reserve(shape, columns) } -> std::same_as<Result<void>>;
    { pass.run(executor, limits) } -> std::same_as<RunState>;
    { pass.workspace_bytes() } -> std::same_as<std::size_t>;
};

/// `read` and `write` carry bytes between host memory and a buffer (a snapshot of a cache), outside of `Pass::record`,
/// at any offset and size. Both block, and come after whatever was asked of the buffer before: a read sees it, and when
/// a write returns, the host may reuse its memory and every later command sees the bytes. They may be slow for each
/// call, so callers move whole blocks. Errors are the device's: it is gone, or an unfinished pass may still write what
/// is read; memory that the host can reach has none. What a failed write has left in its range is undefined.
template <class B>
concept Backend = std::copyable<B> && ResumablePass<typename B::Pass> &&
    Operations<typename B::Pass, typename B::View, typename B::Weight, typename B::LinearTarget> &&
    requires(const B& backend, typename B::Buffer& buffer, typename B::Pass& pass, typename B::View view,
             typename B::Ticket ticket, const Tensor& tensor, std::vector<float> values, const PassInputs& inputs,
             const CacheShape& shape, const PassShape& capacities, std::size_t size, std::uint32_t columns, RowSet rows,
             std::span<std::byte> to, std::span<const std::byte> from) {
    { backend.allocate(size) } -> std::same_as<Result<typename B::Buffer>>;
    { backend.weight(tensor) } -> std::same_as<Result<typename B::Weight>>;
    { backend.constant(values) } -> std::same_as<Result<typename B::Weight>>;
    { backend.view(buffer, size, columns, rows) } -> std::same_as<typename B::View>;
    { backend.pass(size) } -> std::same_as<typename B::Pass>;
    { backend.pass_bytes(capacities, columns, size) } -> std::same_as<std::size_t>;  // for `MemoryPlan`
    backend.upload(pass, inputs, buffer, shape);
    backend.copy(buffer, size, size, size);
    { backend.read(std::as_const(buffer), size, to) } -> std::same_as<Result<void>>;
    { backend.write(buffer, size, from) } -> std::same_as<Result<void>>;
    { backend.download(view, size) } -> std::same_as<typename B::Ticket>;
    { backend.wait(ticket) } -> std::same_as<Result<std::span<const float>>>;
};

}  // namespace decant::inline DECANT_ABI

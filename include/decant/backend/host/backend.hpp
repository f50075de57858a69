// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `HostBackend<Kernels>`: the backend of every set of kernels that works on memory the host can reach.

#include <decant/backend/host/ops.hpp>
#include <decant/backend/host/pass.hpp>
#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/memory.hpp>
#include <decant/core/result.hpp>
#include <decant/files/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// A cheap, copyable handle; thread-safe to share. See concept.hpp for the contract of every member.
template <class Kernels>
class HostBackend {
 public:
    using Buffer = HostMemory;
    using View = host::View;
    using Weight = host::Weight;
    using LinearTarget = host::LinearTarget;
    using Pass = host::Pass<Kernels>;

    HostBackend() = default;
    explicit HostBackend(Kernels kernels, Memory memory = {})
        : kernels_(std::move(kernels)), memory_(std::move(memory)) {}
    /// Takes its buffers from `memory`: `Model<Simd>::bind(weights, Simd{memory})`.
    explicit HostBackend(Memory memory) : memory_(std::move(memory)) {}

    [[nodiscard]] Result<Buffer> allocate(std::size_t bytes) const { return memory_.allocate(bytes); }

    /// The mapped tensor itself; the caller keeps the file mapped. Errors: `unsupported` for a dtype nothing computes
    /// with.
    [[nodiscard]] Result<Weight> weight(const Tensor& tensor) const {
        if (tensor.dtype == DType::other) {
            return Error{ErrorCode::unsupported, detail::text("type ", tensor.type_name, " is not supported"),
                         detail::text("tensor ", detail::quoted(tensor.name)),
                         "convert the model to F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K or Q6_K"};
        }
        const auto columns = static_cast<std::uint32_t>(tensor.columns());
        return Weight{tensor.dtype,        static_cast<std::uint32_t>(tensor.rows()), columns,
                      tensor.bytes.data(), row_bytes(tensor.dtype, columns),          nullptr};
    }

    /// A vector that the model derived (rope frequencies), kept by the weight.
    [[nodiscard]] Result<Weight> constant(std::vector<float> values) const {
        auto owned = std::make_shared<const std::vector<float>>(std::move(values));
        const auto columns = static_cast<std::uint32_t>(owned->size());
        const auto* data = reinterpret_cast<const std::byte*>(owned->data());
        return Weight{DType::f32, 1, columns, data, columns * sizeof(float), std::move(owned)};
    }

    /// A view `offset` floats into a buffer.
    [[nodiscard]] View view(Buffer& buffer, std::size_t offset, std::uint32_t columns, RowSet rows) const {
        return {reinterpret_cast<float*>(buffer.data()) + offset, columns, rows};
    }

    [[nodiscard]] Pass pass(std::size_t participants) const { return Pass(kernels_, participants, memory_); }
    /// Bytes that such a pass reserves for itself.
    [[nodiscard]] std::size_t pass_bytes(const PassShape& shape, std::uint32_t columns,
                                         std::size_t participants) const {
        return Pass::workspace_bytes(kernels_, shape, columns, participants);
    }

    void upload(Pass& pass, const PassInputs& inputs, Buffer& cache, const CacheShape& shape) const {
        pass.upload(inputs, cache.data(), shape);
    }

    /// Copies bytes inside one buffer, outside of any pass (a block of the cache that two sequences stop sharing).
    void copy(Buffer& buffer, std::size_t from, std::size_t to, std::size_t bytes) const {
        std::memcpy(buffer.data() + to, buffer.data() + from, bytes);
    }

    /// Bytes from and to `offset` of a buffer. No errors here.
    [[nodiscard]] Result<void> read(const Buffer& buffer, std::size_t offset, std::span<std::byte> to) const {
        if (!to.empty()) std::memcpy(to.data(), buffer.data() + offset, to.size());
        return {};
    }
    [[nodiscard]] Result<void> write(Buffer& buffer, std::size_t offset, std::span<const std::byte> from) const {
        if (!from.empty()) std::memcpy(buffer.data() + offset, from.data(), from.size());
        return {};
    }

    /// Results of the last finished run: here they already lie in host memory, valid until the next run.
    struct Ticket {
        std::span<const float> values;
    };
    [[nodiscard]] Ticket download(View view, std::size_t rows) const { return {{view.data, rows * view.columns}}; }
    [[nodiscard]] Result<std::span<const float>> wait(Ticket ticket) const { return ticket.values; }

    [[nodiscard]] const Kernels& kernels() const noexcept { return kernels_; }
    [[nodiscard]] const Memory& memory() const noexcept { return memory_; }

 private:
    Kernels kernels_;
    Memory memory_;
};

}  // namespace decant::inline DECANT_ABI

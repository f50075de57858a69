// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the suites that are typed over backends share: the list of backends, the inputs of a pass, and a `Rig` that
/// runs a few operations. Numbers enter a pass as rows of an embedding table and leave it by `download`, so that the
/// suites hold for backends whose memory the host cannot reach.

#include "backend/matrices.hpp"
#include "backend/sets.hpp"
#include "support/catch.hpp"

#include <decant/backend/concept.hpp>
#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/memory.hpp>
#include <decant/core/specs.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace decant_test {

using PortableSimd = decant::BasicSimd<decant::simd::Portable>;
#if DECANT_X86
using Avx2Simd = decant::BasicSimd<decant::simd::Avx2>;
using AvxVnniSimd = decant::BasicSimd<decant::simd::AvxVnni>;
using Avx512Simd = decant::BasicSimd<decant::simd::Avx512Vnni>;
#define DECANT_TEST_SIMD_BACKENDS \
    decant_test::PortableSimd, decant_test::Avx2Simd, decant_test::AvxVnniSimd, decant_test::Avx512Simd
#elif DECANT_ARM64
using NeonSimd = decant::BasicSimd<decant::simd::Neon>;
using NeonDotprodSimd = decant::BasicSimd<decant::simd::NeonDotprod>;
#define DECANT_TEST_SIMD_BACKENDS decant_test::PortableSimd, decant_test::NeonSimd, decant_test::NeonDotprodSimd
#else
#define DECANT_TEST_SIMD_BACKENDS decant_test::PortableSimd
#endif
/// The backends of single sets are compiled once, too: in kernels.cpp.
#if defined(DECANT_SEPARATE_KERNELS)
}  // namespace decant_test
namespace decant::inline DECANT_ABI {
DECANT_DETAIL_KERNELS(simd::Kernels<simd::Portable>)
#if DECANT_X86
DECANT_DETAIL_KERNELS(simd::Kernels<simd::Avx2>)
DECANT_DETAIL_KERNELS(simd::Kernels<simd::AvxVnni>)
DECANT_DETAIL_KERNELS(simd::Kernels<simd::Avx512Vnni>)
#elif DECANT_ARM64
DECANT_DETAIL_KERNELS(simd::Kernels<simd::Neon>)
DECANT_DETAIL_KERNELS(simd::Kernels<simd::NeonDotprod>)
#endif
}  // namespace decant::inline DECANT_ABI
namespace decant_test {
#endif

#define DECANT_TEST_BACKENDS decant::Eigen, DECANT_TEST_SIMD_BACKENDS

/// Whether this machine runs the backend. A suite has nothing to say about the others.
template <class B>
struct Machine {
    static constexpr bool attends_in_pairs = false;
    static bool runs() { return true; }
};
template <class Set>
struct Machine<decant::HostBackend<decant::simd::Kernels<Set>>> {
    static constexpr bool attends_in_pairs = Set::attends_in_pairs;
    static bool runs() { return decant::supported(Set::isa); }
};

/// The inputs of one run; rows and tables that are not used hold -1.
struct Batch {
    decant::PassShape shape;
    std::uint32_t rows = 0;
    std::uint32_t wanted_rows = 0;
    std::vector<std::int32_t> tokens, positions, sequences, cache_slots, tables, states_from, states_to, wanted;

    explicit Batch(const decant::PassShape& capacities)
        : shape(capacities),
          tokens(shape.rows, -1),
          positions(shape.rows, -1),
          sequences(shape.rows, -1),
          cache_slots(shape.rows, -1),
          tables(std::size_t{shape.sequences} * shape.table, -1),
          states_from(shape.sequences, -1),
          states_to(shape.sequences, -1),
          wanted(shape.wanted, -1) {}

    void add(std::size_t token, std::size_t position = 0, std::size_t sequence = 0, std::size_t slot = 0) {
        tokens[rows] = static_cast<std::int32_t>(token);
        positions[rows] = static_cast<std::int32_t>(position);
        sequences[rows] = static_cast<std::int32_t>(sequence);
        cache_slots[rows++] = static_cast<std::int32_t>(slot);
    }
    void want(std::size_t row) { wanted[wanted_rows++] = static_cast<std::int32_t>(row); }
    void table(std::size_t sequence, const std::vector<std::int32_t>& blocks) {
        std::copy(blocks.begin(), blocks.end(), tables.begin() + static_cast<std::ptrdiff_t>(sequence * shape.table));
    }
    /// \param from -1 = none.
    void state(std::size_t sequence, std::int32_t from, std::int32_t to) {
        states_from[sequence] = from;
        states_to[sequence] = to;
    }
    decant::PassInputs inputs() const {
        return {rows, wanted_rows, tokens,      positions, sequences, cache_slots,
                {},   tables,      states_from, states_to, wanted};
    }
};

/// A pool of states and blocks whose memory is full of NaNs, where the host can reach it.
template <class B>
struct TestCache {
    decant::CacheShape shape;
    typename B::Buffer buffer;

    TestCache(const B& backend, decant::CacheShape cache_shape, std::size_t blocks)
        : shape(std::move(cache_shape)),
          buffer(backend.allocate(shape.blocks_offset() + blocks * shape.block_bytes()).value()) {
        if constexpr (std::same_as<typename B::Buffer, decant::HostMemory>)
            std::fill_n(buffer.data(), buffer.size(), std::byte{0xFF});
    }
};

/// One pass of a backend with its workspace and weights.
template <class B>
class Rig {
 public:
    using View = typename B::View;
    using Weight = typename B::Weight;
    using Target = typename B::LinearTarget;

    explicit Rig(const decant::PassShape& shape, std::uint32_t columns, std::size_t participants = 1)
        : shape_(shape), pass_(backend_.pass(participants)), workspace_(backend_.allocate(workspace_bytes).value()) {
        REQUIRE(pass_.reserve(shape, columns));
    }

    const B& backend() const { return backend_; }
    typename B::Pass& pass() { return pass_; }
    const decant::PassShape& shape() const { return shape_; }

    /// A view of all rows of a set, full of NaNs where the host can reach it.
    View view(std::size_t columns, decant::RowSet rows = decant::RowSet::tokens) {
        const std::size_t count = capacity(rows) * columns;
        const View view = backend_.view(workspace_, used_, static_cast<std::uint32_t>(columns), rows);
        if constexpr (std::same_as<typename B::Buffer, decant::HostMemory>)
            std::fill_n(workspace_.data() + used_ * sizeof(float), count * sizeof(float), std::byte{0xFF});
        used_ += count;
        REQUIRE(used_ * sizeof(float) <= workspace_bytes);
        return view;
    }

    const Weight& weight(Matrix matrix) {
        matrices_.push_back(std::move(matrix));
        weights_.push_back(backend_.weight(matrices_.back().tensor()).value());
        return weights_.back();
    }
    const Weight& constant(std::vector<float> values) {
        weights_.push_back(backend_.constant(std::move(values)).value());
        return weights_.back();
    }

    /// A list of weights that stays where it is.
    std::span<const Weight> list(const std::vector<Matrix>& matrices) {
        auto& made = lists_.emplace_back();
        for (const Matrix& matrix : matrices) made.push_back(weight(matrix));
        return made;
    }

    /// Enqueues: row t of a new view is row tokens[t] of `values`.
    View feed(const std::vector<float>& values, std::size_t columns) {
        const View x = view(columns);
        pass_.embed(weight(float_matrix(values, columns)), x, 1.0f);
        return x;
    }

    void upload(const Batch& batch, TestCache<B>& cache) {
        inputs_ = batch;
        backend_.upload(pass_, inputs_.inputs(), cache.buffer, cache.shape);
    }
    void upload(const Batch& batch) { upload(batch, no_cache_); }
    void run(const Batch& batch, TestCache<B>& cache) {
        upload(batch, cache);
        REQUIRE(pass_.run(decant::AnyExecutor{}) == decant::RunState::finished);
    }
    void run(const Batch& batch) { run(batch, no_cache_); }

    /// The used rows of a view after a run.
    std::vector<float> read(View view, decant::RowSet rows = decant::RowSet::tokens) {
        const std::size_t used = rows == decant::RowSet::tokens ? inputs_.rows : inputs_.wanted_rows;
        const auto values = backend_.wait(backend_.download(view, used)).value();
        return {values.begin(), values.end()};
    }

    /// Whether the rows beyond the used ones are as they were.
    bool padding_untouched(View view, std::size_t columns, decant::RowSet rows = decant::RowSet::tokens) {
        if constexpr (std::same_as<typename B::Buffer, decant::HostMemory>) {
            const std::size_t used = rows == decant::RowSet::tokens ? inputs_.rows : inputs_.wanted_rows;
            const auto values = backend_.wait(backend_.download(view, capacity(rows))).value();
            const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
            return std::all_of(bytes + used * columns * sizeof(float), bytes + values.size_bytes(),
                               [](unsigned char byte) { return byte == 0xFF; });
        }
        return true;
    }

 private:
    static constexpr std::size_t workspace_bytes = std::size_t{64} << 20;

    std::size_t capacity(decant::RowSet rows) const {
        return rows == decant::RowSet::tokens ? shape_.rows : shape_.wanted;
    }

    B backend_;
    decant::PassShape shape_;
    typename B::Pass pass_;
    typename B::Buffer workspace_;
    std::size_t used_ = 0;
    std::deque<Matrix> matrices_;
    std::deque<Weight> weights_;
    std::deque<std::vector<Weight>> lists_;
    TestCache<B> no_cache_{backend_, {}, 0};
    Batch inputs_{decant::PassShape{}};
};

}  // namespace decant_test

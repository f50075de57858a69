// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the suites that are typed over backends share: the list of backends, matrices of every dtype, the inputs of a
/// pass, and a `Rig` that runs a few operations. Numbers enter a pass as rows of an embedding table and leave it by
/// `download`, so that the suites hold for backends whose memory the host cannot reach.

#include "support/catch.hpp"

#include <decant/backend/concept.hpp>
#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/memory.hpp>
#include <decant/core/specs.hpp>
#include <decant/files/tensor.hpp>
#include <decant/quant/formats.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace decant_test {

using PortableSimd = decant::BasicSimd<decant::simd::Portable>;
#if DECANT_X86
using Avx2Simd = decant::BasicSimd<decant::simd::Avx2>;
using Avx512Simd = decant::BasicSimd<decant::simd::Avx512Vnni>;
#define DECANT_TEST_SIMD_BACKENDS decant_test::PortableSimd, decant_test::Avx2Simd, decant_test::Avx512Simd
#else
#define DECANT_TEST_SIMD_BACKENDS decant_test::PortableSimd
#endif
#define DECANT_TEST_BACKENDS decant::Eigen, DECANT_TEST_SIMD_BACKENDS

/// Whether this machine runs the backend. A suite has nothing to say about the others.
template <class B>
struct Machine {
    static bool runs() { return true; }
};
template <class Set>
struct Machine<decant::HostBackend<decant::simd::Kernels<Set>>> {
    static bool runs() { return decant::supported(Set::isa); }
};

class Random {
 public:
    explicit Random(std::uint32_t seed) : engine_(seed) {}
    std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }
    /// In [low, high].
    std::size_t between(std::size_t low, std::size_t high) { return low + bits() % (high - low + 1); }
    bool coin() { return (bits() & 1) != 0; }
    float uniform(float low, float high) { return low + (high - low) * (static_cast<float>(bits() >> 8) * 0x1p-24f); }
    template <class T>
    T pick(std::initializer_list<T> choices) {
        return choices.begin()[bits() % choices.size()];
    }
    template <class T>
    void shuffle(std::vector<T>& values) {
        std::shuffle(values.begin(), values.end(), engine_);
    }
    std::vector<float> floats(std::size_t n, float magnitude = 1.0f) {
        std::vector<float> values(n);
        for (float& value : values) value = uniform(-magnitude, magnitude);
        return values;
    }
    std::mt19937& engine() { return engine_; }

 private:
    std::mt19937 engine_;
};

inline constexpr decant::DType all_dtypes[] = {decant::DType::f32,  decant::DType::f16,  decant::DType::bf16,
                                               decant::DType::q4_0, decant::DType::q4_1, decant::DType::q5_0,
                                               decant::DType::q8_0, decant::DType::q4_k, decant::DType::q6_k};

inline bool is_block_format(decant::DType dtype) { return decant::traits(dtype).block_elements > 1; }

/// Byte offsets of a block's 16-bit floats.
inline std::vector<std::size_t> scale_fields(decant::DType dtype) {
    switch (dtype) {
        case decant::DType::q4_1:
        case decant::DType::q4_k: return {0, 2};
        case decant::DType::q6_k: return {208};
        default: return {0};
    }
}

/// A tensor with bytes of its own, at an odd address as in a file.
struct Matrix {
    decant::DType dtype = decant::DType::f32;
    std::size_t rows = 0;
    std::size_t columns = 0;
    std::vector<std::byte> memory;

    Matrix(decant::DType type, std::size_t row_count, std::size_t column_count)
        : dtype(type), rows(row_count), columns(column_count), memory(1 + rows * decant::row_bytes(dtype, columns)) {}

    std::byte* data() { return memory.data() + 1; }
    const std::byte* data() const { return memory.data() + 1; }
    std::size_t size() const { return memory.size() - 1; }
    decant::Tensor tensor() const {
        return {"test", decant::name(dtype), dtype, {{rows, columns}, 2}, {data(), size()}};
    }
    std::vector<float> values() const {
        std::vector<float> out(rows * columns);
        for (std::size_t r = 0; r < rows; ++r)
            decant::dequantize_row(dtype, data() + r * decant::row_bytes(dtype, columns), columns, &out[r * columns]);
        return out;
    }
};

inline Matrix float_matrix(const std::vector<float>& values, std::size_t columns) {
    Matrix matrix(decant::DType::f32, values.size() / columns, columns);
    std::memcpy(matrix.data(), values.data(), matrix.size());
    return matrix;
}

/// Numbers in [-1, 1], or random blocks whose weights are of about that size.
inline Matrix random_matrix(Random& random, decant::DType dtype, std::size_t rows, std::size_t columns) {
    Matrix matrix(dtype, rows, columns);
    const decant::DTypeTraits layout = decant::traits(dtype);
    const auto put = [](std::byte* to, std::uint16_t bits) { std::memcpy(to, &bits, sizeof bits); };
    for (std::size_t at = 0; at < matrix.size(); at += layout.block_bytes) {
        std::byte* const block = matrix.data() + at;
        const float value = random.uniform(-1.0f, 1.0f);
        if (dtype == decant::DType::f32) {
            std::memcpy(block, &value, sizeof value);
        } else if (!is_block_format(dtype)) {
            put(block, dtype == decant::DType::f16 ? decant::float_to_half(value) : decant::float_to_bfloat16(value));
        } else {
            for (std::size_t i = 0; i < layout.block_bytes; ++i) block[i] = static_cast<std::byte>(random.bits());
            const float size = layout.block_elements == 256 ? 0.001f : dtype == decant::DType::q8_0 ? 0.01f : 0.1f;
            for (const std::size_t field : scale_fields(dtype))
                put(block + field, decant::float_to_half(random.uniform(-size, size)));
        }
    }
    return matrix;
}

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

/// The largest error in units of what is allowed; infinite as soon as a value is NaN that should not be.
class Worst {
 public:
    void add(double got, double expected, double allowed) {
        const double error = std::abs(got - expected);
        if (error == 0.0) return;
        const double units = error / allowed;
        units_ = units <= units_ ? units_ : std::isnan(units) ? std::numeric_limits<double>::infinity() : units;
    }
    double units() const { return units_; }

 private:
    double units_ = 0.0;
};

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// A row of activations in 8 bits with memory of its own.
struct QuantizedRow {
    std::vector<std::int8_t> codes;
    std::vector<float> scales;
    std::vector<std::int32_t> sums;

    explicit QuantizedRow(std::size_t columns)
        : codes(columns, 99),
          scales(columns / decant::simd::activation_block, -1.0f),
          sums(columns / decant::simd::activation_half, -1) {}
    decant::simd::Activations view() { return {codes.data(), scales.data(), sums.data(), codes.size()}; }
    double value(std::size_t column) const {
        return static_cast<double>(scales[column / decant::simd::activation_block]) * codes[column];
    }
};

}  // namespace decant_test

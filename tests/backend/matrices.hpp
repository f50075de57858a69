// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Random numbers and matrices of every dtype, and what results are compared with.

#include <decant/core/dtype.hpp>
#include <decant/files/tensor.hpp>
#include <decant/quant/formats.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace decant_test {

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

}  // namespace decant_test

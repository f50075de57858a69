// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Causal attention of one head, twice: with the matrix of scores in memory, and in tiles that never leave fast memory
/// (Dao et al. 2022, "FlashAttention"). Both cut queries and keys into the same tiles; every load from and store to
/// slow memory is counted as it happens, so what differs is the matrix alone.

#include "results.hpp"

#include "../support/random.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace experiment {

class CountedAttention {
 public:
    static constexpr std::size_t query_tile = 128;
    static constexpr std::size_t key_tile = 64;

    CountedAttention(std::size_t tokens, std::size_t head_dim)
        : n_(tokens), d_(head_dim), q_(n_ * d_), k_(n_ * d_), v_(n_ * d_), out_(n_ * d_) {
        examples::Random random(7);
        for (SlowMemory* memory : {&q_, &k_, &v_})
            for (float& value : memory->data) value = random.symmetric();
    }

    /// Both ways, and how far their results lie apart.
    Attention::Point run() {
        Attention::Point point;
        point.tokens = n_;
        point.naive = count([&] { naive(); });
        const std::vector<float> expected = out_.data;
        std::fill(out_.data.begin(), out_.data.end(), 0.0f);
        point.tiled = count([&] { tiled(); });
        for (std::size_t i = 0; i < expected.size(); ++i)
            point.difference = (std::max)(point.difference, std::abs(static_cast<double>(expected[i] - out_.data[i])));
        return point;
    }

 private:
    /// Memory far from the arithmetic. Fast memory is any local array; moving between the two is what costs.
    struct SlowMemory {
        explicit SlowMemory(std::size_t size) : data(size) {}
        std::vector<float> data;
        std::uint64_t read = 0;
        std::uint64_t written = 0;

        void load(std::size_t first, std::size_t count, float* to) {
            std::copy_n(data.data() + first, count, to);
            read += count * sizeof(float);
        }
        void store(const float* from, std::size_t count, std::size_t first) {
            std::copy_n(from, count, data.data() + first);
            written += count * sizeof(float);
        }
    };

    template <class F>
    Attention::Traffic count(F&& run) {
        for (SlowMemory* memory : {&q_, &k_, &v_, &out_}) memory->read = memory->written = 0;
        scores_ = SlowMemory(0);
        run();
        Attention::Traffic traffic;
        traffic.extra_bytes = scores_.data.size() * sizeof(float);
        for (const SlowMemory* memory : {&q_, &k_, &v_, &out_, &scores_}) {
            traffic.read_bytes += memory->read;
            traffic.written_bytes += memory->written;
        }
        return traffic;
    }

    /// Calls `body(first, count)` for the tiles of [0, end).
    template <class F>
    static void tiles(std::size_t end, std::size_t size, F body) {
        for (std::size_t first = 0; first < end; first += size) body(first, (std::min)(size, end - first));
    }

    float dot(const float* a, const float* b) const {
        float sum[8] = {};
        for (std::size_t i = 0; i < d_; ++i) sum[i % 8] += a[i] * b[i];
        return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
    }
    void add(float factor, const float* x, float* y) const {
        for (std::size_t i = 0; i < d_; ++i) y[i] += factor * x[i];
    }
    [[nodiscard]] float scale() const { return 1.0f / std::sqrt(static_cast<float>(d_)); }

    /// Scores to memory; memory to probabilities and back; probabilities times values.
    void naive() {
        scores_ = SlowMemory(n_ * n_);
        std::vector<float> q(query_tile * d_), k(key_tile * d_), v(key_tile * d_), out(query_tile * d_), row(n_);
        tiles(n_, query_tile, [&](std::size_t query, std::size_t queries) {
            q_.load(query * d_, queries * d_, q.data());
            tiles(query + queries, key_tile, [&](std::size_t key, std::size_t keys) {
                k_.load(key * d_, keys * d_, k.data());
                for (std::size_t i = 0; i < queries; ++i) {
                    const std::size_t seen = visible(query + i, key, keys);
                    for (std::size_t j = 0; j < seen; ++j) row[j] = scale() * dot(&q[i * d_], &k[j * d_]);
                    scores_.store(row.data(), seen, (query + i) * n_ + key);
                }
            });
        });
        for (std::size_t i = 0; i < n_; ++i) {
            scores_.load(i * n_, i + 1, row.data());
            const float peak = *std::max_element(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(i + 1));
            float total = 0.0f;
            for (std::size_t j = 0; j <= i; ++j) total += row[j] = std::exp(row[j] - peak);
            for (std::size_t j = 0; j <= i; ++j) row[j] /= total;
            scores_.store(row.data(), i + 1, i * n_);
        }
        tiles(n_, query_tile, [&](std::size_t query, std::size_t queries) {
            std::fill(out.begin(), out.end(), 0.0f);
            tiles(query + queries, key_tile, [&](std::size_t key, std::size_t keys) {
                v_.load(key * d_, keys * d_, v.data());
                for (std::size_t i = 0; i < queries; ++i) {
                    const std::size_t seen = visible(query + i, key, keys);
                    scores_.load((query + i) * n_ + key, seen, row.data());
                    for (std::size_t j = 0; j < seen; ++j) add(row[j], &v[j * d_], &out[i * d_]);
                }
            });
            out_.store(out.data(), queries * d_, query * d_);
        });
    }

    /// Keys and values come once per tile of queries; of the scores so far only their peak and sum are kept.
    void tiled() {
        std::vector<float> q(query_tile * d_), k(key_tile * d_), v(key_tile * d_), out(query_tile * d_);
        std::vector<float> peak(query_tile), total(query_tile);
        float row[key_tile];
        tiles(n_, query_tile, [&](std::size_t query, std::size_t queries) {
            q_.load(query * d_, queries * d_, q.data());
            std::fill(out.begin(), out.end(), 0.0f);
            std::fill(peak.begin(), peak.end(), -std::numeric_limits<float>::infinity());
            std::fill(total.begin(), total.end(), 0.0f);
            tiles(query + queries, key_tile, [&](std::size_t key, std::size_t keys) {
                k_.load(key * d_, keys * d_, k.data());
                v_.load(key * d_, keys * d_, v.data());
                for (std::size_t i = 0; i < queries; ++i) {
                    const std::size_t seen = visible(query + i, key, keys);
                    if (seen == 0) continue;
                    for (std::size_t j = 0; j < seen; ++j) row[j] = scale() * dot(&q[i * d_], &k[j * d_]);
                    const float highest = (std::max)(peak[i], *std::max_element(row, row + seen));
                    const float keep = std::exp(peak[i] - highest);  // 0 in the first tile
                    peak[i] = highest;
                    total[i] *= keep;
                    for (std::size_t c = 0; c < d_; ++c) out[i * d_ + c] *= keep;
                    for (std::size_t j = 0; j < seen; ++j) {
                        const float weight = std::exp(row[j] - highest);
                        total[i] += weight;
                        add(weight, &v[j * d_], &out[i * d_]);
                    }
                }
            });
            for (std::size_t i = 0; i < queries; ++i)
                for (std::size_t c = 0; c < d_; ++c) out[i * d_ + c] /= total[i];
            out_.store(out.data(), queries * d_, query * d_);
        });
    }

    /// How many keys of a tile a query sees: none that come after it.
    static std::size_t visible(std::size_t query, std::size_t key, std::size_t keys) {
        return query < key ? 0 : (std::min)(keys, query - key + 1);
    }

    std::size_t n_;
    std::size_t d_;
    SlowMemory q_, k_, v_, out_;  // [n, d]
    SlowMemory scores_{0};        // [n, n]
};

}  // namespace experiment

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/model/cost.hpp>

#include <decant/backend/eigen/eigen.hpp>

#include "backend/counting.hpp"
#include "model/support.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <string>

using decant::DType;
using decant::LayerSpec;
using decant::ModelCost;
using decant::ProductKind;
using decant_test::Counting;
using decant_test::taken;
using decant_test::TinyFile;

namespace {

double sum(const ModelCost::Products& products) { return std::accumulate(products.begin(), products.end(), 0.0); }

/// Positions that a query sees.
std::size_t seen(const LayerSpec& layer, std::size_t position) {
    const std::size_t window = layer.attention.window;
    return window == 0 ? position + 1 : (std::min)(position + 1, window);
}

}  // namespace

TEST_CASE("cost: weights are what a counting backend sees a pass read", "[model][cost]") {
    const auto weights = TinyFile(DType::q8_0, 64, 96, 3).open();
    const auto model = decant_test::bind<Counting<decant::Eigen>>(weights);
    decant::Context context(model);
    const decant::KvCache cache(context, {.tokens = 64});
    auto sequence = taken(cache.sequence());
    REQUIRE(context.decode(sequence, decant::Token{1}));
    const ModelCost cost(weights, model.spec());
    double vectors = 0.0, matrices = 0.0, head = 0.0;
    for (const auto& tensor : weights.tensors()) {
        if (tensor.shape.rank == 1) vectors += static_cast<double>(tensor.bytes.size());
        if (tensor.name == "token_embd.weight") head = static_cast<double>(tensor.rows() * tensor.columns());
        if (tensor.shape.rank == 2) matrices += static_cast<double>(tensor.rows() * tensor.columns());
    }
    const double row = 64.0 / 32.0 * 34.0;  // of the embedding: two blocks of Q8_0
    CHECK(cost.weight_bytes(1, 1) == static_cast<double>(model.backend().runs().back().weight_bytes) + vectors + row);
    CHECK(cost.weight_bytes(1, 1) - cost.weight_bytes(1, 0) == 24.0 * row);  // the head, which is the embedding
    CHECK(cost.weight_bytes(7, 1) - cost.weight_bytes(1, 1) == 6.0 * row);
    CHECK(sum(cost.products(1, 1)) == matrices);
    CHECK(sum(cost.products(5, 2)) == 5.0 * (matrices - head) + 2.0 * head);
    CHECK(cost.products(1, 1)[static_cast<std::size_t>(ProductKind::blocks)] == matrices);
}

TEST_CASE("cost: what is cached, position by position", "[model][cost]") {
    for (const char* const name : {"llama3", "gemma3_std", "deepseek_v3", "mamba2"}) {
        const auto weights = decant_test::tiny(name);
        const decant::ModelSpec spec = taken(decant::read_spec(weights));
        const ModelCost cost(weights, spec, DType::f32);
        CAPTURE(name);
        for (const std::size_t before : {0u, 1u, 5u, 40u, 300u}) {
            for (const std::size_t tokens : {1u, 2u, 17u, 64u}) {
                double multiplied = 0.0, read = 0.0, written = 0.0;
                for (const LayerSpec& layer : spec.layers) {
                    const double state = 4.0 * static_cast<double>(layer.state.floats());
                    multiplied += static_cast<double>(tokens * 2 * layer.state.channels() * layer.state.size);
                    read += state, written += state;
                    // K of all heads; V as well, unless it is part of K.
                    const std::size_t parts = layer.attention.key_skip > 0 ? 1 : 2;
                    const std::size_t floats = parts * layer.attention.kv_heads * layer.attention.head_dim;
                    std::set<std::size_t> positions;
                    for (std::size_t p = before; layer.attends() && p < before + tokens; ++p) {
                        multiplied +=
                            static_cast<double>(seen(layer, p) * layer.attention.heads *
                                                (2 * std::size_t{layer.attention.head_dim} - layer.attention.key_skip));
                        for (std::size_t k = p + 1 - seen(layer, p); k <= p; ++k) positions.insert(k);
                    }
                    read += 4.0 * static_cast<double>(floats * positions.size());
                    written += 4.0 * static_cast<double>(floats * tokens);
                }
                CAPTURE(before, tokens);
                CHECK(cost.attention(before, tokens) == multiplied);
                CHECK(cost.cache_read(before, tokens) == read);
                CHECK(cost.cache_written(tokens) == written);
            }
        }
    }
}

TEST_CASE("cost: experts are read as far as tokens choose them", "[model][cost]") {
    const auto weights = decant_test::tiny("mixtral");
    const decant::ModelSpec spec = taken(decant::read_spec(weights));
    const ModelCost cost(weights, spec);
    double all = 0.0, routed = 0.0, row = 0.0;
    for (const auto& tensor : weights.tensors()) {
        const auto bytes = static_cast<double>(tensor.bytes.size());
        if (tensor.name == "token_embd.weight")
            row = bytes / static_cast<double>(tensor.rows());
        else
            all += bytes;
        if (tensor.shape.rank == 3) routed += bytes;
    }
    REQUIRE(routed > 0.0);
    const auto& route = spec.layers[0].experts.route;
    const double left_out = 1.0 - static_cast<double>(route.chosen) / route.experts;
    const auto without_rows = [&](std::size_t tokens) {
        return cost.weight_bytes(tokens, 1) - static_cast<double>(tokens) * row;
    };
    CHECK(without_rows(1) == Approx(all - left_out * routed));
    CHECK(without_rows(2) == Approx(all - left_out * left_out * routed));
    CHECK(without_rows(1000) == Approx(all));
}

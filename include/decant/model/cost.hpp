// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ModelCost`: what a pass over a model must at least move and multiply.

#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/specs.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/names.hpp>
#include <decant/model/spec.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Products by the type of their weights, each of which processors multiply at a speed of its own.
enum class ProductKind : std::uint8_t {
    blocks,  ///< codes of a block format
    halves,  ///< F16 and BF16
    floats,  ///< F32
};
inline constexpr std::size_t product_kinds = 3;

/// Of a model's weights and its cache; activations are left out, and so is the arithmetic between the products. Counts
/// are doubles: they are means where a token chooses among experts.
class ModelCost {
 public:
    /// Multiply-adds by `ProductKind`.
    using Products = std::array<double, product_kinds>;

    ModelCost(const Weights& weights, const ModelSpec& spec, DType cache_dtype = DType::f16) {
        const CacheShape cache{spec.cache_layers(), 1, cache_dtype};
        state_bytes_ = static_cast<double>(cache.state_bytes());
        for (std::size_t l = 0; l < spec.layers.size(); ++l) add(spec.layers[l], cache, l);
        const std::string embedding = spec.names.of(Role::embedding) + ".weight";
        const std::string head = spec.names.of(Role::head) + ".weight";
        const bool tied = spec.tied.value_or(weights.find(head) == nullptr);
        for (const Tensor& tensor : weights.tensors()) {
            const auto bytes = static_cast<double>(tensor.bytes.size());
            if (tensor.name == embedding) row_bytes_ = bytes / static_cast<double>(tensor.rows());
            if (tensor.name == (tied ? embedding : head)) {
                add(head_, tensor);
            } else if (tensor.name != embedding && tensor.name != head) {
                add(of_expert(tensor.name) ? routed_ : always_, tensor);
            }
        }
    }

    /// Bytes of weights that a pass over `tokens` tokens reads, of which `wanted` want logits: each tensor once, of the
    /// embedding a row per token, of the experts as many as so many tokens choose on average.
    [[nodiscard]] double weight_bytes(std::size_t tokens, std::size_t wanted) const {
        const auto n = static_cast<double>(tokens);
        const double used = 1.0 - std::pow(1.0 - share_chosen_, n);
        return always_.bytes + used * routed_.bytes + n * row_bytes_ + (wanted > 0 ? head_.bytes : 0.0);
    }

    /// Bytes of the cache that `tokens` tokens of one sequence read, each row once, behind `before` others. Their own
    /// rows count, and the state that layers keep.
    [[nodiscard]] double cache_read(std::size_t before, std::size_t tokens) const {
        double bytes = state_bytes_;
        for (const Group& group : groups_) {
            std::size_t rows = before + tokens;
            if (group.window > 0 && tokens > 0) rows = (std::min)(rows, group.window + tokens - 1);
            bytes += static_cast<double>(rows) * group.row_bytes;
        }
        return bytes;
    }
    [[nodiscard]] double cache_written(std::size_t tokens) const {
        double bytes = state_bytes_;
        for (const Group& group : groups_) bytes += static_cast<double>(tokens) * group.row_bytes;
        return bytes;
    }

    /// Products with weights in a pass over `tokens` tokens, of which `wanted` want logits.
    [[nodiscard]] Products products(std::size_t tokens, std::size_t wanted) const {
        Products products{};
        for (std::size_t i = 0; i < products.size(); ++i) {
            products[i] = static_cast<double>(tokens) * (always_.products[i] + share_chosen_ * routed_.products[i]) +
                          static_cast<double>(wanted) * head_.products[i];
        }
        return products;
    }
    /// Multiply-adds with cached rows and states, of `tokens` tokens of one sequence behind `before` others.
    [[nodiscard]] double attention(std::size_t before, std::size_t tokens) const {
        const auto sum_to = [](std::size_t n) { return 0.5 * static_cast<double>(n) * static_cast<double>(n + 1); };
        const std::size_t end = before + tokens;
        double sum = static_cast<double>(tokens) * state_products_;
        for (const Group& group : groups_) {
            const std::size_t whole = group.window == 0 ? end : (std::clamp)(group.window, before, end);
            const double seen =
                sum_to(whole) - sum_to(before) + static_cast<double>(end - whole) * static_cast<double>(group.window);
            sum += seen * group.products;
        }
        return sum;
    }

 private:
    struct Part {
        double bytes = 0.0;
        Products products{};  // per token
    };
    /// Layers whose queries see equally far.
    struct Group {
        std::size_t window;     // 0 = everything
        double row_bytes;       // K and V of a position
        double products = 0.0;  // of a query and a position
    };

    void add(const LayerSpec& layer, const CacheShape& cache, std::size_t l) {
        if (layer.routes()) {
            const RouteSpec& route = layer.experts.route;
            share_chosen_ = static_cast<double>(route.chosen) / static_cast<double>(route.experts);
        }
        state_products_ += 2.0 * layer.state.channels() * layer.state.size;
        if (!layer.attends()) return;
        const std::size_t window = layer.attention.window;
        auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.window == window; });
        if (group == groups_.end()) group = groups_.insert(group, {window, 0.0});
        group->row_bytes += static_cast<double>(cache.row_bytes(l) * (cache.layers[l].latent() ? 1 : 2));
        group->products +=
            static_cast<double>(layer.attention.heads) * (layer.attention.head_dim + layer.attention.value_dim());
    }
    static void add(Part& part, const Tensor& tensor) {
        part.bytes += static_cast<double>(tensor.bytes.size());
        if (tensor.shape.rank < 2) return;  // norms and biases
        const ProductKind kind = traits(tensor.dtype).block_elements > 1 ? ProductKind::blocks
                                 : tensor.dtype == DType::f32            ? ProductKind::floats
                                                                         : ProductKind::halves;
        part.products[static_cast<std::size_t>(kind)] += static_cast<double>(tensor.rows() * tensor.columns());
    }
    /// In GGUF files ffn_up_exps, in folders mlp.experts.3.up_proj; not the expert that all tokens go to.
    static bool of_expert(std::string_view tensor) {
        return tensor.find("_exps.") != std::string_view::npos || tensor.find(".experts.") != std::string_view::npos;
    }

    std::vector<Group> groups_;
    double state_bytes_ = 0.0, state_products_ = 0.0;
    double share_chosen_ = 1.0;  // of the experts
    double row_bytes_ = 0.0;     // of the embedding
    Part always_, routed_, head_;
};

}  // namespace decant::inline DECANT_ABI

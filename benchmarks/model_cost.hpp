// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What a pass over a model must at least read and multiply: its weights and its cache. Small things are left out
/// (activations, and the arithmetic of attention).

#include <decant/cache/kv_cache.hpp>
#include <decant/core/dtype.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/names.hpp>
#include <decant/model/spec.hpp>

#include "../examples/support/machine_limits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bench {

/// Multiply-accumulates by kind.
using Macs = std::array<double, examples::arithmetics>;

class ModelCost {
 public:
    ModelCost(const decant::Weights& weights, const decant::ModelSpec& spec, decant::DType cache = decant::DType::f16)
        : spec_(spec), cache_(decant::CacheOptions{.dtype = cache}.shape(spec.cache_layers())) {
        const std::string embedding = spec.names.of(decant::Role::embedding) + ".weight";
        const std::string head = spec.names.of(decant::Role::head) + ".weight";
        const bool tied = spec.tied.value_or(weights.find(head) == nullptr);
        for (const decant::LayerSpec& layer : spec.layers)
            if (layer.routes()) chosen_ = layer.experts.route.chosen, experts_ = layer.experts.route.experts;
        for (const decant::Tensor& tensor : weights.tensors()) {
            const auto bytes = static_cast<double>(tensor.bytes.size());
            if (tensor.name == embedding) row_bytes_ = bytes / static_cast<double>(tensor.rows());
            if (tensor.name == (tied ? embedding : head)) {
                add(head_, tensor);
            } else if (tensor.name != embedding && tensor.name != head) {
                add(of_expert(tensor.name) ? routed_ : always_, tensor);
            }
        }
    }

    /// Bytes of weights that a pass over `tokens` tokens reads: each tensor once, of the embedding a row per token, of
    /// the experts as many as so many tokens choose on average.
    [[nodiscard]] double weight_bytes(std::size_t tokens) const {
        const auto n = static_cast<double>(tokens);
        const double used = 1.0 - std::pow(1.0 - share_chosen(), n);
        return always_.bytes + head_.bytes + used * routed_.bytes + n * row_bytes_;
    }

    /// Bytes that one token reads of the cache, itself being the last of `positions` tokens of its sequence.
    [[nodiscard]] double cache_bytes(std::size_t positions) const {
        double bytes = 0.0;
        for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
            const std::size_t window = spec_.layers[i].attention.window;
            const std::size_t seen = window == 0 ? positions : (std::min)(positions, window);
            bytes += static_cast<double>(seen * cache_.row_bytes(i) * (cache_.layers[i].latent ? 1 : 2));
        }
        return bytes + static_cast<double>(cache_.state_bytes());
    }

    /// Products with weights in a prefill of so many tokens whose last one wants logits.
    [[nodiscard]] Macs prefill_macs(std::size_t tokens) const {
        Macs macs{};
        for (std::size_t i = 0; i < macs.size(); ++i) {
            macs[i] =
                static_cast<double>(tokens) * (always_.macs[i] + share_chosen() * routed_.macs[i]) + head_.macs[i];
        }
        return macs;
    }

 private:
    struct Part {
        double bytes = 0.0;
        Macs macs{};  // per token
    };

    static void add(Part& part, const decant::Tensor& tensor) {
        part.bytes += static_cast<double>(tensor.bytes.size());
        if (tensor.shape.rank < 2) return;  // norms and biases
        using examples::Arithmetic;
        const Arithmetic kind = decant::traits(tensor.dtype).block_elements > 1 ? Arithmetic::int8
                                : tensor.dtype == decant::DType::f32            ? Arithmetic::f32
                                                                                : Arithmetic::bf16;
        part.macs[static_cast<std::size_t>(kind)] += static_cast<double>(tensor.rows() * tensor.columns());
    }
    /// In GGUF files ffn_up_exps, in folders mlp.experts.3.up_proj; not the expert that all tokens go to.
    static bool of_expert(std::string_view tensor) {
        return tensor.find("_exps.") != std::string_view::npos || tensor.find(".experts.") != std::string_view::npos;
    }
    [[nodiscard]] double share_chosen() const { return static_cast<double>(chosen_) / static_cast<double>(experts_); }

    const decant::ModelSpec& spec_;
    decant::CacheShape cache_;
    std::uint32_t chosen_ = 1, experts_ = 1;
    double row_bytes_ = 0.0;
    Part always_, routed_, head_;
};

}  // namespace bench

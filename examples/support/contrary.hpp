// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// A model that is always wrong: what bad drafts cost is measured with it.

#include <decant/core/memory.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace examples {

/// The same weights, but what the last norm multiplies by has the other sign, and so have all logits: the model takes
/// as long as before, and rates highest what it rated lowest. `source` is a GGUF file. Errors: `unsupported` if it has
/// no such norm in F32, `out_of_memory`.
[[nodiscard]] inline decant::Result<decant::Weights> contrary(const decant::Weights& source) {
    std::vector<decant::Tensor> tensors(source.tensors().begin(), source.tensors().end());
    for (decant::Tensor& tensor : tensors) {
        if (tensor.name != "output_norm.weight" || tensor.dtype != decant::DType::f32) continue;
        auto made = decant::Memory().allocate(tensor.bytes.size());
        if (!made) return std::move(made).error().in(source.name());
        const auto owner = std::make_shared<const decant::HostMemory>(*std::move(made));
        for (std::size_t at = 0; at + sizeof(float) <= tensor.bytes.size(); at += sizeof(float)) {
            float factor = 0.0f;
            std::memcpy(&factor, tensor.bytes.data() + at, sizeof factor);
            factor = -factor;
            std::memcpy(owner->data() + at, &factor, sizeof factor);
        }
        tensor.bytes = {owner->data(), tensor.bytes.size()};
        return decant::Weights::with_tensors(source, std::move(tensors), owner, source.name() + ", contrary");
    }
    return decant::Error{decant::ErrorCode::unsupported, "there is no output_norm.weight in F32", source.name(),
                         "take a GGUF file of a model that has one"};
}

}  // namespace examples

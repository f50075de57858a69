// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Small model files made to order, for tests with and without Catch2.

#include "support/random.hpp"

#include <decant/core/dtype.hpp>
#include <decant/files/gguf_writer.hpp>
#include <decant/files/weights.hpp>
#include <decant/quant/float16.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace decant_test {

/// A Llama file with the names of GGUF and weights of one dtype; every part can be left out or changed before `open`.
struct TinyFile {
    struct Entry {
        std::string name;
        decant::DType dtype;
        decant::Shape shape;
        std::vector<std::byte> bytes;
    };

    std::uint32_t width, hidden, layers, heads = 2, kv_heads = 1, head_dim, vocabulary = 24;
    std::vector<Entry> tensors;
    Random random{7};

    explicit TinyFile(decant::DType dtype = decant::DType::f32, std::uint32_t width_ = 32, std::uint32_t hidden_ = 64,
                      std::uint32_t layers_ = 2, std::uint32_t head_dim_ = 16)
        : width(width_), hidden(hidden_), layers(layers_), head_dim(head_dim_) {
        add("token_embd.weight", dtype, vocabulary, width);
        vector("output_norm.weight", width);
        for (std::uint32_t l = 0; l < layers; ++l) {
            const std::string block = "blk." + std::to_string(l) + ".";
            vector(block + "attn_norm.weight", width);
            add(block + "attn_q.weight", dtype, heads * head_dim, width);
            add(block + "attn_k.weight", dtype, kv_heads * head_dim, width);
            add(block + "attn_v.weight", dtype, kv_heads * head_dim, width);
            add(block + "attn_output.weight", dtype, width, heads * head_dim);
            vector(block + "ffn_norm.weight", width);
            add(block + "ffn_gate.weight", dtype, hidden, width);
            add(block + "ffn_up.weight", dtype, hidden, width);
            add(block + "ffn_down.weight", dtype, width, hidden);
        }
    }

    /// Random weights; rows that are no whole number of blocks become F32.
    void add(std::string name, decant::DType dtype, std::uint64_t rows, std::uint64_t columns) {
        if (columns % decant::traits(dtype).block_elements != 0) dtype = decant::DType::f32;
        const decant::DTypeTraits layout = decant::traits(dtype);
        std::vector<std::byte> bytes(static_cast<std::size_t>(rows) *
                                     decant::row_bytes(dtype, static_cast<std::size_t>(columns)));
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
        for (std::size_t at = 0; at < bytes.size(); at += layout.block_bytes)
            tame(dtype, bytes.data() + at, random.number() * 0.25f);
        tensors.push_back({std::move(name), dtype, {{rows, columns}, 2}, std::move(bytes)});
    }
    void vector(std::string name, std::uint64_t columns) {
        add(std::move(name), decant::DType::f32, 1, columns);
        tensors.back().shape = {{columns}, 1};
    }

    Entry& at(const std::string& name) {
        for (Entry& entry : tensors)
            if (entry.name == name) return entry;
        std::fprintf(stderr, "no tensor %s\n", name.c_str());
        std::abort();
    }
    void remove(const std::string& name) {
        std::erase_if(tensors, [&](const Entry& e) { return e.name == name; });
    }

    /// The keys that every Llama file has. `change(writer)` may add others.
    template <class Change>
    [[nodiscard]] std::vector<std::byte> bytes(Change&& change) const {
        decant::GgufWriter writer;
        writer.add("general.architecture", "llama");
        writer.add("llama.block_count", layers);
        writer.add("llama.context_length", std::uint32_t{256});
        writer.add("llama.embedding_length", width);
        writer.add("llama.feed_forward_length", hidden);
        writer.add("llama.attention.head_count", heads);
        writer.add("llama.attention.head_count_kv", kv_heads);
        writer.add("llama.attention.key_length", head_dim);
        writer.add("llama.attention.value_length", head_dim);
        writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
        change(writer);
        for (const Entry& entry : tensors) writer.add_tensor(entry.name, entry.dtype, entry.shape, entry.bytes);
        return writer.finish();
    }
    [[nodiscard]] std::vector<std::byte> bytes() const {
        return bytes([](decant::GgufWriter&) {});
    }
    [[nodiscard]] decant::Weights open() const { return open_bytes(bytes()); }
    template <class Change>
    [[nodiscard]] decant::Weights open(Change&& change) const {
        return open_bytes(bytes(std::forward<Change>(change)));
    }

 private:
    static decant::Weights open_bytes(std::vector<std::byte> bytes) {
        const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
        return decant::Weights::from_memory(*owner, owner, "made.gguf").value();
    }

    /// Sets the floats of a block, so that no weight is far beyond 0.25.
    static void tame(decant::DType dtype, std::byte* block, float value) {
        const auto half = [&](std::size_t offset, float divisor) {
            const std::uint16_t bits = decant::float_to_half(value / divisor);
            std::memcpy(block + offset, &bits, sizeof bits);
        };
        switch (dtype) {
            case decant::DType::f32: std::memcpy(block, &value, sizeof value); break;
            case decant::DType::bf16: std::memcpy(block, reinterpret_cast<const std::byte*>(&value) + 2, 2); break;
            case decant::DType::f16: half(0, 1.0f); break;
            case decant::DType::q4_0: half(0, 8.0f); break;
            case decant::DType::q4_1:
                half(0, 8.0f);
                half(2, -1.0f);
                break;
            case decant::DType::q5_0: half(0, 16.0f); break;
            case decant::DType::q8_0: half(0, 128.0f); break;
            case decant::DType::q4_k:
                half(0, 8.0f * 64.0f);
                half(2, 64.0f);
                break;
            case decant::DType::q6_k: half(208, 32.0f * 128.0f); break;
            case decant::DType::other: break;
        }
    }
};

}  // namespace decant_test

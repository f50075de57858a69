// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Binder`: takes tensors from a file by role, checks their shapes, rearranges what lies otherwise than the kernels
/// read it, and knows at the end which were left over.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/model_keys.hpp>
#include <decant/model/names.hpp>
#include <decant/model/spec.hpp>
#include <decant/quant/formats.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// A dimension, and what messages call it: the keys of GGUF or of config.json that say it.
struct Extent {
    std::uint64_t size = 0;
    std::string gguf;
    std::string config;

    [[nodiscard]] static Extent width(const ModelSpec& spec) { return {spec.width, "embedding_length", "hidden_size"}; }
    friend Extent operator*(const Extent& a, const Extent& b) {
        return {a.size * b.size, detail::text(a.gguf, " * ", b.gguf), detail::text(a.config, " * ", b.config)};
    }
};

template <class B>
class Binder {
 public:
    using W = typename B::Weight;

    Binder(const Weights& weights, const B& backend, const ModelSpec& spec)
        : weights_(weights), backend_(backend), spec_(spec), used_(weights.tensors().size(), false) {}

    // Whose tensors the roles mean.
    std::size_t layer = 0;
    std::uint64_t expert = 0;

    [[nodiscard]] const B& backend() const noexcept { return backend_; }

    /// Whether the file has the role's tensor, by default as `.weight` or without an ending.
    [[nodiscard]] bool contains(Role role, std::string_view suffix = ".weight") const {
        return !spec_.names[role].empty() && find(role, suffix) != nullptr;
    }

    /// The tensor with exactly `rows` x `columns` elements. Errors: `missing`, `mismatch` with both shapes.
    [[nodiscard]] Result<Tensor> tensor(Role role, const Extent& rows, const Extent& columns) {
        DECANT_TRY(const Tensor found, take(role, ".weight"));
        if (found.rows() != rows.size || found.columns() != columns.size) {
            return Error{ErrorCode::mismatch,
                         detail::text("expected ", say(rows), " x ", say(columns), ", found ", found.rows(), " x ",
                                      found.columns()),
                         detail::tensor_label(found.name), contradiction};
        }
        return found;
    }
    [[nodiscard]] Result<W> matrix(Role role, const Extent& rows, const Extent& columns) {
        DECANT_TRY(const Tensor found, tensor(role, rows, columns));
        return backend_.weight(found);
    }

    /// All elements in one row of plain floats (F32, F16 or BF16), however many dimensions the file gives them.
    [[nodiscard]] Result<Tensor> flat(Role role, const Extent& size, std::string_view suffix = ".weight") {
        DECANT_TRY(Tensor found, take(role, suffix));
        if (traits(found.dtype).block_elements != 1) {
            return Error{ErrorCode::unsupported, detail::text("a vector of type ", found.type_name),
                         detail::tensor_label(found.name), "vectors must be F32, F16 or BF16"};
        }
        const std::uint64_t elements = found.rows() * found.columns();
        if (elements != size.size) {
            return Error{ErrorCode::mismatch,
                         detail::text("expected 1 x ", say(size), ", found ", found.rows(), " x ", found.columns()),
                         detail::tensor_label(found.name), contradiction};
        }
        found.shape = {{elements}, 1};
        return found;
    }
    [[nodiscard]] Result<W> vector(Role role, const Extent& size, std::string_view suffix = ".weight") {
        DECANT_TRY(const Tensor found, flat(role, size, suffix));
        return backend_.weight(found);
    }

    [[nodiscard]] Result<W> weight(const Tensor& made) const { return backend_.weight(made); }
    /// Rows of a matrix, where they lie.
    [[nodiscard]] Result<W> rows(Tensor whole, std::uint64_t first, std::uint64_t count) const {
        const std::size_t bytes = row_bytes(whole.dtype, static_cast<std::size_t>(whole.columns()));
        whole.bytes =
            whole.bytes.subspan(static_cast<std::size_t>(first) * bytes, static_cast<std::size_t>(count) * bytes);
        whole.shape = {{count, whole.columns()}, 2};
        return backend_.weight(whole);
    }
    /// Elements of a vector of floats, where they lie.
    [[nodiscard]] Result<W> elements(Tensor whole, std::uint64_t first, std::uint64_t count) const {
        const std::size_t bytes = row_bytes(whole.dtype, 1);
        whole.bytes =
            whole.bytes.subspan(static_cast<std::size_t>(first) * bytes, static_cast<std::size_t>(count) * bytes);
        whole.shape = {{count}, 1};
        return backend_.weight(whole);
    }
    /// A copy [rows, columns] whose element (r, c) is element `from(r, c)` of the source; of a block format in F32.
    /// Errors: `unsupported` for a type that nothing computes with, `out_of_memory`.
    template <class From>
    [[nodiscard]] Result<Tensor> gathered(const Tensor& source, std::uint64_t rows, std::uint64_t columns, From from) {
        if (source.dtype == DType::other) {
            return Error{ErrorCode::unsupported, detail::text("type ", source.type_name, " is not supported"),
                         detail::tensor_label(source.name), "convert the model to F32, F16 or BF16"};
        }
        Tensor plain = source;
        std::shared_ptr<std::byte[]> expanded;
        if (traits(source.dtype).block_elements != 1) {
            const auto elements = static_cast<std::size_t>(source.rows() * source.columns());
            DECANT_TRY(expanded, memory(elements * sizeof(float), source));
            dequantize_row(source.dtype, source.bytes.data(), elements, reinterpret_cast<float*>(expanded.get()));
            plain.dtype = DType::f32;
            plain.type_name = "F32";
            plain.bytes = {expanded.get(), elements * sizeof(float)};
        }
        const std::size_t size = traits(plain.dtype).block_bytes;
        const std::size_t bytes = static_cast<std::size_t>(rows * columns) * size;
        DECANT_ASSERT(bytes <= plain.bytes.size());
        DECANT_TRY(auto copy, memory(bytes, source));
        std::byte* to = copy.get();
        for (std::uint64_t r = 0; r < rows; ++r)
            for (std::uint64_t c = 0; c < columns; ++c, to += size)
                std::memcpy(to, plain.bytes.data() + static_cast<std::size_t>(from(r, c)) * size, size);
        plain.shape = {{rows, columns}, 2};
        plain.bytes = {copy.get(), bytes};
        owners_.push_back(std::move(copy));
        return plain;
    }

    /// A tensor that somebody else has read.
    void mark(std::string_view name) {
        if (const Tensor* tensor = weights_.find(name))
            used_[static_cast<std::size_t>(tensor - weights_.tensors().data())] = true;
    }
    /// Nothing in a file is silently ignored. Errors: `unsupported`, naming the first tensor that no one took.
    [[nodiscard]] Result<void> finish() {
        mark("rope_freqs.weight");  // read with the rotary frequencies
        for (std::size_t i = 0; i < used_.size(); ++i) {
            const std::string_view name = weights_.tensors()[i].name;
            if (used_[i] || name.ends_with(".rotary_emb.inv_freq")) continue;  // which old checkpoints carry
            const std::uint64_t of = layer_of(name);
            if (of >= spec_.layers.size() && of - spec_.layers.size() < spec_.names.unused_layers) continue;
            if (of != no_layer && of >= spec_.layers.size()) {
                return Error{ErrorCode::mismatch,
                             detail::text("it is of layer ", of, ", but ", layer_key(), " says ", spec_.layers.size()),
                             detail::tensor_label(name), contradiction};
            }
            return Error{ErrorCode::unsupported,
                         detail::text("the family ", spec_.family, " has no use for this tensor"),
                         detail::tensor_label(name), "the model is a variant that this version does not know"};
        }
        return {};
    }
    [[nodiscard]] std::vector<std::shared_ptr<const void>> take_owners() { return std::move(owners_); }

 private:
    static constexpr std::uint64_t no_layer = ~std::uint64_t{0};
    static constexpr const char* contradiction =
        "the file's tensors contradict its metadata: it is damaged or of another model";

    /// Sized by a tensor whose bytes are there.
    [[nodiscard]] static Result<std::shared_ptr<std::byte[]>> memory(std::size_t bytes, const Tensor& tensor) {
        std::shared_ptr<std::byte[]> made(new (std::nothrow) std::byte[bytes]);
        if (made != nullptr) return made;
        return Error{ErrorCode::out_of_memory, detail::text(bytes, " bytes to rearrange a tensor"),
                     detail::tensor_label(tensor.name), "free memory, or convert the model to GGUF"};
    }
    [[nodiscard]] std::string base(Role role) const {
        std::string name = role <= Role::head ? spec_.names.of(role) : spec_.names.of(role, layer);
        if (const std::size_t at = name.find("{}"); at != std::string::npos) name.replace(at, 2, detail::text(expert));
        return name;
    }
    [[nodiscard]] const Tensor* find(Role role, std::string_view suffix) const {
        const std::string name = base(role);
        const Tensor* found = weights_.find(detail::text(name, suffix));
        return found == nullptr && suffix == ".weight" ? weights_.find(name) : found;
    }
    [[nodiscard]] Result<Tensor> take(Role role, std::string_view suffix) {
        const Tensor* found = find(role, suffix);
        if (found != nullptr) {
            mark(found->name);
            return *found;
        }
        const bool whole = role <= Role::head;
        return Error{ErrorCode::missing,
                     whole ? std::string("the file does not hold this tensor")
                           : detail::text("the file does not hold this tensor of layer ", layer, " (", layer_key(),
                                          " says ", spec_.layers.size(), " layers)"),
                     detail::text(weights_.name(), ", ", detail::tensor_label(detail::text(base(role), suffix))),
                     role == Role::head ? std::string("tie_word_embeddings says that there is one")
                                        : detail::text(spec_.names.gguf_words ? "architecture " : "model_type ",
                                                       spec_.family, " needs it")};
    }
    [[nodiscard]] std::string say(const Extent& extent) const {
        const std::string& key = spec_.names.gguf_words ? extent.gguf : extent.config;
        return key.empty() ? detail::text(extent.size) : detail::text(extent.size, " (", key, ")");
    }
    [[nodiscard]] std::string_view layer_key() const {
        return spec_.names.gguf_words ? "block_count" : "num_hidden_layers";
    }
    [[nodiscard]] std::uint64_t layer_of(std::string_view name) const {
        if (!name.starts_with(spec_.names.layers)) return no_layer;
        name.remove_prefix(spec_.names.layers.size());
        std::uint64_t number = 0;
        const auto end = std::from_chars(name.data(), name.data() + name.size(), number);
        return end.ec == std::errc{} ? number : no_layer;
    }

    Weights weights_;
    B backend_;
    const ModelSpec& spec_;
    std::vector<bool> used_;
    std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace decant::inline DECANT_ABI

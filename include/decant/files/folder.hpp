// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The weights of a Hugging Face folder: model.safetensors, or the shards that model.safetensors.index.json lists.
/// Where there is an index it alone decides which file holds which tensor; other files and tensors are not looked at.
/// And its companions: the small files beside the weights that say what the model is.

#include <decant/core/progress.hpp>
#include <decant/files/json.hpp>
#include <decant/files/mapping.hpp>
#include <decant/files/safetensors.hpp>
#include <decant/files/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// The tensors of a folder, and what they view.
struct FolderFiles {
    std::vector<Mapping> mappings;
    std::deque<std::string> names;
    std::vector<Tensor> tensors;
};

/// Reads {"metadata": ..., "weight_map": {"tensor": "file", ...}}; everything but weight_map is ignored.
class ShardIndex : public JsonEvents {
 public:
    struct Entry {
        std::string tensor;
        std::string file;
    };
    std::vector<Entry> entries;
    bool found = false;

    Result<void> null() override { return other(); }
    Result<void> boolean(bool) override { return other(); }
    Result<void> unsigned_integer(std::uint64_t) override { return other(); }
    Result<void> negative_integer(std::int64_t) override { return other(); }
    Result<void> real(double) override { return other(); }
    Result<void> string(std::string_view value) override {
        if (!in_map_ || depth_ != 2) return other();
        entries.back().file = value;
        return {};
    }
    Result<void> begin_array() override { return enter(false); }
    Result<void> end_array() override { return leave(); }
    Result<void> begin_object() override { return enter(true); }
    Result<void> end_object() override { return leave(); }
    Result<void> key(std::string_view value) override {
        if (depth_ == 1) {
            in_map_ = value == "weight_map";
            if (in_map_ && std::exchange(found, true))
                return Error{ErrorCode::bad_format, "weight_map occurs twice", "", ""};
        } else if (in_map_ && depth_ == 2) {
            entries.push_back({std::string(value), {}});
        }
        return {};
    }

 private:
    [[nodiscard]] Result<void> other() const {
        if (!in_map_) return {};
        return Error{ErrorCode::bad_format, "weight_map must be an object of strings",
                     entries.empty() ? std::string() : tensor_label(entries.back().tensor), ""};
    }
    Result<void> enter(bool object) {
        if (in_map_ && (depth_ != 1 || !object)) return other();
        ++depth_;
        return {};
    }
    Result<void> leave() {
        if (--depth_ == 1) in_map_ = false;
        return {};
    }

    int depth_ = 0;
    bool in_map_ = false;
};

/// A shard must be a plain file name: an index may not point outside its folder.
[[nodiscard]] inline bool safe_file_name(std::string_view file) noexcept {
    return !file.empty() && file != "." && file.find("..") == std::string_view::npos &&
           std::all_of(file.begin(), file.end(),
                       [](char c) { return c > 0x1f && c < 0x7f && c != '/' && c != '\\' && c != ':'; });
}

/// Maps and reads one file of a folder; its tensors are returned, what they view is kept in `out`.
[[nodiscard]] inline Result<SafetensorsFile> read_shard(const std::filesystem::path& path, FolderFiles& out) {
    DECANT_TRY(Mapping mapping, Mapping::open(path));
    auto file = read_safetensors(mapping.bytes());
    if (!file) return std::move(file).error().in(display(path));
    out.mappings.push_back(std::move(mapping));
    return file;
}

/// Moving strings between deques would move short ones; the tensors are pointed at the copies instead.
inline void adopt(FolderFiles& out, const Tensor& tensor) {
    out.names.emplace_back(tensor.name);
    out.tensors.push_back(tensor);
    out.tensors.back().name = out.names.back();
}

[[nodiscard]] inline Result<FolderFiles> read_indexed_folder(const std::filesystem::path& folder,
                                                             const std::filesystem::path& index_path,
                                                             const CallOptions& options) {
    ShardIndex index;
    {
        DECANT_TRY(const Mapping mapping, Mapping::open(index_path));
        const auto bytes = mapping.bytes();
        auto read = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, index);
        if (!read) return std::move(read).error().in(display(index_path));
    }
    if (!index.found)
        return Error{ErrorCode::bad_format, "it has no weight_map", display(index_path), "download the folder again"};
    // By shard, so that each is opened once; the order within a shard is that of the names.
    std::sort(index.entries.begin(), index.entries.end(),
              [](const auto& a, const auto& b) { return a.file != b.file ? a.file < b.file : a.tensor < b.tensor; });
    FolderFiles out;
    for (auto first = index.entries.begin(); first != index.entries.end();) {
        const auto done = static_cast<std::uint64_t>(first - index.entries.begin());
        if (!options.go_on({done, index.entries.size()})) return cancelled(display(folder));
        const auto last =
            std::find_if(first, index.entries.end(), [&](const auto& entry) { return entry.file != first->file; });
        if (!safe_file_name(first->file))
            return Error{ErrorCode::bad_format,
                         text("the shard name ", detail::quoted(first->file), " is not a plain file name"),
                         display(index_path), "shards must lie in the folder itself"};
        const std::filesystem::path path = folder / first->file;
        auto shard = read_shard(path, out);
        if (!shard) {
            Error error = std::move(shard).error();
            if (error.code == ErrorCode::missing) error.hint = "the index lists this shard; download the folder again";
            return error;
        }
        for (; first != last; ++first) {
            const Tensor* tensor = find_by_name(shard->tensors, shard->by_name, first->tensor);
            if (tensor == nullptr)
                return Error{ErrorCode::missing, "the index says that this file holds the tensor, but it does not",
                             text(display(path), ", ", tensor_label(first->tensor)), "download the folder again"};
            adopt(out, *tensor);
        }
    }
    return out;
}

[[nodiscard]] inline Result<FolderFiles> read_folder(const std::filesystem::path& folder, const CallOptions& options) {
    const std::filesystem::path index = folder / "model.safetensors.index.json", single = folder / "model.safetensors";
    std::error_code failure;
    if (std::filesystem::exists(index, failure)) return read_indexed_folder(folder, index, options);
    if (!std::filesystem::exists(single, failure))
        return Error{
            ErrorCode::missing, "the folder holds neither model.safetensors nor model.safetensors.index.json",
            display(folder),
            "give a folder as downloaded from the Hugging Face hub, or the path of a .gguf or .safetensors file"};
    FolderFiles out;
    DECANT_TRY(SafetensorsFile file, read_shard(single, out));
    out.names = std::move(file.names);
    out.tensors = std::move(file.tensors);
    return out;
}

/// What is looked for beside the weights.
inline constexpr std::array<std::string_view, 5> companion_names{
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};

struct Companion {
    std::string_view name;
    Mapping mapping;
};

/// Maps those companions that are there.
[[nodiscard]] inline Result<std::vector<Companion>> read_companions(const std::filesystem::path& folder) {
    std::vector<Companion> out;
    for (const std::string_view name : companion_names) {
        auto mapping = Mapping::open(folder / name);
        if (mapping)
            out.push_back({name, *std::move(mapping)});
        else if (mapping.error().code != ErrorCode::missing)
            return std::move(mapping).error();
    }
    return out;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Weights`: one view over the tensors and metadata of a GGUF file, a safetensors file or a Hugging Face folder.

#include <decant/core/progress.hpp>
#include <decant/core/result.hpp>
#include <decant/files/config_file.hpp>
#include <decant/files/folder.hpp>
#include <decant/files/gguf.hpp>
#include <decant/files/mapping.hpp>
#include <decant/files/metadata.hpp>
#include <decant/files/safetensors.hpp>
#include <decant/files/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Where weights come from. It decides how tensors and keys of metadata are named.
enum class WeightsFormat : std::uint8_t {
    gguf,         ///< metadata are the file's key/value pairs
    safetensors,  ///< one file alone; no metadata
    folder,       ///< a Hugging Face folder; metadata are its config.json
};

/// A cheap shared handle: copies share one mapping, and the last one unmaps it. Everything is const, so threads may
/// share it. Views that it gives (tensors, strings) live as long as it or a copy. Opening checks everything that the
/// file says about itself and touches no tensor data.
class Weights {
 public:
    /// Opens a .gguf file, a .safetensors file (files of other names by their first bytes) or a Hugging Face folder.
    /// The files must not be changed or cut while the handle lives. Takes milliseconds: tensors are read when a pass
    /// first needs them, or by `warm_up`. Progress is in tensors; a folder's is told, and a stop seen, shard by shard.
    /// Errors: `missing`, `io`, `bad_format` and its kin with the place, `cancelled`.
    [[nodiscard]] static Result<Weights> open(const std::filesystem::path& path, CallOptions options = {});

    /// GGUF or safetensors in the host's memory, used in place: it must outlive the handle unless `owner` keeps it.
    /// `name` is for messages.
    [[nodiscard]] static Result<Weights> from_memory(std::span<const std::byte> bytes,
                                                     std::shared_ptr<const void> owner = {},
                                                     std::string name = "memory");

    /// Format, metadata and companions of `source` with other tensors, which are views of what `owner` keeps alive or
    /// of `source`, which is kept too. There is no mapping of its own: `mapped_bytes` is 0 and `warm_up` does nothing.
    /// Errors: `bad_format` for a name that occurs twice.
    [[nodiscard]] static Result<Weights> with_tensors(const Weights& source, std::vector<Tensor> tensors,
                                                      std::shared_ptr<const void> owner, std::string name);

    /// The path (UTF-8) or the name given with the memory.
    [[nodiscard]] const std::string& name() const noexcept { return held().name; }
    [[nodiscard]] WeightsFormat format() const noexcept { return held().format; }
    /// Key/value pairs of a GGUF file, or of a folder's config.json, whose nested objects are flattened with dots
    /// (`rope_scaling.factor`; `read_config_json` says it in full). Empty where there are none.
    [[nodiscard]] const Metadata& metadata() const noexcept { return held().metadata; }
    /// The bytes of a file beside a folder's weights: config.json, generation_config.json, tokenizer.json,
    /// tokenizer_config.json or chat_template.jinja. Empty if it is not there, and for other names and formats.
    [[nodiscard]] std::span<const std::byte> companion(std::string_view file) const noexcept {
        if (held().companions == nullptr) return {};
        for (const detail::Companion& found : *held().companions)
            if (found.name == file) return found.mapping.bytes();
        return {};
    }
    [[nodiscard]] std::span<const Tensor> tensors() const noexcept { return held().tensors; }
    /// The tensor of a name, or nullptr. O(log n).
    [[nodiscard]] const Tensor* find(std::string_view name) const noexcept {
        return detail::find_by_name(held().tensors, held().by_name, name);
    }
    /// The tensor of a name, or a `missing` error that names it and the file.
    [[nodiscard]] Result<Tensor> tensor(std::string_view name) const {
        if (const Tensor* found = find(name)) return *found;
        return Error{ErrorCode::missing, "the file does not hold this tensor",
                     detail::text(held().name, ", ", detail::tensor_label(name)), ""};
    }
    /// Reads every page of the mapped files, so that the first pass does not wait for the disk. Pages that the system
    /// takes back are read again when they are needed. Progress is in bytes. Errors: `cancelled`.
    [[nodiscard]] Result<void> warm_up(CallOptions options = {}) const;

    /// Bytes of all tensors together.
    [[nodiscard]] std::uint64_t bytes() const noexcept { return held().bytes; }
    /// Bytes of the mapped files that hold tensors; 0 for host memory.
    [[nodiscard]] std::uint64_t mapped_bytes() const noexcept { return held().mapped_bytes; }

 private:
    struct State {
        std::string name;
        WeightsFormat format = WeightsFormat::gguf;
        std::vector<Mapping> mappings;
        std::shared_ptr<const void> owner;
        std::deque<std::string> names;  // of tensors whose names are not in the file verbatim
        std::shared_ptr<const std::vector<detail::Companion>> companions;
        detail::ConfigFile config;  // what a folder's metadata view
        Metadata metadata;
        std::vector<Tensor> tensors;
        std::vector<std::size_t> by_name;
        std::uint64_t bytes = 0;
        std::uint64_t mapped_bytes = 0;
    };

    /// By the first bytes; what is neither becomes an error of the GGUF reader.
    static WeightsFormat guess(std::span<const std::byte> bytes) noexcept {
        const bool safetensors = !detail::starts_like_gguf(bytes) && detail::starts_like_safetensors(bytes);
        return safetensors ? WeightsFormat::safetensors : WeightsFormat::gguf;
    }

    explicit Weights(std::shared_ptr<State> state) : state_(std::move(state)) {}

    static Result<void> read(std::span<const std::byte> bytes, WeightsFormat format, State& state);
    static Result<void> read_folder(const std::filesystem::path& path, State& state, const CallOptions& options);
    static Weights finish(std::shared_ptr<State> state);

    [[nodiscard]] const State& held() const noexcept {
        DECANT_ASSERT(state_ != nullptr);  // not after a move
        return *state_;
    }

    std::shared_ptr<const State> state_;
};

inline Result<Weights> Weights::open(const std::filesystem::path& path, CallOptions options) {
    auto state = std::make_shared<State>();
    state->name = detail::display(path);
    if (options.stopped()) return detail::cancelled(state->name);
    std::error_code failure;
    const detail::ErrnoGuard guard;
    if (std::filesystem::is_directory(path, failure)) {
        DECANT_CHECK(read_folder(path, *state, options));
        const std::uint64_t count = state->tensors.size();
        if (!options.go_on({count, count})) return detail::cancelled(state->name);
        return finish(std::move(state));
    }
    DECANT_TRY(Mapping mapping, Mapping::open(path));
    const auto bytes = mapping.bytes();
    state->mappings.push_back(std::move(mapping));
    const std::filesystem::path extension = path.extension();
    const WeightsFormat format = extension == ".gguf"          ? WeightsFormat::gguf
                                 : extension == ".safetensors" ? WeightsFormat::safetensors
                                                               : guess(bytes);
    if (auto done = read(bytes, format, *state); !done) return std::move(done).error().in(state->name);
    const std::uint64_t count = state->tensors.size();
    if (!options.go_on({count, count})) return detail::cancelled(state->name);
    return finish(std::move(state));
}

inline Result<void> Weights::warm_up(CallOptions options) const {
    constexpr std::size_t page = 4096, step = std::size_t{4} << 20;
    std::uint64_t done = 0;
    for (const Mapping& mapping : held().mappings) {
        const std::span<const std::byte> bytes = mapping.bytes();
        for (std::size_t first = 0; first < bytes.size(); first += step) {
            if (!options.go_on({done, mapped_bytes()})) return detail::cancelled(name());
            const std::size_t end = (std::min)(bytes.size(), first + step);
            mapping.prefetch(first, (std::min)(step, bytes.size() - first));
            for (std::size_t at = first; at < end; at += page)
                static_cast<void>(*static_cast<const volatile std::byte*>(&bytes[at]));
            done += end - first;
        }
    }
    if (!options.go_on({done, mapped_bytes()})) return detail::cancelled(name());
    return {};
}

inline Result<Weights> Weights::from_memory(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                            std::string name) {
    auto state = std::make_shared<State>();
    state->name = std::move(name);
    state->owner = std::move(owner);
    if (auto done = read(bytes, guess(bytes), *state); !done) return std::move(done).error().in(state->name);
    return finish(std::move(state));
}

inline Result<Weights> Weights::with_tensors(const Weights& source, std::vector<Tensor> tensors,
                                             std::shared_ptr<const void> owner, std::string name) {
    struct Owners {
        std::shared_ptr<const State> source;
        std::shared_ptr<const void> tensors;
    };
    auto state = std::make_shared<State>();
    state->name = std::move(name);
    state->owner = std::make_shared<const Owners>(Owners{source.state_, std::move(owner)});
    state->format = source.format();
    state->companions = source.held().companions;
    state->metadata = source.metadata();
    state->metadata.name_file(state->name);
    state->tensors = std::move(tensors);
    auto by_name = detail::index_by_name(state->tensors);
    if (!by_name) return std::move(by_name).error().in(state->name);
    state->by_name = *std::move(by_name);
    return finish(std::move(state));
}

inline Result<void> Weights::read(std::span<const std::byte> bytes, WeightsFormat format, State& state) {
    state.format = format;
    if (format == WeightsFormat::gguf) {
        DECANT_TRY(detail::GgufFile file, detail::read_gguf(bytes));
        state.metadata = std::move(file.metadata);
        state.metadata.name_file(state.name);
        state.tensors = std::move(file.tensors);
        state.by_name = std::move(file.by_name);
    } else {
        DECANT_TRY(detail::SafetensorsFile file, detail::read_safetensors(bytes));
        state.names = std::move(file.names);
        state.tensors = std::move(file.tensors);
        state.by_name = std::move(file.by_name);
    }
    return {};
}

inline Result<void> Weights::read_folder(const std::filesystem::path& path, State& state, const CallOptions& options) {
    DECANT_TRY(detail::FolderFiles files, detail::read_folder(path, options));
    state.mappings = std::move(files.mappings);
    state.names = std::move(files.names);
    state.tensors = std::move(files.tensors);
    auto by_name = detail::index_by_name(state.tensors);
    if (!by_name) return std::move(by_name).error().in(state.name);
    state.by_name = *std::move(by_name);
    state.format = WeightsFormat::folder;
    DECANT_TRY(auto companions, detail::read_companions(path));
    state.companions = std::make_shared<const std::vector<detail::Companion>>(std::move(companions));
    for (const detail::Companion& companion : *state.companions) {
        if (companion.name != "config.json") continue;
        DECANT_TRY(state.config,
                   detail::ConfigFile::read(companion.mapping.bytes(), detail::display(path / companion.name)));
        state.metadata = state.config.metadata;
    }
    return {};
}

inline Weights Weights::finish(std::shared_ptr<State> state) {
    for (const Tensor& tensor : state->tensors) state->bytes += tensor.bytes.size();
    for (const Mapping& mapping : state->mappings) state->mapped_bytes += mapping.bytes().size();
    return Weights(std::move(state));
}

}  // namespace decant::inline DECANT_ABI

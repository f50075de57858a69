// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `BlockPool`: the memory of a paged KV cache (Kwon et al. 2023) with room for recurrent states, and the count of who
/// uses each block and state.

#include <decant/cache/groups.hpp>
#include <decant/core/config.hpp>
#include <decant/core/dtype.hpp>
#include <decant/core/result.hpp>
#include <decant/core/specs.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Numbers from 0 on, each with a count of its users. One user may be a keeper, who gives it up when somebody else
/// needs one.
class SharedNumbers {
 public:
    explicit SharedNumbers(std::size_t count) : references_(count, 0), kept_(count, false) {
        free_.reserve(count);
        for (std::size_t number = count; number > 0; --number) free_.push_back(static_cast<std::int32_t>(number - 1));
    }

    [[nodiscard]] std::size_t size() const noexcept { return references_.size(); }
    [[nodiscard]] std::size_t available() const noexcept { return free_.size(); }
    /// A number with one reference. The caller has checked that one is free.
    [[nodiscard]] std::int32_t take() noexcept {
        DECANT_ASSERT(!free_.empty());
        const std::int32_t number = free_.back();
        free_.pop_back();
        references_[static_cast<std::size_t>(number)] = 1;
        return number;
    }
    void share(std::int32_t number) noexcept {
        const auto at = static_cast<std::size_t>(number);
        if (references_[at]++ == 1 && kept_[at]) --idle_;
    }
    /// Whether others than the caller use it, `ignored` of its references aside.
    [[nodiscard]] bool shared(std::int32_t number, std::uint32_t ignored = 0) const noexcept {
        return references_[static_cast<std::size_t>(number)] > 1 + ignored;
    }
    void release(std::int32_t number) noexcept {
        const auto at = static_cast<std::size_t>(number);
        const std::uint32_t left = --references_[at];
        if (left == 0) free_.push_back(number);  // within capacity
        if (left == 1 && kept_[at]) ++idle_;
    }

    /// `share` and `release` for the keeper.
    void keep(std::int32_t number) noexcept {
        DECANT_ASSERT(!kept_[static_cast<std::size_t>(number)]);
        share(number);
        kept_[static_cast<std::size_t>(number)] = true;
    }
    void give_up(std::int32_t number) noexcept {
        const auto at = static_cast<std::size_t>(number);
        kept_[at] = false;
        if (references_[at] == 1) --idle_;
        release(number);
    }
    /// That the keeper alone uses.
    [[nodiscard]] std::size_t idle() const noexcept { return idle_; }

 private:
    std::vector<std::uint32_t> references_;
    std::vector<bool> kept_;
    std::vector<std::int32_t> free_;  // a stack: what was released last is warm
    std::size_t idle_ = 0;
};

/// Whether a cache can have entries of a dtype.
[[nodiscard]] constexpr bool can_cache(DType dtype) noexcept {
    return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::q8_0 ||
           dtype == DType::q4_0;
}

/// Fixed blocks of `shape.block_tokens` tokens in one buffer of the backend, of all groups of layers alike. Not
/// thread-safe: one thread at a time.
template <class B>
class BlockPool {
 public:
    /// How many blocks hold `tokens` tokens, of all layers. Errors: `invalid_argument` for impossible sizes,
    /// `unsupported` for heads that the dtype's blocks do not divide, `out_of_memory` beyond the address space.
    [[nodiscard]] static Result<std::size_t> blocks_for(const CacheShape& shape, std::size_t tokens) {
        // A slot is a block times its tokens, plus an offset, in 31 bits.
        constexpr auto most = static_cast<std::size_t>((std::numeric_limits<std::int32_t>::max)());
        if (!can_cache(shape.dtype)) {
            return Error{ErrorCode::invalid_argument, detail::text("cache entries of ", name(shape.dtype)), "KvCache",
                         "use F32, F16, BF16, Q8_0 or Q4_0"};
        }
        const DTypeTraits layout = traits(shape.dtype);
        for (const CacheLayer& layer : shape.layers) {
            if (layer.head_dim % layout.block_elements == 0 && layer.key_skip % layout.block_elements == 0) continue;
            const std::uint32_t odd = layer.head_dim % layout.block_elements == 0 ? layer.key_skip : layer.head_dim;
            return Error{ErrorCode::unsupported,
                         detail::text("cache entries of ", layout.name, " for a model with heads of ", odd,
                                      " numbers, which is no multiple of ", layout.block_elements),
                         "KvCache", "use F16"};
        }
        const std::size_t groups = shape.group_count(), room = most / groups;
        if (shape.block_tokens == 0 || shape.block_tokens > room || tokens == 0 || tokens > room - shape.block_tokens) {
            return Error{ErrorCode::invalid_argument,
                         detail::text(tokens, " tokens in blocks of ", shape.block_tokens, " cannot be addressed"),
                         "KvCache",
                         detail::text("use blocks of 1 to ", room, " tokens, and fewer than ", room, " in all")};
        }
        const std::size_t blocks = (tokens + shape.block_tokens - 1) / shape.block_tokens;
        // Blocks of the dtype per token that the address space holds; subtracting layer by layer cannot wrap.
        std::size_t left =
            (std::numeric_limits<std::size_t>::max)() / 2 / blocks / shape.block_tokens / 2 / layout.block_bytes;
        for (const CacheLayer& layer : shape.layers) {
            const std::uint64_t row = std::uint64_t{layer.kv_heads} * (layer.head_dim / layout.block_elements);
            if (row > left) {
                return Error{
                    ErrorCode::out_of_memory,
                    detail::text(blocks, " blocks of ", shape.block_tokens, " tokens exceed the address space"),
                    "KvCache", "ask for fewer tokens"};
            }
            left -= static_cast<std::size_t>(row);
        }
        std::size_t floats = (std::numeric_limits<std::size_t>::max)() / 4 / sizeof(float);
        for (const CacheLayer& layer : shape.layers) {
            if (shape.states > 0 && layer.state > floats / shape.states) {
                return Error{ErrorCode::out_of_memory, detail::text(shape.states, " states exceed the address space"),
                             "KvCache", "ask for fewer sequences"};
            }
            floats -= shape.states * layer.state;
        }
        return blocks * groups;
    }

    /// Errors: those of `blocks_for`, `out_of_memory`.
    [[nodiscard]] static Result<BlockPool> create(const B& backend, CacheShape shape, std::size_t tokens) {
        DECANT_TRY(const std::size_t blocks, blocks_for(shape, tokens));
        DECANT_TRY(auto buffer, backend.allocate(shape.blocks_offset() + blocks * shape.block_bytes()));
        return BlockPool(backend, std::move(shape), std::move(buffer), blocks);
    }

    [[nodiscard]] const CacheShape& shape() const noexcept { return shape_; }
    [[nodiscard]] std::size_t blocks() const noexcept { return blocks_.size(); }
    [[nodiscard]] std::size_t free_blocks() const noexcept { return blocks_.available(); }
    /// Blocks that a sequence's table has at most, and groups of layers: tables of a sequence.
    [[nodiscard]] std::size_t table_blocks() const noexcept { return table_blocks_; }
    [[nodiscard]] std::size_t groups() const noexcept { return windows_.size(); }
    /// As `CacheShape::window`.
    [[nodiscard]] std::size_t window(std::size_t group) const noexcept { return windows_[group]; }
    [[nodiscard]] std::size_t bytes() const noexcept {
        return shape_.blocks_offset() + blocks() * shape_.block_bytes();
    }
    [[nodiscard]] typename B::Buffer& buffer() noexcept { return buffer_; }
    /// Who uses which state; of size 0 where layers keep none.
    [[nodiscard]] SharedNumbers& states() noexcept { return states_; }

    /// As `SharedNumbers` says.
    [[nodiscard]] std::int32_t take() noexcept { return blocks_.take(); }
    void share(std::int32_t block) noexcept { blocks_.share(block); }
    [[nodiscard]] bool shared(std::int32_t block, std::uint32_t ignored = 0) const noexcept {
        return blocks_.shared(block, ignored);
    }
    void release(std::int32_t block) noexcept { blocks_.release(block); }
    void keep(std::int32_t block) noexcept { blocks_.keep(block); }
    void give_up(std::int32_t block) noexcept { blocks_.give_up(block); }
    [[nodiscard]] std::size_t idle_blocks() const noexcept { return blocks_.idle(); }
    /// A private copy of a shared block, whose reference stays the caller's. The caller has checked that a block is
    /// free.
    [[nodiscard]] std::int32_t copy(std::int32_t block) {
        const std::int32_t made = take();
        backend_.copy(buffer_, block_offset(block), block_offset(made), shape_.block_bytes());
        return made;
    }

    /// Bytes of a block, from `offset` on, or a whole state, to and from the host's memory, outside of any pass.
    /// Errors: the backend's.
    [[nodiscard]] Result<void> read_block(std::int32_t block, std::size_t offset, std::span<std::byte> to) const {
        return backend_.read(buffer_, block_offset(block) + offset, to);
    }
    [[nodiscard]] Result<void> write_block(std::int32_t block, std::size_t offset, std::span<const std::byte> from) {
        return backend_.write(buffer_, block_offset(block) + offset, from);
    }
    [[nodiscard]] Result<void> read_state(std::int32_t state, std::span<std::byte> to) const {
        return backend_.read(buffer_, static_cast<std::size_t>(state) * shape_.state_bytes(), to);
    }
    [[nodiscard]] Result<void> write_state(std::int32_t state, std::span<const std::byte> from) {
        return backend_.write(buffer_, static_cast<std::size_t>(state) * shape_.state_bytes(), from);
    }

 private:
    BlockPool(const B& backend, CacheShape shape, typename B::Buffer buffer, std::size_t blocks)
        : backend_(backend),
          shape_(std::move(shape)),
          buffer_(std::move(buffer)),
          blocks_(blocks),
          states_(shape_.states),
          table_blocks_(detail::longest_table(shape_, blocks)) {
        for (std::uint32_t group = 0; group < shape_.group_count(); ++group) windows_.push_back(shape_.window(group));
    }

    [[nodiscard]] std::size_t block_offset(std::int32_t block) const {
        return shape_.blocks_offset() + static_cast<std::size_t>(block) * shape_.block_bytes();
    }

    B backend_;
    CacheShape shape_;
    typename B::Buffer buffer_;
    SharedNumbers blocks_;
    SharedNumbers states_;
    std::size_t table_blocks_;
    std::vector<std::size_t> windows_;  // [groups]
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `KvCache`: the keys and values of past tokens, so that decoding never computes them again.

#include <decant/cache/pool.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/specs.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace decant::inline DECANT_ABI {

struct CacheOptions {
    std::size_t tokens = 4096;        ///< of all sequences together, rounded up to whole blocks
    std::uint32_t block_tokens = 16;  ///< tokens per block
    DType dtype = DType::f16;         ///< F32 or F16
};

/// One pool of blocks that sequences draw from. Memory is reserved at construction and costs what is used of it. One
/// thread at a time. Sequences keep the pool alive, so the cache object may go first.
template <class B>
class KvCache {
 public:
    /// `source` is a `Context` or a `Model`: it says what its layers keep. If memory is refused, `sequence()` says so.
    template <class Source>
    explicit KvCache(const Source& source, CacheOptions options = {})
        : pool_(make(source.backend(), {source.spec().cache_layers(), options.block_tokens, options.dtype},
                     options.tokens)) {}

    /// An empty sequence. Errors: what the construction met (`out_of_memory`, `invalid_argument`).
    [[nodiscard]] Result<Sequence<B>> sequence() const {
        if (!pool_) return pool_.error();
        if (*pool_ == nullptr) {
            return Error{ErrorCode::invalid_argument, "a cache that was moved from", "KvCache",
                         "use the one it was moved to"};
        }
        return Sequence<B>(*pool_);
    }

    /// Bytes reserved, blocks in all, and blocks that no sequence uses; 0 if the construction failed.
    [[nodiscard]] std::size_t bytes() const noexcept { return pool_ && *pool_ ? (*pool_)->bytes() : 0; }
    [[nodiscard]] std::size_t blocks() const noexcept { return pool_ && *pool_ ? (*pool_)->blocks() : 0; }
    [[nodiscard]] std::size_t free_blocks() const noexcept { return pool_ && *pool_ ? (*pool_)->free_blocks() : 0; }

 private:
    static Result<std::shared_ptr<BlockPool<B>>> make(const B& backend, CacheShape shape, std::size_t tokens) {
        DECANT_TRY(auto pool, BlockPool<B>::create(backend, std::move(shape), tokens));
        return std::make_shared<BlockPool<B>>(std::move(pool));
    }

    Result<std::shared_ptr<BlockPool<B>>> pool_;
};

template <class Source>
explicit KvCache(const Source&, CacheOptions = {}) -> KvCache<typename Source::BackendType>;

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `KvCache`: the keys and values of past tokens, so that decoding never computes them again.

#include <decant/cache/groups.hpp>
#include <decant/cache/pool.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/specs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

struct CacheOptions {
    std::size_t tokens = 4096;        ///< of all sequences together, rounded up to whole blocks
    std::uint32_t block_tokens = 16;  ///< tokens per block
    DType dtype = DType::f16;         ///< F32, F16, BF16; Q8_0 or Q4_0 where heads are multiples of 32 numbers
    /// Where layers keep a state (Mamba): sequences with tokens at a time. Forks share theirs until one of them goes
    /// on.
    std::uint32_t sequences = 16;
    /// Whether layers with a window (Gemma, gpt-oss, Mistral) give back blocks that the window has passed, so that a
    /// long sequence takes less and may have more tokens than `tokens`. Going back far is then not possible:
    /// `Sequence::truncate` and `Context::erase` say what that means.
    bool forget_unseen = false;

    /// The layout of a cache of such layers. A pass reads a sequence's state and writes another one, and a prompt in
    /// chunks keeps the one before the prompt, too, so that a failure can bring it back.
    [[nodiscard]] CacheShape shape(std::vector<CacheLayer> layers) const {
        CacheShape made{std::move(layers), block_tokens, dtype};
        if (made.state_bytes() > 0) made.states = (std::min)(sequences, std::uint32_t{1} << 24) * 2 + 1;
        if (forget_unseen) made.groups = detail::group_by_window(made.layers);
        return made;
    }
};

/// One pool of blocks that sequences draw from. Memory is reserved at construction and costs what is used of it. One
/// thread at a time. Sequences keep the pool alive, so the cache object may go first.
template <class B>
class KvCache {
 public:
    /// `source` is a `Context` or a `Model`: it says what its layers keep. If memory is refused, `sequence()` says so.
    template <class Source>
    explicit KvCache(const Source& source, CacheOptions options = {})
        : pool_(make(source.backend(), options.shape(source.spec().cache_layers()), options.tokens)) {}

    /// An empty sequence. Errors: what the construction met (`out_of_memory`, `invalid_argument`, `unsupported`).
    [[nodiscard]] Result<Sequence<B>> sequence() const {
        if (!pool_) return pool_.error();
        if (*pool_ == nullptr) {
            return Error{ErrorCode::invalid_argument, "a cache that was moved from", "KvCache",
                         "use the one it was moved to"};
        }
        return Sequence<B>(*pool_);
    }

    /// Bytes reserved, blocks in all (of each group of layers, see `forget_unseen`, as many as `tokens` need), and
    /// blocks that no sequence uses; 0 if the construction failed.
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

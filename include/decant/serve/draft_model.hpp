// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `DraftModel`: a smaller model of the same vocabulary, which proposes what comes next (speculative decoding:
/// Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023).

#include <decant/cache/kv_cache.hpp>
#include <decant/cache/pool.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/model/context.hpp>
#include <decant/model/logits.hpp>
#include <decant/model/model.hpp>
#include <decant/sample/sampler.hpp>
#include <decant/serve/ask.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Works in rounds: `begin`, `want` for each answer, `advance` until it says so, `found`. A round is one pass that
/// brings the model up to the answers' tokens, as far as its rows go, and one pass for each further token of the
/// longest draft, with all answers in it. It picks as the answers' own samplers do, random numbers and penalties
/// included, so that a model which agrees is right in sampled answers, too.
///
/// Where its cache has no room or a pass fails there is no draft; nothing else depends on it.
template <Backend B>
class DraftModel {
 public:
    /// An answer.
    using Key = std::pair<AskId, std::uint32_t>;

    /// `rows`: tokens of one pass, at least `cache.sequences`. Errors: those of `KvCache`; `unsupported` for a model
    /// whose layers keep a state, which wrong drafts could not be taken back from.
    [[nodiscard]] static Result<DraftModel> create(Model<B> model, const AnyExecutor& executor,
                                                   const CacheOptions& cache, std::uint32_t rows) {
        CacheShape shape = cache.shape(model.spec().cache_layers());
        if (shape.states > 0) {
            return Error{ErrorCode::unsupported, "a draft model whose layers keep a state", "DraftModel",
                         "use one with attention in all layers"};
        }
        DECANT_TRY(auto pool, BlockPool<B>::create(model.backend(), std::move(shape), cache.tokens));
        return DraftModel(std::move(model), executor, {rows, cache.sequences, cache.sequences},
                          std::make_shared<BlockPool<B>>(std::move(pool)));
    }

    /// A new round; what is left of the last one is forgotten.
    void begin() noexcept {
        parts_.clear();
        wishes_.clear();
        rows_ = context_.options().rows;
    }

    /// Asks for a draft of `length` tokens after `tokens`, each answer once in a round. Returns whether one is to be
    /// expected: there is room, and what the model has not seen of `tokens` fits in this round (if not, it sees a
    /// part).
    bool want(Key key, std::span<const Token> tokens, std::size_t length, const Sampler& sampler) {
        if (wishes_.size() == context_.options().sequences || rows_ == 0 || length == 0 || tokens.empty()) return false;
        auto at = sequences_.find(key);
        if (at == sequences_.end()) {
            const std::size_t room = pool_->free_blocks() * pool_->shape().block_tokens;
            if (tokens.size() > room || length > room - tokens.size()) return false;
            at = sequences_.try_emplace(key, pool_).first;
        }
        Sequence<B>& sequence = at->second;
        const std::span<const Token> seen = std::as_const(sequence).tokens();
        const auto same = std::mismatch(seen.begin(), seen.end(), tokens.begin(), tokens.end()).first - seen.begin();
        sequence.truncate((std::min)(static_cast<std::size_t>(same), tokens.size() - 1));
        const std::span<const Token> missing = tokens.subspan(sequence.size());
        // All of it at once, or nothing: answers that each have half of what they need would wait for each other.
        if (!sequence.reserve(missing.size() + length - 1)) {
            sequences_.erase(at);
            return false;
        }
        const std::span<const Token> now = missing.first((std::min)(missing.size(), rows_));
        const bool complete = now.size() == missing.size();
        wishes_.push_back({key, &sequence, sampler, complete ? length : 0, {now.begin(), now.end()}, {}});
        rows_ -= now.size();
        return complete;
    }

    /// Goes on with the round as far as `limits` allow. Returns whether it is done. After an exception of the host's
    /// executor, begin again.
    [[nodiscard]] bool advance(RunLimits limits) {
        while (!parts_.empty() || begin_pass()) {
            if (context_.advance(limits) != RunState::finished) return false;
            const auto logits = context_.finish(parts_);
            if (!logits) {
                end_round();
                break;
            }
            parts_.clear();
            take(*logits);
        }
        return true;
    }

    /// What this round has found for an answer, at most what it wanted. Valid until the next `begin` or `release`.
    [[nodiscard]] std::span<const Token> found(Key key) const noexcept {
        const auto at = std::find_if(wishes_.begin(), wishes_.end(), [&](const Wish& wish) { return wish.key == key; });
        return at == wishes_.end() ? std::span<const Token>() : std::span<const Token>(at->found);
    }

    /// Gives the blocks of an answer back. A round under way ends with what it has found.
    void release(Key key) {
        const auto at = sequences_.find(key);
        if (at == sequences_.end()) return;
        if (!parts_.empty()) end_round();
        std::erase_if(wishes_, [&](const Wish& wish) { return wish.key == key; });
        sequences_.erase(at);
    }

    [[nodiscard]] std::size_t blocks() const noexcept { return pool_->blocks(); }
    [[nodiscard]] std::size_t free_blocks() const noexcept { return pool_->free_blocks(); }

 private:
    struct Wish {
        Key key;
        Sequence<B>* sequence;
        Sampler sampler;
        std::size_t length;       // 0: its tokens do not fit in this round
        std::vector<Token> next;  // of the next pass; none once it is done
        std::vector<Token> found;
    };

    DraftModel(Model<B> model, const AnyExecutor& executor, ContextOptions options, std::shared_ptr<BlockPool<B>> pool)
        : context_(std::move(model), executor, options), pool_(std::move(pool)) {}

    bool begin_pass() {
        for (const Wish& wish : wishes_)
            if (!wish.next.empty())
                parts_.push_back({wish.sequence, wish.next, wish.length > 0 ? Want::last : Want::none});
        if (parts_.empty()) return false;
        if (context_.begin(parts_)) return true;
        end_round();
        return false;
    }

    void take(const Logits& logits) {
        std::size_t row = 0;
        for (Wish& wish : wishes_) {
            if (wish.next.empty()) continue;
            wish.next.clear();
            if (wish.length == 0) continue;
            const auto token = wish.sampler.pick(logits.row(row++), std::as_const(*wish.sequence).tokens());
            if (!token) continue;
            wish.found.push_back(*token);
            if (wish.found.size() < wish.length) wish.next.push_back(*token);
        }
    }

    void end_round() noexcept {
        parts_.clear();
        for (Wish& wish : wishes_) wish.next.clear();
    }

    Context<B> context_;
    std::shared_ptr<BlockPool<B>> pool_;
    std::map<Key, Sequence<B>> sequences_;
    std::vector<Wish> wishes_;        // of this round
    std::size_t rows_ = 0;            // that its first pass has left
    std::vector<PassPart<B>> parts_;  // of the pass under way
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Model<B>`: a spec, its weights bound for a backend, and nothing that changes.

#include <decant/backend/concept.hpp>
#include <decant/core/config.hpp>
#include <decant/core/math_guard.hpp>
#include <decant/core/result.hpp>
#include <decant/files/weights.hpp>
#include <decant/model/bind.hpp>
#include <decant/model/families.hpp>
#include <decant/model/fingerprint.hpp>
#include <decant/model/forward.hpp>
#include <decant/model/spec.hpp>
#include <decant/model/weights_map.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace decant::inline DECANT_ABI {

/// A cheap shared handle, const after binding: any number of threads and contexts may use one model. Keeps the
/// `Weights` (and so the mapped file) alive; copies none of them. References that it gives live as long as it or a
/// copy.
template <Backend B>
class Model {
 public:
    using BackendType = B;

    /// Reads the architecture from the file's metadata and finds its tensors. Errors: `missing` (key or tensor),
    /// `mismatch` (a shape that contradicts the metadata), `unsupported` (architecture, option, dtype, left-over
    /// tensor).
    [[nodiscard]] static Result<Model> bind(const Weights& weights, B backend = {}) {
        const detail::MathGuard guard;  // rope frequencies are computed here
        auto state = bind_state(weights, std::move(backend));
        if (!state) {
            const bool named = state.error().where.starts_with(weights.name());  // by the file's own lookup
            return named ? std::move(state).error() : std::move(state).error().in(weights.name());
        }
        return Model(*std::move(state));
    }

    [[nodiscard]] const ModelSpec& spec() const noexcept {
        DECANT_ASSERT(state_ != nullptr);
        return state_->spec;
    }
    [[nodiscard]] const B& backend() const noexcept {
        DECANT_ASSERT(state_ != nullptr);
        return state_->backend;
    }
    [[nodiscard]] const Weights& weights() const noexcept {
        DECANT_ASSERT(state_ != nullptr);
        return state_->file;
    }

    /// What decides the meaning of this model's cached keys and values, as a number (see model/fingerprint.hpp).
    /// Computed when first asked for: it reads a sample of all weights.
    [[nodiscard]] std::uint64_t fingerprint() const {
        DECANT_ASSERT(state_ != nullptr);
        std::uint64_t known = state_->fingerprint.load(std::memory_order_relaxed);
        if (known == 0) {  // whoever comes at the same time computes the same
            known = decant::fingerprint(state_->spec, state_->file);
            state_->fingerprint.store(known, std::memory_order_relaxed);
        }
        return known;
    }

    /// Enqueue the forward pass, and the move of cached rows; used by `Context`.
    void record(typename B::Pass& pass, const Workspace<B>& work, std::uint32_t best) const {
        forward<B>(pass, state_->spec, state_->weights, work, best);
    }
    void record_move(typename B::Pass& pass, const Workspace<B>& work) const {
        move_rows<B>(pass, state_->spec, state_->weights, work);
    }

 private:
    struct State {
        State(const Weights& from, B on, ModelSpec what, ModelWeights<typename B::Weight> bound)
            : file(from), backend(std::move(on)), spec(std::move(what)), weights(std::move(bound)) {}
        Weights file;
        B backend;
        ModelSpec spec;
        ModelWeights<typename B::Weight> weights;
        mutable std::atomic<std::uint64_t> fingerprint{0};  // 0 = not yet known
    };

    static Result<std::shared_ptr<const State>> bind_state(const Weights& weights, B backend) {
        DECANT_TRY(ModelSpec spec, read_spec(weights));
        DECANT_TRY(auto bound, bind_weights(weights, backend, spec));
        return std::shared_ptr<const State>(
            std::make_shared<State>(weights, std::move(backend), std::move(spec), std::move(bound)));
    }

    explicit Model(std::shared_ptr<const State> state) : state_(std::move(state)) {}

    std::shared_ptr<const State> state_;
};

}  // namespace decant::inline DECANT_ABI

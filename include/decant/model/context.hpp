// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Context`: the workspace and the threads of one caller. Runs passes over a model.

#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/result.hpp>
#include <decant/core/stop.hpp>
#include <decant/core/token.hpp>
#include <decant/model/logits.hpp>
#include <decant/model/model.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Capacities of a context; its workspace is sized by them and touched only as far as passes use it.
struct ContextOptions {
    std::uint32_t rows = 512;      ///< tokens in one pass; longer prompts are prefilled in chunks of this size
    std::uint32_t sequences = 16;  ///< sequences in one pass
    std::uint32_t logits = 16;     ///< rows of logits that one pass may return
};

/// Which logits a part of a pass wants.
enum class Want : std::uint8_t {
    none,
    last,  ///< of its last token: what decoding needs
    all,   ///< of every token: for scoring a text
};

/// New tokens of one sequence.
template <class B>
struct PassPart {
    Sequence<B>* sequence = nullptr;
    std::span<const Token> tokens;
    Want want = Want::last;
};

/// Work on one model by one caller at a time. Movable. A failed or cancelled call leaves every sequence as it was.
template <class B>
class Context {
 public:
    using BackendType = B;
    using Part = PassPart<B>;

    /// Runs on the calling thread.
    explicit Context(Model<B> model, ContextOptions options = {})
        : Context(std::move(model), SerialExecutor{}, options) {}

    /// Runs on an executor: a temporary is owned, an lvalue referred to (it must outlive the context).
    template <class E>
    requires(Executor<std::remove_cvref_t<E>>) Context(Model<B> model, E&& executor, ContextOptions options = {})
        : state_(std::make_unique<State>(std::move(model), AnyExecutor(std::forward<E>(executor)), options)) {}

    [[nodiscard]] const Model<B>& model() const noexcept { return state_->model; }
    [[nodiscard]] const ModelSpec& spec() const noexcept { return state_->model.spec(); }
    [[nodiscard]] const B& backend() const noexcept { return state_->model.backend(); }
    [[nodiscard]] const ContextOptions& options() const noexcept { return state_->options; }

    /// Appends a prompt (at least one token) and returns the logits after its last token. Limited by arithmetic.
    /// Errors: `invalid_argument` (empty, or a token outside the vocabulary), `cache_full`, `out_of_memory`,
    /// `cancelled`.
    [[nodiscard]] Result<Logits> prefill(Sequence<B>& sequence, std::span<const Token> tokens,
                                         const StopFlag* stop = nullptr) {
        if (tokens.empty()) return invalid("a prompt without tokens", "pass at least one token");
        const auto before = sequence.mark();
        const std::size_t chunk = state_->options.rows;
        DECANT_CHECK(sequence.reserve(tokens.size()));
        for (; tokens.size() > chunk; tokens = tokens.subspan(chunk)) {
            auto part = pass({{&sequence, tokens.first(chunk), Want::none}}, stop);
            if (!part) {
                sequence.restore(before);
                return part;
            }
        }
        auto logits = pass({{&sequence, tokens, Want::last}}, stop);
        if (!logits) sequence.restore(before);
        return logits;
    }

    /// Appends one token and returns the logits after it. Limited by the bytes of the weights. Errors as `prefill`.
    [[nodiscard]] Result<Logits> decode(Sequence<B>& sequence, Token token, const StopFlag* stop = nullptr) {
        return pass({{&sequence, {&token, 1}, Want::last}}, stop);
    }

    /// One run over the weights for any number of different sequences of one cache, each with one or more new tokens.
    /// Logits come in the order of the parts. Errors: as `prefill`, and `invalid_argument` beyond the context's
    /// options.
    [[nodiscard]] Result<Logits> pass(std::span<const Part> parts, const StopFlag* stop = nullptr) {
        DECANT_CHECK(begin(parts));
        if (advance({.stop = stop}) == RunState::stopped) {
            state_->restore(parts);
            return Error{ErrorCode::cancelled, "the host asked to stop", "pass", {}};
        }
        auto logits = finish(parts);
        if (!logits) state_->restore(parts);
        return logits;
    }
    [[nodiscard]] Result<Logits> pass(std::initializer_list<Part> parts, const StopFlag* stop = nullptr) {
        return pass(std::span<const Part>(parts.begin(), parts.size()), stop);
    }

    /// The three steps of `pass`, for hosts that spread one over several frames: `begin`, then `advance` until it says
    /// finished, then `finish` with the same parts. Sequences change in `finish` alone; a pass that is not finished is
    /// forgotten by the next `begin`, and the room it reserved goes back with `truncate`. In between, the parts'
    /// sequences must not be used.
    [[nodiscard]] Result<void> begin(std::span<const Part> parts) {
        DECANT_CHECK(state_->validate(parts));
        DECANT_CHECK(state_->reserve(parts));
        BlockPool<B>& pool = parts.front().sequence->pool();
        if (auto ready = state_->prepare(static_cast<std::uint32_t>(pool.blocks())); !ready) {
            state_->restore(parts);
            return ready;
        }
        state_->fill(parts, pool.shape().block_tokens);
        backend().upload(*state_->pass, state_->inputs, pool.buffer(), pool.shape());
        ++state_->generation;
        return {};
    }
    [[nodiscard]] RunState advance(RunLimits limits = {}) { return state_->pass->run(state_->executor, limits); }
    [[nodiscard]] Result<Logits> finish(std::span<const Part> parts) {
        DECANT_TRY(const auto values,
                   backend().wait(backend().download(state_->work->logits, state_->inputs.wanted_rows)));
        for (const Part& part : parts) part.sequence->append(part.tokens);
        return Logits(values, spec().vocabulary, &state_->generation);
    }

    /// Bytes reserved for activations and kernels' scratch; 0 before the first pass.
    [[nodiscard]] std::size_t workspace_bytes() const noexcept {
        return state_->pass ? state_->buffer_bytes + state_->pass->workspace_bytes() : 0;
    }

 private:
    static Error invalid(std::string what, std::string hint) {
        return Error{ErrorCode::invalid_argument, std::move(what), "pass", std::move(hint)};
    }

    struct State {
        State(Model<B> bound, AnyExecutor lent, ContextOptions wanted)
            : model(std::move(bound)),
              executor(std::move(lent)),
              options(wanted),
              cache_layers(model.spec().cache_layers()) {
            options.rows = (std::max)(options.rows, 1u);
            options.sequences = (std::max)(options.sequences, 1u);
            options.logits = (std::max)(options.logits, 1u);
        }

        /// Makes room in every sequence, or in none.
        Result<void> reserve(std::span<const Part> parts) {
            marks.clear();
            for (const Part& part : parts) {
                marks.push_back(part.sequence->mark());
                if (auto room = part.sequence->reserve(part.tokens.size()); !room) {
                    restore(parts);
                    return room;
                }
            }
            return {};
        }
        void restore(std::span<const Part> parts) noexcept {
            for (std::size_t i = 0; i < marks.size(); ++i) parts[i].sequence->restore(marks[i]);
        }

        Result<void> validate(std::span<const Part> parts) const {
            if (parts.empty()) return invalid("a pass without parts", "pass at least one sequence");
            if (parts.size() > options.sequences) {
                return invalid(
                    detail::text(parts.size(), " sequences in one pass, the context holds ", options.sequences),
                    "raise ContextOptions::sequences");
            }
            std::size_t rows = 0;
            std::size_t wanted = 0;
            for (const Part& part : parts) {
                if (part.sequence == nullptr) return invalid("a part without a sequence", "set PassPart::sequence");
                if (part.tokens.empty()) return invalid("a part without tokens", "pass at least one token");
                if (&part.sequence->pool() != &parts.front().sequence->pool())
                    return invalid("sequences of different caches", "use one pass per cache");
                for (const Part* other = parts.data(); other != &part; ++other) {
                    if (other->sequence == part.sequence)
                        return invalid("one sequence twice in a pass", "join its tokens in one part");
                }
                for (const Token token : part.tokens) {
                    if (id(token) < 0 || static_cast<std::uint32_t>(id(token)) >= model.spec().vocabulary) {
                        return invalid(detail::text("token ", id(token), " is outside the vocabulary of ",
                                                    model.spec().vocabulary),
                                       "use the tokenizer of this model");
                    }
                }
                rows += part.tokens.size();
                wanted += part.want == Want::all ? part.tokens.size() : part.want == Want::last ? 1 : 0;
            }
            const CacheShape& cache = parts.front().sequence->pool().shape();
            if (cache.layers != cache_layers)
                return invalid("a cache made for another model", "make the KvCache from this context");
            if (rows > options.rows) {
                return invalid(detail::text(rows, " tokens in one pass, the context holds ", options.rows),
                               "raise ContextOptions::rows or split the prompt");
            }
            if (wanted > options.logits) {
                return invalid(detail::text(wanted, " rows of logits in one pass, the context holds ", options.logits),
                               "raise ContextOptions::logits");
            }
            return {};
        }

        /// Reserves and records at the first pass, and again when a cache has longer block tables.
        Result<void> prepare(std::uint32_t table_blocks) {
            if (pass && shape.table >= table_blocks) return {};
            constexpr std::uint64_t most = std::uint64_t{1} << 28;
            if ((std::max)(options.rows, options.logits) > most ||
                std::uint64_t{options.sequences} * table_blocks > most) {
                return Error{ErrorCode::out_of_memory,
                             detail::text("a context for ", options.rows, " tokens, ", options.sequences,
                                          " sequences and ", options.logits, " rows of logits"),
                             "pass", "lower the ContextOptions"};
            }
            const ModelSpec& spec = model.spec();
            const PassShape fresh{options.rows, options.sequences, options.logits, table_blocks};
            buffer_bytes = Workspace<B>::floats(spec, fresh) * sizeof(float);
            pass.reset();
            DECANT_TRY(buffer, model.backend().allocate(buffer_bytes));
            work.emplace(model.backend(), buffer, spec, fresh);
            auto made =
                std::unique_ptr<typename B::Pass>(new typename B::Pass(model.backend().pass(executor.concurrency())));
            DECANT_CHECK(made->reserve(fresh, widest_input(spec)));
            made->record([&](typename B::Pass& recorder) { model.record(recorder, *work); });
            shape = fresh;
            tokens.resize(shape.rows);
            positions.resize(shape.rows);
            sequences.resize(shape.rows);
            cache_slots.resize(shape.rows);
            wanted.resize(shape.wanted);
            tables.assign(std::size_t{shape.sequences} * shape.table, -1);
            pass = std::move(made);
            return {};
        }

        void fill(std::span<const Part> parts, std::uint32_t block_tokens) {
            std::uint32_t row = 0;
            std::uint32_t logit = 0;
            for (std::size_t s = 0; s < parts.size(); ++s) {
                const Part& part = parts[s];
                const std::span<const std::int32_t> table = part.sequence->table();
                std::copy(table.begin(), table.end(), tables.begin() + static_cast<std::ptrdiff_t>(s * shape.table));
                for (std::size_t i = 0; i < part.tokens.size(); ++i, ++row) {
                    const std::size_t position = part.sequence->size() + i;
                    tokens[row] = id(part.tokens[i]);
                    positions[row] = static_cast<std::int32_t>(position);
                    sequences[row] = static_cast<std::int32_t>(s);
                    cache_slots[row] = static_cast<std::int32_t>(
                        static_cast<std::size_t>(table[position / block_tokens]) * block_tokens +
                        position % block_tokens);
                    const bool last = i + 1 == part.tokens.size();
                    if (part.want == Want::all || (part.want == Want::last && last))
                        wanted[logit++] = static_cast<std::int32_t>(row);
                }
            }
            const auto pad = [](std::vector<std::int32_t>& values, std::uint32_t used) {
                std::fill(values.begin() + used, values.end(), -1);
            };
            for (auto* values : {&tokens, &positions, &sequences, &cache_slots}) pad(*values, row);
            pad(wanted, logit);
            inputs = {row, logit, tokens, positions, sequences, cache_slots, tables, wanted};
        }

        Model<B> model;
        AnyExecutor executor;
        ContextOptions options;
        std::vector<CacheLayer> cache_layers;
        PassShape shape;
        typename B::Buffer buffer;
        std::size_t buffer_bytes = 0;
        std::optional<Workspace<B>> work;
        std::unique_ptr<typename B::Pass> pass;
        std::vector<std::int32_t> tokens, positions, sequences, cache_slots, tables, wanted;
        std::vector<typename Sequence<B>::Mark> marks;  // of the parts, before the pass
        PassInputs inputs;
        std::uint64_t generation = 0;
    };

    std::unique_ptr<State> state_;
};

template <class B>
explicit Context(Model<B>, ContextOptions = {}) -> Context<B>;
template <class B, class E>
Context(Model<B>, E&&, ContextOptions = {}) -> Context<B>;

}  // namespace decant::inline DECANT_ABI

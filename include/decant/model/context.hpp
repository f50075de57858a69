// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Context`: the workspace and the threads of one caller. Runs passes over a model.

#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/progress.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/model/logits.hpp>
#include <decant/model/model.hpp>
#include <decant/model/workspace.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Capacities of a context; its workspace is sized by them and touched only as far as passes use it.
struct ContextOptions {
    std::uint32_t rows = 512;      ///< tokens in one pass; longer prompts are prefilled in chunks of this size
    std::uint32_t sequences = 16;  ///< sequences in one pass
    std::uint32_t logits = 16;     ///< rows of logits that one pass may return
    std::uint32_t best = 0;        ///< tokens per row that `best` hands over, at most 1024; 0 = it is not used
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
    std::span<const Token> tokens = {};
    Want want = Want::last;

    // What `Context::best` weighs in each wanted row before it compares.
    std::span<const LogitAdjustment> adjustments = {};  ///< sorted by token, each token once
    std::span<const std::uint32_t> allowed = {};        ///< [(vocabulary + 31) / 32] a bit per token; empty = all
};

namespace detail {

/// Whether all are of the vocabulary. Errors: `invalid_argument`.
[[nodiscard]] inline Result<void> check_tokens(std::span<const Token> tokens, std::uint32_t vocabulary,
                                               std::string_view where) {
    for (const Token token : tokens) {
        if (id(token) < 0 || static_cast<std::uint32_t>(id(token)) >= vocabulary) {
            return Error{ErrorCode::invalid_argument,
                         text("token ", id(token), " is outside the vocabulary of ", vocabulary), std::string(where),
                         "use the tokenizer of this model"};
        }
    }
    return {};
}

}  // namespace detail

/// Work on one model by one caller at a time. Movable. A call that fails, is cancelled or ends by an exception of the
/// host's callbacks leaves every sequence as it was; what `cancelled` interrupted can be asked again and gives the same
/// bits. References that it gives live as long as it; `Logits` until its next pass.
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
    requires(std::constructible_from<AnyExecutor, E>) Context(Model<B> model, E&& executor, ContextOptions options = {})
        : state_(std::make_unique<State>(std::move(model), AnyExecutor(std::forward<E>(executor)), options)) {}

    [[nodiscard]] const Model<B>& model() const noexcept {
        DECANT_ASSERT(state_ != nullptr);
        return state_->model;
    }
    [[nodiscard]] const ModelSpec& spec() const noexcept { return model().spec(); }
    [[nodiscard]] const B& backend() const noexcept { return model().backend(); }
    [[nodiscard]] const ContextOptions& options() const noexcept {
        DECANT_ASSERT(state_ != nullptr);
        return state_->options;
    }

    /// Appends a prompt (at least one token) and returns the logits after its last token. Limited by arithmetic.
    /// Progress is in steps of passes. Errors: `invalid_argument` (empty, or a token outside the vocabulary),
    /// `cache_full`, `out_of_memory`, `cancelled`.
    [[nodiscard]] Result<Logits> prefill(Sequence<B>& sequence, std::span<const Token> tokens,
                                         CallOptions options = {}) {
        DECANT_ASSERT(state_ != nullptr);
        if (tokens.empty()) return invalid("a prompt without tokens", "pass at least one token");
        if (!sequence.attached()) return invalid("a sequence that was moved from", "use the one it was moved to");
        if (state_->options.rows == 0) return no_capacity();
        const std::size_t chunk = state_->options.rows;
        const std::uint64_t chunks = (tokens.size() - 1) / chunk + 1;
        std::uint64_t chunks_done = 0;
        const auto scaled = [&](Progress progress) {
            return options.progress({chunks_done * progress.total + progress.done, chunks * progress.total});
        };
        const CallOptions each{options.stop, options.progress ? ProgressRef(scaled) : ProgressRef()};

        Undo undo(sequence);
        DECANT_CHECK(sequence.make_room(tokens.size(), chunk));
        for (; tokens.size() > chunk; tokens = tokens.subspan(chunk), ++chunks_done) {
            DECANT_TRY(const auto nothing, pass({{&sequence, tokens.first(chunk), Want::none}}, each));
            static_cast<void>(nothing);
        }
        auto logits = pass({{&sequence, tokens, Want::last}}, each);
        if (logits) undo.dismiss();
        return logits;
    }

    /// Appends one token and returns the logits after it. Limited by the bytes of the weights. Errors as `prefill`.
    [[nodiscard]] Result<Logits> decode(Sequence<B>& sequence, Token token, CallOptions options = {}) {
        return pass({{&sequence, {&token, 1}, Want::last}}, options);
    }

    /// One run over the weights for any number of different sequences of one cache, each with one or more new tokens.
    /// Logits come in the order of the parts. Errors: as `prefill`, and `invalid_argument` beyond the context's
    /// options.
    [[nodiscard]] Result<Logits> pass(std::span<const Part> parts, CallOptions options = {}) {
        return run(parts, options, false, [&] { return logits(parts); });
    }
    [[nodiscard]] Result<Logits> pass(std::initializer_list<Part> parts, CallOptions options = {}) {
        return pass(std::span<const Part>(parts.begin(), parts.size()), options);
    }

    /// As `pass`, but hands over only the `ContextOptions::best` best tokens of every wanted row: k pairs instead of a
    /// vocabulary of logits, which never leave a device. Errors: as `pass`, and `invalid_argument` for a context
    /// without `best`, adjustments that are not sorted or not of the vocabulary, or a mask of another size.
    [[nodiscard]] Result<BestRows> best(std::span<const Part> parts, CallOptions options = {}) {
        DECANT_ASSERT(state_ != nullptr);
        DECANT_CHECK(state_->validate_pick(parts));
        return run(parts, options, true, [&]() -> Result<BestRows> {
            const std::uint32_t columns = state_->work->best_columns;
            DECANT_TRY(const auto values,
                       backend().wait(backend().download(state_->work->best, state_->inputs.wanted_rows)));
            append(parts);
            return BestRows({values, columns, &state_->generation});
        });
    }
    [[nodiscard]] Result<BestRows> best(std::initializer_list<Part> parts, CallOptions options = {}) {
        return best(std::span<const Part>(parts.begin(), parts.size()), options);
    }

    /// Forgets `count` tokens from position `first` on and closes the gap: later tokens move down, and their keys turn
    /// to their new positions (rounded again to the cache's dtype), while their values stay what they were when the
    /// forgotten tokens could be seen (context shift: Xiao et al., "Efficient Streaming Language Models with Attention
    /// Sinks", 2023). So the result is not that of a prompt without them. Errors: `invalid_argument` for a range
    /// outside the sequence, `cache_full` if shared blocks cannot be copied, `out_of_memory`, `unsupported` where
    /// layers keep a state or windows would then see what `CacheOptions::forget_unseen` has given up (they do not,
    /// unless the range ends within the last window or hardly more than a window is left); then nothing has changed. An
    /// exception of the host's executor leaves the tokens before `first`, as far as `Sequence::truncate` can.
    [[nodiscard]] Result<void> erase(Sequence<B>& sequence, std::size_t first, std::size_t count) {
        DECANT_ASSERT(state_ != nullptr);
        const auto invalid = [](std::string what, std::string hint) {
            return Error{ErrorCode::invalid_argument, std::move(what), "erase", std::move(hint)};
        };
        if (!sequence.attached()) return invalid("a sequence that was moved from", "use the one it was moved to");
        if (first > sequence.size() || count > sequence.size() - first) {
            return invalid(
                detail::text("a range of ", count, " tokens from ", first, " on in a sequence of ", sequence.size()),
                "erase tokens that are there");
        }
        if (state_->options.rows == 0) return no_capacity();
        if (sequence.pool().states().size() > 0) {
            return Error{ErrorCode::unsupported, "a model whose layers keep a state", "erase",
                         "prefill a sequence without these tokens"};
        }
        const std::size_t size = sequence.size() - count;
        if (count == 0) return {};
        state_->begun.clear();
        if (first == size) {
            sequence.truncate(size);
            return {};
        }
        BlockPool<B>& pool = sequence.pool();
        DECANT_CHECK(state_->check_cache(sequence));
        DECANT_CHECK(state_->prepare(pool));
        state_->prepare_move();
        DECANT_CHECK(sequence.open_gap(first, count));
        Cut cut(sequence, first);
        for (std::size_t row = first; row < size;) {
            const std::size_t rows = (std::min)(size - row, std::size_t{state_->options.rows});
            state_->fill_move(sequence, row, rows, count);
            backend().upload(*state_->pass, state_->inputs, pool.buffer(), pool.shape());
            if (state_->pass->run(state_->executor, {}) != RunState::finished) return tasks_left();
            row += rows;
        }
        DECANT_CHECK(backend().wait(backend().download(state_->work->stream, 0)));  // errors surface here
        cut.dismiss();
        ++state_->generation;
        sequence.close_gap(first, count);
        return {};
    }

    /// The three steps of `pass`, for hosts that spread one over several frames: `begin`, then `advance` until it says
    /// finished, then `finish` with the same parts. Sequences change in `finish` alone; a pass that is not finished is
    /// forgotten by the next call of another member, and the room it reserved goes back with `truncate`. In between,
    /// the parts' sequences must not be used. After an exception of the host's executor or progress callback, begin
    /// again.
    [[nodiscard]] Result<void> begin(std::span<const Part> parts) {
        DECANT_ASSERT(state_ != nullptr);
        state_->begun.clear();
        DECANT_CHECK(state_->validate(parts));
        Undo undo(*state_, parts);
        DECANT_CHECK(start(parts, false));
        undo.dismiss();
        state_->remember(parts);
        return {};
    }
    /// Without a pass that was begun there is nothing to do: `finished`, and `finish` says so. Limits of time are kept
    /// as `RunLimits` says: each call computes something.
    [[nodiscard]] RunState advance(RunLimits limits = {}) {
        DECANT_ASSERT(state_ != nullptr);
        if (state_->begun.empty()) return RunState::finished;
        const RunState reached = state_->pass->run(state_->executor, limits);
        state_->finished = reached == RunState::finished;
        return reached;
    }
    /// Errors: `invalid_argument` if `advance` has not finished a pass of just these parts; those of the device.
    [[nodiscard]] Result<Logits> finish(std::span<const Part> parts) {
        DECANT_ASSERT(state_ != nullptr);
        if (!state_->finished || !state_->remembers(parts))
            return invalid("no finished pass of these parts", "call begin, and advance until it says finished");
        state_->begun.clear();
        return logits(parts);
    }

    /// `ContextOptions::sequences` times the blocks in the tables of the longest sequence is at most this.
    static constexpr std::uint64_t most_table_entries = std::uint64_t{1} << 28;

    /// Bytes reserved for activations and kernels' scratch; 0 before the first pass.
    [[nodiscard]] std::size_t workspace_bytes() const noexcept {
        DECANT_ASSERT(state_ != nullptr);
        return state_->pass ? state_->buffer_bytes + state_->pass->workspace_bytes() : 0;
    }

 private:
    struct State;
    friend struct MemoryPlan;

    static PassShape shape_for(const ContextOptions& options, std::size_t table_blocks, std::size_t groups) noexcept {
        return {options.rows,
                options.sequences,
                options.logits,
                static_cast<std::uint32_t>(table_blocks),
                (std::min)(options.best, State::most_best),
                static_cast<std::uint32_t>(groups)};
    }
    /// How many threads scratch memory is reserved for: an executor's word is a hint.
    static constexpr std::size_t pass_participants(std::size_t concurrency) noexcept {
        return (std::min)((std::max)(concurrency, std::size_t{1}), std::size_t{1024});
    }
    static Error invalid(std::string what, std::string hint) {
        return Error{ErrorCode::invalid_argument, std::move(what), "pass", std::move(hint)};
    }
    static Error no_capacity() {
        return invalid("a context whose rows, sequences or logits are 0", "set the ContextOptions to at least 1");
    }

    static Error tasks_left() {
        return invalid("the executor left tasks undone", "parallel_for must call every task before it returns");
    }

    /// Brings sequences back to what they were, unless dismissed: on an error's way out and on an exception's.
    class Undo {
     public:
        explicit Undo(Sequence<B>& sequence) noexcept : sequence_(&sequence), mark_(sequence.mark()) {
            sequence.hold();
        }
        Undo(State& state, std::span<const Part> parts) : state_(&state), parts_(parts) { state.mark(parts); }
        Undo(const Undo&) = delete;
        Undo& operator=(const Undo&) = delete;
        ~Undo() {
            if (sequence_ != nullptr) sequence_->let_go(), sequence_->restore(mark_);
            if (state_ != nullptr) state_->restore(parts_);
        }
        void dismiss() noexcept {
            if (Sequence<B>* sequence = std::exchange(sequence_, nullptr))
                sequence->let_passed_go(), sequence->accept(mark_);
            if (State* state = std::exchange(state_, nullptr)) state->accept(parts_);
        }

     private:
        Sequence<B>* sequence_ = nullptr;
        typename Sequence<B>::Mark mark_;
        State* state_ = nullptr;
        std::span<const Part> parts_;
    };

    /// Cuts a sequence whose rows are being moved, unless dismissed.
    class Cut {
     public:
        Cut(Sequence<B>& sequence, std::size_t size) noexcept : sequence_(&sequence), size_(size) {}
        Cut(const Cut&) = delete;
        Cut& operator=(const Cut&) = delete;
        ~Cut() {
            if (sequence_ != nullptr) sequence_->truncate(size_);
        }
        void dismiss() noexcept { sequence_ = nullptr; }

     private:
        Sequence<B>* sequence_;
        std::size_t size_;
    };

    static void append(std::span<const Part> parts) {
        for (const Part& part : parts) part.sequence->append(part.tokens);
    }

    /// Makes room, records if need be, and uploads. The caller has validated the parts and undoes what fails.
    Result<void> start(std::span<const Part> parts, bool picks) {
        DECANT_CHECK(state_->make_room(parts));
        BlockPool<B>& pool = parts.front().sequence->pool();
        DECANT_CHECK(state_->prepare(pool));
        state_->fill(parts, picks);
        backend().upload(*state_->pass, state_->inputs, pool.buffer(), pool.shape());
        ++state_->generation;
        return {};
    }

    /// A whole pass, whose results `finish` fetches.
    template <class Finish>
    auto run(std::span<const Part> parts, const CallOptions& options, bool picks, Finish finish) -> decltype(finish()) {
        DECANT_ASSERT(state_ != nullptr);
        state_->begun.clear();
        DECANT_CHECK(state_->validate(parts));
        Undo undo(*state_, parts);
        DECANT_CHECK(start(parts, picks));
        if (state_->pass->run(state_->executor, {.stop = options.stop, .progress = options.progress}) ==
            RunState::stopped) {
            if (options.stopped() || options.progress) return detail::cancelled("pass");
            return tasks_left();
        }
        auto results = finish();
        if (results) undo.dismiss();
        return results;
    }

    Result<Logits> logits(std::span<const Part> parts) {
        DECANT_TRY(const auto values,
                   backend().wait(backend().download(state_->work->logits, state_->inputs.wanted_rows)));
        append(parts);
        return Logits({values, spec().vocabulary, &state_->generation});
    }

    struct State {
        // Selecting more than this is no longer cheaper than copying the row.
        static constexpr std::uint32_t most_best = 1024;
        // Room per row that is taken at once; more grows.
        static constexpr std::size_t usual_adjustments = 256;

        State(Model<B> bound, const AnyExecutor& lent, ContextOptions wanted)
            : model(std::move(bound)), executor(lent), options(wanted), cache_layers(model.spec().cache_layers()) {}

        /// Remembers the parts' sequences for `restore`.
        void mark(std::span<const Part> parts) {
            marks.resize(parts.size());
            for (std::size_t i = 0; i < parts.size(); ++i) marks[i] = parts[i].sequence->mark();
        }
        void restore(std::span<const Part> parts) noexcept {
            for (std::size_t i = 0; i < parts.size(); ++i) parts[i].sequence->restore(marks[i]);
        }
        void accept(std::span<const Part> parts) noexcept {
            for (std::size_t i = 0; i < parts.size(); ++i) parts[i].sequence->accept(marks[i]);
        }
        /// Forks of one block, all in this pass, need one copy less than there are forks.
        Result<void> make_room(std::span<const Part> parts) {
            for (const Part& part : parts) {
                const auto kept = [&](std::size_t group) {
                    std::uint32_t count = 0;
                    for (const Part* other = parts.data(); other != &part; ++other)
                        count += part.sequence->kept_by(*other->sequence, group) ? 1 : 0;
                    return count;
                };
                DECANT_CHECK(part.sequence->make_room(part.tokens.size(), part.tokens.size(), kept));
                DECANT_CHECK(part.sequence->make_state());
            }
            return {};
        }

        /// The parts of `begin`, as far as `finish` must be given the same.
        struct Begun {
            const Sequence<B>* sequence;
            std::size_t size;
            std::size_t tokens;
            friend bool operator==(const Begun&, const Begun&) = default;
        };
        static Begun begun_part(const Part& part) noexcept {
            return {part.sequence, part.sequence == nullptr ? 0 : part.sequence->size(), part.tokens.size()};
        }
        void remember(std::span<const Part> parts) {
            for (const Part& part : parts) begun.push_back(begun_part(part));
            finished = false;
        }
        [[nodiscard]] bool remembers(std::span<const Part> parts) const noexcept {
            return !begun.empty() && std::equal(begun.begin(), begun.end(), parts.begin(), parts.end(),
                                                [](const Begun& a, const Part& b) { return a == begun_part(b); });
        }

        Result<void> validate(std::span<const Part> parts) const {
            if (options.rows == 0 || options.sequences == 0 || options.logits == 0) return no_capacity();
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
                if (!part.sequence->attached())
                    return invalid("a sequence that was moved from", "use the one it was moved to");
                if (part.tokens.empty()) return invalid("a part without tokens", "pass at least one token");
                if (&part.sequence->pool() != &parts.front().sequence->pool())
                    return invalid("sequences of different caches", "use one pass per cache");
                for (const Part* other = parts.data(); other != &part; ++other) {
                    if (other->sequence == part.sequence)
                        return invalid("one sequence twice in a pass", "join its tokens in one part");
                }
                DECANT_CHECK(detail::check_tokens(part.tokens, model.spec().vocabulary, "pass"));
                rows += part.tokens.size();
                wanted += part.want == Want::all ? part.tokens.size() : part.want == Want::last ? 1 : 0;
            }
            DECANT_CHECK(check_cache(*parts.front().sequence));
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

        Result<void> check_cache(const Sequence<B>& sequence) const {
            if (sequence.pool().shape().layers != cache_layers)
                return invalid("a cache made for another model", "make the KvCache from this context");
            return {};
        }

        Result<void> validate_pick(std::span<const Part> parts) const {
            if (options.best == 0) return invalid("a context without `best`", "set ContextOptions::best");
            if (options.best > most_best) {
                return invalid(detail::text("the best ", options.best, " tokens"),
                               detail::text("ask for at most ", most_best, ", or for all logits"));
            }
            const std::uint32_t vocabulary = model.spec().vocabulary;
            for (const Part& part : parts) {
                if (!part.allowed.empty() && part.allowed.size() != (vocabulary + 31) / 32) {
                    return invalid(
                        detail::text("a mask of ", part.allowed.size(), " words for ", vocabulary, " tokens"),
                        "give a bit per token in words of 32");
                }
                std::int32_t previous = -1;
                for (const LogitAdjustment& adjustment : part.adjustments) {
                    const std::int32_t token = id(adjustment.token);
                    if (token <= previous || static_cast<std::uint32_t>(token) >= vocabulary) {
                        return invalid(detail::text("an adjustment of token ", token, " after ", previous),
                                       "sort them by token, each once and of the vocabulary");
                    }
                    previous = token;
                }
            }
            return {};
        }

        /// Reserves and records at the first pass, and again when a cache has longer block tables, or more of them.
        Result<void> prepare(const BlockPool<B>& pool) {
            if (pass && shape.table >= pool.table_blocks() && shape.groups >= pool.groups()) return {};
            const std::size_t table_blocks = (std::max)(pool.table_blocks(), std::size_t{shape.table});
            const std::size_t groups = (std::max)(pool.groups(), std::size_t{shape.groups});
            constexpr std::uint64_t most = std::uint64_t{1} << 28;
            if ((std::max)(options.rows, options.logits) > most) {
                return Error{
                    ErrorCode::out_of_memory,
                    detail::text("a context for ", options.rows, " tokens and ", options.logits, " rows of logits"),
                    "pass", "lower the ContextOptions"};
            }
            if (std::uint64_t{options.sequences} * groups * table_blocks > most_table_entries) {
                return Error{ErrorCode::out_of_memory,
                             detail::text(options.sequences * groups, " tables of ", table_blocks, " blocks"), "pass",
                             "lower ContextOptions::sequences, or use larger blocks in the cache"};
            }
            const ModelSpec& spec = model.spec();
            const PassShape fresh = shape_for(options, table_blocks, groups);
            buffer_bytes = Workspace<B>::floats(spec, fresh) * sizeof(float);
            pass.reset();
            work.reset();
            buffer = typename B::Buffer();  // before the new one is taken: a limit may hold just one
            ++generation;
            DECANT_TRY(buffer, model.backend().allocate(buffer_bytes));
            work.emplace(model.backend(), buffer, spec, fresh);
            std::unique_ptr<typename B::Pass> made = new_pass();
            DECANT_CHECK(made->reserve(fresh, widest_input(spec)));
            made->record(PassVariant::forward,
                         [&](typename B::Pass& recorder) { model.record(recorder, *work, fresh.best); });
            shape = fresh;
            tokens.resize(shape.rows);
            positions.resize(shape.rows);
            sequences.resize(shape.rows);
            cache_slots.resize(std::size_t{shape.groups} * shape.rows);
            wanted.resize(shape.wanted);
            tables.assign(std::size_t{shape.groups} * shape.sequences * shape.table, -1);
            states_from.assign(shape.sequences, -1);
            states_to.assign(shape.sequences, -1);
            marks.reserve(shape.sequences);
            begun.reserve(shape.sequences);
            if (shape.best > 0) {
                ends.resize(shape.wanted);
                masks.resize(shape.wanted);
                adjustments.reserve(shape.wanted * usual_adjustments);
                allowed.reserve(std::size_t{shape.wanted} * ((spec.vocabulary + 31) / 32));
            }
            pass = std::move(made);
            return {};
        }

        /// A pass need not be movable.
        std::unique_ptr<typename B::Pass> new_pass() const {
            return std::unique_ptr<typename B::Pass>(
                new typename B::Pass(model.backend().pass(pass_participants(executor.concurrency()))));
        }

        void prepare_move() {
            pass->record(PassVariant::move, [&](typename B::Pass& recorder) { model.record_move(recorder, *work); });
            sources.resize(std::size_t{shape.groups} * shape.rows);
        }

        void fill(std::span<const Part> parts, bool picks) {
            std::uint32_t row = 0;
            std::uint32_t logit = 0;
            for (std::size_t s = 0; s < parts.size(); ++s) {
                const Part& part = parts[s];
                for (std::size_t g = 0; g < part.sequence->pool().groups(); ++g) {
                    const std::span<const std::int32_t> table = std::as_const(*part.sequence).table(g);
                    std::copy(table.begin(), table.end(),
                              tables.begin() + static_cast<std::ptrdiff_t>((g * shape.sequences + s) * shape.table));
                }
                DECANT_ASSERT(part.sequence->reaches(part.sequence->size()));
                states_from[s] = part.sequence->state_;
                states_to[s] = part.sequence->next_state_;
                for (std::size_t i = 0; i < part.tokens.size(); ++i, ++row) {
                    const std::size_t position = part.sequence->size() + i;
                    tokens[row] = id(part.tokens[i]);
                    positions[row] = static_cast<std::int32_t>(position);
                    sequences[row] = static_cast<std::int32_t>(s);
                    for (std::size_t g = 0; g < part.sequence->pool().groups(); ++g)
                        cache_slots[g * shape.rows + row] = static_cast<std::int32_t>(part.sequence->slot(g, position));
                    const bool last = i + 1 == part.tokens.size();
                    if (part.want == Want::all || (part.want == Want::last && last))
                        wanted[logit++] = static_cast<std::int32_t>(row);
                }
            }
            if (picks) fill_pick(parts);
            for (auto* values : {&tokens, &positions, &sequences, &cache_slots}) pad_rows(*values, row);
            pad(wanted, logit);
            for (auto* states : {&states_from, &states_to}) pad(*states, static_cast<std::uint32_t>(parts.size()));
            inputs = {row,
                      logit,
                      tokens,
                      positions,
                      sequences,
                      cache_slots,
                      {},
                      tables,
                      states_from,
                      states_to,
                      wanted,
                      picks,
                      {adjustments, ends, allowed, masks}};
        }

        void fill_pick(std::span<const Part> parts) {
            adjustments.clear();
            allowed.clear();
            std::size_t many = 0;
            for (const Part& part : parts) many += part.adjustments.size() * part.tokens.size();
            if (many > adjustments.capacity()) adjustments.reserve(std::bit_ceil(many));
            std::size_t row = 0;
            std::int32_t mask = 0;
            for (const Part& part : parts) {
                const std::size_t rows = part.want == Want::none ? 0 : part.want == Want::all ? part.tokens.size() : 1;
                allowed.insert(allowed.end(), part.allowed.begin(), part.allowed.end());
                for (std::size_t i = 0; i < rows; ++i, ++row) {
                    adjustments.insert(adjustments.end(), part.adjustments.begin(), part.adjustments.end());
                    ends[row] = static_cast<std::uint32_t>(adjustments.size());
                    masks[row] = part.allowed.empty() ? -1 : mask;
                }
                if (!part.allowed.empty()) ++mask;
            }
        }

        /// Rows of positions [first, first + rows), which lie `distance` further up now.
        void fill_move(const Sequence<B>& sequence, std::size_t first, std::size_t rows, std::size_t distance) {
            std::fill_n(positions.begin(), rows, -static_cast<std::int32_t>(distance));
            for (std::size_t g = 0; g < sequence.pool().groups(); ++g) {
                for (std::size_t i = 0; i < rows; ++i) {
                    const std::size_t from = first + i + distance, row = g * shape.rows + i;
                    const bool there = from >= sequence.first_row(g);
                    sources[row] = there ? static_cast<std::int32_t>(sequence.slot(g, from)) : -1;
                    cache_slots[row] = there ? static_cast<std::int32_t>(sequence.slot(g, first + i)) : -1;
                }
            }
            const auto used = static_cast<std::uint32_t>(rows);
            for (auto* values : {&tokens, &sequences}) pad(*values, 0);
            for (auto* values : {&positions, &cache_slots, &sources}) pad_rows(*values, used);
            pad(wanted, 0);
            for (auto* states : {&states_from, &states_to}) pad(*states, 0);
            inputs = {used,   0,           tokens,    positions, sequences, cache_slots, sources,
                      tables, states_from, states_to, wanted,    false,     {},          PassVariant::move};
        }

        static void pad(std::vector<std::int32_t>& values, std::uint32_t used) {
            std::fill(values.begin() + used, values.end(), -1);
        }
        /// [rows] or [groups, rows].
        void pad_rows(std::vector<std::int32_t>& values, std::uint32_t used) const {
            for (std::size_t row = 0; row < values.size(); row += shape.rows)
                std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(row + used), shape.rows - used, -1);
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
        std::vector<Begun> begun;  // empty unless a pass was begun and nothing else since
        bool finished = false;     // its steps
        std::vector<std::int32_t> tokens, positions, sequences, cache_slots, sources, tables, states_from, states_to,
            wanted;
        std::vector<LogitAdjustment> adjustments;
        std::vector<std::uint32_t> ends, allowed;
        std::vector<std::int32_t> masks;
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

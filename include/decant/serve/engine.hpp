// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Engine`: many answers at once, each step one pass over the weights for all of them (continuous batching: Yu et al.,
/// "Orca", 2022; prompts in parts beside it: Agrawal et al., "Sarathi", 2023).

#include <decant/backend/concept.hpp>
#include <decant/cache/frames.hpp>
#include <decant/cache/kv_cache.hpp>
#include <decant/cache/pool.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/result.hpp>
#include <decant/core/time.hpp>
#include <decant/model/context.hpp>
#include <decant/model/cost.hpp>
#include <decant/model/model.hpp>
#include <decant/serve/answer_writer.hpp>
#include <decant/serve/ask.hpp>
#include <decant/serve/batch.hpp>
#include <decant/serve/block_manager.hpp>
#include <decant/serve/draft_model.hpp>
#include <decant/serve/drafter.hpp>
#include <decant/serve/intake.hpp>
#include <decant/serve/job.hpp>
#include <decant/serve/metrics.hpp>
#include <decant/serve/outbox.hpp>
#include <decant/serve/scheduler.hpp>
#include <decant/text/tokenizer.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Driven by its host, on one thread: nothing runs between two calls. Every answer is, bit for bit, what a `Request`
/// alone would have written, whoever else is served, and however often it had to give its blocks away meanwhile.
template <Backend B>
class Engine {
 public:
    using Clock = std::chrono::steady_clock;

    /// An executor as for `Context`. `draft`: a smaller model of the same vocabulary, which drafts for the answers that
    /// want it (`Ask::draft_tokens`). Errors: those of `KvCache`; `invalid_argument` for options of 0 and for more than
    /// a step can have; `mismatch` for a draft model of another vocabulary, `unsupported` where the layers of either
    /// model keep a state.
    template <class E>
    requires(std::constructible_from<AnyExecutor, E>)
        [[nodiscard]] static Result<Engine> create(Model<B> model, Tokenizer tokenizer, E&& executor,
                                                   EngineOptions options = {}, std::optional<Model<B>> draft = {}) {
        DECANT_CHECK(check_steps(options));
        const CacheOptions cache{options.cache_tokens, options.block_tokens, options.cache_dtype, options.sequences,
                                 true};
        DECANT_TRY(auto pool, BlockPool<B>::create(model.backend(), cache.shape(model.spec().cache_layers()),
                                                   options.cache_tokens));
        DECANT_CHECK(check_tables(options, pool.table_blocks() * pool.groups(), "EngineOptions::cache_tokens"));
        const AnyExecutor threads(std::forward<E>(executor));
        std::optional<DraftModel<B>> drafts;
        if (draft) {
            DECANT_TRY(auto made, draft_model(model, *std::move(draft), threads, options));
            drafts.emplace(std::move(made));
        }
        if (options.swap_bytes > 0) static_cast<void>(model.fingerprint());  // not within a step, which has a budget
        return Engine(std::make_unique<Parts>(std::move(model), std::move(tokenizer), threads, options,
                                              std::make_shared<BlockPool<B>>(std::move(pool)), std::move(drafts)));
    }

    /// Takes a place in the queue. Errors: `invalid_argument` for a prompt that is empty, not of the vocabulary or
    /// longer than the whole cache, and for no answers or more than are written at once.
    [[nodiscard]] Result<AskId> ask(Ask wanted) {
        DECANT_TRY(auto job, parts().intake.make(std::move(wanted)));
        const AskId id = job->id = AskId{++parts().last_id};
        Queues::place(std::move(job), parts().jobs.waiting);
        return id;
    }

    /// Ends all answers of an ask. Their last `Delta` comes with the next step; their blocks go back at once, or, where
    /// one is part of a pass under way (see `step_for`), when that is done: the pass writes into them, and starting it
    /// again without that answer would cost the others its time. Without effect if there is none of that name.
    void cancel(AskId ask) {
        for (Jobs* const jobs : {&parts().jobs.waiting, &parts().jobs.running})
            for (const auto& job : *jobs) job->cancelled |= job->id == ask;
        parts().scheduler.retire();
    }

    /// One pass for everybody who has a turn, and the listeners' calls. Returns whether there is more to do. An error
    /// of the backend ends the call and leaves everything as it was. So does an exception (of a listener, an executor
    /// or an allocation), except that answers whose next token it lost end as `failed`. `invalid_argument` within a
    /// listener: the step that called it is not over.
    [[nodiscard]] Result<bool> step() { return parts().advance({}); }

    /// The same as far as `budget` allows: a step that is not finished in time goes on with the next call. Each call
    /// brings it on by one tile of a pass, one answer's token or one listener's call at least, also where the budget is
    /// 0 or less. Deadlines are looked at when a step begins.
    [[nodiscard]] Result<bool> step_for(Clock::duration budget) {
        return parts().advance({.until = detail::later(Clock::now(), budget)});
    }

    /// An answer as bytes, without its keys and values: what was asked, and all that `restore` needs to go on with the
    /// next token, in an engine anywhere. Of an ask whose prompt is not computed yet, all answers. It goes on here,
    /// too, unless `cancel` ends it. Errors: `missing` if there is no such answer, or it has ended; `invalid_argument`
    /// while a step with it is under way (see `step_for`) or its last `Delta` has not been given.
    [[nodiscard]] Result<std::vector<std::byte>> save(AskId ask, std::uint32_t answer = 0) const {
        DECANT_TRY(const Job* const job, parts().resting(ask, answer));
        return parts().intake.save(*job);
    }

    /// How many of an answer's tokens (those of the prompt included) are in the cache; 0 if there is no such answer.
    [[nodiscard]] std::size_t computed(AskId ask, std::uint32_t answer = 0) const {
        const Job* const job = parts().jobs.find(ask, answer);
        return job != nullptr && job->request ? job->request->computed() : 0;
    }

    /// What is in the cache of an answer from position `first` on, as `export_frame`: to be sent while a long prompt is
    /// computed step by step, or all at once. Errors: those of `save` and of `export_frame`.
    [[nodiscard]] Result<std::vector<std::byte>> save_cache(AskId ask, std::uint32_t answer = 0,
                                                            std::size_t first = 0) const {
        DECANT_TRY(const Job* const job, parts().resting(ask, answer));
        if (!job->request) {
            return Error{ErrorCode::invalid_argument, "an answer whose prompt has not begun", "Engine::save_cache",
                         "ask again when `computed` says so"};
        }
        return export_frame(parts().context.model(), job->request->sequence(), first);
    }

    /// An empty sequence with room for so many tokens in this engine's cache. `import_frame` puts into it what an
    /// engine elsewhere has computed, for `restore`. Remembered prefixes make way for it; answers do not, and its
    /// blocks are missing to them. Errors: `cache_full`.
    [[nodiscard]] Result<Sequence<B>> room(std::size_t tokens) { return parts().blocks.room(tokens); }

    /// Takes up an answer that `save` made: its deltas go on with the next token, under the same number, bit for bit.
    /// `computed` is a sequence that `room` gave, with what is known of its cache: if a place is free, the answer goes
    /// on at once, and only what is missing is computed. Otherwise it waits its turn, and full blocks are remembered as
    /// those of other prefixes. Errors: those of `ask` and of `Request::load`, `mismatch` for another model's, and for
    /// a sequence of another cache.
    [[nodiscard]] Result<AskId> restore(std::span<const std::byte> saved, std::function<void(const Delta&)> listener,
                                        std::optional<Sequence<B>> computed = {}) {
        auto job = parts().intake.load(saved, std::move(listener), std::move(computed));
        if (!job) return std::move(job).error().in("saved answer");
        const AskId id = (*job)->id = AskId{++parts().last_id};
        parts().take_up(*std::move(job));
        return id;
    }

    /// Whether anything waits or runs.
    [[nodiscard]] bool idle() const noexcept { return parts().idle(); }

    [[nodiscard]] EngineCounts counts() const {
        EngineCounts now = parts().metrics.counts;
        now.waiting = parts().jobs.waiting.size();
        now.running = parts().jobs.running.size();
        now.free_blocks = parts().blocks.pool().free_blocks();
        now.remembered_blocks = parts().blocks.remembered_blocks();
        now.used_blocks = parts().blocks.used_blocks(parts().jobs.running);
        now.blocks = parts().blocks.pool().blocks();
        now.free_draft_blocks = parts().drafter.free_blocks();
        now.draft_blocks = parts().drafter.blocks();
        return now;
    }
    [[nodiscard]] EngineMetrics metrics() const {
        EngineMetrics now = parts().metrics;
        now.counts = counts();
        return now;
    }

 private:
    using Job = detail::Job<B>;
    using Jobs = detail::Jobs<B>;
    using Queues = detail::JobQueues<B>;

    /// What the engine consists of, at an address that stays, and the step that they make together.
    struct Parts {
        Parts(Model<B> model, Tokenizer with, const AnyExecutor& executor, const EngineOptions& wanted,
              std::shared_ptr<BlockPool<B>> pool, std::optional<DraftModel<B>> drafts)
            : options(wanted),
              tokenizer(std::move(with)),
              cost(model.weights(), model.spec(), options.cache_dtype),
              context(std::move(model), executor,
                      ContextOptions{.rows = (std::max)(options.rows, options.sequences),
                                     .sequences = options.sequences,
                                     .logits = options.sequences + (std::min)(options.draft_rows, options.rows)}),
              blocks(context.model(), std::move(pool), options),
              drafter(std::move(drafts), options, metrics),
              batch(options.sequences),
              intake(options, context.model(), tokenizer, blocks, metrics),
              scheduler(options, tokenizer, jobs, blocks, drafter, outbox, metrics),
              writer(jobs, blocks, drafter, outbox, metrics) {
            metrics.limits = {options.rows, options.sequences, options.bytes_per_second, options.operations_per_second};
        }
        Parts(const Parts&) = delete;
        Parts& operator=(const Parts&) = delete;

        [[nodiscard]] bool idle() const noexcept {
            return jobs.waiting.empty() && jobs.running.empty() && outbox.empty();
        }

        Result<bool> advance(RunLimits limits) {
            if (in_step) {
                return Error{ErrorCode::invalid_argument, "a step within a step", "Engine",
                             "let the listener return, and call step() after it"};
            }
            const Clock::time_point start = Clock::now();
            const double before = metrics.seconds();
            auto more = [&] {
                const Within within(in_step);
                return go_on(limits);
            }();
            const double all = std::chrono::duration<double>(Clock::now() - start).count();
            metrics.own_seconds += all - (metrics.seconds() - before);
            if (metrics.steps != told.steps && batch.empty()) {
                metrics.last_step = metrics - told;
                metrics.last_counts = detail::added_tokens(told_counts, metrics.counts);
                told = metrics;
                told_counts = metrics.counts;
            }
            return more;
        }
        /// Holds while a step is under way, whatever ends it.
        class Within {
         public:
            explicit Within(bool& flag) noexcept : flag_(flag) { flag_ = true; }
            Within(const Within&) = delete;
            Within& operator=(const Within&) = delete;
            ~Within() { flag_ = false; }

         private:
            bool& flag_;
        };

        Result<bool> go_on(RunLimits limits) {
            if (!begun && !batch.is_computed()) {
                batch.clear();  // of a step that an exception ended
                if (!drafter.advance(jobs.running, limits)) return true;
                scheduler.fill(batch);
                if (!batch.empty()) {
                    std::size_t& most = metrics.counts.most_used_blocks;
                    most = (std::max)(most, blocks.used_blocks(jobs.running));
                    before_pass = metrics.pass_seconds;
                    const detail::TimeInto timer(metrics.pass_seconds);
                    auto pass = context.begin(batch.parts());
                    if (!pass) {
                        batch.clear();
                        return std::move(pass).error();
                    }
                }
            }
            if (!batch.empty() && !batch.is_computed()) {
                DECANT_TRY(const bool done, compute(limits));
                if (!done) return true;
                drafter.pass(metrics.pass_seconds - before_pass, batch.plain());
            }
            while (!batch.all_taken()) {
                writer.take_next(batch);
                if (limits.reached()) return true;
            }
            batch.clear();
            scheduler.retire();
            while (!outbox.empty()) {
                deliver_next();
                if (limits.reached()) break;
            }
            return !idle();
        }
        /// Goes on with the pass. Returns whether it is done.
        Result<bool> compute(RunLimits limits) {
            const detail::TimeInto timer(metrics.pass_seconds);
            begun = false;  // should it throw
            begun = context.advance(limits) != RunState::finished;
            if (begun) return false;
            auto logits = context.finish(batch.parts());
            if (!logits) {
                batch.clear();
                return std::move(logits).error();
            }
            batch.count(cost, metrics);
            batch.computed(*logits);
            return true;
        }
        void deliver_next() {
            const detail::TimeInto timer(metrics.listener_seconds);
            outbox.deliver_next();
        }

        /// One that no step is working on.
        Result<const Job*> resting(AskId ask, std::uint32_t answer) const {
            const Job* const job = jobs.find(ask, answer);
            if (job == nullptr || job->cancelled || job->ended()) {
                return Error{ErrorCode::missing,
                             detail::text("answer ", answer, " to ask ", static_cast<std::uint64_t>(ask)), "Engine",
                             "it has ended, or never was"};
            }
            if (job->in_pass || outbox.owes(ask, job->answer)) {
                return Error{ErrorCode::invalid_argument, "an answer that a step is working on", "Engine",
                             "finish the step: call step()"};
            }
            return job;
        }

        /// Among those that run, if it brings its cache and there is a place. Blocks of those that wait would be
        /// missing to the others, so they are remembered instead, where they can be taken from, and room for more of
        /// them is given up.
        void take_up(std::unique_ptr<Job> job) {
            if (job->request) {
                if (job->request->computed() > 0 && jobs.has_place(*job, options.sequences)) {
                    job->started = Clock::now();
                    return Queues::place(std::move(job), jobs.running);
                }
                blocks.remember(*job);
            }
            Queues::place(std::move(job), jobs.waiting);
        }

        const EngineOptions options;
        Tokenizer tokenizer;
        ModelCost cost;
        Context<B> context;
        EngineMetrics metrics;
        Queues jobs;
        detail::BlockManager<B> blocks;
        detail::Drafter<B> drafter;
        detail::Outbox outbox;
        detail::Batch<B> batch;
        detail::Intake<B> intake;
        detail::Scheduler<B> scheduler;
        detail::AnswerWriter<B> writer;
        bool in_step = false;
        bool begun = false;        // a pass that is not finished
        double before_pass = 0.0;  // seconds in passes, those of this one aside
        StepMetrics told;          // before the step under way
        EngineCounts told_counts;
        std::uint64_t last_id = 0;
    };

    explicit Engine(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

    [[nodiscard]] Parts& parts() noexcept {
        DECANT_ASSERT(parts_ != nullptr);  // it was moved from
        return *parts_;
    }
    [[nodiscard]] const Parts& parts() const noexcept {
        DECANT_ASSERT(parts_ != nullptr);
        return *parts_;
    }

    /// Whether the host asks for steps, and for none so large that what only counts them does not fit in memory.
    static Result<void> check_steps(const EngineOptions& options) {
        const auto invalid = [](std::string what, std::string hint) {
            return Error{ErrorCode::invalid_argument, std::move(what), "Engine", std::move(hint)};
        };
        if (options.sequences == 0 || options.rows == 0 || options.prompt_rows == 0) {
            return invalid("an engine for no answers or no tokens",
                           "set EngineOptions::sequences, rows and prompt_rows to at least 1");
        }
        for (const auto& [value, what, option] : {std::tuple{options.rows, " tokens in one step", "rows"},
                                                  std::tuple{options.sequences, " answers at once", "sequences"}}) {
            if (value > most_rows)
                return invalid(detail::text(value, what),
                               detail::text("set EngineOptions::", option, " to at most ", most_rows));
        }
        return {};
    }
    /// The tables of all answers are part of each pass.
    static Result<void> check_tables(const EngineOptions& options, std::size_t blocks, const char* tokens) {
        if (options.sequences <= Context<B>::most_table_entries / blocks) return {};
        return Error{ErrorCode::invalid_argument,
                     detail::text(options.sequences, " answers at once from a cache of ", blocks, " blocks"), "Engine",
                     detail::text("lower EngineOptions::sequences to ", Context<B>::most_table_entries / blocks,
                                  ", raise EngineOptions::block_tokens, or lower ", tokens)};
    }

    static Result<DraftModel<B>> draft_model(const Model<B>& model, Model<B> draft, const AnyExecutor& executor,
                                             const EngineOptions& options) {
        if (draft.spec().vocabulary != model.spec().vocabulary) {
            return Error{ErrorCode::mismatch,
                         detail::text("a draft model with a vocabulary of ", draft.spec().vocabulary,
                                      " tokens, the model has ", model.spec().vocabulary),
                         "Engine", "use a draft model of the same family"};
        }
        CacheOptions cache{options.draft_cache_tokens, options.block_tokens, options.cache_dtype, options.sequences};
        if (cache.shape(model.spec().cache_layers()).states > 0) {
            return Error{ErrorCode::unsupported, "a draft for a model whose layers keep a state", "Engine",
                         "leave the draft model away"};
        }
        const std::uint32_t rows = (std::max)((std::min)(options.prompt_rows, options.rows), options.sequences);
        DECANT_TRY(auto made, DraftModel<B>::create(std::move(draft), executor, cache, rows));
        DECANT_CHECK(check_tables(options, made.blocks(), "EngineOptions::draft_cache_tokens"));
        return made;
    }

    /// Tokens and answers of a step.
    static constexpr std::uint32_t most_rows = std::uint32_t{1} << 20;

    std::unique_ptr<Parts> parts_;
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Engine`: many answers at once, each step one pass over the weights for all of them (continuous batching: Yu et al.,
/// "Orca", 2022; prompts in parts beside it: Agrawal et al., "Sarathi", 2023).

#include <decant/cache/frames.hpp>
#include <decant/cache/kv_cache.hpp>
#include <decant/cache/pool.hpp>
#include <decant/cache/prefix_cache.hpp>
#include <decant/cache/sequence.hpp>
#include <decant/core/config.hpp>
#include <decant/core/executor.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/model/context.hpp>
#include <decant/model/logits.hpp>
#include <decant/model/model.hpp>
#include <decant/sample/log_probabilities.hpp>
#include <decant/serve/ask.hpp>
#include <decant/serve/draft.hpp>
#include <decant/serve/draft_model.hpp>
#include <decant/serve/metrics.hpp>
#include <decant/serve/request.hpp>
#include <decant/serve/saved_answer.hpp>
#include <decant/text/stop_strings.hpp>
#include <decant/text/stream.hpp>
#include <decant/text/tokenizer.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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
    /// want it (`Ask::draft_tokens`). Errors: those of `KvCache`; `invalid_argument` for options of 0; `mismatch` for a
    /// draft model of another vocabulary, `unsupported` where the layers of either model keep a state.
    template <class E>
    requires(std::constructible_from<AnyExecutor, E>)
        [[nodiscard]] static Result<Engine> create(Model<B> model, Tokenizer tokenizer, E&& executor,
                                                   EngineOptions options = {}, std::optional<Model<B>> draft = {}) {
        if (options.sequences == 0 || options.rows == 0 || options.prompt_rows == 0) {
            return Error{ErrorCode::invalid_argument, "an engine for no answers or no tokens", "Engine",
                         "set the EngineOptions to at least 1"};
        }
        const CacheOptions cache{options.cache_tokens, options.block_tokens, options.cache_dtype, options.sequences};
        DECANT_TRY(auto pool, BlockPool<B>::create(model.backend(), cache.shape(model.spec().cache_layers()),
                                                   options.cache_tokens));
        const AnyExecutor threads(std::forward<E>(executor));
        std::optional<DraftModel<B>> drafts;
        if (draft) {
            DECANT_TRY(auto made, draft_model(model, *std::move(draft), threads, options));
            drafts.emplace(std::move(made));
        }
        return Engine(std::move(model), std::move(tokenizer), threads, options,
                      std::make_shared<BlockPool<B>>(std::move(pool)), std::move(drafts));
    }

    /// Takes a place in the queue. Errors: `invalid_argument` for a prompt that is empty, not of the vocabulary or
    /// longer than the whole cache, and for no answers or more than are written at once.
    [[nodiscard]] Result<AskId> ask(Ask wanted) {
        DECANT_CHECK(validate(wanted));
        const AskId id{++last_id_};
        auto job = std::make_unique<Job>();
        job->id = id;
        job->rank = rank(wanted.priority);
        job->stops = StopStrings(wanted.stop);
        may_draft(*job, wanted.draft_tokens);
        job->ask = std::make_shared<const Ask>(std::move(wanted));
        place(std::move(job), waiting_);
        return id;
    }

    /// Ends all answers of an ask. Their last `Delta` comes with the next step; their blocks go back at once, or, where
    /// one is part of a step under way, when that is done. Without effect if there is none of that name.
    void cancel(AskId ask) {
        for (Jobs* const jobs : {&waiting_, &running_})
            for (const auto& job : *jobs) job->cancelled |= job->id == ask;
        drop_ended();
    }

    /// One pass for everybody who has a turn, and the listeners' calls. Returns whether there is more to do. An error
    /// of the backend ends the call and leaves everything as it was. So does an exception (of a listener, an executor
    /// or an allocation), except that answers whose next token it lost end as `failed`.
    [[nodiscard]] Result<bool> step() { return advance({}); }

    /// The same as far as `budget` allows: a step that is not finished in time goes on with the next call.
    [[nodiscard]] Result<bool> step_for(Clock::duration budget) { return advance({.until = Clock::now() + budget}); }

    /// An answer as bytes, without its keys and values: what was asked, and all that `restore` needs to go on with the
    /// next token, in an engine anywhere. Of an ask whose prompt is not computed yet, all answers. It goes on here,
    /// too, unless `cancel` ends it. Errors: `missing` if there is no such answer, or it has ended; `invalid_argument`
    /// while a step with it is under way (see `step_for`) or its last `Delta` has not been given.
    [[nodiscard]] Result<std::vector<std::byte>> save(AskId ask, std::uint32_t answer = 0) const {
        DECANT_TRY(const Job* const job, resting(ask, answer));
        detail::SavedAnswer state{{}, job->answer, job->split, job->written, std::string(job->stops.held()), {}};
        if (job->request) state.request = job->request->save();
        return detail::save_answer(*job->ask, state, context_.model().fingerprint());
    }

    /// How many of an answer's tokens (those of the prompt included) are in the cache; 0 if there is no such answer.
    [[nodiscard]] std::size_t computed(AskId ask, std::uint32_t answer = 0) const {
        const Job* const job = find(ask, answer);
        return job != nullptr && job->request ? job->request->computed() : 0;
    }

    /// What is in the cache of an answer from position `first` on, as `export_frame`: to be sent while a long prompt is
    /// computed step by step, or all at once. Errors: those of `save` and of `export_frame`.
    [[nodiscard]] Result<std::vector<std::byte>> save_cache(AskId ask, std::uint32_t answer = 0,
                                                            std::size_t first = 0) const {
        DECANT_TRY(const Job* const job, resting(ask, answer));
        if (!job->request) {
            return Error{ErrorCode::invalid_argument, "an answer whose prompt has not begun", "Engine::save_cache",
                         "ask again when `computed` says so"};
        }
        return export_frame(context_.model(), job->request->sequence(), first);
    }

    /// An empty sequence with room for so many tokens in this engine's cache. `import_frame` puts into it what an
    /// engine elsewhere has computed, for `restore`. Remembered prefixes make way for it; answers do not, and its
    /// blocks are missing to them. Errors: `cache_full`.
    [[nodiscard]] Result<Sequence<B>> room(std::size_t tokens) {
        Sequence<B> sequence(pool_);
        while (true) {
            auto reserved = sequence.reserve(tokens);
            if (reserved) return sequence;
            if (tokens > sequence.capacity() || prefixes_.evict(tokens / options_.block_tokens + 2) == 0)
                return std::move(reserved).error();
        }
    }

    /// Takes up an answer that `save` made: its deltas go on with the next token, under the same number, bit for bit.
    /// `computed` is a sequence that `room` gave, with what is known of its cache: if a place is free, the answer goes
    /// on at once, and only what is missing is computed. Otherwise it waits its turn, and full blocks are remembered as
    /// those of other prefixes. Errors: those of `ask` and of `Request::load`, `mismatch` for another model's, and for
    /// a sequence of another cache.
    [[nodiscard]] Result<AskId> restore(std::span<const std::byte> saved, std::function<void(const Delta&)> listener,
                                        std::optional<Sequence<B>> computed = {}) {
        auto job = load(saved, std::move(listener), std::move(computed));
        if (!job) return std::move(job).error().in("saved answer");
        const AskId id{++last_id_};
        (*job)->id = id;
        take_up(*std::move(job));
        return id;
    }

    /// Whether anything waits or runs.
    [[nodiscard]] bool idle() const noexcept { return waiting_.empty() && running_.empty() && deltas_.empty(); }

    [[nodiscard]] EngineCounts counts() const {
        EngineCounts now = metrics_.counts;
        now.waiting = waiting_.size();
        now.running = running_.size();
        now.free_blocks = pool_->free_blocks();
        now.remembered_blocks = prefixes_.blocks();
        now.blocks = pool_->blocks();
        now.free_draft_blocks = drafts_ ? drafts_->free_blocks() : 0;
        now.draft_blocks = drafts_ ? drafts_->blocks() : 0;
        return now;
    }
    [[nodiscard]] EngineMetrics metrics() const {
        EngineMetrics now = metrics_;
        now.counts = counts();
        return now;
    }

 private:
    /// One answer; or all of an ask's, until its prompt is computed.
    struct Job {
        AskId id{};
        std::shared_ptr<const Ask> ask;
        std::uint32_t answer = 0;
        std::uint64_t rank = 0;             // lower goes first
        std::optional<Request<B>> request;  // once it has run
        StopStrings stops;
        DraftLength by_lookup, by_model;
        std::vector<Token> draft = {};  // of the next pass
        bool from_model = false;        // this draft
        std::size_t written = 0;        // tokens of the answer
        std::size_t published = 0;      // blocks
        bool split = false;             // it is one answer
        bool in_pass = false;
        bool preempted = false;  // it goes back to those that wait
        bool cancelled = false;
        std::vector<std::byte> swapped = {};  // what its blocks held
        bool broken = false;                  // unless what is made of a pass comes to its end
        FinishReason end = FinishReason::none;
        Clock::time_point asked = Clock::now();
        Clock::time_point last = {};  // token

        [[nodiscard]] std::uint32_t answers() const noexcept { return split ? 1 : ask->answers; }
    };
    using Jobs = std::list<std::unique_ptr<Job>>;

    /// A `Delta` with text of its own.
    struct Held {
        std::shared_ptr<const Ask> ask;
        Delta delta;
        std::string text;
        std::vector<LogProbability> log_probabilities = {};
    };

    Engine(Model<B> model, Tokenizer tokenizer, const AnyExecutor& executor, EngineOptions options,
           std::shared_ptr<BlockPool<B>> pool, std::optional<DraftModel<B>> drafts)
        : tokenizer_(std::move(tokenizer)),
          options_(options),
          context_(std::move(model), executor,
                   ContextOptions{.rows = (std::max)(options.rows, options.sequences),
                                  .sequences = options.sequences,
                                  .logits = options.sequences + options.draft_rows}),
          pool_(std::move(pool)),
          prefixes_(pool_),
          drafts_(std::move(drafts)),
          ledger_(static_cast<double>(options.draft_loss)) {
        parts_.reserve(options.sequences);
        part_jobs_.reserve(options.sequences);
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
        return DraftModel<B>::create(std::move(draft), executor, cache,
                                     (std::max)(options.prompt_rows, options.sequences));
    }

    Result<void> validate(const Ask& wanted) const {
        const auto invalid = [](std::string what, std::string hint) {
            return Error{ErrorCode::invalid_argument, std::move(what), "Engine::ask", std::move(hint)};
        };
        if (wanted.prompt.empty()) return invalid("a prompt without tokens", "pass at least one token");
        DECANT_CHECK(detail::check_tokens(wanted.prompt, context_.spec().vocabulary, "Engine::ask"));
        const std::size_t capacity = pool_->blocks() * options_.block_tokens;
        if (wanted.prompt.size() > capacity) {
            return invalid(
                detail::text("a prompt of ", wanted.prompt.size(), " tokens, the whole cache holds ", capacity),
                "raise EngineOptions::cache_tokens");
        }
        if (wanted.answers == 0 || wanted.answers > options_.sequences) {
            return invalid(
                detail::text(wanted.answers, " answers to one prompt, ", options_.sequences, " are written at once"),
                "raise EngineOptions::sequences");
        }
        return {};
    }

    [[nodiscard]] std::uint64_t rank(int priority) const noexcept {
        // Far from 0, so that priorities do not wrap.
        const std::uint64_t now = (std::uint64_t{1} << 62) + metrics_.counts.steps;
        const auto shift = static_cast<std::uint64_t>(priority < 0 ? -static_cast<std::int64_t>(priority) : priority) *
                           options_.steps_per_priority;
        return priority < 0 ? now + shift : now - shift;
    }
    /// Behind those of the same rank. Allocates nothing.
    static void place(Jobs& from, typename Jobs::iterator job, Jobs& to) noexcept {
        const auto at =
            std::find_if(to.begin(), to.end(), [&](const auto& other) { return other->rank > (*job)->rank; });
        to.splice(at, from, job);
    }

    static void place(std::unique_ptr<Job> job, Jobs& to) {
        Jobs one;
        one.push_back(std::move(job));
        place(one, one.begin(), to);
    }

    Result<bool> advance(RunLimits limits) {
        const Clock::time_point start = Clock::now();
        const double before = metrics_.pass_seconds + metrics_.draft_seconds;
        auto more = go_on(limits);
        metrics_.own_seconds += seconds_since(start) - (metrics_.pass_seconds + metrics_.draft_seconds - before);
        return more;
    }
    static double seconds_since(Clock::time_point then) {
        return std::chrono::duration<double>(Clock::now() - then).count();
    }

    Result<bool> go_on(RunLimits limits) {
        if (!begun_ && !logits_) {
            forget_parts();  // those of a step that an exception ended
            if (!make_drafts(limits)) return true;
            schedule();
            if (!parts_.empty()) {
                auto begun = context_.begin(parts_);
                if (!begun) {
                    forget_parts();
                    return std::move(begun).error();
                }
            }
        }
        if (!parts_.empty() && !logits_) {
            const Clock::time_point start = Clock::now();
            begun_ = false;  // should it throw
            const RunState reached = context_.advance(limits);
            const double seconds = seconds_since(start);
            metrics_.pass_seconds += seconds;
            pass_seconds_ += seconds;
            begun_ = reached != RunState::finished;
            if (begun_) return true;
            auto logits = context_.finish(parts_);
            if (!logits) {
                forget_parts();
                return std::move(logits).error();
            }
            ++metrics_.counts.steps;
            ledger_.pass(pass_seconds_, std::all_of(parts_.begin(), parts_.end(),
                                                    [](const auto& part) { return part.tokens.size() == 1; }));
            logits_ = *logits;
            taken_ = row_ = 0;
        }
        while (taken_ < parts_.size()) {
            take_next();
            if (limits.reached()) return true;
        }
        forget_parts();
        drop_ended();
        while (!deltas_.empty()) {
            deliver_next();
            if (limits.reached()) break;
        }
        return !idle();
    }
    void forget_parts() noexcept {
        for (; taken_ < part_jobs_.size(); ++taken_) {
            part_jobs_[taken_]->in_pass = false;
            part_jobs_[taken_]->request->drop_draft();
        }
        parts_.clear();
        part_jobs_.clear();
        logits_.reset();
        taken_ = 0;
        pass_seconds_ = 0.0;
    }

    // ---- drafts

    void may_draft(Job& job, std::size_t tokens) const {
        if (pool_->states().size() == 0) job.by_lookup = job.by_model = DraftLength(tokens);
    }
    static typename DraftModel<B>::Key key(const Job& job) { return {job.id, job.answer}; }

    /// What the answers that write may say next: what followed before, or else what the draft model says. Returns
    /// whether that is all.
    bool make_drafts(RunLimits limits) {
        if (!std::exchange(drafting_, false)) plan_drafts();
        if (!drafts_) return true;
        const Clock::time_point start = Clock::now();
        drafting_ = !drafts_->advance(limits);
        const double seconds = seconds_since(start);
        metrics_.draft_seconds += seconds;
        ledger_.spend(seconds);
        return !drafting_;
    }
    void plan_drafts() {
        std::size_t left = options_.draft_rows;
        if (drafts_) drafts_->begin();
        for (const auto& job : running_) {
            job->draft.clear();
            job->from_model = false;
            if (!job->split || job->cancelled || job->request->waiting().size() != 1) continue;
            const std::size_t wanted = job->ask->max_tokens - (std::min)(job->written, job->ask->max_tokens);
            const std::size_t most = (std::min)(left, wanted > 0 ? wanted - 1 : 0);
            const Request<B>& request = *job->request;
            const std::span<const Token> found =
                prompt_lookup(request.tokens(), (std::min)(most, job->by_lookup.next()));
            job->draft.assign(found.begin(), found.end());
            left -= found.size();
            if (!found.empty() || !drafts_ || !ledger_.pays()) continue;
            const std::size_t length = (std::min)(most, job->by_model.next());
            job->from_model = drafts_->want(key(*job), request.tokens(), length, request.sampler());
            if (job->from_model) left -= length;
        }
    }

    // ---- who is in the next pass

    /// Answers that write first, then prompts that have begun, then new ones.
    void schedule() {
        end_late();
        drop_ended();
        std::size_t rows = options_.rows, drafted = options_.draft_rows;
        for (const auto& job : running_)
            if (rows > 0 && job->request->waiting().size() == 1 && make_room(*job, 1))
                rows -= add_token(*job, (std::min)(drafted, rows - 1), drafted);
        if (!parts_.empty()) rows = (std::min)(rows, std::size_t{options_.prompt_rows});
        std::size_t behind = waiting_.size();
        for (const auto& job : running_) behind += job->in_pass ? 0 : 1;
        for (const auto& job : running_)
            if (rows > 0 && !job->in_pass) rows -= add_prompt(*job, share(rows, --behind));
        drop_ended();
        while (rows > 0 && !waiting_.empty()) {
            Job* const job = admit();
            if (job == nullptr) break;
            rows -= add_prompt(*job, share(rows, waiting_.size()));
        }
    }
    /// What the first of several prompts gets of a step's tokens: most, but the next one begins meanwhile, for it may
    /// be short.
    static std::size_t share(std::size_t rows, std::size_t behind) noexcept {
        return behind > 0 ? rows - rows / 4 : rows;
    }

    /// The token that waits, and the draft of those after it: up to `most`, where there is room without taking it from
    /// anybody. Returns how many tokens these are.
    std::size_t add_token(Job& job, std::size_t most, std::size_t& drafted) {
        std::span<const Token> draft = job.from_model ? drafts_->found(key(job)) : std::span<const Token>(job.draft);
        draft = draft.first((std::min)(draft.size(), most));
        const bool room = pool_->free_blocks() > running_.size() + draft.size() / options_.block_tokens;
        if (!draft.empty() && room && job.request->reserve(1 + draft.size())) {
            job.request->draft(draft);
            drafted -= draft.size();
            metrics_.counts.draft_tokens += draft.size();
        }
        const std::size_t count = job.request->waiting().size();
        add_part(job, count);
        if (count > 1) parts_.back().want = Want::all;
        return count;
    }

    /// Returns how many tokens it could add.
    std::size_t add_prompt(Job& job, std::size_t most) {
        const std::size_t count = (std::min)(job.request->waiting().size(), most);
        if (!make_room(job, count)) return 0;
        add_part(job, count);
        return count;
    }

    void add_part(Job& job, std::size_t count) {
        PassPart<B> part = job.request->part();
        if (count < part.tokens.size()) part.want = Want::none;
        part.tokens = part.tokens.first(count);
        parts_.push_back(part);
        part_jobs_.push_back(&job);
        job.in_pass = true;
    }

    /// Room for so many more tokens: remembered prefixes go first, then the blocks of those behind. Whoever is first
    /// gets room or fails, so that something always goes on.
    bool make_room(Job& job, std::size_t count) {
        if (job.preempted || job.end != FinishReason::none) return false;
        while (true) {
            const auto room = job.request->reserve(count);
            if (room) return true;
            if (prefixes_.evict(count / options_.block_tokens + 2) > 0) continue;
            if (Job* const victim = last_behind(job); victim != nullptr) {
                preempt(*victim);
                continue;
            }
            if (alone(job)) end(job, FinishReason::full);
            return false;
        }
    }
    Job* last_behind(const Job& job) const {
        for (auto at = running_.rbegin(); at != running_.rend() && at->get() != &job; ++at)
            if (holds(**at) && !(*at)->in_pass) return at->get();
        return nullptr;
    }
    [[nodiscard]] bool alone(const Job& job) const {
        return std::none_of(running_.begin(), running_.end(),
                            [&](const auto& other) { return other.get() != &job && holds(*other); });
    }
    static bool holds(const Job& job) { return !job.preempted && !job.request->sequence().table().empty(); }
    void preempt(Job& job) {
        swap_out(job);
        job.request->restart(Sequence<B>(pool_));
        if (drafts_) drafts_->release(key(job));
        job.preempted = true;
        ++metrics_.counts.preemptions;
    }

    /// What its blocks hold goes to the host's memory, as far as that may be used.
    void swap_out(Job& job) {
        const Sequence<B>& sequence = job.request->sequence();
        const CacheShape& shape = pool_->shape();
        const std::size_t size = sequence.table().size() * shape.block_bytes() + shape.state_bytes();
        std::size_t used = 0;
        for (const Jobs* const jobs : {&waiting_, &running_})
            for (const auto& other : *jobs) used += other->swapped.size();
        if (sequence.size() == 0 || size > options_.swap_bytes - (std::min)(used, options_.swap_bytes)) return;
        if (auto frame = export_frame(context_.model(), sequence)) job.swapped = *std::move(frame);
    }
    /// The other way. Returns whether `known` is now what had been swapped out; if not, it is computed again.
    bool swap_in(Job& job, std::size_t tokens, Sequence<B>& known) {
        const std::vector<std::byte> frame = std::exchange(job.swapped, {});
        if (frame.empty() || known.size() + options_.block_tokens >= tokens) return false;
        auto sequence = room(tokens);
        if (!sequence || !import_frame(context_.model(), *sequence, frame)) return false;
        metrics_.counts.swapped_tokens += sequence->size();
        known = *std::move(sequence);
        return true;
    }

    [[nodiscard]] bool has_place(const Job& job) const {
        std::size_t places = job.answers();
        for (const auto& other : running_) places += other->answers();
        return places <= options_.sequences;
    }

    /// The first of those that wait, if it fits. Nobody behind it goes before it.
    Job* admit() {
        Job& job = *waiting_.front();
        if (!has_place(job)) return nullptr;
        const std::span<const Token> tokens =
            job.request ? job.request->tokens() : std::span<const Token>(job.ask->prompt);
        Sequence<B> known = options_.prefix_cache ? prefixes_.match(tokens, job.ask->cache_salt) : Sequence<B>(pool_);
        const std::size_t needed =
            (tokens.size() + options_.block_tokens - 1) / options_.block_tokens - known.table().size();
        if (needed > pool_->free_blocks() + prefixes_.unused_blocks() && !running_.empty()) return nullptr;
        job.published = 0;
        if (!swap_in(job, tokens.size(), known)) {
            metrics_.counts.cached_tokens += known.size();
            job.published = known.table().size();
        }
        const std::span<const Token> rest = tokens.subspan(known.size());
        if (job.request) {
            job.request->restart(std::move(known));
        } else {
            Request<B> request(std::move(known), job.ask->sampler, TextStream(tokenizer_));
            request.push(rest);
            job.request.emplace(std::move(request));
            metrics_.queue.add(Clock::now() - job.asked);
        }
        place(waiting_, waiting_.begin(), running_);
        return &job;
    }

    void end_late() {
        const auto now = Clock::now();
        for (Jobs* const jobs : {&waiting_, &running_})
            for (const auto& job : *jobs)
                if (job->end == FinishReason::none && job->ask->deadline && *job->ask->deadline <= now)
                    end(*job, FinishReason::deadline);
    }

    /// Takes away what has ended, but for what a pass is working on, and lets wait what gave its blocks away.
    void drop_ended() {
        for (Jobs* const jobs : {&waiting_, &running_}) {
            for (auto at = jobs->begin(); at != jobs->end();) {
                Job& job = **at;
                if (job.in_pass) {
                    ++at;
                    continue;
                }
                if (job.cancelled && job.end == FinishReason::none) end(job, FinishReason::cancelled);
                if (job.broken && job.end == FinishReason::none) end(job, FinishReason::failed, "a token was lost");
                if (job.end != FinishReason::none) {
                    metrics_.counts.finished += job.answers();
                    if (drafts_) drafts_->release(key(job));
                    at = jobs->erase(at);
                } else if (job.preempted) {
                    job.preempted = false;
                    place(*jobs, at++, waiting_);
                } else {
                    ++at;
                }
            }
        }
    }

    // ---- what a pass has brought

    /// The next part's logits become a token.
    void take_next() {
        Job& job = *part_jobs_[taken_];
        const PassPart<B>& part = parts_[taken_++];
        job.in_pass = false;
        job.broken = true;
        take(job, part);
        job.broken = false;
    }
    void take(Job& job, const PassPart<B>& part) {
        if (job.written == 0 || (part.tokens.size() > 1 && part.want != Want::all))
            metrics_.counts.prompt_tokens += part.tokens.size();
        if (part.want == Want::all) return take_draft(job, part.tokens.size());
        const bool wanted = part.want != Want::none;
        const std::span<const float> scores = wanted ? logits_->row(row_++) : std::span<const float>();
        if (job.cancelled) return;
        publish(job);
        if (!wanted) return;
        if (!job.split) split(job, scores);
        write(job, scores);
    }
    void take_draft(Job& job, std::size_t rows) {
        const std::size_t first = std::exchange(row_, row_ + rows);
        std::size_t row = first;
        const auto right = job.request->take_draft([&](std::size_t i) { return logits_->row(first + i); },
                                                   [&](const Step& step) {
                                                       if (job.cancelled) return false;
                                                       write(job, step, logits_->row(row++));
                                                       return job.end == FinishReason::none;
                                                   });
        if (!right) return end(job, FinishReason::failed, right.error().message());
        (job.from_model ? job.by_model : job.by_lookup).learn(rows - 1, *right);
        if (job.from_model) ledger_.save(*right, parts_.size());
        metrics_.counts.accepted_tokens += *right;
        publish(job);
    }

    /// The other answers to a prompt, once it is computed.
    void split(Job& job, std::span<const float> scores) {
        Jobs others;
        for (std::uint32_t n = 1; n < job.ask->answers; ++n) {
            auto other = std::make_unique<Job>();
            other->id = job.id;
            other->ask = job.ask;
            other->answer = n;
            other->rank = job.rank;
            other->asked = job.asked;
            other->request.emplace(job.request->fork(job.ask->sampler.seed() + n));
            other->stops = job.stops;
            other->by_lookup = other->by_model = job.by_lookup;
            other->published = job.published;
            other->split = true;
            other->broken = true;
            others.push_back(std::move(other));
        }
        std::vector<Job*> placed;
        for (const auto& other : others) placed.push_back(other.get());
        job.split = true;
        while (!others.empty()) place(others, others.begin(), running_);
        for (Job* const other : placed) {
            write(*other, scores);
            other->broken = false;
        }
    }

    void write(Job& job, std::span<const float> scores) {
        const auto step = job.request->take(scores);
        if (!step) return end(job, FinishReason::failed, step.error().message());
        write(job, *step, scores);
    }
    void write(Job& job, const Step& step, std::span<const float> scores) {
        const Clock::time_point now = Clock::now();
        if (job.written == 0)
            metrics_.first_token.add(now - job.asked);
        else
            metrics_.between_tokens.add(now - job.last);
        job.last = now;
        ++job.written;
        ++metrics_.counts.answer_tokens;
        const Ask& ask = *job.ask;
        std::string text(job.stops.push(step.text));
        const bool stops = (step.ends && !ask.ignore_end) || std::find(ask.stop_tokens.begin(), ask.stop_tokens.end(),
                                                                       step.token) != ask.stop_tokens.end();
        FinishReason end = FinishReason::none;
        if (job.stops.found() || stops) {
            end = FinishReason::stop;
        } else if (job.written >= ask.max_tokens) {
            end = FinishReason::length;
        }
        if (end != FinishReason::none) text += rest(job);
        Held held{job.ask, {job.id, job.answer, step.token, {}, end}, std::move(text)};
        if (ask.log_probabilities > 0)
            held.log_probabilities = log_probabilities(scores, step.token, ask.log_probabilities);
        deltas_.push_back(std::move(held));
        job.end = end;
    }

    void publish(Job& job) {
        const std::size_t full = job.request->computed() / options_.block_tokens;
        if (!options_.prefix_cache || full <= job.published) return;
        prefixes_.publish(job.request->sequence(), job.ask->cache_salt);
        job.published = full;
    }

    /// Text that was held back.
    static std::string rest(Job& job) {
        if (!job.request) return {};
        std::string text(job.stops.push(job.request->finish()));
        return text += job.stops.finish();
    }

    /// Without another token. `what`: what failed.
    void end(Job& job, FinishReason why, const std::string& what = {}) {
        const std::string text = why == FinishReason::failed ? what : rest(job);
        std::list<Held> last;
        for (std::uint32_t n = 0; n < job.answers(); ++n)
            last.push_back({job.ask, {job.id, job.answer + n, {}, {}, why}, text});
        deltas_.splice(deltas_.end(), last);
        job.end = why;
    }

    void deliver_next() {
        Held held = std::move(deltas_.front());
        deltas_.pop_front();
        held.delta.text = held.text;
        held.delta.log_probabilities = held.log_probabilities;
        if (held.ask->listener) held.ask->listener(held.delta);
    }

    // ---- answers that come and go

    [[nodiscard]] const Job* find(AskId ask, std::uint32_t answer) const {
        for (const Jobs* const jobs : {&waiting_, &running_})
            for (const auto& job : *jobs)
                if (job->id == ask && (job->split ? job->answer == answer : answer < job->ask->answers))
                    return job.get();
        return nullptr;
    }
    /// One that no step is working on.
    Result<const Job*> resting(AskId ask, std::uint32_t answer) const {
        const Job* const job = find(ask, answer);
        if (job == nullptr || job->cancelled || job->end != FinishReason::none) {
            return Error{ErrorCode::missing,
                         detail::text("answer ", answer, " to ask ", static_cast<std::uint64_t>(ask)), "Engine",
                         "it has ended, or never was"};
        }
        const bool untold = std::any_of(deltas_.begin(), deltas_.end(), [&](const Held& held) {
            return held.delta.ask == ask && held.delta.answer == job->answer;
        });
        if (job->in_pass || untold) {
            return Error{ErrorCode::invalid_argument, "an answer that a step is working on", "Engine",
                         "finish the step: call step()"};
        }
        return job;
    }

    Result<std::unique_ptr<Job>> load(std::span<const std::byte> saved, std::function<void(const Delta&)> listener,
                                      std::optional<Sequence<B>> computed) {
        DECANT_TRY(detail::SavedAnswer state, detail::read_answer(saved, context_.model().fingerprint()));
        DECANT_CHECK(validate(state.ask));
        Sequence<B> sequence(pool_);
        if (computed && !computed->shares_cache(sequence)) {
            return Error{ErrorCode::mismatch, "a sequence of another cache", {}, "import into what `room` gives"};
        }
        auto job = std::make_unique<Job>();
        job->rank = rank(state.ask.priority);
        job->stops = StopStrings(state.ask.stop);
        const bool free_text = !job->stops.push(state.held).empty();
        if (free_text || job->stops.found() || state.written >= (std::max)(state.ask.max_tokens, std::size_t{1})) {
            return Error{ErrorCode::bad_format, "its state is none that an answer can have", {}, "save it again"};
        }
        may_draft(*job, state.ask.draft_tokens);
        job->answer = state.answer;
        job->split = state.split;
        job->written = static_cast<std::size_t>(state.written);
        job->last = Clock::now();
        if (!state.request.empty()) {
            DECANT_TRY(auto request,
                       Request<B>::load(state.request, std::move(computed).value_or(std::move(sequence)), tokenizer_));
            DECANT_CHECK(detail::check_tokens(request.tokens(), context_.spec().vocabulary, "its tokens"));
            if (request.waiting().empty()) {
                return Error{
                    ErrorCode::mismatch, "a sequence of all its tokens", {}, "import the frames saved with it"};
            }
            job->request.emplace(std::move(request));
        }
        state.ask.listener = std::move(listener);
        job->ask = std::make_shared<const Ask>(std::move(state.ask));
        return job;
    }

    /// Among those that run, if it brings its cache and there is a place. Blocks of those that wait would be missing to
    /// the others, so they are remembered instead, where they can be taken from.
    void take_up(std::unique_ptr<Job> job) {
        if (job->request && job->request->computed() > 0) {
            if (has_place(*job)) return place(std::move(job), running_);
            if (options_.prefix_cache) prefixes_.publish(job->request->sequence(), job->ask->cache_salt);
            job->request->restart(Sequence<B>(pool_));
        }
        place(std::move(job), waiting_);
    }

    Tokenizer tokenizer_;
    EngineOptions options_;
    Context<B> context_;
    std::shared_ptr<BlockPool<B>> pool_;
    PrefixCache<B> prefixes_;
    std::optional<DraftModel<B>> drafts_;
    DraftLedger ledger_;
    bool drafting_ = false;  // a round of the draft model is not done
    Jobs waiting_;           // by rank
    Jobs running_;
    std::vector<PassPart<B>> parts_;  // of the pass under way
    std::vector<Job*> part_jobs_;
    bool begun_ = false;            // and not finished
    double pass_seconds_ = 0.0;     // that it took
    std::optional<Logits> logits_;  // once it is done
    std::size_t taken_ = 0;         // parts whose logits have become tokens
    std::size_t row_ = 0;           // of the logits
    std::list<Held> deltas_;
    EngineMetrics metrics_;
    std::uint64_t last_id_ = 0;
};

}  // namespace decant::inline DECANT_ABI

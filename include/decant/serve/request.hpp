// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Request`: one generation with all of its state in one object, which can be forked, saved and rolled back.

#include <decant/cache/sequence.hpp>
#include <decant/core/best.hpp>
#include <decant/core/config.hpp>
#include <decant/core/progress.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/sealed.hpp>
#include <decant/files/token_list.hpp>
#include <decant/files/writer.hpp>
#include <decant/model/context.hpp>
#include <decant/sample/sampler.hpp>
#include <decant/sample/saved.hpp>
#include <decant/text/stream.hpp>
#include <decant/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// What a step of a request brought.
struct Step {
    Token token{};
    std::string_view text;  ///< whole characters that the token completes, often none; valid until the next step, while
                            ///< the request stays where it is
    bool ends = false;      ///< the model has ended its turn with this token
};

/// Tokens, cached keys and values, sampler (with its penalties and its place in the random stream) and text stream of
/// one generation. The position in the random stream is the number of tokens, so that a request which is forked, rolled
/// back, saved or computed again goes on with the same tokens, bit for bit. (Computed again in a cache of the same
/// dtype; and not after `Context::erase`, whose values remember what was erased.) Penalties look at all tokens, the
/// prompt included.
///
/// Move-only; belongs to one thread at a time, together with the sequences of its cache. A call that fails leaves it as
/// it was.
template <Backend B>
class Request {
 public:
    /// `sequence` may have tokens: a prefix that was prefilled before. `Request(sequence.fork(), ...)` shares one.
    Request(Sequence<B> sequence, Sampler sampler, TextStream text)
        : sequence_(std::move(sequence)), sampler_(std::move(sampler)), text_(std::move(text)) {
        const std::span<const Token> known = std::as_const(sequence_).tokens();
        tokens_.reserve(sequence_.capacity());
        tokens_.assign(known.begin(), known.end());
    }

    /// Adds tokens of the host's: a prompt, the next turn of a conversation. They are computed by the next step. Where
    /// an answer was cut short, call `finish` first: its last character may be half.
    void push(std::span<const Token> tokens) { tokens_.insert(tokens_.end(), tokens.begin(), tokens.end()); }

    /// All tokens, and how many of them are in the cache.
    [[nodiscard]] std::span<const Token> tokens() const& noexcept { return tokens_; }
    std::span<const Token> tokens() const&& = delete;
    [[nodiscard]] std::size_t computed() const noexcept { return sequence_.size(); }
    [[nodiscard]] std::span<const Token> waiting() const& noexcept {
        return std::span<const Token>(tokens_).subspan(sequence_.size());
    }
    std::span<const Token> waiting() const&& = delete;

    [[nodiscard]] const Sequence<B>& sequence() const& noexcept { return sequence_; }
    const Sequence<B>& sequence() const&& = delete;
    [[nodiscard]] Sampler& sampler() & noexcept { return sampler_; }
    [[nodiscard]] const Sampler& sampler() const& noexcept { return sampler_; }
    const Sampler& sampler() const&& = delete;
    [[nodiscard]] const TextStream& text() const& noexcept { return text_; }
    const TextStream& text() const&& = delete;

    /// Computes the waiting tokens and picks the next one, which then waits. If both the sampler and the context work
    /// with the best few logits (`Sampler::best`, `ContextOptions::best`), only those leave the backend. Errors: those
    /// of `Context::prefill` (`invalid_argument` if nothing waits) and of `Sampler::pick`.
    [[nodiscard]] Result<Step> step(Context<B>& context, CallOptions options = {}) {
        Undo undo(*this);
        const std::size_t few = sampler_.best();
        Result<Step> step =
            few > 0 && few <= context.options().best ? step_best(context, options) : step_all(context, options);
        if (step) undo.dismiss();
        return step;
    }

    /// For a pass of several requests: the part of this one, and afterwards its row of logits. Between the two, the
    /// request must not be used otherwise. If no token can be picked, the last token waits again.
    [[nodiscard]] PassPart<B> part() noexcept { return {&sequence_, waiting(), Want::last}; }
    [[nodiscard]] Result<Step> take(std::span<const float> logits) {
        DECANT_ASSERT(sequence_.size() == tokens_.size());
        if (logits.size() < text_.tokenizer().size()) {
            return Error{ErrorCode::invalid_argument,
                         detail::text(logits.size(), " logits for ", text_.tokenizer().size(), " tokens"),
                         "Request::take", "give this request's row of the pass"};
        }
        auto token = sampler_.pick(logits, tokens_);
        if (!token) {
            sequence_.truncate(tokens_.size() - 1);
            return std::move(token).error();
        }
        return add(*token);
    }

    /// Adds a draft of the next tokens to those that wait, which a pass then computes with them; `take_draft` says
    /// which were right, or `drop_draft` takes them back. Nothing else may be called in between. Not where layers keep
    /// a state, which cannot be taken back.
    void draft(std::span<const Token> tokens) {
        tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
        drafted_ = tokens.size();
    }
    /// Takes a draft back that was not computed.
    void drop_draft() noexcept { tokens_.resize(tokens_.size() - std::exchange(drafted_, 0)); }
    /// As `take` after a pass with a draft, whose part wanted the logits of all tokens: `row(i)` are those after i
    /// tokens of the draft. Every token is picked as without a draft, so that the same ones come (the sampler's random
    /// number belongs to the position); it ends after the first that is not the draft's. Calls `use(step)` for each,
    /// which returns whether to go on. Returns how many of the draft were accepted.
    template <class Row, class Use>
    [[nodiscard]] Result<std::size_t> take_draft(Row row, Use use) {
        const std::size_t count = std::exchange(drafted_, 0), first = tokens_.size() - count;
        const std::vector<Token> draft(tokens_.begin() + static_cast<std::ptrdiff_t>(first), tokens_.end());
        tokens_.resize(first);
        std::size_t right = 0;
        for (bool more = true; more;) {
            auto token = sampler_.pick(row(right), tokens_);
            if (!token) {
                sequence_.truncate(tokens_.size() - 1);
                return std::move(token).error();
            }
            more = use(add(*token)) && right < count && *token == draft[right];
            if (more) ++right;
        }
        sequence_.truncate(tokens_.size() - 1);
        return right;
    }

    /// The end of the text: a character that was never completed becomes U+FFFD. Valid until the next step.
    [[nodiscard]] std::string_view finish() & { return text_.finish(); }

    /// Room for `count` more tokens in the cache, as `Sequence::reserve`.
    [[nodiscard]] Result<void> reserve(std::size_t count) { return sequence_.reserve(count); }
    /// Gives up what is in the cache and goes on with `sequence`, which holds a beginning of the tokens, or none of
    /// them; the rest waits and is computed again.
    void restart(Sequence<B> sequence) {
        DECANT_ASSERT(sequence.size() <= tokens_.size() &&
                      std::equal(sequence.tokens().begin(), sequence.tokens().end(), tokens_.begin()));
        sequence_ = std::move(sequence);
    }

    /// A second request with the same past, which shares the cached blocks. With another seed it goes another way.
    [[nodiscard]] Request fork(std::optional<std::uint64_t> seed = {}) const {
        Request copy(sequence_.fork(), sampler_, text_);
        copy.push(waiting());
        if (seed) copy.sampler_.reseed(*seed);
        return copy;
    }

    /// A moment to come back to. Text that a step has given since then is the host's to take back.
    struct Mark {
        std::size_t tokens = 0;
        std::size_t computed = 0;
        SamplerState sampler;
        Utf8Stream text;
    };
    [[nodiscard]] Mark mark() const noexcept {
        return {tokens_.size(), sequence_.size(), sampler_.state(), text_.state()};
    }
    /// Forgets everything since `mark`. Marks from between are then void: they name tokens that are gone.
    void rollback(const Mark& mark) noexcept {
        DECANT_ASSERT(mark.tokens <= tokens_.size() && mark.computed <= mark.tokens);
        tokens_.resize(mark.tokens);
        sequence_.truncate((std::min)(mark.computed, sequence_.size()));
        sampler_.restore(mark.sampler);
        text_.restore(mark.text);
    }

    /// The request as bytes, without its keys and values: after `load` its tokens wait and are computed again, which
    /// gives the same bits, unless `export_frame` takes along what `sequence()` holds. Versioned and checksummed.
    [[nodiscard]] std::vector<std::byte> save() const {
        std::vector<std::byte> out;
        seal.begin(out);
        detail::put(out, std::uint64_t{text_.tokenizer().size()});
        detail::put_tokens(out, tokens_);
        detail::put_sampler(out, sampler_);
        const DecodeOptions& options = text_.options();
        detail::put(out, static_cast<std::uint8_t>((options.control ? 1 : 0) | (options.continues ? 2 : 0) |
                                                   (text_.state().skips_space() ? 4 : 0)));
        detail::put_string(out, text_.state().tail());
        seal.finish(out);
        return out;
    }

    /// A request from bytes that `save` made, anywhere; `sequence` is of any cache of the same model and holds a
    /// beginning of the request's tokens (`import_frame`), which are not computed again, or none. Errors: `bad_format`
    /// for bytes that are not a saved request or were damaged, `mismatch` for one of another vocabulary and for a
    /// sequence of other tokens, `unsupported` for one of a newer version.
    [[nodiscard]] static Result<Request> load(std::span<const std::byte> bytes, Sequence<B> sequence,
                                              const Tokenizer& tokenizer) {
        auto request = read(bytes, std::move(sequence), tokenizer);
        if (!request) return std::move(request).error().in("saved request");
        return request;
    }

 private:
    static constexpr detail::Seal seal{"DCRQ", 1, "saved request", "save the request again", detail::fnv1a};

    /// Brings the request back to where it was, unless dismissed.
    class Undo {
     public:
        explicit Undo(Request& request) noexcept : request_(&request), mark_(request.mark()) {}
        Undo(const Undo&) = delete;
        Undo& operator=(const Undo&) = delete;
        ~Undo() {
            if (request_ != nullptr) request_->rollback(mark_);
        }
        void dismiss() noexcept { request_ = nullptr; }

     private:
        Request* request_;
        Mark mark_;
    };

    Result<Step> step_all(Context<B>& context, CallOptions options) {
        DECANT_TRY(const Logits logits, context.prefill(sequence_, waiting(), options));
        return take(logits);
    }

    Result<Step> step_best(Context<B>& context, CallOptions options) {
        if (waiting().size() > 1) {
            DECANT_TRY(const Logits before, context.prefill(sequence_, waiting().first(waiting().size() - 1), options));
            static_cast<void>(before);
            options.progress = {};  // told to the end
        }
        sampler_.adjustments(tokens_, adjustments_);
        PassPart<B> last = part();
        last.adjustments = adjustments_;
        DECANT_TRY(const BestRows rows, context.best({&last, 1}, options));
        DECANT_TRY(const Token token, sampler_.pick(rows.row(0), tokens_));
        return add(token);
    }

    Step add(Token token) {
        tokens_.push_back(token);
        const bool ends = text_.tokenizer().ends(token);
        return {token, ends ? text_.push_last(token) : text_.push(token), ends};
    }

    static Result<Request> read(std::span<const std::byte> bytes, Sequence<B> sequence, const Tokenizer& tokenizer) {
        DECANT_TRY(ByteReader in, seal.open(bytes));
        DECANT_TRY(const auto vocabulary, in.number<std::uint64_t>("the vocabulary"));
        if (vocabulary != tokenizer.size()) {
            return Error{ErrorCode::mismatch,
                         detail::text("a vocabulary of ", vocabulary, " tokens, the tokenizer has ", tokenizer.size()),
                         {},
                         "load it with the model that it was made with"};
        }
        DECANT_TRY(const std::vector<Token> tokens, detail::read_tokens(in, "the number of tokens"));
        for (const Token token : tokens)
            if (id(token) < 0) return seal.damaged(detail::text("token ", id(token)));
        DECANT_TRY(Sampler sampler, detail::read_sampler(in));
        DECANT_TRY(const auto options, in.number<std::uint8_t>("the text's options"));
        DECANT_TRY(const std::string_view held, in.string("the text's unfinished character"));
        if (in.remaining() != 0) return seal.damaged("it has more bytes than it should");
        Utf8Stream characters;
        std::string completed;
        characters.push(held, completed);
        if (!completed.empty() || options > 7) return seal.damaged("the state of its text is none");

        if ((options & 4) != 0) characters.skip_space();
        TextStream text(tokenizer, {.control = (options & 1) != 0, .continues = (options & 2) != 0});
        text.restore(characters);
        const std::size_t known = sequence.size();
        if (known > tokens.size() || !std::equal(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(known),
                                                 std::as_const(sequence).tokens().begin())) {
            return Error{ErrorCode::mismatch,
                         detail::text("the sequence's ", known, " tokens are no beginning of its ", tokens.size()),
                         {},
                         "import the frames of this request, or pass an empty sequence"};
        }
        Request request(std::move(sequence), std::move(sampler), std::move(text));
        request.push(std::span(tokens).subspan(known));
        return request;
    }

    Sequence<B> sequence_;
    Sampler sampler_;
    TextStream text_;
    std::vector<Token> tokens_;  // those of the sequence, and those that wait
    std::size_t drafted_ = 0;    // of these, at the end
    std::vector<LogitAdjustment> adjustments_;
};

template <class B>
Request(Sequence<B>, Sampler, TextStream) -> Request<B>;

}  // namespace decant::inline DECANT_ABI

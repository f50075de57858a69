// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
/// \file
/// Misuse that the compiler catches: with DECANT_MISUSE, every line that says so must have an error of its own.
/// Without, what is left is correct use and must compile.

#include <decant/decant.hpp>

#include <span>
#include <string_view>
#include <utility>
#include <vector>

using namespace decant;  // as hosts do

void use(Context<Simd>& context, Sequence<Simd>& sequence, const Model<Simd>& model, Sampler& sampler,
         Tokenizer& tokenizer, std::span<const float> row) {
    static_cast<void>(context.decode(sequence, Token{5}));
    static_cast<void>(context.prefill(sequence, tokenizer.encode("text"), {.progress = [](Progress) {}}));
    Sequence<Simd> fork = sequence.fork();
    const std::span<const Token> tokens = fork.tokens();
    static_cast<void>(sampler.pick(row, tokens));
    TextStream stream(tokenizer);
    static_cast<void>(stream.push(Token{1}));
    const Context<Simd> second(model, ThreadPool{2});
}

#if defined(DECANT_MISUSE)

struct HalfAnExecutor {
    void parallel_for(std::size_t, TaskRef) {}
};
struct NoBackend {};

void misuse(Context<Simd>& context, Sequence<Simd>& sequence, Sequence<decant::Eigen>& other, const Model<Simd>& model,
            Sampler& sampler, Tokenizer& tokenizer, Request<Simd>& request, std::span<const float> row) {
    // Tokens are no numbers, and numbers no tokens.
    static_cast<void>(context.decode(sequence, 5));  // MISUSE
    const int position = Token{5};                   // MISUSE
    static_cast<void>(tokenizer.encode(Token{5}));   // MISUSE

    // Parts of another backend, or of none.
    static_cast<void>(context.decode(other, Token{5}));       // MISUSE
    const Model<NoBackend>* const none = nullptr;             // MISUSE
    const Context<Simd> half(model, HalfAnExecutor{});        // MISUSE
    static_cast<void>(sampler.pick(sequence.tokens(), row));  // MISUSE

    // Copies of what is expensive or has one owner.
    Sequence<Simd> copied_sequence = sequence;  // MISUSE
    ThreadPool pool{2};
    ThreadPool copied_pool = pool;  // MISUSE
    model.spec().vocabulary = 1;    // MISUSE

    // Views into what is gone.
    const std::span<const Token> tokens = sequence.fork().tokens();      // MISUSE
    const std::string_view text = TextStream(tokenizer).push(Token{1});  // MISUSE
    const auto steps = Sampler::chain({}).value().steps();               // MISUSE
    const auto waiting = request.fork().waiting();                       // MISUSE
    const auto& inner = request.fork().sequence();                       // MISUSE
    const auto few = Sampler{}.distribution(row, {});                    // MISUSE

    // Errors that nobody looks at.
    context.decode(sequence, Token{5});                        // MISUSE
    const Logits logits = context.decode(sequence, Token{5});  // MISUSE

    // A callback of another kind.
    static_cast<void>(context.decode(sequence, Token{5}, {.progress = [](const char*) {}}));  // MISUSE
}

#endif

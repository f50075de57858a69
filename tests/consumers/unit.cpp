// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
/// \file
/// The use of Decant by a host that may have no exceptions and no run-time type information: a few words of an answer.

#include <decant/decant.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#if !defined(DECANT_CONSUMER_NAME)
#define DECANT_CONSUMER_NAME answer
#endif

int DECANT_CONSUMER_NAME(const char* model, char* text, int size);

namespace {

decant::Result<std::string> complete(const char* path) {
    DECANT_TRY(auto weights, decant::Weights::open(path));
    DECANT_TRY(auto tokenizer, decant::Tokenizer::from(weights));
    DECANT_TRY(auto model, decant::Model<decant::Simd>::bind(weights));
    auto context = decant::Context{model, decant::ThreadPool{2}};
    auto cache = decant::KvCache{context, {.tokens = 64}};
    DECANT_TRY(auto sequence, cache.sequence());
    auto sampler = decant::Sampler{{.temperature = 0.0f}};
    auto stream = decant::TextStream{tokenizer};

    std::string answer;
    DECANT_TRY(auto logits, context.prefill(sequence, tokenizer.encode("The capital of France is")));
    for (int i = 0; i < 8; ++i) {
        DECANT_TRY(const decant::Token token, sampler.pick(logits, sequence.tokens()));
        if (tokenizer.ends(token)) break;
        answer += stream.push(token);
        DECANT_TRY(logits, context.decode(sequence, token));
    }
    answer += stream.finish();
    return answer;
}

}  // namespace

int DECANT_CONSUMER_NAME(const char* model, char* text, int size) {
    const auto result = complete(model != nullptr ? model : "no-such-file.gguf");
    const std::string message = result ? *result : result.error().message();
    const auto length = (std::min)(message.size(), static_cast<std::size_t>(size) - 1);
    std::memcpy(text, message.data(), length);
    text[length] = '\0';
    return result ? 0 : 1;
}

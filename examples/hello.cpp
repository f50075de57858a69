// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// hello MODEL PROMPT: continues a text with up to 100 tokens.

#include <decant/decant.hpp>

#include <exception>
#include <iostream>

int main(int argc, char** argv) try {
    if (argc != 3) {
        std::cerr << "usage: hello MODEL.gguf PROMPT\n";
        return 2;
    }
    auto weights = decant::Weights::open(argv[1]).value();  // shared handle on a mapped file
    auto tokenizer = decant::Tokenizer::from(weights).value();
    auto model = decant::Model<decant::Simd>::bind(weights).value();  // const: threads may share it
    auto context = decant::Context{model, decant::ThreadPool{}};      // workspace and threads of one caller
    auto cache = decant::KvCache{context, {.tokens = 4096}};
    auto sequence = cache.sequence().value();
    auto sampler = decant::Sampler{{.temperature = 0.7f, .seed = 1}};
    auto text = decant::TextStream{tokenizer};

    auto prompt = tokenizer.encode(argv[2], {.bos = true});
    auto logits = context.prefill(sequence, prompt).value();  // compute-bound
    for (int i = 0; i < 100; ++i) {
        decant::Token token = sampler.pick(logits, sequence.tokens()).value();
        if (tokenizer.ends(token)) break;
        std::cout << text.push(token) << std::flush;       // whole characters
        logits = context.decode(sequence, token).value();  // memory-bound
    }
    std::cout << text.finish() << '\n';
} catch (const std::exception& error) {
    std::cerr << "hello: " << error.what() << '\n';
    return 1;
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// A conversation in the terminal. The answer streams; Ctrl-C ends the answer and not the program.
//
//     chat --model FILE.gguf [--system TEXT] [--temperature PERCENT] [--seed N] [--threads N]
//          [--context TOKENS] [--tokens N]

#include <decant/decant.hpp>

#include "support/options.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

decant::StopFlag stop;  // set by the signal handler: one lock-free store

void on_interrupt(int) {
    stop.request();
    std::signal(SIGINT, on_interrupt);  // systems that forget it need it again
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

decant::ChatTemplate chat_template(const decant::Weights& weights, const decant::ModelSpec& spec) {
    if (auto found = decant::ChatTemplate::from(weights); found || spec.family != "gemma3")
        return std::move(found).value();
    return decant::ChatTemplate(decant::gemma3_chat_format());  // its files come without one
}

struct Turn {
    std::string role;
    std::string content;
};

/// What the last answer cost.
struct Stats {
    std::size_t reused = 0;    // tokens of the prompt that were in the cache
    std::size_t computed = 0;  // the others
    std::size_t answer = 0;
    double first = 0.0;  // seconds to the first token
    double rest = 0.0;   // seconds of all after it
};

class Chat {
 public:
    explicit Chat(const examples::Options& options)
        : weights_(decant::Weights::open(options.text("--model", "")).value()),
          tokenizer_(decant::Tokenizer::from(weights_).value()),
          model_(decant::Model<decant::Simd>::bind(weights_).value()),
          template_(chat_template(weights_, model_.spec())),
          pool_(options.count("--threads", 0, 0, 1024)),
          context_(model_, pool_),
          cache_(context_, {.tokens = options.count("--context", 4096, 64, 1 << 20)}),
          sequence_(cache_.sequence().value()),
          sampler_(decant::Sampler::chain({decant::Penalties{.repetition = 1.05f}, decant::TopK{40},
                                           decant::TopP{0.95f}, decant::Temperature{temperature(options)}},
                                          options.count("--seed", 1, 0, ~std::size_t{0}))
                       .value()),
          longest_(options.count("--tokens", 512, 1, 1 << 20)),
          system_(options.text("--system", "")) {
        reset();
    }

    void reset() {
        turns_.clear();
        if (!system_.empty()) turns_.push_back({"system", system_});
        sequence_.truncate(0);
    }

    /// Answers on standard output; what Ctrl-C leaves of an answer stays in the conversation.
    void answer(const std::string& question) {
        turns_.push_back({"user", question});
        stop.clear();
        stats_ = {};
        const std::vector<decant::Token> prompt = fitting_prompt();
        const std::span<const decant::Token> cached = sequence_.tokens();
        const auto shared = static_cast<std::size_t>(
            std::mismatch(cached.begin(), cached.end(), prompt.begin(), prompt.end() - 1).first - cached.begin());
        sequence_.truncate(shared);
        stats_.reused = shared;
        stats_.computed = prompt.size() - shared;

        const auto start = Clock::now();
        auto logits = context_.prefill(sequence_, std::span(prompt).subspan(shared), {.stop = &stop});
        std::string text;
        decant::TextStream stream(tokenizer_, {.continues = false});
        auto after_first = start;
        while (logits) {
            const decant::Token token = sampler_.pick(*logits, std::as_const(sequence_).tokens()).value();
            if (stats_.answer++ == 0) {
                stats_.first = seconds_since(start);
                after_first = Clock::now();
            }
            if (tokenizer_.ends(token)) break;
            const std::string_view more = stream.push(token);
            text += more;
            std::cout << more << std::flush;
            if (stats_.answer == longest_ || sequence_.size() == sequence_.capacity()) {
                std::cout << (stats_.answer == longest_ ? " [cut: --tokens]" : " [the context is full]");
                break;
            }
            logits = context_.decode(sequence_, token, {.stop = &stop});
        }
        stats_.rest = seconds_since(after_first);
        text += stream.finish();
        if (!logits && logits.error().code != decant::ErrorCode::cancelled) {
            turns_.pop_back();
            throw decant::Exception(logits.error());
        }
        std::cout << (logits ? "\n" : " [stopped]\n");
        turns_.push_back({"assistant", text});
    }

    void print_stats() const {
        std::printf("  %s, %s, %zu threads\n", model_.spec().family.c_str(),
                    std::string(decant::name(model_.backend().kernels().isa())).c_str(), pool_.concurrency());
        std::printf("  prompt   %zu tokens computed, %zu found in the cache\n", stats_.computed, stats_.reused);
        std::printf("  answer   first token after %.0f ms, then %.1f tokens per second (%zu)\n", 1000.0 * stats_.first,
                    stats_.answer > 1 ? static_cast<double>(stats_.answer - 1) / stats_.rest : 0.0, stats_.answer);
        std::printf("  context  %zu of %zu tokens, %zu of %zu blocks in use\n", sequence_.size(), sequence_.capacity(),
                    cache_.blocks() - cache_.free_blocks(), cache_.blocks());
    }

 private:
    static float temperature(const examples::Options& options) {
        return static_cast<float>(options.count("--temperature", 70, 0, 500)) / 100.0f;
    }

    /// The whole conversation; while it leaves too little room for an answer, without its oldest question and answer.
    std::vector<decant::Token> fitting_prompt() {
        const std::size_t room = sequence_.capacity() / 4;
        while (true) {
            std::vector<decant::Message> messages;
            for (const Turn& turn : turns_) messages.push_back({turn.role, turn.content});
            auto prompt = template_.encode(tokenizer_, messages).value();
            const std::size_t first = turns_.front().role == "system" ? 1 : 0;
            if (prompt.size() + room <= sequence_.capacity() || turns_.size() < first + 3) return prompt;
            const auto oldest = turns_.begin() + static_cast<std::ptrdiff_t>(first);
            turns_.erase(oldest, oldest + 2);
        }
    }

    decant::Weights weights_;
    decant::Tokenizer tokenizer_;
    decant::Model<decant::Simd> model_;
    decant::ChatTemplate template_;
    decant::ThreadPool pool_;
    decant::Context<decant::Simd> context_;
    decant::KvCache<decant::Simd> cache_;
    decant::Sequence<decant::Simd> sequence_;
    decant::Sampler sampler_;
    std::size_t longest_;  // answer, in tokens
    std::string system_;
    std::vector<Turn> turns_;
    Stats stats_;
};

constexpr const char* usage =
    "usage: chat --model FILE.gguf [--system TEXT] [--temperature PERCENT] [--seed N] [--threads N]\n"
    "            [--context TOKENS] [--tokens N]\n";

}  // namespace

int main(int argc, char** argv) try {
    const examples::Options options(
        argc, argv, {"--model", "--system", "--temperature", "--seed", "--threads", "--context", "--tokens"});
    if (options.text("--model", "").empty()) throw examples::UsageError("--model is missing");
    Chat chat(options);
    std::signal(SIGINT, on_interrupt);
    std::cout << "Ask something. Ctrl-C ends an answer, /stats tells its cost, /reset forgets, /quit or Ctrl-D ends.\n";
    for (std::string line; std::cout << "> " << std::flush, std::getline(std::cin, line);) {
        if (line == "/quit") break;
        if (line == "/reset") {
            chat.reset();
        } else if (line == "/stats") {
            chat.print_stats();
        } else if (!line.empty()) {
            try {
                chat.answer(line);
            } catch (const decant::Exception& error) {
                std::cout << '\n' << error.what() << '\n';
            }
        }
    }
    std::cout << '\n';
    return 0;
} catch (const examples::UsageError& error) {
    std::cerr << "chat: " << error.what() << '\n' << usage;
    return 2;
} catch (const std::exception& error) {
    std::cerr << "chat: " << error.what() << '\n';
    return 1;
}

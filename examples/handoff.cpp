// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Some write steadily while long prompts arrive: how long they wait from token to token when one process does both, and
// when a second one computes the prompts and hands each over, its cache block by block while it is computed, through a
// pipe. Linux and macOS.
//
//     handoff --model FILE.gguf [--writers 4] [--tokens 240] [--prompts 8] [--length TOKENS] [--threads N]

#include <decant/decant.hpp>

#include "support/options.hpp"
#include "support/progress.hpp"
#include "support/random.hpp"
#include "support/timing.hpp"

#include <iostream>

#if defined(__unix__) || defined(__APPLE__)

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Engine = decant::Engine<decant::Simd>;
using Tokens = std::vector<decant::Token>;
using Clock = std::chrono::steady_clock;

struct Setup {
    decant::Model<decant::Simd> model;
    decant::Tokenizer tokenizer;
    std::size_t writers, tokens, threads, answer = 16;
    std::vector<Tokens> prompts = {};  // of those that arrive
    Tokens story = {};                 // of the writers

    [[nodiscard]] Engine engine(std::size_t engine_threads) const {
        std::size_t room = writers * (story.size() + tokens + 32);
        for (const Tokens& prompt : prompts) room += prompt.size() + answer + 32;
        decant::EngineOptions options;
        options.cache_tokens = room;
        options.sequences = static_cast<std::uint32_t>(writers + prompts.size());
        options.prefix_cache = false;
        return Engine::create(model, tokenizer, decant::ThreadPool(engine_threads), options).value();
    }
    [[nodiscard]] decant::Ask ask(const Tokens& prompt, std::size_t most) const {
        decant::Ask made;
        made.prompt = prompt;
        made.sampler = decant::Sampler{{.temperature = 0.7f, .seed = 1}};
        made.max_tokens = most;
        made.ignore_end = true;
        return made;
    }
};

/// What a run brought: milliseconds, and what was written.
struct Run {
    std::vector<double> gaps;   // between a writer's tokens
    std::vector<double> first;  // from a prompt's arrival to its first token
    std::vector<Tokens> texts;  // of the writers, then of the prompts
    double seconds = 0.0;
};

/// The clockwork of both runs: writers, arrivals by how far the writers are, and who has got what.
class Day {
 public:
    Day(const Setup& setup, Engine& engine, const char* name) : setup_(setup), progress_(name) {
        run_.texts.resize(setup.writers + setup.prompts.size());
        run_.first.resize(setup.prompts.size());
        arrived_.resize(setup.prompts.size());
        last_.resize(setup.writers);
        for (std::size_t w = 0; w < setup.writers; ++w) {
            decant::Ask ask = setup.ask(setup.story, setup.tokens);
            ask.sampler.reseed(w);
            ask.listener = [this, w](const decant::Delta& delta) { written(w, delta); };
            static_cast<void>(engine.ask(std::move(ask)).value());
        }
    }
    /// The next prompt, if its time has come.
    std::optional<std::size_t> arrival() {
        const std::size_t all = setup_.writers * setup_.tokens;
        progress_.show(run_.gaps.size() + answered_, all + setup_.prompts.size());
        if (next_ == setup_.prompts.size() ||
            run_.gaps.size() * (setup_.prompts.size() + 1) < all * (next_ + 1) - all / 2)
            return {};
        arrived_[next_] = Clock::now();
        return next_++;
    }
    [[nodiscard]] std::function<void(const decant::Delta&)> listener(std::size_t prompt) {
        return [this, prompt](const decant::Delta& delta) { answer(prompt, delta); };
    }
    void answer(std::size_t prompt, const decant::Delta& delta) {
        Tokens& text = run_.texts[setup_.writers + prompt];
        if (text.empty() && delta.token) run_.first[prompt] = milliseconds(Clock::now() - arrived_[prompt]);
        if (delta.token) text.push_back(*delta.token);
        answered_ += delta.finish != decant::FinishReason::none ? 1 : 0;
    }
    [[nodiscard]] bool over() const { return writers_done_ == setup_.writers && answered_ == setup_.prompts.size(); }
    [[nodiscard]] Run finish() {
        run_.seconds = watch_.seconds();
        return std::move(run_);
    }

 private:
    static double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }
    void written(std::size_t writer, const decant::Delta& delta) {
        const auto now = Clock::now();
        if (!run_.texts[writer].empty()) run_.gaps.push_back(milliseconds(now - last_[writer]));
        last_[writer] = now;
        if (delta.token) run_.texts[writer].push_back(*delta.token);
        writers_done_ += delta.finish != decant::FinishReason::none ? 1 : 0;
    }

    const Setup& setup_;
    examples::Progress progress_;
    examples::Stopwatch watch_;
    Run run_;
    std::vector<Clock::time_point> arrived_, last_;
    std::size_t next_ = 0, answered_ = 0, writers_done_ = 0;
};

Run together(const Setup& setup) {
    Engine engine = setup.engine(setup.threads);
    Day day(setup, engine, "one process");
    while (!day.over()) {
        while (const auto prompt = day.arrival()) {
            decant::Ask ask = setup.ask(setup.prompts[*prompt], setup.answer);
            ask.listener = day.listener(*prompt);
            static_cast<void>(engine.ask(std::move(ask)).value());
        }
        static_cast<void>(engine.step().value());
    }
    return day.finish();
}

// ---- two processes

enum class Kind : std::uint32_t { prompt, frame, answer, failure };

/// What goes through the pipes: a head, then its bytes.
struct Head {
    Kind kind = Kind::failure;
    std::int32_t token = 0;  // the first of an answer
    std::uint64_t prompt = 0;
    std::uint64_t bytes = 0;
};
struct Message {
    Head head;
    std::vector<std::byte> bytes;
};

bool write_all(int pipe, const void* data, std::size_t size) {
    for (const auto* at = static_cast<const char*>(data); size > 0;) {
        const ssize_t done = ::write(pipe, at, size);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        size -= static_cast<std::size_t>(done);
    }
    return true;
}
bool read_all(int pipe, void* data, std::size_t size) {
    for (auto* at = static_cast<char*>(data); size > 0;) {
        const ssize_t done = ::read(pipe, at, size);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        at += done;
        size -= static_cast<std::size_t>(done);
    }
    return true;
}
void send(int pipe, Head head, std::span<const std::byte> bytes) {
    head.bytes = bytes.size();
    if (!write_all(pipe, &head, sizeof head) || !write_all(pipe, bytes.data(), bytes.size()))
        throw std::runtime_error("the other process is gone");
}
/// Nothing at the pipe's end.
std::optional<Message> receive(int pipe) {
    Message message;
    if (!read_all(pipe, &message.head, sizeof message.head)) return {};
    if (message.head.bytes > std::uint64_t{1} << 32) throw std::runtime_error("a message that cannot be");
    message.bytes.resize(static_cast<std::size_t>(message.head.bytes));
    if (!read_all(pipe, message.bytes.data(), message.bytes.size())) return {};
    return message;
}

/// The prefill process: computes one prompt after another, and sends what each step has brought.
void prefill(const Setup& setup, std::size_t threads, int in, int out) {
    Engine engine = setup.engine(threads);
    while (const auto message = receive(in)) {
        const auto number = static_cast<std::size_t>(message->head.prompt);
        decant::Ask ask = setup.ask(setup.prompts[number], setup.answer);
        std::optional<decant::Token> first;
        ask.listener = [&](const decant::Delta& delta) {
            if (delta.token) first = delta.token;
        };
        const decant::AskId id = engine.ask(std::move(ask)).value();
        for (std::size_t sent = 0; !first;) {
            static_cast<void>(engine.step().value());
            send(out, {Kind::frame, 0, number}, engine.save_cache(id, 0, sent).value());
            sent = engine.computed(id);
        }
        send(out, {Kind::answer, decant::id(*first), number}, engine.save(id).value());
        engine.cancel(id);
        while (engine.step().value()) {
        }
    }
}

/// The prefill process seen from here: prompts in, messages out, which a thread of its own collects.
class Prefill {
 public:
    Prefill(const Setup& setup, std::size_t threads) {
        std::array<int, 2> there{}, back{};
        if (pipe(there.data()) != 0 || pipe(back.data()) != 0) throw std::runtime_error("no pipes");
        child_ = fork();
        if (child_ < 0) throw std::runtime_error("no second process");
        if (child_ == 0) {
            close(there[1]);
            close(back[0]);
            be_the_child(setup, threads, there[0], back[1]);
        }
        close(there[0]);
        close(back[1]);
        to_ = there[1];
        from_ = back[0];
        collector_ = std::thread([this] { collect(); });
    }
    Prefill(const Prefill&) = delete;
    Prefill& operator=(const Prefill&) = delete;
    ~Prefill() {
        close(to_);  // the end of its work
        collector_.join();
        close(from_);
        while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
        }
    }

    void ask(std::size_t prompt) { send(to_, {Kind::prompt, 0, prompt}, {}); }
    /// The next message; if there is none, waits for it or returns nothing.
    std::optional<Message> take(bool wait) {
        std::unique_lock lock(mutex_);
        if (wait) arrived_.wait(lock, [this] { return !messages_.empty() || ended_; });
        if (messages_.empty()) {
            if (ended_) throw std::runtime_error("the prefill process has ended");
            return {};
        }
        Message next = std::move(messages_.front());
        messages_.pop_front();
        return next;
    }

 private:
    [[noreturn]] static void be_the_child(const Setup& setup, std::size_t threads, int in, int out) {
        try {
            prefill(setup, threads, in, out);
        } catch (const std::exception& error) {
            const std::string_view what = error.what();
            const Head head{Kind::failure, 0, 0, what.size()};
            static_cast<void>(write_all(out, &head, sizeof head) && write_all(out, what.data(), what.size()));
        }
        _exit(0);
    }
    void collect() {
        try {
            while (auto message = receive(from_)) {
                const std::lock_guard lock(mutex_);
                messages_.push_back(*std::move(message));
                arrived_.notify_one();
            }
        } catch (const std::exception&) {  // told as the end
        }
        const std::lock_guard lock(mutex_);
        ended_ = true;
        arrived_.notify_one();
    }

    pid_t child_ = -1;
    int to_ = -1, from_ = -1;
    std::thread collector_;
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<Message> messages_;
    bool ended_ = false;
};

Run split(const Setup& setup) {
    const std::size_t half = (std::max)(setup.threads / 2, std::size_t{1});
    Prefill prefill(setup, half);  // forks, so before there are threads here
    Engine engine = setup.engine((std::max)(setup.threads - half, std::size_t{1}));
    Day day(setup, engine, "two processes");
    std::map<std::size_t, decant::Sequence<decant::Simd>> arriving;
    while (!day.over()) {
        while (const auto prompt = day.arrival()) prefill.ask(*prompt);
        // One message between two steps, so that taking it in delays nobody by much.
        if (auto message = prefill.take(engine.idle())) {
            const auto number = static_cast<std::size_t>(message->head.prompt);
            switch (message->head.kind) {
                case Kind::frame: {
                    auto at = arriving.find(number);
                    if (at == arriving.end())
                        at = arriving.emplace(number, engine.room(setup.prompts[number].size()).value()).first;
                    decant::import_frame(setup.model, at->second, message->bytes).value();
                    break;
                }
                case Kind::answer: {
                    decant::Delta first;
                    first.token = decant::Token{message->head.token};
                    day.answer(number, first);
                    auto cache = std::move(arriving.extract(number).mapped());
                    static_cast<void>(engine.restore(message->bytes, day.listener(number), std::move(cache)).value());
                    break;
                }
                default:
                    throw std::runtime_error(
                        std::string(reinterpret_cast<const char*>(message->bytes.data()), message->bytes.size()));
            }
        }
        static_cast<void>(engine.step().value());
    }
    return day.finish();
}

// ---- what is shown

double percentile(std::vector<double> values, double share) {
    if (values.empty()) return 0.0;
    std::sort(values.begin(), values.end());
    return values[(std::min)(static_cast<std::size_t>(share * static_cast<double>(values.size())), values.size() - 1)];
}

/// How many of the pauses are how long.
void draw(const Run& one, const Run& two) {
    const double least = (std::min)(percentile(one.gaps, 0.0), percentile(two.gaps, 0.0));
    const double most = (std::max)(percentile(one.gaps, 1.0), percentile(two.gaps, 1.0));
    std::printf("\n%18s  %-32s %s\n", "milliseconds", "one process", "two processes");
    for (double from = least; from <= most; from *= 1.5) {
        const double to = from * 1.5;
        const auto share = [&](const Run& run) {
            const auto count =
                std::count_if(run.gaps.begin(), run.gaps.end(), [&](double gap) { return gap >= from && gap < to; });
            return static_cast<double>(count) / static_cast<double>(run.gaps.size());
        };
        const auto bar = [](double part) {  // a rare one is seen, too
            const auto length = static_cast<std::size_t>(part * 24.0 + (part > 0.0 ? 0.999 : 0.0));
            char text[64];
            std::snprintf(text, sizeof text, "%5.1f %% ", 100.0 * part);
            return (part > 0.0 ? std::string(text) : std::string(8, ' ')) + std::string(length, '#');
        };
        std::printf("%7.1f to %7.1f  %-32s %s\n", from, to, bar(share(one)).c_str(), bar(share(two)).c_str());
    }
}

void show(const Setup& setup, const Run& one, const Run& two) {
    std::printf("\n%zu writers of %zu tokens, %zu prompts of %zu tokens arrive meanwhile; %zu threads in all\n",
                setup.writers, setup.tokens, setup.prompts.size(), setup.prompts.front().size(), setup.threads);
    std::printf("\n%-44s %12s %14s\n", "", "one process", "two processes");
    const auto line = [&](const char* what, double a, double b) { std::printf("%-44s %12.1f %14.1f\n", what, a, b); };
    line("between two tokens of a writer, ms: median", percentile(one.gaps, 0.5), percentile(two.gaps, 0.5));
    line("  95 % wait no longer than", percentile(one.gaps, 0.95), percentile(two.gaps, 0.95));
    line("  99 %", percentile(one.gaps, 0.99), percentile(two.gaps, 0.99));
    line("  the longest", percentile(one.gaps, 1.0), percentile(two.gaps, 1.0));
    line("a prompt's first token after, ms: median", percentile(one.first, 0.5), percentile(two.first, 0.5));
    line("  the longest", percentile(one.first, 1.0), percentile(two.first, 1.0));
    line("all done after, s", one.seconds, two.seconds);
    draw(one, two);
    std::printf(
        "\nTwo processes have half of the threads each: writers no longer wait for prompts, and prompts take "
        "longer.\n");
    std::printf("Both wrote %s.\n", one.texts == two.texts ? "the same, token for token" : "something else");
}

int run(int argc, char** argv) {
    const examples::Options options(argc, argv,
                                    {"--model", "--writers", "--tokens", "--prompts", "--length", "--threads"});
    if (!options.given("--model")) throw examples::UsageError("give a file: --model FILE.gguf");
    std::signal(SIGPIPE, SIG_IGN);
    auto weights = decant::Weights::open(options.text("--model", "")).value();
    auto tokenizer = decant::Tokenizer::from(weights).value();
    auto model = decant::Model<decant::Simd>::bind(weights).value();
    Setup setup{model, tokenizer, options.count("--writers", 4, 1, 64), options.count("--tokens", 240, 2, 100000),
                options.count("--threads", decant::available_processors(), 1, 1024)};
    setup.story = tokenizer.encode("Once upon a time there was a lighthouse keeper who", {.bos = true});
    setup.prompts.resize(options.count("--prompts", 8, 1, 64));
    examples::Random random(1);  // a prompt's length counts, not what it says
    const std::size_t length = options.count("--length", 512, 1, 100000);
    for (Tokens& prompt : setup.prompts)
        for (std::size_t i = 0; i < length; ++i)
            prompt.push_back(decant::Token{static_cast<std::int32_t>(random.below(model.spec().vocabulary))});
    static_cast<void>(model.fingerprint());  // once, for both processes
    const Run one = together(setup);
    const Run two = split(setup);
    show(setup, one, two);
    return one.texts == two.texts ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try { return run(argc, argv); } catch (const examples::UsageError& error) {
    std::cerr << "handoff: " << error.what() << '\n';
    return 2;
} catch (const std::exception& error) {
    std::cerr << "handoff: " << error.what() << '\n';
    return 1;
}

#else

int main() {
    std::cerr << "handoff: this example joins two processes with fork and pipe, which this system lacks. Frames are "
                 "bytes: any other way to move them will do.\n";
    return 2;
}

#endif

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Requests and answers that go on elsewhere, with the cache that was computed for them.
#include <decant/cache/frames.hpp>
#include <decant/serve/engine.hpp>
#include <decant/serve/request.hpp>

#include "backend/counting.hpp"
#include "serve/support.hpp"

#include <decant/core/hash.hpp>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using decant::Ask;
using decant::AskId;
using decant::Context;
using decant::Delta;
using decant::DType;
using decant::EngineOptions;
using decant::ErrorCode;
using decant::FinishReason;
using decant::KvCache;
using decant::Sampler;
using decant::Simd;
using decant::TextStream;
using decant::Token;
using decant_test::alone;
using decant_test::drain;
using decant_test::Random;
using decant_test::Scene;
using decant_test::taken;
using decant_test::Tokens;
using decant_test::Written;
using Engine = decant::Engine<Simd>;

namespace {

using Bytes = std::vector<std::byte>;

Sampler history_sampler(std::uint64_t seed) {
    return taken(Sampler::chain({decant::Penalties{.repetition = 1.2f, .frequency = 0.1f},
                                 decant::Dry{.multiplier = 0.8f}, decant::Mirostat{.tau = 4.0f}},
                                seed));
}

Ask random_ask(Random& random) {
    Ask ask;
    ask.prompt = decant_test::random_tokens(random, 1 + random.below(40));
    ask.sampler = random.below(2) == 0 ? Sampler{} : history_sampler(random.next());
    ask.max_tokens = 10 + random.below(30);
    ask.answers = random.below(4) == 0 ? 3 : 1;
    ask.ignore_end = random.below(2) == 0;
    ask.draft_tokens = static_cast<std::uint32_t>(random.below(5));
    ask.priority = static_cast<int>(random.below(3)) - 1;
    if (random.below(3) == 0) ask.stop = {"a", "th"};
    if (random.below(3) == 0) ask.stop_tokens = decant_test::random_tokens(random, 2);
    return ask;
}

/// What came for each answer of each ask, in whichever engine; not what a cancelled one had held back.
struct Log {
    std::map<std::pair<std::size_t, std::uint32_t>, Written> answers;

    [[nodiscard]] std::function<void(const Delta&)> listener(std::size_t ask) {
        return [this, ask](const Delta& delta) {
            if (delta.finish == FinishReason::cancelled) return;
            Written& written = answers[{ask, delta.answer}];
            REQUIRE(written.ends == 0);
            if (delta.token) written.tokens.push_back(*delta.token);
            written.text += delta.text;
            written.end = delta.finish;
            if (delta.finish != FinishReason::none) ++written.ends;
        };
    }
};

/// All of an answer's cache, put into the other engine's.
std::optional<decant::Sequence<Simd>> hand_over(const Scene& scene, const Engine& from, AskId id, std::uint32_t answer,
                                                Engine& to) {
    if (from.computed(id, answer) == 0) return {};
    auto sequence = taken(to.room(from.computed(id, answer)));
    REQUIRE(decant::import_frame(scene.model, sequence, taken(from.save_cache(id, answer))));
    return sequence;
}

void sign_answer(Bytes& bytes) {
    decant::Hash64 hash;
    hash.add(std::span<const std::byte>(bytes).first(bytes.size() - 8));
    for (std::size_t i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<std::byte>(hash.value() >> 8 * i);
}

}  // namespace

TEST_CASE("a request with its frames goes on elsewhere and computes nothing again", "[serve][handoff]") {
    using Counted = decant_test::Counting<Simd>;
    for (const char* name : {"llama3", "gemma3_std", "mamba2"}) {
        for (const DType dtype : {DType::f32, DType::f16}) {
            INFO(name << ", " << decant::name(dtype));
            const Scene scene(name);
            Context<Simd> context(scene.model, decant::ThreadPool{1}, {.rows = 16});
            const KvCache<Simd> cache(context, {.tokens = 128, .block_tokens = 4, .dtype = dtype});
            decant::Request<Simd> request(taken(cache.sequence()), history_sampler(4), TextStream(scene.tokenizer));
            request.push(decant_test::random_tokens(33, 5, 160));
            for (int i = 0; i < 7; ++i) taken(request.step(context));
            const Bytes saved = request.save();
            const Bytes frame = taken(export_frame(scene.model, request.sequence()));

            // With one row, a pass computes one token.
            const auto model = decant_test::bind<Counted>(decant_test::tiny(name));
            Context<Counted> elsewhere(model, decant::ThreadPool{2}, {.rows = 1, .sequences = 1});
            const KvCache<Counted> other(elsewhere, {.tokens = 80, .block_tokens = 7, .dtype = dtype});
            auto sequence = taken(other.sequence());
            REQUIRE(import_frame(model, sequence, frame));
            auto loaded = taken(decant::Request<Counted>::load(saved, std::move(sequence), scene.tokenizer));
            CHECK(loaded.computed() == 39);
            CHECK(loaded.waiting().size() == 1);
            for (int i = 0; i < 15; ++i) {
                const decant::Step expected = taken(request.step(context));
                const decant::Step found = taken(loaded.step(elsewhere));
                CHECK(found.token == expected.token);
                CHECK(found.text == expected.text);
            }
            CHECK(model.backend().runs().size() == 15);
            CHECK(loaded.save() == request.save());
        }
    }
}

TEST_CASE("a request takes up a part of its cache, and no cache of others", "[serve][handoff]") {
    const Scene scene("llama3");
    Context<Simd> context(scene.model);
    const KvCache<Simd> cache(context, {.tokens = 256});
    decant::Request<Simd> request(taken(cache.sequence()), history_sampler(4), TextStream(scene.tokenizer));
    request.push(decant_test::random_tokens(20, 5, 160));
    taken(request.step(context));
    const Bytes saved = request.save();
    const auto load = [&](std::span<const Token> tokens) {
        auto sequence = taken(cache.sequence());
        if (!tokens.empty()) taken(context.prefill(sequence, tokens));
        return decant::Request<Simd>::load(saved, std::move(sequence), scene.tokenizer);
    };
    auto part = taken(load(request.tokens().first(13)));
    CHECK(part.waiting().size() == 8);
    for (int i = 0; i < 9; ++i) CHECK(taken(part.step(context)).token == taken(request.step(context)).token);

    Tokens wrong(request.tokens().begin(), request.tokens().begin() + 13);
    wrong.back() = Token{(id(wrong.back()) + 1) % 160};
    CHECK(load(wrong).error().code == ErrorCode::mismatch);
    const Tokens longer(30, Token{1});
    CHECK(load(longer).error().code == ErrorCode::mismatch);
}

TEST_CASE("answers go on in another engine where they stopped", "[serve][handoff]") {
    Random random{21};
    for (const char* name : {"llama3", "gemma3_std", "mamba2"}) {
        const Scene scene(name);
        for (int round = 0; round < 12; ++round) {
            INFO(name << ", round " << round);
            Engine from = scene.engine({.cache_tokens = 600, .sequences = 4, .rows = 24, .prompt_rows = 8});
            Engine to = scene.engine(
                {.cache_tokens = 700, .block_tokens = 5, .sequences = round % 2 == 0 ? 30u : 5u, .rows = 32}, 2);
            std::vector<Ask> asks;
            std::vector<AskId> ids;
            Log log;
            for (std::size_t i = 0; i < 6; ++i) {
                Ask ask = random_ask(random);
                asks.push_back(ask);
                ask.listener = log.listener(i);
                ids.push_back(taken(from.ask(std::move(ask))));
            }
            for (std::size_t steps = random.below(25); steps > 0; --steps) taken(from.step());
            for (std::size_t i = 0; i < asks.size(); ++i) {
                Bytes before;
                for (std::uint32_t n = 0; n < asks[i].answers; ++n) {
                    const auto saved = from.save(ids[i], n);
                    if (!saved) {
                        CHECK(saved.error().code == ErrorCode::missing);
                        CHECK(log.answers[{i, n}].ends == 1);
                        continue;
                    }
                    if (*saved == before) break;  // all answers in one
                    before = *saved;
                    auto cache = random.below(3) > 0 ? hand_over(scene, from, ids[i], n, to) : std::nullopt;
                    taken(to.restore(*saved, log.listener(i), std::move(cache)));
                    if (random.below(2) == 0) taken(to.step());
                }
                from.cancel(ids[i]);
            }
            drain(from);
            drain(to);
            for (std::size_t i = 0; i < asks.size(); ++i) {
                for (std::uint32_t n = 0; n < asks[i].answers; ++n) {
                    const Written expected = alone(scene, asks[i], n);
                    const Written& found = log.answers[{i, n}];
                    INFO("ask " << i << ", answer " << n);
                    CHECK(found.tokens == expected.tokens);
                    CHECK(found.text == expected.text);
                    CHECK(found.end == expected.end);
                    CHECK(found.ends == 1);
                }
            }
            for (const Engine* engine : {&from, &to}) {
                const auto counts = engine->counts();
                CHECK(counts.free_blocks + counts.remembered_blocks == counts.blocks);
            }
        }
    }
}

TEST_CASE("a stop string that is half written is found elsewhere", "[serve][handoff]") {
    const Scene scene("llama3");
    Ask ask;
    ask.prompt = decant_test::random_tokens(9, 22, 160);
    ask.sampler = history_sampler(7);
    ask.max_tokens = 24;
    ask.ignore_end = true;
    const std::string text = alone(scene, ask, 0).text;
    REQUIRE(text.size() > 12);
    ask.stop = {text.substr(6, 5)};
    const Written expected = alone(scene, ask, 0);
    REQUIRE(expected.end == FinishReason::stop);
    for (std::size_t steps = 1; steps < expected.tokens.size(); ++steps) {
        Log log;
        Engine from = scene.engine({.cache_tokens = 256}), to = scene.engine({.cache_tokens = 256});
        Ask asked = ask;
        asked.listener = log.listener(0);
        const AskId id = taken(from.ask(std::move(asked)));
        while (log.answers[{0, 0}].tokens.size() < steps) taken(from.step());
        taken(to.restore(taken(from.save(id)), log.listener(0), hand_over(scene, from, id, 0, to)));
        drain(to);
        CHECK(log.answers[{0, 0}].text == expected.text);
        CHECK(log.answers[{0, 0}].tokens == expected.tokens);
        CHECK(to.counts().prompt_tokens == 0);  // nothing was computed again
        CHECK(to.counts().answer_tokens == expected.tokens.size() - steps);
    }
}

TEST_CASE("a prompt's cache is streamed while it is computed, and decoding goes on beside it", "[serve][handoff]") {
    for (const char* name : {"llama3", "mamba2"}) {
        INFO(name);
        const Scene scene(name);
        Engine prefill = scene.engine({.cache_tokens = 512, .rows = 9, .prompt_rows = 9}, 2);
        Engine decode = scene.engine({.cache_tokens = 512});
        Log log;
        std::vector<Ask> asks(2);
        for (std::size_t i = 0; i < 2; ++i) {
            asks[i].prompt = decant_test::random_tokens(i == 0 ? 3 : 100, 23 + i, 160);
            asks[i].sampler = history_sampler(i);
            asks[i].max_tokens = i == 0 ? 40 : 10;
            asks[i].ignore_end = true;
        }
        Ask steady = asks[0], late = asks[1];
        steady.listener = log.listener(0);
        late.listener = log.listener(1);
        taken(decode.ask(std::move(steady)));
        const AskId id = taken(prefill.ask(std::move(late)));
        auto sequence = taken(decode.room(asks[1].prompt.size()));
        std::size_t frames = 0;
        while (log.answers[{1, 0}].tokens.empty()) {
            taken(prefill.step());
            taken(decode.step());
            const Bytes frame = taken(prefill.save_cache(id, 0, sequence.size()));
            REQUIRE(decant::import_frame(scene.model, sequence, frame));
            CHECK(sequence.size() == prefill.computed(id));
            ++frames;
        }
        CHECK(frames > 10);
        taken(decode.restore(taken(prefill.save(id)), log.listener(1), std::move(sequence)));
        prefill.cancel(id);
        drain(prefill);
        drain(decode);
        for (std::size_t i = 0; i < 2; ++i) CHECK(log.answers[{i, 0}].tokens == alone(scene, asks[i], 0).tokens);
        CHECK(decode.counts().prompt_tokens == 3);
    }
}

TEST_CASE("log-probabilities go on with the tokens", "[serve][handoff]") {
    const Scene scene("llama3");
    Engine from = scene.engine({.cache_tokens = 256}), to = scene.engine({.cache_tokens = 256});
    std::vector<std::vector<decant::LogProbability>> found[2];
    const auto listener = [&](int engine) {
        return [&found, engine](const Delta& delta) {
            if (delta.token) found[engine].emplace_back(delta.log_probabilities.begin(), delta.log_probabilities.end());
        };
    };
    Ask ask;
    ask.prompt = decant_test::random_tokens(9, 40, 160);
    ask.max_tokens = 12;
    ask.ignore_end = true;
    ask.log_probabilities = 2;
    ask.listener = listener(0);
    const AskId id = taken(from.ask(std::move(ask)));
    for (int i = 0; i < 5; ++i) taken(from.step());
    const std::size_t before = found[0].size();
    taken(to.restore(taken(from.save(id)), listener(1)));
    drain(from);
    drain(to);
    REQUIRE(found[1].size() == 12 - before);
    for (std::size_t i = 0; i < found[1].size(); ++i) {
        REQUIRE(found[1][i].size() == 3);
        for (std::size_t n = 0; n < 3; ++n) {
            CHECK(found[1][i][n].token == found[0][before + i][n].token);
            CHECK(found[1][i][n].value == found[0][before + i][n].value);
        }
    }
}

TEST_CASE("without a place a restored answer waits, and its blocks are remembered", "[serve][handoff]") {
    const Scene scene("llama3");
    Log log;
    Engine from = scene.engine({.cache_tokens = 256}), to = scene.engine({.cache_tokens = 256, .sequences = 1});
    std::vector<Ask> asks(2);
    for (std::size_t i = 0; i < 2; ++i) {
        asks[i].prompt = decant_test::random_tokens(50, 30 + i, 160);
        asks[i].max_tokens = 12;
        asks[i].ignore_end = true;
    }
    Ask first = asks[0], second = asks[1];
    first.listener = log.listener(0);
    second.listener = log.listener(1);
    taken(to.ask(std::move(first)));
    taken(to.step());
    const AskId id = taken(from.ask(std::move(second)));
    for (int i = 0; i < 4; ++i) taken(from.step());
    taken(to.restore(taken(from.save(id)), log.listener(1), hand_over(scene, from, id, 0, to)));
    CHECK(to.counts().waiting == 1);
    drain(to);
    CHECK(to.counts().cached_tokens == 48);  // three blocks of 16 of 53 tokens
    for (std::size_t i = 0; i < 2; ++i) CHECK(log.answers[{i, 0}].tokens == alone(scene, asks[i], 0).tokens);
}

TEST_CASE("a deadline goes along as the time that is left", "[serve][handoff]") {
    const Scene scene("llama3");
    Engine from = scene.engine({.cache_tokens = 256}), to = scene.engine({.cache_tokens = 256});
    Ask ask;
    ask.prompt = {Token{3}};
    const auto now = std::chrono::steady_clock::now();
    for (const auto deadline :
         {now - std::chrono::hours(1), now + std::chrono::hours(1), std::chrono::steady_clock::time_point::max()}) {
        Log log;
        ask.deadline = deadline;
        ask.max_tokens = 3;
        ask.ignore_end = true;
        const AskId id = taken(from.ask(ask));
        taken(to.restore(taken(from.save(id)), log.listener(0)));
        drain(to);
        CHECK(log.answers[{0, 0}].end == (deadline < now ? FinishReason::deadline : FinishReason::length));
        drain(from);
    }
}

TEST_CASE("what is no answer, or is being worked on, is refused by name", "[serve][handoff]") {
    const Scene scene("llama3");
    Engine from = scene.engine({.cache_tokens = 256}), to = scene.engine({.cache_tokens = 256});
    Ask ask;
    ask.prompt = decant_test::random_tokens(40, 33, 160);
    ask.stop = {"zz"};
    ask.sampler = history_sampler(1);
    ask.ignore_end = true;
    ask.cache_salt = "salt";
    ask.priority = -3;
    ask.stop_tokens = {Token{1}, Token{2}};
    const AskId id = taken(from.ask(ask));
    CHECK(from.save(id));
    CHECK(from.computed(id) == 0);
    CHECK(from.save_cache(id).error().code == ErrorCode::invalid_argument);
    CHECK(from.save(AskId{77}).error().code == ErrorCode::missing);
    CHECK(from.save(id, 1).error().code == ErrorCode::missing);
    CHECK(taken(from.step_for(std::chrono::nanoseconds(1))));
    CHECK(from.save(id).error().code == ErrorCode::invalid_argument);
    CHECK(from.save_cache(id).error().code == ErrorCode::invalid_argument);
    for (int i = 0; i < 3; ++i) taken(from.step());
    const Bytes saved = taken(from.save(id));

    const auto code = [&](Engine& engine, std::span<const std::byte> bytes,
                          std::optional<decant::Sequence<Simd>> sequence = {}) {
        auto restored = engine.restore(bytes, {}, std::move(sequence));
        if (!restored) return std::optional<ErrorCode>(restored.error().code);
        engine.cancel(*restored);
        drain(engine);
        return std::optional<ErrorCode>();
    };
    CHECK_FALSE(code(to, saved));
    const AskId twin = taken(to.restore(saved, {}, hand_over(scene, from, id, 0, to)));
    CHECK(taken(to.save(twin)) == saved);
    CHECK(taken(to.save_cache(twin)) == taken(from.save_cache(id)));
    to.cancel(twin);
    drain(to);
    CHECK(code(to, saved, taken(from.room(1))) == ErrorCode::mismatch);
    CHECK(to.room(257).error().code == ErrorCode::cache_full);
    const Scene other("llama2");
    Engine stranger = other.engine({.cache_tokens = 256});
    CHECK(code(stranger, saved) == ErrorCode::mismatch);
    Engine tight = scene.engine({.cache_tokens = 32});
    CHECK(code(tight, saved) == ErrorCode::invalid_argument);

    for (std::size_t i = 0; i < saved.size(); ++i) {
        Bytes damaged = saved;
        damaged[i] ^= std::byte{4};
        if (!code(to, damaged)) FAIL("byte " << i);
        if (!code(to, std::span(saved).first(i))) FAIL("cut to " << i);
    }
    // Whatever somebody vouches for: an error, or an answer.
    Random random{34};
    for (int round = 0; round < 2000; ++round) {
        Bytes odd = saved;
        for (std::size_t change = 1 + random.below(4); change > 0; --change)
            odd[random.below(odd.size())] = static_cast<std::byte>(random.below(256));
        if (round % 4 == 0) odd.resize(random.below(odd.size()) + 8);
        sign_answer(odd);
        const auto restored = to.restore(odd, {}, hand_over(scene, from, id, 0, to));
        if (!restored) continue;
        for (int i = 0; i < 2; ++i) taken(to.step());
        to.cancel(*restored);
        drain(to);
    }
    const auto counts = to.counts();
    CHECK(counts.free_blocks + counts.remembered_blocks == counts.blocks);
    from.cancel(id);
    CHECK(from.save(id).error().code == ErrorCode::missing);
}

#if defined(__unix__) || defined(__APPLE__)

TEST_CASE("another process computes the prompt", "[serve][handoff]") {
    Ask ask;
    ask.prompt = decant_test::random_tokens(60, 41, 160);
    ask.sampler = history_sampler(3);
    ask.max_tokens = 20;
    ask.ignore_end = true;
    int ends[2] = {};
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {  // opens the file itself, and says nothing but the bytes: size, frame, state
        const Scene scene("gemma3_std");
        Engine engine = scene.engine({.cache_tokens = 128, .block_tokens = 3, .rows = 16});
        const auto id = engine.ask(ask);
        while (engine.computed(*id) < ask.prompt.size()) static_cast<void>(engine.step());
        for (const auto& part : {engine.save_cache(*id), engine.save(*id)}) {
            const std::uint64_t size = part->size();
            static_cast<void>(write(ends[1], &size, sizeof size) == sizeof size &&
                              write(ends[1], part->data(), part->size()) == static_cast<ssize_t>(part->size()));
        }
        _exit(0);
    }
    close(ends[1]);
    const auto read_all = [&](void* to, std::size_t size) {
        for (auto* at = static_cast<char*>(to); size > 0;) {
            const ssize_t got = read(ends[0], at, size);
            REQUIRE(got > 0);
            at += got;
            size -= static_cast<std::size_t>(got);
        }
    };
    Bytes parts[2];
    for (Bytes& part : parts) {
        std::uint64_t size = 0;
        read_all(&size, sizeof size);
        REQUIRE(size < 1u << 24);
        part.resize(static_cast<std::size_t>(size));
        read_all(part.data(), part.size());
    }
    close(ends[0]);
    REQUIRE(waitpid(child, nullptr, 0) == child);

    const Scene scene("gemma3_std");
    Engine engine = scene.engine({.cache_tokens = 256}, 2);
    auto sequence = taken(engine.room(80));
    REQUIRE(decant::import_frame(scene.model, sequence, parts[0]));
    Log log;
    taken(engine.restore(parts[1], log.listener(0), std::move(sequence)));
    drain(engine);
    const Tokens expected = alone(scene, ask, 0).tokens;
    const Tokens& found = log.answers[{0, 0}].tokens;  // the first came in the other process
    REQUIRE(found.size() + 1 == expected.size());
    CHECK(std::equal(found.begin(), found.end(), expected.begin() + 1));
    CHECK(engine.counts().prompt_tokens == 0);
}

#endif

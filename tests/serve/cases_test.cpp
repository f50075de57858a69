// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Public bug cases about batches, speculation and hosts: inputs that other engines failed on (../shared/cases), each
// with the number of its case.
#include <decant/serve/engine.hpp>

#include "core/sanitizers.hpp"
#include "model/tiny_file.hpp"
#include "serve/support.hpp"

#include <decant/backend/simd/simd.hpp>
#include <decant/serve/draft.hpp>
#include <decant/serve/request.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using decant::Ask;
using decant::AskId;
using decant::Delta;
using decant::DType;
using decant::EngineCounts;
using decant::EngineOptions;
using decant::FinishReason;
using decant::Isa;
using decant::Sampler;
using decant::Simd;
using decant::Token;
using decant_test::alone;
using decant_test::drain;
using decant_test::Floats;
using decant_test::Listener;
using decant_test::Random;
using decant_test::random_tokens;
using decant_test::same_bits;
using decant_test::Scene;
using decant_test::taken;
using decant_test::Tokens;
using decant_test::Written;
using Engine = decant::Engine<Simd>;
using Request = decant::Request<Simd>;

namespace {

Tokens ids(const std::vector<int>& numbers) {
    Tokens tokens;
    for (const int number : numbers) tokens.push_back(Token{number});
    return tokens;
}

void check_same(const Written& found, const Written& expected) {
    CHECK(found.ends == 1);
    CHECK(found.tokens == expected.tokens);
    CHECK(found.text == expected.text);
    CHECK(found.end == expected.end);
}

void check_no_block_kept(const Engine& engine) {
    const EngineCounts counts = engine.counts();
    CHECK(counts.free_blocks + counts.remembered_blocks == counts.blocks);
    CHECK(counts.waiting == 0);
    CHECK(counts.running == 0);
}

/// Two tokens in turn, mostly: drafts of such an answer are right.
Sampler in_turn() {
    return taken(Sampler::chain({decant::LogitBias{{{Token{20}, 30.0f}, {Token{21}, 30.0f}}},
                                 decant::Penalties{.presence = 1.0f, .last_n = 1}, decant::Temperature{0.3f}},
                                5));
}

/// Logits that only one token can win.
Floats only(std::size_t vocabulary, int token) {
    Floats scores(vocabulary, 0.0f);
    scores[static_cast<std::size_t>(token)] = 10.0f;
    return scores;
}

/// Everything on the calling thread, but the last task of a call fails now and then.
struct Faulty {
    std::shared_ptr<std::size_t> calls = std::make_shared<std::size_t>(0);

    [[nodiscard]] std::size_t concurrency() const { return 2; }
    void parallel_for(std::size_t n, decant::TaskRef task) const {
        for (std::size_t i = 0; i < n; ++i) {
            if (i + 1 == n && ++*calls % 37 == 0) throw std::runtime_error("the host's own");
            task(i);
        }
    }
};

/// A request on a tiny model, whose passes are real and whose logits are a script.
struct Scripted {
    Scene scene{"llama3"};
    decant::Context<Simd> context{scene.model, {.rows = 16, .logits = 16}};
    decant::KvCache<Simd> cache{context, {.tokens = 64, .block_tokens = 4}};
    std::size_t vocabulary = scene.model.spec().vocabulary;

    Request request(const Tokens& prompt) {
        Request request(taken(cache.sequence()), Sampler({.temperature = 0.0f}), decant::TextStream(scene.tokenizer));
        request.push(prompt);
        return request;
    }

    /// One pass with a draft, then the tokens that the script lets through: `next(i)` after i tokens of the draft. Ends
    /// early where `goes_on(token)` says so.
    template <class Next, class GoesOn>
    Tokens step(Request& request, const Tokens& draft, Next next, GoesOn goes_on) {
        request.draft(draft);
        decant::PassPart<Simd> part = request.part();
        part.want = decant::Want::all;
        static_cast<void>(taken(context.pass({&part, 1})));
        Tokens out;
        std::vector<Floats> rows;
        for (std::size_t i = 0; i <= draft.size(); ++i) rows.push_back(next(i));
        static_cast<void>(taken(request.take_draft([&](std::size_t i) { return std::span<const float>(rows.at(i)); },
                                                   [&](const decant::Step& step) {
                                                       out.push_back(step.token);
                                                       return goes_on(step);
                                                   })));
        return out;
    }
};

}  // namespace

TEST_CASE("case BS-04: three asks in a pool of ten blocks write what they write in one of a thousand",
          "[serve][cases]") {
    struct Kind {
        const char* model;
        std::vector<decant::SamplerStep> steps;
        std::vector<std::string> stop;
    };
    const decant::Penalties penalties{.repetition = 1.1f, .frequency = 0.3f};
    const std::vector<Kind> kinds{{"llama3", {penalties, decant::Temperature{0.9f}}, {}},
                                  {"llama3", {decant::Mirostat{3.0f, 0.2f}}, {}},
                                  {"llama3", {decant::Temperature{1.0f}}, {"never to be found"}},
                                  {"mamba2", {penalties, decant::Temperature{0.9f}}, {}}};
    for (const Kind& kind : kinds) {
        const Scene scene(kind.model);
        std::vector<Written> expected;
        for (const std::size_t blocks : {std::size_t{1000}, std::size_t{10}}) {
            Engine engine = scene.engine({.cache_tokens = 4 * blocks, .block_tokens = 4, .rows = 6, .prompt_rows = 3});
            Listener listener;
            std::vector<AskId> asked;
            for (std::uint64_t n = 0; n < 3; ++n) {
                Ask ask;
                ask.prompt = random_tokens(12, 40 + n, 160);
                ask.sampler = taken(Sampler::chain(kind.steps, n));
                ask.max_tokens = 20;
                ask.ignore_end = true;
                ask.stop = kind.stop;
                // A text whose beginning is held back from the first token that could start it.
                if (!kind.stop.empty()) ask.stop.push_back(alone(scene, ask, 0).text.substr(0, 4) + "\x01");
                ask.listener = [&](const Delta& delta) { listener(delta); };
                asked.push_back(taken(engine.ask(ask)));
                if (blocks == 1000) expected.push_back(alone(scene, ask, 0));
            }
            drain(engine);
            CAPTURE(kind.model, blocks);
            for (std::size_t n = 0; n < 3; ++n) {
                check_same(listener.answers[{asked[n], 0}], expected[n]);
                CHECK(expected[n].end == FinishReason::length);
            }
            CHECK((engine.counts().preemptions > 0) == (blocks == 10));
            CHECK(engine.counts().answer_tokens == 60);
            check_no_block_kept(engine);
        }
    }
}

TEST_CASE("case BS-04: pushed out after any number of tokens, and twice", "[serve][cases]") {
    for (const char* const model : {"llama3", "mamba2"}) {
        const Scene scene(model);
        std::map<std::size_t, int> pushed_out_after;
        bool twice = false;
        for (std::size_t when = 0; when <= 20; ++when) {
            Engine engine = scene.engine({.cache_tokens = 40, .block_tokens = 4, .rows = 40, .prompt_rows = 40});
            Listener listener;
            Ask ask;
            ask.prompt = random_tokens(12, 44, 160);
            ask.sampler =
                taken(Sampler::chain({decant::Penalties{.frequency = 0.3f}, decant::Mirostat{3.0f, 0.2f}}, 9));
            ask.max_tokens = 20;
            ask.ignore_end = true;
            std::size_t written = 0;
            ask.listener = [&](const Delta& delta) {
                listener(delta);
                ++written;
            };
            const AskId id = taken(engine.ask(ask));
            int bullies = 0;
            // One that goes first, takes all blocks that are free, and then needs one more.
            const auto push_out = [&] {
                const EngineCounts counts = engine.counts();
                const std::size_t free = counts.blocks - (12 + written + 3) / 4;
                Ask bully;
                bully.prompt = random_tokens(free * 4, 50 + static_cast<std::uint64_t>(bullies), 160);
                bully.max_tokens = 2;
                bully.ignore_end = true;
                bully.priority = 10;
                static_cast<void>(taken(engine.ask(std::move(bully))));
                ++bullies;
            };
            std::uint64_t preemptions = 0;
            for (bool more = true; more;) {
                if (bullies == 0 && written >= when) push_out();
                more = taken(engine.step());
                if (engine.counts().preemptions > preemptions) {
                    preemptions = engine.counts().preemptions;
                    ++pushed_out_after[written];
                } else if (preemptions == 1 && bullies == 1 && engine.counts().running == 1 && written < 18) {
                    push_out();  // again, soon after it has come back
                }
            }
            CAPTURE(model, when, bullies);
            twice |= preemptions >= 2;
            check_same(listener.answers[{id, 0}], alone(scene, ask, 0));
            check_no_block_kept(engine);
        }
        CAPTURE(model);
        for (const std::size_t after : {1u, 5u, 19u}) {
            CAPTURE(after);
            CHECK(pushed_out_after[after] > 0);
        }
        CHECK(twice);
    }
}

TEST_CASE("case BS-05: cancelled in every state, nothing is kept", "[serve][cases]") {
    const Scene scene("llama3");
    const Tokens common = random_tokens(16, 60, 160);
    // The step before which the second ask is cancelled: queued, in the first, second or last part of its prompt,
    // while it writes, and when it is done.
    for (const bool behind_a_hit : {false, true}) {
        for (int before = 0; before < 30; ++before) {
            Engine engine = scene.engine({.cache_tokens = 96, .block_tokens = 4, .rows = 8, .prompt_rows = 4});
            Listener listener;
            const auto ask = [&](std::size_t own, std::uint64_t seed) {
                Ask one;
                if (behind_a_hit) one.prompt = common;
                const Tokens more = random_tokens(own, seed, 160);
                one.prompt.insert(one.prompt.end(), more.begin(), more.end());
                one.max_tokens = 8;
                one.ignore_end = true;
                one.listener = [&](const Delta& delta) { listener(delta); };
                return std::pair(taken(engine.ask(one)), one);
            };
            if (behind_a_hit) {
                static_cast<void>(ask(1, 1));
                drain(engine);
            }
            const auto first = ask(12, 2), second = ask(12, 3);
            for (int step = 0; step < before; ++step) static_cast<void>(taken(engine.step()));
            const bool was_done = listener.answers[{second.first, 0}].ends > 0;
            engine.cancel(second.first);
            engine.cancel(second.first);
            engine.cancel(AskId{12345});
            drain(engine);
            CAPTURE(behind_a_hit, before);
            const Written& found = listener.answers[{second.first, 0}];
            CHECK(found.ends == 1);
            CHECK(found.end == (was_done ? FinishReason::length : FinishReason::cancelled));
            check_same(listener.answers[{first.first, 0}], alone(scene, first.second, 0));
            CHECK(engine.counts().finished == (behind_a_hit ? 3 : 2));
            check_no_block_kept(engine);
        }
    }
}

TEST_CASE("case BS-05: cancelled by the listener, at any token", "[serve][cases]") {
    const Scene scene("llama3");
    for (std::size_t at = 1; at <= 6; ++at) {
        Engine engine = scene.engine({.cache_tokens = 96, .block_tokens = 4});
        Listener listener;
        Ask ask;
        ask.prompt = random_tokens(9, 61, 160);
        ask.max_tokens = 6;
        ask.answers = 2;
        ask.ignore_end = true;
        std::size_t heard = 0;
        ask.listener = [&](const Delta& delta) {
            listener(delta);
            if (delta.answer == 1 && ++heard == at) engine.cancel(delta.ask);
        };
        const AskId id = taken(engine.ask(ask));
        drain(engine);
        CAPTURE(at);
        for (std::uint32_t n = 0; n < 2; ++n) {
            const Written& found = listener.answers[{id, n}];
            CHECK(found.ends == 1);
            CHECK(found.end == (at == 6 ? FinishReason::length : FinishReason::cancelled));
            CHECK(found.tokens.size() == at);
        }
        check_no_block_kept(engine);
    }
}

TEST_CASE("case BS-07: an answer does not depend on its batch, its place, the parts of its prompt or threads",
          "[serve][cases]") {
#if DECANT_X86
    const std::vector<Isa> sets{Isa::portable, Isa::avx2, Isa::avx_vnni, Isa::avx512_vnni};
#elif DECANT_ARM64
    const std::vector<Isa> sets{Isa::portable, Isa::neon, Isa::neon_dotprod};
#else
    const std::vector<Isa> sets{Isa::portable};
#endif
    for (const DType dtype : {DType::f32, DType::q8_0, DType::q4_k}) {
        const auto weights = decant_test::TinyFile(dtype, 256, 256, 1).open();
        for (const Isa isa : sets) {
            if (!decant::supported(isa)) continue;
            const Scene scene(taken(decant::Model<Simd>::bind(weights, Simd{decant::SimdKernels{isa}})));
            const std::size_t vocabulary = scene.model.spec().vocabulary;
            Ask ask;
            ask.prompt = random_tokens(33, 70, vocabulary);
            ask.sampler = Sampler({.temperature = 0.0f});
            ask.max_tokens = 64;
            ask.ignore_end = true;
            const Written expected = alone(scene, ask, 0);
            REQUIRE(expected.tokens.size() == 64);
            std::size_t turn = 0;
            const bool is_best = isa == decant::SimdKernels{}.isa();
            for (const std::uint32_t batch : {1u, 2u, 3u, 4u, 8u, 9u, 16u}) {
                if (!is_best && batch != 3 && batch != 16) continue;
                for (const bool last : {false, true}) {
                    static constexpr std::uint32_t parts[] = {1, 7, 32, 33};
                    static constexpr std::size_t threads[] = {1, 2, 3};
                    const std::uint32_t part = parts[turn % 4];
                    Engine engine = scene.engine({.cache_tokens = 4096, .rows = part + batch, .prompt_rows = part},
                                                 batch == 4 ? 8 : threads[turn % 3]);
                    ++turn;
                    Listener listener;
                    const auto others = [&] {
                        for (std::uint32_t n = 1; n < batch; ++n) {
                            Ask other = ask;
                            other.prompt = random_tokens(5 * n, 71 + n, vocabulary);
                            other.max_tokens = 10 + 3 * n;
                            static_cast<void>(taken(engine.ask(std::move(other))));
                        }
                    };
                    CAPTURE(static_cast<int>(dtype), static_cast<int>(isa), batch, last, part);
                    for (const bool cached : {false, true}) {
                        if (last) others();
                        Ask one = ask;
                        one.listener = [&](const Delta& delta) { listener(delta); };
                        const AskId id = taken(engine.ask(one));
                        if (!last) others();
                        drain(engine);
                        check_same(listener.answers[{id, 0}], expected);
                        CHECK((engine.counts().cached_tokens > 0) == cached);
                    }
                }
            }
        }
    }
}

TEST_CASE("case SP-02: with drafts come the tokens that come without", "[serve][cases]") {
    Scripted scripted;
    const std::vector<int> target{5, 6, 7, 8, 4, 4};
    struct Case {
        std::vector<int> draft, written;
    };
    for (const Case& one : {Case{{5, 6, 9}, {5, 6, 7}}, Case{{9, 6, 7}, {5}}, Case{{5}, {5, 6}}, Case{{9}, {5}},
                            Case{{}, {5}}, Case{{5, 6, 7, 8, 9, 10}, {5, 6, 7, 8, 4}}}) {
        Request request = scripted.request(ids({1, 2, 3}));
        // Whatever is behind a wrong token of the draft must not count: it would be 11.
        const auto next = [&](std::size_t i) {
            const bool right =
                std::equal(one.draft.begin(), one.draft.begin() + static_cast<std::ptrdiff_t>(i), target.begin());
            return only(scripted.vocabulary, right ? target[i] : 11);
        };
        const Tokens written = scripted.step(request, ids(one.draft), next, [](const decant::Step&) { return true; });
        CHECK(written == ids(one.written));
        CHECK(request.computed() == 3 + written.size() - 1);  // the last one waits
        CHECK(request.waiting().size() == 1);
    }
    // Greedy: the likeliest of the target, whatever the draft gives its own token.
    Request request = scripted.request(ids({1, 2, 3}));
    const Tokens written = scripted.step(
        request, ids({0}),
        [&](std::size_t) {
            Floats scores(scripted.vocabulary, -100.0f);
            scores[0] = std::log(0.35f);
            scores[1] = std::log(0.45f);
            scores[2] = std::log(0.20f);
            return scores;
        },
        [](const decant::Step&) { return true; });
    CHECK(written == ids({1}));
}

TEST_CASE("case SP-02: a prompt of one token repeated, drafted from itself", "[serve][cases]") {
    const Scene scene("llama3");
    for (const std::uint32_t drafts : {0u, 4u}) {
        Engine engine = scene.engine({.cache_tokens = 256});
        Listener listener;
        Ask ask;
        ask.prompt = ids({1, 1, 1});
        ask.sampler = Sampler({.temperature = 0.0f});
        ask.max_tokens = 40;
        ask.ignore_end = true;
        ask.draft_tokens = drafts;
        ask.listener = [&](const Delta& delta) { listener(delta); };
        const AskId id = taken(engine.ask(ask));
        drain(engine);
        check_same(listener.answers[{id, 0}], alone(scene, ask, 0));
        CHECK((engine.counts().draft_tokens > 0) == (drafts > 0));
    }
}

TEST_CASE("case SP-04: what ends an answer within a draft ends it there", "[serve][cases]") {
    Scripted scripted;
    const std::vector<int> target{5, 6, 7, 9};  // 7 ends the turn
    struct Case {
        std::vector<int> draft;
        bool ignores_end;
        std::vector<int> written;
    };
    for (const Case& one :
         {Case{{5, 6, 7, 9}, false, {5, 6, 7}}, Case{{5, 7, 6, 9}, false, {5, 6}}, Case{{7}, false, {5}},
          Case{{5, 6, 7}, false, {5, 6, 7}}, Case{{5, 6, 7}, true, {5, 6, 7, 9}}}) {
        Request request = scripted.request(ids({1, 2, 3}));
        bool ended = false;
        const Tokens written = scripted.step(
            request, ids(one.draft),
            [&](std::size_t i) { return only(scripted.vocabulary, target[(std::min)(i, std::size_t{3})]); },
            [&](const decant::Step& step) {
                ended |= step.ends;
                return one.ignores_end || !step.ends;
            });
        CHECK(written == ids(one.written));
        CHECK(ended == (one.written.size() > 2));
        CHECK(request.tokens().size() == 3 + written.size());
        CHECK(request.computed() == 3 + written.size() - 1);
    }
}

TEST_CASE("case SP-04: limits, stop strings and the end of the cache within drafts that are right", "[serve][cases]") {
    const Scene scene("llama3");
    Ask plain;
    plain.prompt = random_tokens(17, 80, 160);
    plain.sampler = in_turn();
    plain.max_tokens = 40;
    plain.ignore_end = true;
    const Written whole = alone(scene, plain, 0);
    REQUIRE(whole.text.size() == whole.tokens.size());  // a letter per token
    std::uint64_t accepted = 0;
    const auto same_with_drafts = [&](Ask ask) {
        Engine engine = scene.engine({.cache_tokens = 256, .block_tokens = 4});
        Listener listener;
        ask.draft_tokens = 4;
        ask.listener = [&](const Delta& delta) { listener(delta); };
        const AskId id = taken(engine.ask(ask));
        drain(engine);
        const Written& found = listener.answers[{id, 0}];
        check_same(found, alone(scene, ask, 0));
        CHECK(engine.counts().answer_tokens == found.tokens.size());
        accepted += engine.counts().accepted_tokens;
        check_no_block_kept(engine);
        // Nothing behind the end is remembered as if it belonged there.
        Ask again;
        again.prompt = ask.prompt;
        again.prompt.insert(again.prompt.end(), found.tokens.begin(), found.tokens.end());
        again.prompt.push_back(Token{3});
        again.max_tokens = 5;
        again.ignore_end = true;
        again.listener = [&](const Delta& delta) { listener(delta); };
        const AskId next = taken(engine.ask(again));
        drain(engine);
        check_same(listener.answers[{next, 0}], alone(scene, again, 0));
        return found.end;
    };
    for (std::size_t n = 1; n <= 30; ++n) {
        CAPTURE(n);
        Ask ask = plain;
        ask.max_tokens = n;
        CHECK(same_with_drafts(ask) == FinishReason::length);
        ask = plain;
        ask.stop = {whole.text.substr(0, n)};
        CHECK(same_with_drafts(ask) == FinishReason::stop);
    }
    CHECK(accepted > 100);
    // Three in turn, after a prompt that has them in turn: a draft goes on behind the end of the turn, and is right.
    Ask ask = plain;
    for (const int token : {20, 21, 7, 20, 21, 7, 20, 21, 7}) ask.prompt.push_back(Token{token});
    ask.max_tokens = 20;
    accepted = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        ask.sampler =
            taken(Sampler::chain({decant::LogitBias{{{Token{7}, 30.0f}, {Token{20}, 30.0f}, {Token{21}, 30.0f}}},
                                  decant::Penalties{.presence = 4.0f, .last_n = 2}, decant::Temperature{0.3f}},
                                 seed));
        for (const bool by_token : {false, true}) {
            CAPTURE(seed, by_token);
            ask.ignore_end = by_token;
            ask.stop_tokens = by_token ? Tokens{Token{21}} : Tokens{};
            CHECK(same_with_drafts(ask) == FinishReason::stop);
        }
    }
    CHECK(accepted > 10);

    // Room for two more tokens, three, and so on: the draft is cut, and the answer as long as without.
    for (std::size_t blocks = 5; blocks <= 8; ++blocks) {
        for (std::size_t prompt = 17; prompt <= 20; ++prompt) {
            std::map<std::uint32_t, Written> written;
            for (const std::uint32_t drafts : {0u, 8u}) {
                Engine engine = scene.engine({.cache_tokens = 4 * blocks, .block_tokens = 4});
                Listener listener;
                Ask one = plain;
                one.prompt = random_tokens(prompt, 81, 160);
                one.draft_tokens = drafts;
                one.listener = [&](const Delta& delta) { listener(delta); };
                const AskId id = taken(engine.ask(one));
                drain(engine);
                written[drafts] = listener.answers[{id, 0}];
                check_no_block_kept(engine);
            }
            CAPTURE(blocks, prompt);
            CHECK(written[0].end == FinishReason::full);
            CHECK(written[0].tokens.size() == 4 * blocks - prompt + 1);
            check_same(written[8], written[0]);
        }
    }
}

TEST_CASE("case SP-06: drafts that are turned down leave no trace", "[serve][cases]") {
    for (const char* const name : {"llama3", "gemma3_std"}) {  // the second one has windows of 16
        const Scene scene(name);
        const auto vocabulary = static_cast<std::int32_t>(scene.model.spec().vocabulary);
        decant::Context<Simd> context(scene.model, {.rows = 32, .logits = 8});
        const decant::KvCache<Simd> cache(context, {.tokens = 1024, .block_tokens = 4});
        for (const bool mirostat : {false, true}) {
            const decant::Penalties penalties{.repetition = 1.2f, .frequency = 0.1f, .presence = 0.1f};
            const Sampler sampler = mirostat ? taken(Sampler::chain({penalties, decant::Mirostat{4.0f, 0.1f}}, 42))
                                             : taken(Sampler::chain({penalties, decant::Temperature{0.9f}}, 42));
            const Tokens prompt = random_tokens(20, 90, 160);
            const auto fresh = [&] {
                Request request(taken(cache.sequence()), sampler, decant::TextStream(scene.tokenizer));
                request.push(prompt);
                return request;
            };
            Request plain = fresh();
            std::vector<std::vector<std::byte>> states(1);  // after n tokens
            while (states.size() < 260) {
                static_cast<void>(taken(plain.step(context)));
                states.push_back(plain.save());
            }
            const auto answer = [&](std::size_t n) { return plain.tokens()[prompt.size() + n]; };

            Request drafted = fresh();
            static_cast<void>(taken(drafted.step(context)));
            Random random{91};
            for (int round = 0; round < 50; ++round) {
                const std::size_t written = drafted.tokens().size() - prompt.size();
                const std::size_t right = random.below(5);
                Tokens draft;
                for (std::size_t i = 0; i < 4; ++i) {
                    const Token next = answer(written + i);
                    draft.push_back(i < right ? next : Token{(id(next) + 1) % vocabulary});
                }
                drafted.draft(draft);
                decant::PassPart<Simd> part = drafted.part();
                part.want = decant::Want::all;
                const auto logits = taken(context.pass({&part, 1}));
                const std::size_t found = taken(drafted.take_draft([&](std::size_t i) { return logits.row(i); },
                                                                   [](const decant::Step&) { return true; }));
                const std::size_t now = drafted.tokens().size() - prompt.size();
                CAPTURE(name, mirostat, round, right);
                REQUIRE(found == right);
                REQUIRE(now == written + right + 1);
                CHECK(drafted.computed() == drafted.tokens().size() - 1);
                CHECK(drafted.sequence().table().size() == (drafted.computed() + 3) / 4);
                REQUIRE(drafted.save() == states[now]);  // tokens, the sampler's state and half characters
            }
        }
    }
}

TEST_CASE("case SP-06: nothing is drafted where layers keep a state", "[serve][cases]") {
    const Scene scene("mamba2");
    Engine engine = scene.engine({.cache_tokens = 256});
    Listener listener;
    Ask ask;
    ask.prompt = ids({1, 2, 1, 2, 1, 2, 1, 2});
    ask.max_tokens = 30;
    ask.ignore_end = true;
    ask.draft_tokens = 8;
    ask.listener = [&](const Delta& delta) { listener(delta); };
    const AskId id = taken(engine.ask(ask));
    drain(engine);
    CHECK(engine.counts().draft_tokens == 0);
    check_same(listener.answers[{id, 0}], alone(scene, ask, 0));
}

// The cache keeps what is outside of a window, so that going back and sharing a beginning are always possible.
TEST_CASE("case KV-04: windows, going back, a shared beginning, saving and loading", "[serve][cases]") {
    const Scene scene("gemma3_std");
    constexpr std::size_t window = 16;
    const Tokens text = random_tokens(60, 95, 160);
    const auto expected = decant_test::whole<Simd>(scene.model, text);
    decant::Context<Simd> context(scene.model, {.rows = 64, .logits = 8});
    const decant::KvCache<Simd> cache(context, {.tokens = 1024, .block_tokens = 4});
    auto sequence = taken(cache.sequence());
    const auto last = [&](const decant::Logits& logits) { return decant_test::row(logits, logits.rows() - 1); };
    const auto part = [&](std::size_t first, std::size_t end) { return std::span(text).subspan(first, end - first); };
    CHECK(same_bits(last(taken(context.prefill(sequence, part(0, 40)))), expected[39]));
    CHECK(same_bits(last(taken(context.prefill(sequence, part(40, 56)))), expected[55]));
    sequence.truncate(45);  // needs keys 30 to 44
    CHECK(same_bits(last(taken(context.decode(sequence, text[45]))), expected[45]));
    auto shared = sequence.fork();
    shared.truncate(window + 1);
    CHECK(same_bits(last(taken(context.prefill(shared, part(window + 1, 50)))), expected[49]));

    for (const std::size_t at : {window - 1, window, window + 1, std::size_t{50}}) {
        Request request(taken(cache.sequence()), Sampler({.temperature = 0.0f}), decant::TextStream(scene.tokenizer));
        request.push(part(0, at));
        static_cast<void>(taken(request.step(context)));
        Request loaded = taken(Request::load(request.save(), taken(cache.sequence()), scene.tokenizer));
        for (int n = 0; n < 5; ++n) CHECK(taken(request.step(context)).token == taken(loaded.step(context)).token);
    }
}

namespace {

/// Four asks, half of them with drafts.
std::vector<std::pair<AskId, Ask>> ask_four(Engine& engine, std::uint64_t seed,
                                            const std::function<void(const Delta&)>& listener) {
    std::vector<std::pair<AskId, Ask>> asked;
    for (std::uint64_t n = 0; n < 4; ++n) {
        Ask ask;
        ask.prompt = random_tokens(10 + n, seed + n, 160);
        ask.sampler = in_turn();
        ask.max_tokens = 25;
        ask.ignore_end = true;
        ask.draft_tokens = n < 2 ? 4 : 0;
        ask.listener = listener;
        asked.emplace_back(taken(engine.ask(ask)), ask);
    }
    return asked;
}

/// How often a step threw until all was done.
std::size_t drain_thrown(Engine& engine, bool whole) {
    std::size_t thrown = 0;
    for (bool more = true; more;) {
        try {
            more = taken(whole ? engine.step() : engine.step_for(std::chrono::microseconds(20)));
        } catch (const std::runtime_error&) {
            ++thrown;
        }
    }
    return thrown;
}

}  // namespace

// An exception of the host's threads ends a step in the middle of its pass.
TEST_CASE("case EH-05: an executor that throws ends the call, and nothing else", "[serve][cases]") {
    const Scene scene("llama3");
    for (const bool whole : {true, false}) {
        Faulty faulty;
        Engine engine = taken(Engine::create(scene.model, scene.tokenizer, faulty, {.cache_tokens = 512}));
        Listener listener;
        const auto asked = ask_four(engine, 110, [&](const Delta& delta) { listener(delta); });
        const std::size_t thrown = drain_thrown(engine, whole);
        CHECK(thrown > 5);
        for (const auto& [id, ask] : asked) check_same(listener.answers[{id, 0}], alone(scene, ask, 0));
        check_no_block_kept(engine);
    }
}

TEST_CASE("case EH-05: a listener that throws ends the call, and nothing else", "[serve][cases]") {
    const Scene scene("llama3");
    for (const bool whole : {true, false}) {
        Engine engine = scene.engine({.cache_tokens = 512, .draft_rows = 8});
        Listener listener;
        std::size_t calls = 0;
        const auto asked = ask_four(engine, 100, [&](const Delta& delta) {
            listener(delta);
            if (++calls % 7 == 0) throw std::runtime_error("the host's own");
        });
        const std::size_t thrown = drain_thrown(engine, whole);
        CHECK(thrown == calls / 7);
        CHECK(thrown > 5);
        for (const auto& [id, ask] : asked) check_same(listener.answers[{id, 0}], alone(scene, ask, 0));
        check_no_block_kept(engine);
    }
}

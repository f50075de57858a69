// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/serve/request.hpp>

#include <decant/backend/simd/simd.hpp>
#include <decant/cache/kv_cache.hpp>
#include <decant/core/thread_pool.hpp>

#include "model/support.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using decant::Context;
using decant::ContextOptions;
using decant::ErrorCode;
using decant::KvCache;
using decant::Sampler;
using decant::Simd;
using decant::Step;
using decant::StopFlag;
using decant::TextStream;
using decant::Token;
using decant::Tokenizer;
using decant_test::taken;
using Request = decant::Request<Simd>;

namespace {

/// The real model, once for all cases.
struct Real {
    decant::Weights weights = taken(decant::Weights::open(decant_test::smollm2()));
    Tokenizer tokenizer = taken(Tokenizer::from(weights));
    decant::Model<Simd> model = taken(decant::Model<Simd>::bind(weights));
};
const Real& real() {
    static const Real one;
    return one;
}

/// A chain that remembers all that can be remembered.
Sampler busy_sampler(std::uint64_t seed = 3) {
    return taken(
        Sampler::chain({decant::Penalties{.repetition = 1.1f, .presence = 0.1f},
                        decant::Dry{.multiplier = 0.8f, .breakers = {Token{198}}}, decant::Mirostat{.tau = 4.0f}},
                       seed));
}

/// A chain that works on the best few.
Sampler narrow_sampler(std::uint64_t seed = 3) {
    return taken(Sampler::chain(
        {decant::Penalties{.repetition = 1.1f}, decant::TopK{40}, decant::TopP{0.9f}, decant::Temperature{0.9f}},
        seed));
}

Request request_for(const KvCache<Simd>& cache, Sampler sampler, std::string_view prompt = "Once upon a time") {
    Request request(taken(cache.sequence()), std::move(sampler), TextStream(real().tokenizer));
    request.push(real().tokenizer.encode(prompt));
    return request;
}

struct Generated {
    std::vector<Token> tokens;
    std::string text;
    friend bool operator==(const Generated&, const Generated&) = default;
};

Generated write(Request& request, Context<Simd>& context, int steps) {
    Generated out;
    for (int i = 0; i < steps; ++i) {
        const Step step = taken(request.step(context));
        out.tokens.push_back(step.token);
        out.text += step.text;
    }
    return out;
}

/// The right checksum for changed bytes: FNV-1a of all but the last eight, little-endian.
void sign_request(std::vector<std::byte>& bytes) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (std::size_t i = 0; i + 8 < bytes.size(); ++i)
        hash = (hash ^ std::to_integer<std::uint64_t>(bytes[i])) * 0x100000001b3u;
    for (std::size_t i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<std::byte>(hash >> 8 * i);
}

std::vector<Token> all(const Request& request) { return {request.tokens().begin(), request.tokens().end()}; }

}  // namespace

TEST_CASE("a request writes what its parts write when a host drives them", "[serve][request]") {
    for (const Sampler& sampler : {Sampler{}, busy_sampler(), narrow_sampler()}) {
        Context context(real().model);
        const KvCache cache(context, {.tokens = 128});
        Request request = request_for(cache, sampler);
        const Generated found = write(request, context, 20);

        auto sequence = taken(cache.sequence());
        Sampler own = sampler;
        TextStream text(real().tokenizer);
        Generated expected;
        auto logits = taken(context.prefill(sequence, real().tokenizer.encode("Once upon a time")));
        for (int i = 0; i < 20; ++i) {
            expected.tokens.push_back(taken(own.pick(logits, sequence.tokens())));
            expected.text += text.push(expected.tokens.back());
            logits = taken(context.decode(sequence, expected.tokens.back()));
        }
        CHECK(found == expected);
        CHECK(request.waiting().size() == 1);
        CHECK(request.computed() + 1 == request.tokens().size());
    }
}

TEST_CASE("the best few logits give the tokens of all logits", "[serve][request]") {
    Context wide(real().model);
    Context narrow(real().model, ContextOptions{.best = 40});
    const KvCache cache(wide, {.tokens = 256});
    for (const Sampler& sampler : {Sampler{}, narrow_sampler(5)}) {
        Request by_all = request_for(cache, sampler);
        Request by_few = request_for(cache, sampler);
        CHECK(write(by_few, narrow, 25) == write(by_all, wide, 25));
    }
}

TEST_CASE("a fork goes on as its origin would, or another way with another seed", "[serve][request]") {
    Context context(real().model);
    const KvCache cache(context, {.tokens = 256});
    Request origin = request_for(cache, busy_sampler());
    static_cast<void>(write(origin, context, 7));
    Request same = origin.fork();
    Request other = origin.fork(99);
    const Generated expected = write(origin, context, 15);
    CHECK(write(same, context, 15) == expected);
    CHECK(write(other, context, 15).tokens != expected.tokens);
    CHECK(all(same) == all(origin));
}

TEST_CASE("a rollback replays the same tokens and the same text", "[serve][request]") {
    Context context(real().model);
    const KvCache cache(context, {.tokens = 256});
    Request request = request_for(cache, busy_sampler());
    decant_test::Random random{17};
    std::vector<Request::Mark> marks{request.mark()};
    std::vector<Generated> steps;
    for (int i = 0; i < 20; ++i) {
        steps.push_back(write(request, context, 1));
        marks.push_back(request.mark());
    }
    for (int round = 0; round < 5; ++round) {
        const std::size_t back = random.below(steps.size());
        request.rollback(marks[back]);
        for (std::size_t i = back; i < steps.size(); ++i) REQUIRE(write(request, context, 1) == steps[i]);
    }
    request.rollback(marks[0]);
    CHECK(request.computed() == 0);
    CHECK(cache.free_blocks() == cache.blocks());
}

TEST_CASE("a saved request goes on elsewhere with the same tokens", "[serve][request]") {
    const Token half = [] {  // a token of half a character
        for (std::int32_t i = 0; i < 49152; ++i) {
            const std::string_view piece = real().tokenizer.piece(Token{i});
            if (piece.size() == 2 && piece[0] == '\xf0') return Token{i};
        }
        FAIL("no such token");
        return Token{};
    }();
    const Sampler halves = taken(Sampler::chain({decant::LogitBias{{{half, 1000.0f}}}, decant::Temperature{0.5f}}, 1));
    for (const Sampler& sampler :
         {busy_sampler(), narrow_sampler(), halves, Sampler{{.temperature = 0.7f, .seed = 2}}}) {
        Context context(real().model);
        const KvCache cache(context, {.tokens = 128});
        Request request = request_for(cache, sampler);
        const Generated first = write(request, context, 9);
        const auto bytes = request.save();

        Context elsewhere(real().model, decant::ThreadPool{2}, {.rows = 5});
        const KvCache other_cache(elsewhere, {.tokens = 96, .block_tokens = 3});
        Request loaded = taken(Request::load(bytes, taken(other_cache.sequence()), real().tokenizer));
        CHECK(loaded.computed() == 0);
        CHECK(all(loaded) == all(request));
        CHECK(loaded.save() == bytes);
        CHECK(write(loaded, elsewhere, 12) == write(request, context, 12));
        CHECK(loaded.finish() == request.finish());
    }
}

TEST_CASE("bytes that are no saved request are refused", "[serve][request]") {
    Context context(real().model);
    const KvCache cache(context, {.tokens = 64});
    const auto bytes = request_for(cache, busy_sampler()).save();
    const auto refused = [&](std::span<const std::byte> damaged) {
        const auto request = Request::load(damaged, taken(cache.sequence()), real().tokenizer);
        return request ? std::optional<ErrorCode>() : std::optional(request.error().code);
    };
    CHECK_FALSE(refused(bytes));
    for (std::size_t size = 0; size < bytes.size(); ++size)
        if (!refused(std::span(bytes).first(size))) FAIL("cut to " << size);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        auto damaged = bytes;
        damaged[bit / 8] ^= std::byte{1} << bit % 8;
        if (!refused(damaged)) FAIL("bit " << bit);
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    CHECK(refused(longer) == ErrorCode::bad_format);
    auto newer = bytes;
    newer[4] = std::byte{2};
    CHECK(refused(newer) == ErrorCode::bad_format);  // damaged, as far as one can see
    sign_request(newer);
    CHECK(refused(newer) == ErrorCode::unsupported);

    // Whatever else the bytes say: an error, or a request.
    decant_test::Random random{5};
    for (int round = 0; round < 2000; ++round) {
        auto odd = bytes;
        for (std::size_t change = 1 + random.below(4); change > 0; --change)
            odd[random.below(odd.size())] = static_cast<std::byte>(random.below(256));
        if (round % 2 == 0) odd.resize(random.below(odd.size()) + 8);
        sign_request(odd);
        static_cast<void>(refused(odd));
    }

    auto used = taken(cache.sequence());
    REQUIRE(context.decode(used, Token{1}));
    const auto not_empty = Request::load(bytes, std::move(used), real().tokenizer);
    REQUIRE_FALSE(not_empty);
    CHECK(not_empty.error().code == ErrorCode::mismatch);
}

TEST_CASE("requests in one pass write what each writes alone", "[serve][request]") {
    Context context(real().model);
    const KvCache cache(context, {.tokens = 512});
    const std::string_view prompts[] = {"Once upon a time", "2 + 2 =", "The sea is"};
    std::vector<Request> together, alone;
    for (std::size_t i = 0; i < 3; ++i) {
        together.push_back(request_for(cache, busy_sampler(i), prompts[i]));
        alone.push_back(request_for(cache, busy_sampler(i), prompts[i]));
    }
    std::vector<Generated> found(3);
    for (int step = 0; step < 12; ++step) {
        std::vector<decant::PassPart<Simd>> parts;
        for (Request& request : together) parts.push_back(request.part());
        const auto logits = taken(context.pass(parts));
        for (std::size_t i = 0; i < 3; ++i) {
            const Step taken_step = taken(together[i].take(logits.row(i)));
            found[i].tokens.push_back(taken_step.token);
            found[i].text += taken_step.text;
        }
    }
    for (std::size_t i = 0; i < 3; ++i) CHECK(found[i] == write(alone[i], context, 12));
}

TEST_CASE("a step that fails leaves the request as it was", "[serve][request]") {
    Context context(real().model, ContextOptions{.rows = 3});
    const KvCache cache(context, {.tokens = 16});
    Request request = request_for(cache, busy_sampler());
    StopFlag stop;
    stop.request();
    const auto before = request.save();
    const auto cancelled = request.step(context, {.stop = &stop});
    REQUIRE_FALSE(cancelled);
    CHECK(cancelled.error().code == ErrorCode::cancelled);
    CHECK(request.save() == before);
    CHECK(request.computed() == 0);

    // Until the cache is full.
    while (request.tokens().size() <= 16) REQUIRE(request.step(context));
    const auto full_state = request.save();
    const auto full = request.step(context);
    REQUIRE_FALSE(full);
    CHECK(full.error().code == ErrorCode::cache_full);
    CHECK(request.save() == full_state);

    // A row of logits that nothing can be picked from: the last token waits again.
    const KvCache large(context, {.tokens = 64});
    Request other = request_for(large, busy_sampler());
    REQUIRE(other.step(context));
    const auto part = other.part();
    REQUIRE(context.pass({part}));
    const std::vector<float> nothing(49152, -std::numeric_limits<float>::infinity());
    CHECK_FALSE(other.take(nothing));
    CHECK(other.waiting().size() == 1);
    CHECK(other.step(context));

    Request empty(taken(large.sequence()), Sampler{}, TextStream(real().tokenizer));
    const auto none = empty.step(context);
    REQUIRE_FALSE(none);
    CHECK(none.error().code == ErrorCode::invalid_argument);
}

TEST_CASE("a request begins on a prefix that was prefilled before", "[serve][request]") {
    Context context(real().model);
    const KvCache cache(context, {.tokens = 256});
    auto prefix = taken(cache.sequence());
    const auto tokens = real().tokenizer.encode("You are a pirate. You say:");
    REQUIRE(context.prefill(prefix, tokens));
    Request shared(prefix.fork(), busy_sampler(), TextStream(real().tokenizer));
    CHECK(shared.computed() == tokens.size());
    shared.push(real().tokenizer.encode(" Ahoy"));
    Request whole = request_for(cache, busy_sampler(), "You are a pirate. You say: Ahoy");
    CHECK(all(shared) == all(whole));
    CHECK(write(shared, context, 8) == write(whole, context, 8));
}

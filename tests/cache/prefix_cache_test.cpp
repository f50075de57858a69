// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/cache/prefix_cache.hpp>

#include <decant/backend/simd/simd.hpp>
#include <decant/cache/kv_cache.hpp>
#include <decant/model/context.hpp>

#include "model/support.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

using decant::BlockPool;
using decant::CacheOptions;
using decant::PrefixCache;
using decant::Sequence;
using decant::Simd;
using decant::Token;
using decant_test::Floats;
using decant_test::Random;
using decant_test::taken;
using decant_test::Tokens;

namespace {

/// Finds nothing, and everything.
struct SameHash {
    std::uint64_t operator()(std::uint64_t, std::span<const Token>) const noexcept { return 0; }
};
struct CountingHash {
    std::size_t* calls;
    std::uint64_t operator()(std::uint64_t parent, std::span<const Token> tokens) const noexcept {
        ++*calls;
        return decant::PrefixHash()(parent, tokens);
    }
};
struct SumHash {
    std::uint64_t operator()(std::uint64_t, std::span<const Token> tokens) const noexcept {
        std::uint64_t sum = 0;
        for (const Token token : tokens) sum += static_cast<std::uint64_t>(id(token));
        return sum;
    }
};

struct Scene {
    decant::Model<Simd> model = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    decant::Context<Simd> context{model};
    std::shared_ptr<BlockPool<Simd>> pool;

    explicit Scene(std::size_t tokens)
        : pool(std::make_shared<BlockPool<Simd>>(taken(BlockPool<Simd>::create(
              model.backend(), CacheOptions{.block_tokens = 4}.shape(model.spec().cache_layers()), tokens)))) {}

    Floats fresh(const Tokens& tokens) { return decant_test::whole(model, tokens).back(); }
};

Tokens ids(std::initializer_list<int> values) {
    Tokens tokens;
    for (const int value : values) tokens.push_back(Token{value});
    return tokens;
}

}  // namespace

// Case BS-01 of ../shared/cases: hashes that collide, and one text in different domains.
TEMPLATE_TEST_CASE("prefix cache: what is found are the same tokens after the same beginning", "[cache][prefix_cache]",
                   decant::PrefixHash, SameHash, SumHash) {
    Scene scene(400);
    PrefixCache<Simd, TestType> known(scene.pool);
    struct Case {
        Tokens tokens;
        const char* domain;
        std::size_t found;
    };
    const std::vector<Case> cases{
        {ids({1, 2, 3, 4, 5}), "", 0},
        {ids({1, 2, 3, 4, 5}), "", 4},
        {ids({1, 2, 3, 4}), "", 0},  // the last token is to be computed
        {ids({4, 3, 2, 1, 5}), "", 0},
        {ids({1, 2, 3, 4, 5}), "x", 0},
        {ids({1, 2, 3, 4, 9, 9, 9, 9, 7}), "", 4},
        {ids({4, 3, 2, 1, 9, 9, 9, 9, 7}), "", 4},
        {ids({9, 9, 9, 9, 7}), "", 0},  // known, but after another beginning
        {ids({1, 2, 3, 4, 9, 9, 9, 9, 8}), "", 8},
    };
    for (const Case& one : cases) {
        Sequence<Simd> sequence = known.match(one.tokens, one.domain);
        CHECK(sequence.size() == one.found);
        const auto rest = std::span<const Token>(one.tokens).subspan(sequence.size());
        const auto logits = taken(scene.context.prefill(sequence, rest));
        CHECK(decant_test::same_bits(decant_test::row(logits), scene.fresh(one.tokens)));
        known.publish(sequence, one.domain);
    }
}

TEST_CASE("prefix cache: it keeps blocks until they are wanted, the oldest go first", "[cache][prefix_cache]") {
    Scene scene(64);
    {
        PrefixCache<Simd> known(scene.pool);
        const auto compute = [&](const Tokens& tokens) {
            Sequence<Simd> sequence = known.match(tokens);
            const auto rest = std::span<const Token>(tokens).subspan(sequence.size());
            static_cast<void>(taken(scene.context.prefill(sequence, rest)));
            known.publish(sequence);
            return sequence;
        };
        const Tokens a = ids({1, 2, 3, 4, 5, 6, 7, 8, 9}), b = ids({1, 2, 3, 4, 6, 6, 6, 6, 9}),
                     c = ids({8, 8, 8, 8, 1});
        static_cast<void>(compute(a));
        static_cast<void>(compute(b));
        std::optional<Sequence<Simd>> used(compute(c));
        CHECK(known.blocks() == 4);
        CHECK(known.unused_blocks() == 3);
        CHECK(scene.pool->free_blocks() == 16 - 3 - 2);
        CHECK(known.evict(1) == 1);  // the end of a
        CHECK(known.match(a).size() == 4);
        CHECK(known.match(b).size() == 8);
        CHECK(known.evict(16) == 2);  // c is in use
        CHECK(known.match(b).size() == 0);
        CHECK(known.match(c).size() == 4);
        used.reset();
        CHECK(known.evict(16) == 1);
        CHECK(known.blocks() == 0);
        CHECK(scene.pool->free_blocks() == 16);
        static_cast<void>(compute(a));
        CHECK(scene.pool->free_blocks() == 14);
    }
    CHECK(scene.pool->free_blocks() == 16);
}

TEST_CASE("prefix cache: thousands of texts against a plain list of what was published", "[cache][prefix_cache]") {
    Scene scene(256);
    Random random{3};
    PrefixCache<Simd, SumHash> known(scene.pool);
    std::set<Tokens> published;  // beginnings in whole blocks
    std::vector<Sequence<Simd>> held;
    std::size_t evicted = 0, in_use = 0;
    for (int round = 0; round < 3000; ++round) {
        Tokens tokens;
        for (std::size_t i = 1 + random.below(20); i > 0; --i)
            tokens.push_back(Token{static_cast<int>(random.below(2))});
        Sequence<Simd> sequence = known.match(tokens);
        const std::size_t found = sequence.size();
        REQUIRE(found < tokens.size());
        REQUIRE(std::equal(sequence.tokens().begin(), sequence.tokens().end(), tokens.begin()));
        if (found > 0)
            REQUIRE(published.contains(Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(found))));
        const auto rest = std::span<const Token>(tokens).subspan(found);
        if (!sequence.reserve(rest.size())) {
            held.clear();
            static_cast<void>(known.evict(random.below(30)));
            continue;
        }
        static_cast<void>(taken(scene.context.prefill(sequence, rest)));
        known.publish(sequence);
        for (std::size_t n = 4; n <= tokens.size(); n += 4)
            published.insert(Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n)));
        if (random.below(3) == 0) held.push_back(std::move(sequence));
        if (random.below(10) == 0) held.clear();
        if (random.below(20) > 0) continue;
        // Here nobody uses a known text without its beginning, so that all that is unused can go.
        const std::size_t unused = known.unused_blocks(), free = scene.pool->free_blocks();
        REQUIRE(known.evict(unused + 1) == unused);
        REQUIRE(scene.pool->free_blocks() == free + unused);
        evicted += unused;
        in_use += known.blocks();
    }
    CHECK(evicted > 100);
    CHECK(in_use > 100);
    held.clear();
    CHECK(known.unused_blocks() == known.blocks());
    CHECK(scene.pool->free_blocks() + known.blocks() == scene.pool->blocks());
}

TEST_CASE("prefix cache: publishing a text as it grows costs what is new", "[cache][prefix_cache]") {
    constexpr std::size_t blocks = 100, block = 4;
    Scene scene(blocks * block);
    std::size_t calls = 0;
    PrefixCache<Simd, CountingHash> cache(scene.pool, CountingHash{&calls});
    Sequence<Simd> sequence(scene.pool);
    typename PrefixCache<Simd, CountingHash>::Mark mark;
    const Tokens tokens = decant_test::random_tokens(blocks * block, 3, 160);
    for (std::size_t b = 0; b < blocks; ++b) {
        REQUIRE(scene.context.prefill(sequence, std::span(tokens).subspan(b * block, block)));
        cache.publish(sequence, {}, mark);
        CHECK(mark.blocks == b + 1);
    }
    CHECK(cache.blocks() == blocks);
    CHECK(calls <= 2 * blocks);  // one to look it up and one to add it
    CHECK(cache.match(tokens).size() == (blocks - 1) * block);
}

TEST_CASE("prefix cache: a salt is forgotten with the last block of its texts", "[cache][prefix_cache]") {
    Scene scene(64);
    PrefixCache<Simd> known(scene.pool);
    const Tokens one = decant_test::random_tokens(9, 1, 160), two = decant_test::random_tokens(5, 2, 160);
    const auto publish = [&](PrefixCache<Simd>& cache, const Tokens& tokens, const std::string& salt) {
        Sequence<Simd> sequence(scene.pool);
        static_cast<void>(taken(scene.context.prefill(sequence, tokens)));
        cache.publish(sequence, salt);
    };
    for (int user = 0; user < 100; ++user) {
        const std::string salt = "user " + std::to_string(user);
        publish(known, one, salt);
        publish(known, two, salt);
        CHECK(known.salts() == 1);
        CHECK(known.evict(1) == 1);  // the end of the first text, whose beginning is older than the second
        CHECK(known.evict(1) == 1);
        CHECK(known.salts() == 1);
        CHECK(known.match(two, salt).size() == 4);
        CHECK(known.evict(8) == 1);
        CHECK(known.salts() == 0);
        CHECK(known.match(two, salt).size() == 0);
    }
    publish(known, one, "a");
    publish(known, one, "b");
    publish(known, ids({1, 2}), "c");  // no whole block
    PrefixCache<Simd> moved(std::move(known));
    publish(moved, two, "a");
    CHECK(moved.salts() == 2);
    CHECK(moved.evict(8) == 5);
    CHECK(moved.salts() == 0);
}

TEST_CASE("prefix cache: whoever uses a text uses its beginning", "[cache][prefix_cache]") {
    Scene scene(16 * 4);
    PrefixCache<Simd> cache(scene.pool);
    const Tokens text = decant_test::random_tokens(9, 1, 160), other = decant_test::random_tokens(5, 2, 160);
    std::optional<Sequence<Simd>> growing(scene.pool), between(scene.pool);
    PrefixCache<Simd>::Mark mark;
    REQUIRE(scene.context.prefill(*growing, std::span(text).first(4)));
    cache.publish(*growing, {}, mark);
    REQUIRE(scene.context.prefill(*between, std::span(other).first(4)));
    cache.publish(*between);
    REQUIRE(scene.context.prefill(*growing, std::span(text).subspan(4, 4)));
    cache.publish(*growing, {}, mark);
    growing.reset();
    REQUIRE(cache.evict(1) == 1);  // the end of the text: the other one is in use
    between.reset();
    REQUIRE(cache.evict(1) == 1);
    CHECK(cache.match(other).size() == 0);  // not used since before the text was
    CHECK(cache.match(text).size() == 4);
}

TEST_CASE("prefix cache: going on from the last publication is the same as from the root", "[cache][prefix_cache]") {
    constexpr std::size_t block = 4, texts = 5;
    struct Side {
        Scene scene{48 * block};
        PrefixCache<Simd> cache{scene.pool};
        std::vector<std::optional<Sequence<Simd>>> sequences{texts};
        std::vector<PrefixCache<Simd>::Mark> marks{texts};
    };
    Side marked, rooted;
    Random random{12};
    std::vector<Tokens> all;  // whatever was ever said
    std::size_t evicted = 0, restarted = 0;
    for (int round = 0; round < 400; ++round) {
        const std::size_t i = random.below(texts);
        const std::size_t drop = random.below(4);
        const std::size_t more = 1 + random.below(2 * block);
        const std::uint64_t seed = random.below(3);  // often the same beginning
        if (marked.sequences[i] && (drop == 0 || marked.sequences[i]->size() > 24)) {
            all.emplace_back(marked.sequences[i]->tokens().begin(), marked.sequences[i]->tokens().end());
            for (Side* const side : {&marked, &rooted}) side->sequences[i].reset();
        }
        const std::size_t count = random.below(6);
        const std::size_t gone = marked.cache.evict(count);
        CHECK(rooted.cache.evict(count) == gone);
        evicted += gone;
        for (Side* const side : {&marked, &rooted}) {
            if (!side->sequences[i]) {
                side->sequences[i].emplace(side->scene.pool);
                side->marks[i] = {};
            }
            Sequence<Simd>& sequence = *side->sequences[i];
            const Tokens text = decant_test::random_tokens(64, seed, 160);
            const std::size_t before = sequence.size();
            while (!side->scene.context.prefill(sequence, std::span(text).subspan(before, more)))
                REQUIRE(side->cache.evict(2) > 0);
            if (sequence.size() / block == before / block) continue;  // nothing new
            if (side == &marked) {
                restarted += side->marks[i].blocks > 0 ? 1 : 0;
                side->cache.publish(sequence, {}, side->marks[i]);
            } else {
                side->cache.publish(sequence);
            }
        }
        REQUIRE(marked.cache.blocks() == rooted.cache.blocks());
        REQUIRE(marked.cache.unused_blocks() == rooted.cache.unused_blocks());
        if (!all.empty()) {
            const Tokens& text = all[random.below(all.size())];
            REQUIRE(marked.cache.match(text).size() == rooted.cache.match(text).size());
        }
    }
    CHECK(evicted > 50);
    CHECK(restarted > 50);
}

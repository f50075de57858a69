// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Sequences on a pool (sequence.hpp, kv_cache.hpp), with a tiny model that writes and reads their blocks.
#include <decant/cache/sequence.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/cache/kv_cache.hpp>

#include "model/support.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

using decant::Context;
using decant::DType;
using decant::ErrorCode;
using decant::KvCache;
using decant::Model;
using decant::PassPart;
using decant::Sequence;
using decant::Simd;
using decant::Token;
using decant::Want;
using decant_test::Floats;
using decant_test::same_bits;
using decant_test::taken;
using decant_test::TinyFile;
using Tokens = std::vector<Token>;

namespace {

template <class B>
Model<B> small_model() {
    return decant_test::bind<B>(TinyFile{}.open());
}

Tokens random_tokens(std::size_t count, std::uint64_t seed) {
    decant_test::Random random{seed};
    return decant_test::random_tokens(random, count, 24);
}

/// Logits after `tokens`, from a context, a cache and a sequence of their own.
template <class B>
Floats fresh(const Model<B>& model, std::span<const Token> tokens, DType dtype = DType::f16) {
    Context context(model, {.rows = 128, .sequences = 1, .logits = 1});
    const KvCache cache(context, {.tokens = 256, .dtype = dtype});
    auto sequence = taken(cache.sequence());
    return decant_test::row(taken(context.prefill(sequence, tokens)));
}

}  // namespace

TEST_CASE("a cache counts blocks and bytes", "[cache]") {
    const auto model = small_model<Simd>();
    for (const DType dtype : {DType::f16, DType::f32}) {
        const KvCache cache(model, {.tokens = 100, .block_tokens = 16, .dtype = dtype});
        CHECK(cache.blocks() == 7);
        CHECK(cache.free_blocks() == 7);
        // 2 layers, K and V, 16 tokens, 1 head of 16.
        CHECK(cache.bytes() == 7 * 2 * 2 * 16 * 16 * (dtype == DType::f16 ? 2 : 4));
    }
}

TEST_CASE("a cache that could not be made says so when it is used", "[cache]") {
    const auto model = small_model<Simd>();
    const auto code = [&](decant::CacheOptions options) {
        const KvCache cache(model, options);
        CHECK(cache.blocks() == 0);
        CHECK(cache.free_blocks() == 0);
        CHECK(cache.bytes() == 0);
        const auto sequence = cache.sequence();
        REQUIRE_FALSE(sequence);
        CHECK_FALSE(sequence.error().message().empty());
        return sequence.error().code;
    };
    CHECK(code({.tokens = 0}) == ErrorCode::invalid_argument);
    CHECK(code({.block_tokens = 0}) == ErrorCode::invalid_argument);
    CHECK(code({.dtype = DType::q4_1}) == ErrorCode::invalid_argument);
    CHECK(code({.dtype = DType::q4_0}) == ErrorCode::unsupported);  // heads are no multiple of 32
    CHECK(code({.dtype = DType::other}) == ErrorCode::invalid_argument);
    CHECK(code({.tokens = std::size_t{1} << 40}) == ErrorCode::invalid_argument);
    // Half a terabyte in two blocks, which only a very generous system grants.
    const auto large = decant_test::bind<Simd>(decant_test::tiny("llama3"));
    const KvCache cache(large, {.tokens = 1u << 30, .block_tokens = 1u << 29, .dtype = DType::f32});
    if (const auto sequence = cache.sequence(); !sequence) CHECK(sequence.error().code == ErrorCode::out_of_memory);
}

TEST_CASE("blocks are taken as tokens come and go back with truncation and the end", "[cache]") {
    Context context(small_model<Simd>(), {.rows = 32});
    const KvCache cache(context, {.tokens = 40, .block_tokens = 4});
    const Tokens tokens = random_tokens(30, 1);
    {
        auto sequence = taken(cache.sequence());
        CHECK(cache.free_blocks() == 10);
        CHECK(sequence.table().empty());
        for (std::size_t i = 0; i < 9; ++i) {
            REQUIRE(context.decode(sequence, tokens[i]));
            CHECK(sequence.table().size() == i / 4 + 1);
            CHECK(cache.free_blocks() == 10 - sequence.table().size());
        }
        sequence.truncate(20);  // more than there are
        CHECK(sequence.size() == 9);
        sequence.truncate(9);
        CHECK(sequence.size() == 9);
        CHECK(sequence.table().size() == 3);
        sequence.truncate(8);
        CHECK(sequence.table().size() == 2);
        sequence.truncate(5);
        CHECK(sequence.table().size() == 2);
        CHECK(cache.free_blocks() == 8);
        CHECK(std::ranges::equal(sequence.tokens(), std::span(tokens).first(5)));
        sequence.truncate(0);
        CHECK(sequence.table().empty());
        CHECK(cache.free_blocks() == 10);
        REQUIRE(context.prefill(sequence, tokens));
        CHECK(cache.free_blocks() == 2);
    }
    CHECK(cache.free_blocks() == 10);
}

TEST_CASE("room is reserved, used and given back", "[cache]") {
    Context context(small_model<Simd>(), {.rows = 32});
    const KvCache cache(context, {.tokens = 40, .block_tokens = 4});
    const Tokens tokens = random_tokens(30, 2);
    auto sequence = taken(cache.sequence());
    REQUIRE(sequence.reserve(0));
    CHECK(cache.free_blocks() == 10);
    REQUIRE(sequence.reserve(17));
    CHECK(cache.free_blocks() == 5);
    REQUIRE(sequence.reserve(17));  // it is there already
    CHECK(cache.free_blocks() == 5);
    CHECK(sequence.size() == 0);
    REQUIRE(context.prefill(sequence, std::span(tokens).first(17)));
    CHECK(cache.free_blocks() == 5);

    auto other = taken(cache.sequence());
    const auto full = other.reserve(21);
    REQUIRE_FALSE(full);
    CHECK(full.error().code == ErrorCode::cache_full);
    CHECK(decant_test::contains(full.error().message(), "6 blocks of 4 tokens, 5 of 10"));
    CHECK(cache.free_blocks() == 5);
    CHECK(other.table().empty());
    REQUIRE(other.reserve(20));
    CHECK(cache.free_blocks() == 0);
    other.truncate(0);  // nothing was written: the room goes back
    CHECK(cache.free_blocks() == 5);
}

TEMPLATE_TEST_CASE("block size and physical order change no bit", "[cache]", decant::Eigen, Simd) {
    const auto model = small_model<TestType>();
    const Tokens tokens = random_tokens(100, 3);
    for (const DType dtype : {DType::f16, DType::f32}) {
        const Floats expected = fresh(model, tokens, dtype);
        for (const std::uint32_t block : {1u, 3u, 16u, 64u, 200u}) {
            Context context(model, {.rows = 32, .sequences = 1, .logits = 1});
            const KvCache cache(context, {.tokens = 300, .block_tokens = block, .dtype = dtype});
            // Shuffle the free list: every block in a sequence of its own, given back in random order.
            decant_test::Random random{block};
            std::vector<Sequence<TestType>> holders;
            while (cache.free_blocks() > 0) {
                holders.push_back(taken(cache.sequence()));
                REQUIRE(holders.back().reserve(1));
            }
            while (!holders.empty()) {
                std::swap(holders[random.below(holders.size())], holders.back());
                holders.pop_back();
            }
            auto sequence = taken(cache.sequence());
            const auto logits = taken(context.prefill(sequence, tokens));
            INFO("blocks of " << block << " tokens");
            CHECK(same_bits(decant_test::row(logits), expected));
            if (block == 1) CHECK_FALSE(std::ranges::is_sorted(sequence.table()));
        }
    }
}

TEMPLATE_TEST_CASE("entries in half precision are close to full ones", "[cache]", decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    decant_test::Random random{4};
    const Tokens tokens = decant_test::random_tokens(random, 60);
    const Floats half = fresh(model, tokens, DType::f16);
    const Floats full = fresh(model, tokens, DType::f32);
    double most = 0.0;
    for (std::size_t i = 0; i < half.size(); ++i) most = (std::max)(most, std::abs(double{half[i]} - full[i]));
    CHECK(most > 0.0);
    CHECK(most < 0.02);  // 11 bits of keys and values; the logits reach 4
}

TEMPLATE_TEST_CASE("forks share blocks until one writes, and never see each other", "[cache]", decant::Eigen, Simd) {
    const auto model = small_model<TestType>();
    Context context(model, {.rows = 64, .sequences = 4, .logits = 4});
    const Tokens past = random_tokens(64, 5);
    const Tokens mine = random_tokens(10, 6);
    const Tokens yours = random_tokens(10, 7);
    for (const std::size_t length : {1u, 3u, 4u, 5u, 8u, 11u}) {
        const KvCache cache(context, {.tokens = 400, .block_tokens = 4});
        const auto prefix = std::span(past).first(length);
        auto a = taken(cache.sequence());
        REQUIRE(context.prefill(a, prefix));
        const std::size_t before = cache.free_blocks();
        auto b = a.fork();
        CHECK(cache.free_blocks() == before);
        CHECK(std::ranges::equal(a.table(), b.table()));
        CHECK(std::ranges::equal(a.tokens(), b.tokens()));

        // Both go on, token by token in turns.
        Tokens text_a(prefix.begin(), prefix.end());
        Tokens text_b = text_a;
        for (std::size_t i = 0; i < mine.size(); ++i) {
            text_a.push_back(mine[i]);
            text_b.push_back(yours[i]);
            CHECK(same_bits(decant_test::row(taken(context.decode(a, mine[i]))), fresh(model, text_a)));
            CHECK(same_bits(decant_test::row(taken(context.decode(b, yours[i]))), fresh(model, text_b)));
        }
        // Whole blocks of the past are still shared, all others are not.
        std::size_t shared = 0;
        for (std::size_t i = 0; i < a.table().size(); ++i) shared += a.table()[i] == b.table()[i];
        CHECK(shared == length / 4);
        CHECK(cache.free_blocks() == cache.blocks() - a.table().size() - b.table().size() + shared);

        // A fork of a fork that goes back into the shared past and takes another way, in one pass with its parents.
        auto c = b.fork();
        c.truncate(length - 1);
        Tokens text_c(prefix.begin(), prefix.end() - 1);
        text_c.push_back(yours[0]);
        text_a.push_back(mine[0]);
        text_b.push_back(mine[1]);
        const std::vector<PassPart<TestType>> parts{
            {&c, {&yours[0], 1}, Want::last}, {&a, {&mine[0], 1}, Want::last}, {&b, {&mine[1], 1}, Want::last}};
        const auto logits = taken(context.pass(parts));
        CHECK(same_bits(decant_test::row(logits, 0), fresh(model, text_c)));
        CHECK(same_bits(decant_test::row(logits, 1), fresh(model, text_a)));
        CHECK(same_bits(decant_test::row(logits, 2), fresh(model, text_b)));
    }
}

TEST_CASE("a fork outlives its origin, its cache and its context", "[cache]") {
    const auto model = small_model<Simd>();
    const Tokens tokens = random_tokens(12, 8);
    const auto make = [&] {
        Context context(model, {.rows = 16});
        const KvCache cache(context, {.tokens = 32, .block_tokens = 4});
        auto origin = taken(cache.sequence());
        REQUIRE(context.prefill(origin, std::span(tokens).first(7)));
        return origin.fork();
    };
    auto fork = make();
    Context context(model, {.rows = 16});
    const auto logits = taken(context.prefill(fork, std::span(tokens).subspan(7)));
    CHECK(same_bits(decant_test::row(logits), fresh(model, tokens)));
}

TEST_CASE("a fork needs no block until it writes, and reports when it then finds none", "[cache]") {
    Context context(small_model<Simd>(), {.rows = 16});
    const KvCache cache(context, {.tokens = 8, .block_tokens = 4});
    const Tokens tokens = random_tokens(8, 9);
    auto a = taken(cache.sequence());
    REQUIRE(context.prefill(a, std::span(tokens).first(6)));
    auto b = a.fork();
    CHECK(cache.free_blocks() == 0);
    const auto full = context.decode(b, tokens[6]);
    REQUIRE_FALSE(full);
    CHECK(full.error().code == ErrorCode::cache_full);
    CHECK(std::ranges::equal(a.table(), b.table()));
    { const auto gone = std::move(a); }
    CHECK(context.decode(b, tokens[6]));  // alone now: it writes where it is
}

// A plain model of the cache: the texts alone. Blocks are predicted from the tables and compared after every operation;
// logits now and then from a fresh computation.
TEST_CASE("random operations against a plain model", "[cache]") {
    const auto model = small_model<Simd>();
    Context context(model, {.rows = 24, .sequences = 6, .logits = 6});
    constexpr std::size_t longest = 40;
    std::size_t verified = 0;
    std::size_t fulls = 0;
    for (const std::uint32_t block : {1u, 3u, 8u}) {
        const KvCache cache(context, {.tokens = 120, .block_tokens = block});
        decant_test::Random random{block};
        std::vector<Sequence<Simd>> sequences;
        std::vector<Tokens> texts;

        const auto users = [&] {
            std::map<std::int32_t, std::size_t> count;
            for (const auto& sequence : sequences)
                for (const std::int32_t id : sequence.table()) ++count[id];
            return count;
        };
        /// Blocks that a sequence must take to grow by `count` tokens.
        const auto needs = [&](std::size_t s, std::size_t count) {
            const std::size_t size = texts[s].size();
            const auto table = sequences[s].table();
            const std::size_t blocks = (size + count + block - 1) / block;
            const bool copies = count > 0 && size % block != 0 && users()[table[size / block]] > 1;
            return (blocks > table.size() ? blocks - table.size() : 0) + (copies ? 1 : 0);
        };
        const auto consistent = [&] {
            const auto count = users();
            bool good = cache.free_blocks() == cache.blocks() - count.size();
            for (std::size_t s = 0; s < sequences.size(); ++s) {
                good = good && std::ranges::equal(sequences[s].tokens(), texts[s]);
                good = good && sequences[s].table().size() * block >= texts[s].size();
                for (const auto& [id, n] : count)
                    good = good && id >= 0 && static_cast<std::size_t>(id) < cache.blocks();
            }
            return good;
        };

        for (int step = 0; step < 2'500; ++step) {
            INFO("blocks of " << block << ", step " << step);
            const std::size_t kind = random.below(100);
            if (sequences.empty() || (kind < 8 && sequences.size() < 8)) {
                sequences.push_back(taken(cache.sequence()));
                texts.emplace_back();
            } else if (kind < 14) {
                const std::size_t s = random.below(sequences.size());
                std::swap(sequences[s], sequences.back());
                std::swap(texts[s], texts.back());
                sequences.pop_back();
                texts.pop_back();
            } else if (kind < 24 && sequences.size() < 8) {
                const std::size_t s = random.below(sequences.size());
                sequences.push_back(sequences[s].fork());
                texts.push_back(Tokens(texts[s]));
            } else if (kind < 40) {
                const std::size_t s = random.below(sequences.size());
                const std::size_t size = random.below(texts[s].size() + 3);
                sequences[s].truncate(size);
                if (size < texts[s].size()) texts[s].resize(size);
            } else if (kind < 46) {
                const std::size_t s = random.below(sequences.size());
                const std::size_t count = random.below(20);
                const bool fits = needs(s, count) <= cache.free_blocks();
                if (bool(sequences[s].reserve(count)) != fits) FAIL("reserve");
            } else if (kind < 70) {
                const std::size_t s = random.below(sequences.size());
                const Tokens more = decant_test::random_tokens(random, 1 + random.below(12), 24);
                if (texts[s].size() + more.size() > longest) continue;
                const std::size_t free = cache.free_blocks();
                const bool fits = needs(s, more.size()) <= free;
                const auto logits = context.prefill(sequences[s], more);
                if (bool(logits) != fits) FAIL("prefill");
                if (!logits) {
                    ++fulls;
                    CHECK(cache.free_blocks() == free);
                } else {
                    texts[s].insert(texts[s].end(), more.begin(), more.end());
                    if (random.below(8) == 0) {
                        const Floats found = decant_test::row(*logits);
                        if (!same_bits(found, fresh(model, texts[s]))) FAIL("logits of a prefill");
                        ++verified;
                    }
                }
            } else {  // one token of several sequences
                std::vector<std::size_t> chosen;
                for (std::size_t s = 0; s < sequences.size() && chosen.size() < 6; ++s)
                    if (random.below(2) == 0 && texts[s].size() < longest) chosen.push_back(s);
                if (chosen.empty()) continue;
                const Tokens more = decant_test::random_tokens(random, chosen.size(), 24);
                std::vector<PassPart<Simd>> parts;
                for (std::size_t i = 0; i < chosen.size(); ++i)
                    parts.push_back({&sequences[chosen[i]], {&more[i], 1}, Want::last});
                const std::size_t free = cache.free_blocks();
                const auto logits = context.pass(parts);
                if (!logits) {
                    ++fulls;
                    if (logits.error().code != ErrorCode::cache_full || cache.free_blocks() != free) FAIL("pass");
                } else {
                    for (std::size_t i = 0; i < chosen.size(); ++i) texts[chosen[i]].push_back(more[i]);
                    const std::size_t i = random.below(chosen.size());
                    if (random.below(4) == 0) {
                        const Floats found = decant_test::row(*logits, i);
                        if (!same_bits(found, fresh(model, texts[chosen[i]]))) FAIL("logits of a pass");
                        ++verified;
                    }
                }
            }
            if (!consistent()) FAIL("the cache and the plain model differ");
        }
        sequences.clear();
        CHECK(cache.free_blocks() == cache.blocks());
    }
    CHECK(verified > 300);
    CHECK(fulls > 50);
}

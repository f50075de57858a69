// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Layers with windows give back what these have passed: that changes no bit, and every block is accounted for.
#include <decant/cache/groups.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/cache/frames.hpp>
#include <decant/cache/prefix_cache.hpp>
#include <decant/core/hash.hpp>
#include <decant/model/plan.hpp>

#include "model/support.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

using decant::BlockPool;
using decant::CacheLayer;
using decant::CacheOptions;
using decant::CacheShape;
using decant::Context;
using decant::DType;
using decant::ErrorCode;
using decant::export_frame;
using decant::import_frame;
using decant::KvCache;
using decant::PrefixCache;
using decant::Sequence;
using decant::Simd;
using decant::Token;
using decant::Want;
using decant_test::Floats;
using decant_test::Random;
using decant_test::random_tokens;
using decant_test::row;
using decant_test::same_bits;
using decant_test::taken;
using decant_test::Tokens;

namespace {

constexpr std::size_t window = 16;  // of the tiny Gemma 3
constexpr std::size_t spare = 32;   // tokens that can be taken back, as `Sequence::truncate` says

/// A model some of whose layers have windows, a cache that keeps everything, and one that forgets.
template <class B>
struct Scene {
    decant::Model<B> model = decant_test::bind<B>(decant_test::tiny("gemma3_std"));
    Context<B> context{model, {.rows = 40, .sequences = 8, .logits = 40}};
    KvCache<B> all{context, {.tokens = 4096, .block_tokens = 4}};
    std::shared_ptr<BlockPool<B>> pool;

    explicit Scene(std::size_t tokens, std::uint32_t block = 4) : pool(make(tokens, block)) {}
    [[nodiscard]] std::shared_ptr<BlockPool<B>> make(std::size_t tokens, std::uint32_t block) const {
        const CacheOptions options{.tokens = tokens, .block_tokens = block, .forget_unseen = true};
        return std::make_shared<BlockPool<B>>(
            taken(BlockPool<B>::create(model.backend(), options.shape(model.spec().cache_layers()), tokens)));
    }
    [[nodiscard]] Sequence<B> sequence() const { return Sequence<B>(pool); }
    void grow(Sequence<B>& sequence, std::span<const Token> tokens) {
        static_cast<void>(taken(context.prefill(sequence, tokens)));
    }
    /// Whether both give the same bits for the next token. Both have it then.
    bool same(Sequence<B>& one, Sequence<B>& other, Token token) {
        const Floats expected = row(taken(context.decode(one, token)));
        return same_bits(row(taken(context.decode(other, token))), expected);
    }
};

/// Blocks that sequences use, each counted once.
template <class B>
std::size_t used(const BlockPool<B>& pool, std::span<const Sequence<B>> sequences) {
    std::set<std::int32_t> blocks;
    for (const Sequence<B>& sequence : sequences)
        for (std::size_t g = 0; g < pool.groups(); ++g)
            for (const std::int32_t block : sequence.table(g))
                if (block >= 0) blocks.insert(block);
    return blocks.size();
}

std::vector<CacheLayer> layers(std::initializer_list<std::uint32_t> windows, std::uint32_t wide = 1) {
    std::vector<CacheLayer> made;
    for (const std::uint32_t each : windows) made.push_back({each == 0 ? wide : 1, 64, 0, 0, each});
    return made;
}
std::vector<CacheLayer> pattern(std::size_t count, std::size_t period) {
    std::vector<CacheLayer> made(count, CacheLayer{1, 64, 0, 0, 512});
    for (std::size_t l = period - 1; l < count; l += period) made[l].window = 0;
    return made;
}

}  // namespace

TEST_CASE("windows: groups are of one window each, few, and waste little", "[cache][windows]") {
    CHECK(decant::detail::group_by_window(layers({0, 0, 0})).empty());
    CHECK(decant::detail::group_by_window(layers({8, 8, 8})) == std::vector<std::uint32_t>{0, 0, 0});
    // Blocks as large as the layer that sees everything would be three quarters empty for the others.
    CHECK(decant::detail::group_by_window(layers({8, 0}, 16)) == std::vector<std::uint32_t>{0, 0});
    CHECK(decant::detail::group_by_window(layers({8, 0, 8, 0})) == std::vector<std::uint32_t>{1, 0, 1, 0});
    for (const std::size_t count : {6u, 18u, 26u, 34u, 48u, 62u}) {  // of Gemma 3's sizes
        const CacheShape shape{pattern(count, 6), 16, DType::f16, 0,
                               decant::detail::group_by_window(pattern(count, 6))};
        CAPTURE(count);
        REQUIRE(shape.groups.size() == count);
        CHECK(shape.group_count() > 1);
        CHECK(shape.group_count() <= 16);
        for (std::size_t l = 0; l < count; ++l) CHECK(shape.window(shape.group(l)) == shape.layers[l].window);
        const CacheShape plain{shape.layers, 16, DType::f16};
        CHECK(shape.group_count() * shape.block_bytes() >= plain.block_bytes());
        CHECK(shape.group_count() * shape.block_bytes() <= plain.block_bytes() / 8 * 9);
        // The layers of a group lie one behind the other in a block.
        std::vector<std::set<std::size_t>> offsets(shape.group_count());
        for (std::size_t l = 0; l < count; ++l) {
            const std::size_t at = shape.layer_offset(l), bytes = 16 * shape.token_bytes(l);
            CHECK(at % bytes == 0);
            CHECK(at + bytes <= shape.block_bytes());
            CHECK(offsets[shape.group(l)].insert(at).second);
        }
    }
}

TEMPLATE_TEST_CASE("windows: the bits are the same and the blocks are few, however long it gets", "[cache][windows]",
                   decant::Eigen, Simd) {
    Random random{21};
    for (const std::uint32_t block : {1u, 4u, 7u, 16u}) {
        Scene<TestType> scene(160, block);
        const std::size_t rows = scene.context.options().rows, groups = scene.pool->groups();
        REQUIRE(groups > 1);
        Sequence<TestType> one = taken(scene.all.sequence()), other = scene.sequence();
        const std::size_t longest = (std::min)(other.capacity() - rows, std::size_t{400});
        CHECK(longest > 160);
        while (one.size() < longest) {
            const Tokens part = random_tokens(random, random.below(3) == 0 ? 1 + random.below(2 * rows) : 1);
            const Floats expected = row(taken(scene.context.prefill(one, part)));
            const auto logits = scene.context.prefill(other, part);
            if (!logits) {  // near the end a long part does not fit
                CHECK(logits.error().code == ErrorCode::cache_full);
                one.truncate(other.size());
                continue;
            }
            if (!same_bits(row(*logits), expected)) FAIL("after " << one.size() << " tokens in blocks of " << block);
            CHECK(other.blocks() <= decant::detail::blocks_needed(scene.pool->shape(), other.size(), part.size()));
            CHECK(scene.pool->free_blocks() == scene.pool->blocks() - other.blocks());
        }
        other.truncate(0);
        CHECK(scene.pool->free_blocks() == scene.pool->blocks());

        // A prompt in passes takes what its passes need, not what all of it would.
        const Tokens prompt = random_tokens(random, 240);
        one.truncate(0);
        const std::size_t needed = decant::detail::blocks_needed(scene.pool->shape(), prompt.size(), rows);
        CHECK(needed < groups * ((prompt.size() + block - 1) / block));
        const Floats expected = row(taken(scene.context.prefill(one, prompt)));
        CHECK(same_bits(row(taken(scene.context.prefill(other, prompt))), expected));
        CHECK(other.blocks() <= needed);
    }
}

TEMPLATE_TEST_CASE("windows: a few tokens can be taken back, and otherwise none are left", "[cache][windows]",
                   decant::Eigen, Simd) {
    Random random{22};
    Scene<TestType> scene(400);
    for (const std::size_t back : {std::size_t{1}, std::size_t{7}, spare, spare + 40}) {
        Sequence<TestType> one = taken(scene.all.sequence()), other = scene.sequence();
        for (std::size_t n = 0; n < 150; n += 3) {
            const Tokens part = random_tokens(random, 3);
            scene.grow(one, part);
            scene.grow(other, part);
        }
        const auto fork = other.fork();
        CAPTURE(back);
        const std::size_t left = other.truncate(150 - back);
        CHECK(left == (back <= spare ? 150 - back : 0));
        one.truncate(left);
        for (int n = 0; n < 50; ++n) REQUIRE(scene.same(one, other, random_tokens(random, 1)[0]));
    }
    CHECK(scene.pool->free_blocks() == scene.pool->blocks());
    // What the passes of a long call gave up of its own rows is gone as well when it ends.
    for (const std::size_t back : {std::size_t{1}, spare, std::size_t{100}}) {
        Sequence<TestType> one = taken(scene.all.sequence()), other = scene.sequence();
        for (const std::size_t count : {10u, 140u}) {
            const Tokens part = random_tokens(random, count);
            scene.grow(one, part);
            scene.grow(other, part);
        }
        CAPTURE(back);
        const std::size_t left = other.truncate(150 - back);
        CHECK(left == (back <= spare ? 150 - back : 0));
        one.truncate(left);
        for (int n = 0; n < 50; ++n) REQUIRE(scene.same(one, other, random_tokens(random, 1)[0]));
    }
    // Before a window has passed anything, all is as without one.
    Sequence<TestType> other = scene.sequence();
    scene.grow(other, random_tokens(random, window + spare));
    CHECK(other.truncate(3) == 3);
}

// A prompt in several passes that is stopped leaves the sequence with all that it had.
TEST_CASE("windows: a prompt that is broken off brings the blocks back", "[cache][windows]") {
    Random random{23};
    Scene<Simd> scene(400);
    for (const std::size_t before : {0u, 5u, 60u, 151u}) {
        Sequence<Simd> one = taken(scene.all.sequence()), other = scene.sequence();
        const Tokens start = random_tokens(random, before), prompt = random_tokens(random, 200);
        for (std::size_t n = 0; n < before; ++n) REQUIRE(scene.same(one, other, start[n]));
        std::vector<std::vector<std::int32_t>> tables;
        for (std::size_t g = 0; g < scene.pool->groups(); ++g)
            tables.emplace_back(other.table(g).begin(), other.table(g).end());
        const std::size_t free = scene.pool->free_blocks();
        // In the fourth of five passes: the window has moved on from what was there before.
        const auto progress = [](decant::Progress now) { return 10 * now.done < 7 * now.total; };
        const auto stopped = scene.context.prefill(other, prompt, {.progress = progress});
        REQUIRE_FALSE(stopped);
        CHECK(stopped.error().code == ErrorCode::cancelled);
        CHECK(other.size() == before);
        CHECK(scene.pool->free_blocks() >= free);
        CHECK(scene.pool->blocks() - scene.pool->free_blocks() == other.blocks());
        for (std::size_t g = 0; g < tables.size(); ++g) {
            REQUIRE(other.table(g).size() == tables[g].size());
            const std::size_t seen = before < window + spare ? 0 : before + 1 - window - spare;
            for (std::size_t b = seen / 4; b < tables[g].size(); ++b) CHECK(other.table(g)[b] == tables[g][b]);
        }
        CHECK(same_bits(row(taken(scene.context.prefill(other, prompt))),
                        row(taken(scene.context.prefill(one, prompt)))));
    }
    CHECK(scene.pool->free_blocks() == scene.pool->blocks());
}

// Forks, passes of several, going back and forgetting in the middle, in a cache that is too small, beside one that
// keeps everything. What is given up is written by others at once, so that a read of it would not go unnoticed.
TEMPLATE_TEST_CASE("windows: random histories of many sequences", "[cache][windows]", decant::Eigen, Simd) {
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
        Random random{seed};
        Scene<TestType> scene(180, seed == 2 ? 5 : 4);
        std::vector<Sequence<TestType>> ones, others;
        std::size_t full = 0, erased = 0, refused = 0, lost = 0, longest = 0;
        for (int step = 0; step < 700; ++step) {
            CAPTURE(seed, step);
            const std::size_t s = ones.empty() ? 0 : random.below(ones.size());
            switch (ones.empty() ? 0 : random.below(12)) {
                case 0:
                    if (ones.size() < 4) {
                        ones.push_back(taken(scene.all.sequence()));
                        others.push_back(scene.sequence());
                    }
                    break;
                case 1:
                    if (ones.size() < 4) {
                        ones.push_back(ones[s].fork());
                        others.push_back(others[s].fork());
                    }
                    break;
                case 2:
                    if (random.below(4) == 0) {
                        ones.erase(ones.begin() + static_cast<std::ptrdiff_t>(s));
                        others.erase(others.begin() + static_cast<std::ptrdiff_t>(s));
                    }
                    break;
                case 3: {
                    const std::size_t to = others[s].size() - (std::min)(others[s].size(), random.below(60));
                    const std::size_t left = others[s].truncate(to);
                    lost += left < to ? 1 : 0;
                    CHECK((left == to || left == 0));
                    ones[s].truncate(left);
                    break;
                }
                case 4: {
                    const std::size_t size = others[s].size();
                    const std::size_t first = random.below(size + 1), count = random.below(size - first + 1);
                    const auto done = scene.context.erase(others[s], first, count);
                    if (done) {
                        CHECK(scene.context.erase(ones[s], first, count));
                        ++erased;
                        CHECK(others[s].size() <= size - count);  // the end may be cut off with all before it
                        ones[s].truncate(others[s].size());
                    } else {
                        CHECK((done.error().code == ErrorCode::unsupported ||
                               done.error().code == ErrorCode::cache_full));
                        CHECK(others[s].size() == size);
                        ++refused;
                    }
                    break;
                }
                default: {
                    std::vector<Tokens> texts;
                    std::vector<decant::PassPart<TestType>> parts, mirror;
                    for (std::size_t i = 0; i < others.size(); ++i)
                        texts.push_back(random_tokens(random, 1 + random.below(random.below(4) == 0 ? 10 : 2)));
                    for (std::size_t i = 0; i < others.size(); ++i) {
                        if (random.below(4) == 0) continue;
                        parts.push_back({&others[i], texts[i], Want::last});
                        mirror.push_back({&ones[i], texts[i], Want::last});
                    }
                    if (parts.empty()) break;
                    std::vector<Floats> found;
                    if (const auto logits = scene.context.pass(parts)) {
                        for (std::size_t r = 0; r < logits->rows(); ++r) found.push_back(row(*logits, r));
                    } else {
                        CHECK(logits.error().code == ErrorCode::cache_full);
                        ++full;
                        others[s].truncate(0);
                        ones[s].truncate(0);
                        break;
                    }
                    const auto expected = taken(scene.context.pass(mirror));
                    for (std::size_t r = 0; r < found.size(); ++r)
                        if (!same_bits(found[r], row(expected, r))) FAIL("row " << r);
                }
            }
            for (const auto& other : others) longest = (std::max)(longest, other.size());
            REQUIRE(scene.pool->blocks() - scene.pool->free_blocks() ==
                    used<TestType>(*scene.pool, std::span<const Sequence<TestType>>(others)));
        }
        CHECK(full > 0);
        CHECK(erased > 0);
        CHECK(refused > 0);
        CHECK(lost > 0);
        CHECK(longest > 2 * (window + spare));
        others.clear();
        CHECK(scene.pool->free_blocks() == scene.pool->blocks());
    }
}

TEST_CASE("windows: frames hold the rows that there are", "[cache][windows]") {
    Random random{24};
    Scene<Simd> scene(1000), elsewhere(1000, 7);
    Sequence<Simd> one = taken(scene.all.sequence()), other = scene.sequence();
    const Tokens text = random_tokens(random, 230);
    std::vector<std::vector<std::byte>> parts;
    for (std::size_t at = 0; at < text.size(); at += 23) {
        scene.grow(one, std::span(text).subspan(at, 23));
        scene.grow(other, std::span(text).subspan(at, 23));
        parts.push_back(taken(export_frame(scene.model, other, at)));
    }
    const auto whole = taken(export_frame(scene.model, one)), late = taken(export_frame(scene.model, other));
    CHECK(late.size() < whole.size() / 2);

    const auto goes_on = [&](const Scene<Simd>& to, Sequence<Simd> sequence) {
        CHECK(std::ranges::equal(sequence.tokens(), text));
        CHECK(sequence.blocks() <= decant::detail::blocks_needed(to.pool->shape(), text.size(), 23));
        CHECK(to.pool->blocks() - to.pool->free_blocks() == sequence.blocks());
        Sequence<Simd> expected = one.fork();
        for (int n = 0; n < 40; ++n) REQUIRE(scene.same(expected, sequence, random_tokens(random, 1)[0]));
        CHECK(sequence.truncate(text.size() + 20) == text.size() + 20);
        expected.truncate(text.size() + 20);
        REQUIRE(scene.same(expected, sequence, Token{3}));
    };
    for (const auto* const frame : {&whole, &late}) {
        Sequence<Simd> sequence = elsewhere.sequence();
        CHECK(sequence.reserve(text.size(), 30));
        REQUIRE(import_frame(scene.model, sequence, *frame));
        goes_on(elsewhere, std::move(sequence));
    }
    Sequence<Simd> sequence = elsewhere.sequence();
    for (const auto& frame : parts) REQUIRE(import_frame(scene.model, sequence, frame));
    goes_on(elsewhere, std::move(sequence));
    // Half of it as it was computed, the rest when most rows had gone.
    sequence = elsewhere.sequence();
    for (std::size_t i = 0; i < 4; ++i) REQUIRE(import_frame(scene.model, sequence, parts[i]));
    REQUIRE(import_frame(scene.model, sequence, taken(export_frame(scene.model, other, 4 * 23))));
    goes_on(elsewhere, std::move(sequence));

    // A cache that keeps everything takes nothing less, and the middle cannot be gone on with.
    Sequence<Simd> kept = taken(scene.all.sequence());
    const auto refused = import_frame(scene.model, kept, late);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::mismatch);
    CHECK(kept.size() == 0);
    REQUIRE(import_frame(scene.model, kept, whole));
    const auto middle = export_frame(scene.model, other, 0, 100);
    REQUIRE_FALSE(middle);
    CHECK(middle.error().code == ErrorCode::unsupported);
    for (std::size_t cut = 0; cut < late.size(); cut += 17) {
        Sequence<Simd> none = elsewhere.sequence();
        CHECK_FALSE(import_frame(scene.model, none, std::span(late).first(cut)));
    }
    CHECK(elsewhere.pool->free_blocks() == elsewhere.pool->blocks());
}

TEST_CASE("windows: a frame that lacks other rows than it says is refused", "[cache][windows]") {
    Random random{28};
    Scene<Simd> scene(1000), elsewhere(1000, 7);
    Sequence<Simd> sequence = scene.sequence();
    constexpr std::size_t count = 150;
    for (const Token token : random_tokens(random, count)) scene.grow(sequence, {&token, 1});
    const auto frame = taken(export_frame(scene.model, sequence));
    const std::size_t numbers = 48 + 4 * count, layers = scene.pool->shape().layers.size();
    for (int round = 0; round < 300; ++round) {
        auto changed = frame;
        const std::size_t at = numbers + 8 * random.below(layers);
        std::uint64_t value = 0;
        std::memcpy(&value, changed.data() + at, sizeof value);
        value = random.below(2) == 0 ? random.next() >> random.below(64) : value + 1 - 2 * random.below(2);
        if (std::memcmp(&value, changed.data() + at, sizeof value) == 0) continue;
        std::memcpy(changed.data() + at, &value, sizeof value);
        decant::Hash64 hash;
        hash.add(std::span<const std::byte>(changed).first(changed.size() - 8));
        value = hash.value();
        std::memcpy(changed.data() + changed.size() - 8, &value, sizeof value);
        Sequence<Simd> none = elsewhere.sequence();
        const auto done = import_frame(scene.model, none, changed);
        REQUIRE_FALSE(done);
        CHECK((done.error().code == ErrorCode::bad_format || done.error().code == ErrorCode::mismatch));
        CHECK(none.size() == 0);
        CHECK(elsewhere.pool->free_blocks() == elsewhere.pool->blocks());
    }
    Sequence<Simd> whole = elsewhere.sequence();
    CHECK(import_frame(scene.model, whole, frame));
}

TEST_CASE("windows: a known beginning is gone on with where its window is kept", "[cache][windows]") {
    Random random{25};
    Scene<Simd> scene(4000);
    PrefixCache<Simd> known(scene.pool);
    const auto write = [&](const Tokens& text) {  // as an engine does: part by part
        Sequence<Simd> sequence = known.match(text);
        const std::size_t found = sequence.size();
        typename PrefixCache<Simd>::Mark mark{sequence.table().size(), 0};
        while (sequence.size() < text.size()) {
            scene.grow(sequence, std::span(text).subspan(sequence.size(),
                                                         (std::min)(text.size() - sequence.size(), std::size_t{5})));
            known.publish(sequence, {}, mark);
        }
        return found;
    };
    const Tokens text = random_tokens(random, 201);
    CHECK(write(text) == 0);
    const std::size_t full_blocks = 50, groups = scene.pool->groups();
    CHECK(known.blocks() == full_blocks * groups);
    CHECK(known.unused_blocks() == known.blocks());
    CHECK(known.match(text).size() == 200);
    CHECK(known.match(std::span(text).first(90)).size() == 88);
    // Windows that nobody has gone on from go first: those in the middle, but not the last one, nor that of the text
    // that was asked for.
    const std::size_t windows = groups - 1, kept = 2 * (window / 4 + 1);
    std::size_t gone = 0;
    while (gone < (full_blocks - kept) * windows) gone += known.evict(1);
    CHECK(known.match(text).size() == 200);
    CHECK(known.match(std::span(text).first(90)).size() == 88);
    CHECK(known.match(std::span(text).first(150)).size() == 88);
    CHECK(scene.pool->blocks() - scene.pool->free_blocks() == known.blocks());
    {
        Sequence<Simd> one = taken(scene.all.sequence()), other = known.match(text);
        scene.grow(one, std::span(text).first(200));
        for (int n = 0; n < 60; ++n) REQUIRE(scene.same(one, other, random_tokens(random, 1)[0]));
    }
    // What was missed is kept again, and was asked for.
    Tokens fork(text.begin(), text.begin() + 150);
    for (const Token token : random_tokens(random, 51)) fork.push_back(token);
    CHECK(write(fork) == 88);
    CHECK(known.match(std::span(text).first(150)).size() == 148);
    while (known.evict(1) > 0) CHECK(scene.pool->blocks() - scene.pool->free_blocks() == known.blocks());
    CHECK(known.blocks() == 0);
    CHECK(scene.pool->free_blocks() == scene.pool->blocks());
}

TEST_CASE("windows: what a text has passed goes before the end of an older one", "[cache][windows]") {
    Random random{27};
    Scene<Simd> scene(4000);
    PrefixCache<Simd> known(scene.pool);
    const Tokens old = random_tokens(random, 81), text = random_tokens(random, 201);
    for (const Tokens* const each : {&old, &text}) {
        Sequence<Simd> sequence = scene.sequence();
        PrefixCache<Simd>::Mark mark;
        while (sequence.size() < each->size()) {
            scene.grow(sequence, std::span(*each).subspan(sequence.size(), 1));
            known.publish(sequence, {}, mark);
        }
    }
    // Of 20 and 50 blocks, all but those of the last windows.
    const std::size_t windows = scene.pool->groups() - 1, last = window / 4;
    std::size_t gone = 0;
    while (gone < (20 + 50 - 2 * last - 2) * windows) gone += known.evict(1);
    CHECK(known.match(old).size() == 80);
    CHECK(known.match(text).size() == 200);
}

TEST_CASE("windows: known beginnings at random, in a cache that is too small", "[cache][windows]") {
    Random random{26};
    Scene<Simd> scene(260);
    {
        PrefixCache<Simd> known(scene.pool);
        std::vector<Tokens> texts(1);
        std::size_t found = 0, evicted = 0;
        for (int round = 0; round < 120; ++round) {
            CAPTURE(round);
            const Tokens& before = texts[random.below(texts.size())];
            Tokens text(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(random.below(before.size() + 1)));
            for (const Token token : random_tokens(random, 1 + random.below(50))) text.push_back(token);
            if (text.size() > 180) text.resize(180);
            Sequence<Simd> one = taken(scene.all.sequence()), other = known.match(text);
            found += other.size();
            Floats last;
            while (other.size() < text.size()) {
                const auto part =
                    std::span(text).subspan(other.size(), (std::min)(text.size() - other.size(), 1 + random.below(20)));
                auto logits = scene.context.prefill(other, part);
                for (; !logits; logits = scene.context.prefill(other, part)) {
                    REQUIRE(logits.error().code == ErrorCode::cache_full);
                    const std::size_t unused = known.unused_blocks(), free = scene.pool->free_blocks();
                    const std::size_t gone = known.evict(1 + random.below(20));
                    REQUIRE(gone > 0);
                    CHECK(known.unused_blocks() == unused - gone);
                    CHECK(scene.pool->free_blocks() == free + gone);
                    evicted += gone;
                }
                last = row(*logits);
                if (random.below(3) > 0) known.publish(other);
            }
            if (!same_bits(row(taken(scene.context.prefill(one, text))), last)) FAIL("other bits");
            known.publish(other);
            texts.push_back(text);
        }
        CHECK(found > 0);
        CHECK(evicted > 0);
        CHECK(scene.pool->free_blocks() + known.blocks() == scene.pool->blocks());
        CHECK(known.evict(100000) > 0);
        CHECK(known.blocks() == 0);
    }
    CHECK(scene.pool->free_blocks() == scene.pool->blocks());
}

TEST_CASE("windows: a plan counts what is taken, and a smaller cache does for as long a text", "[cache][windows]") {
    const auto weights = decant_test::tiny("gemma3_std");
    const CacheOptions few{.tokens = 200, .block_tokens = 4, .forget_unseen = true};
    const auto plan = taken(decant::MemoryPlan::of<Simd>(weights, {}, few));
    Scene<Simd> scene(200);
    CHECK(plan.cache == scene.pool->bytes());
    const KvCache<Simd> cache(scene.context, few);
    CHECK(cache.bytes() == plan.cache);
    CHECK(taken(cache.sequence()).capacity() > 2 * few.tokens);
    CHECK(plan.bookkeeping > taken(decant::MemoryPlan::of<Simd>(weights, {}, {200, 4})).bookkeeping);
    const auto same = decant_test::tiny("llama3");  // no windows: nothing changes
    CHECK(taken(decant::MemoryPlan::of<Simd>(same, {}, few)).total() ==
          taken(decant::MemoryPlan::of<Simd>(same, {}, {200, 4})).total());
}

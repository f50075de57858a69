// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// One property: the logits of a sequence are, bit for bit, those of its tokens computed alone on one thread in one
// pass, whatever else happened (context.hpp, sequence.hpp, and the kernels below them).
#include <decant/model/context.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/thread_pool.hpp>

#include "core/executors.hpp"
#include "model/support.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

using decant::AnyExecutor;
using decant::Context;
using decant::DType;
using decant::KvCache;
using decant::Model;
using decant::PassPart;
using decant::RunState;
using decant::Sequence;
using decant::Simd;
using decant::ThreadPool;
using decant::Want;
using decant_test::Floats;
using decant_test::Random;
using decant_test::same_bits;
using decant_test::taken;
using decant_test::Tokens;

namespace {

constexpr std::size_t longest = 200;  // three borders of attention's tiles of 64 positions

/// Texts that agree up to some position and then part, with the logits at every position of each.
struct Tree {
    std::vector<Tokens> texts;
    std::vector<std::vector<Floats>> logits;

    template <class B>
    Tree(const Model<B>& model, DType dtype, Random& random) {
        const std::size_t vocabulary = model.spec().vocabulary;
        texts.push_back(decant_test::random_tokens(random, longest, vocabulary));
        for (const std::size_t shared :
             {std::size_t{64}, random.below(10), random.below(longest), random.below(longest)}) {
            Tokens text = texts[random.below(texts.size())];
            text.resize(shared);
            const Tokens tail = decant_test::random_tokens(random, longest - shared, vocabulary);
            text.insert(text.end(), tail.begin(), tail.end());
            texts.push_back(std::move(text));
        }
        for (const Tokens& text : texts) logits.push_back(decant_test::whole(model, text, dtype));
    }

    /// Any text that begins like the first `size` tokens of `text`.
    std::size_t alike(Random& random, std::size_t text, std::size_t size) const {
        const auto begin = std::span(texts[text]).first(size);
        std::size_t other = random.below(texts.size());
        while (!std::ranges::equal(begin, std::span(texts[other]).first(size))) other = random.below(texts.size());
        return other;
    }
};

struct NamedExecutor {
    AnyExecutor executor;
    std::string name;
};
NamedExecutor any_executor(Random& random, decant_test::Jobs& jobs) {
    switch (const std::size_t kind = random.below(8)) {
        case 0: return {AnyExecutor{}, "serial"};
        case 1: return {AnyExecutor(decant_test::ReversedExecutor{}), "reversed"};
        case 2:
            return {AnyExecutor(decant_test::ShuffledExecutor{std::mt19937{static_cast<unsigned>(random.next())}}),
                    "shuffled"};
        case 3: return {AnyExecutor(decant_test::OnJobs{jobs}), "job system"};
        default: return {AnyExecutor(ThreadPool{kind - 3}), std::to_string(kind - 3) + " threads"};
    }
}

/// What the scenarios did, so that none of it can silently fall away.
struct Tally {
    std::size_t compared = 0, beyond_a_tile = 0, batches = 0, slices = 0, prefills = 0, forks = 0, regrown = 0;
};

template <class B>
struct Growing {
    Sequence<B> sequence;
    std::size_t text;
};

template <class B>
void scenario(const Model<B>& model, DType dtype, const Tree& tree, Random& random, decant_test::Jobs& jobs,
              Tally& tally) {
    auto [executor, name] = any_executor(random, jobs);
    const std::size_t rows = random.below(2) == 0 ? 1 + random.below(20) : 1 + random.below(longest);
    const std::uint32_t block =
        std::vector<std::uint32_t>{1, 16, 64, 1 + static_cast<std::uint32_t>(random.below(70))}[random.below(4)];
    INFO(name << ", passes of " << rows << " rows, blocks of " << block << " tokens of " << decant::name(dtype) << ", "
              << model.spec().vocabulary << " words");

    constexpr std::size_t most = 5;
    Context context(model, std::move(executor),
                    {.rows = static_cast<std::uint32_t>(rows),
                     .sequences = most,
                     .logits = static_cast<std::uint32_t>(rows),
                     .best = static_cast<std::uint32_t>(random.below(3))});
    // Room for whole sequences of their own, and for what a fork copies.
    const KvCache cache(context, {.tokens = most * (longest + 2 * block), .block_tokens = block, .dtype = dtype});
    decant_test::scatter_free_blocks(cache, random);

    std::vector<Growing<B>> all;
    const auto correct = [&](const Growing<B>& one, std::span<const float> found, std::size_t position) {
        ++tally.compared;
        tally.beyond_a_tile += position >= 64;
        if (same_bits({found.begin(), found.end()}, tree.logits[one.text][position])) return;
        FAIL("other bits at position " << position << " of " << one.sequence.size() << " of text " << one.text);
    };
    const auto next_tokens = [&](const Growing<B>& one, std::size_t count) {
        const std::size_t size = one.sequence.size();
        return std::span(tree.texts[one.text]).subspan(size, (std::min)(count, longest - size));
    };

    for (int step = 0; step < 14; ++step) {
        const std::size_t kind = random.below(10);
        if (all.empty() || (kind == 0 && all.size() < most)) {
            all.push_back({taken(cache.sequence()), random.below(tree.texts.size())});
        } else if (kind == 1 && all.size() < most) {  // a shared prefix of any length, then perhaps another text
            const Growing<B>& origin = all[random.below(all.size())];
            Growing<B> fork{origin.sequence.fork(), origin.text};
            if (random.below(2) == 0) fork.sequence.truncate(random.below(fork.sequence.size() + 1));
            fork.text = tree.alike(random, fork.text, fork.sequence.size());
            tally.forks += fork.sequence.size() > 0;
            all.push_back(std::move(fork));
        } else if (kind == 2) {
            Growing<B>& one = all[random.below(all.size())];
            one.sequence.truncate(random.below(one.sequence.size() + 1));
            one.text = tree.alike(random, one.text, one.sequence.size());
            ++tally.regrown;
        } else if (kind == 3 && all.size() > 1) {
            std::swap(all[random.below(all.size())], all.back());
            all.pop_back();
        } else if (kind < 6) {
            Growing<B>& one = all[random.below(all.size())];
            const auto tokens = next_tokens(one, 1 + random.below(longest));
            if (tokens.empty()) continue;
            const auto logits = taken(context.prefill(one.sequence, tokens));
            correct(one, logits, one.sequence.size() - 1);
            ++tally.prefills;
        } else {
            // Some of the sequences in any order, each with some of its next tokens.
            for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
            std::vector<PassPart<B>> parts;
            std::size_t room = rows;
            const std::size_t greed = random.below(2) == 0 ? 1 : longest;
            for (Growing<B>& one : all) {
                if (room == 0 || random.below(4) == 0) continue;
                const auto tokens = next_tokens(one, 1 + random.below((std::min)(greed, room)));
                if (tokens.empty()) continue;
                parts.push_back({&one.sequence, tokens, static_cast<Want>(random.below(3))});
                room -= tokens.size();
            }
            if (parts.empty()) continue;
            tally.batches += parts.size() > 1;
            decant::Logits logits;
            if (random.below(2) == 0) {
                logits = taken(context.pass(parts));
            } else {
                REQUIRE(context.begin(parts));
                const std::uint64_t tiles = 1 + random.below(60);
                while (context.advance({.tiles = tiles}) != RunState::finished) ++tally.slices;
                logits = taken(context.finish(parts));
            }
            std::size_t row = 0;
            for (const PassPart<B>& part : parts) {
                const auto one =
                    std::ranges::find_if(all, [&](const Growing<B>& g) { return &g.sequence == part.sequence; });
                const std::size_t end = one->sequence.size();
                const std::size_t wanted = part.want == Want::none   ? 0
                                           : part.want == Want::last ? 1
                                                                     : part.tokens.size();
                for (std::size_t i = end - wanted; i < end; ++i) correct(*one, logits.row(row++), i);
            }
            REQUIRE(logits.rows() == row);
        }
        for (const Growing<B>& one : all)
            if (!std::ranges::equal(one.sequence.tokens(), std::span(tree.texts[one.text]).first(one.sequence.size())))
                FAIL("a sequence lost its tokens");
    }
    // Everything that is left grows to its end.
    for (Growing<B>& one : all) {
        const auto tokens = next_tokens(one, longest);
        if (!tokens.empty()) correct(one, taken(context.prefill(one.sequence, tokens)), longest - 1);
    }
    all.clear();
    REQUIRE(cache.free_blocks() == cache.blocks());
}

}  // namespace

TEMPLATE_TEST_CASE("the same bits however they are asked for", "[model]", decant::Eigen, Simd) {
    const auto models = decant_test::models<TestType>();
    decant_test::Jobs jobs{2};
    Random random{20};
    Tally tally;
    for (int round = 0; round < 8; ++round) {
        const auto& model = models[static_cast<std::size_t>(round) % 2];
        const DType dtype = round / 2 % 2 == 0 ? DType::f16 : DType::f32;
        const Tree tree(model, dtype, random);
        for (int i = 0; i < 25; ++i) {
            INFO("round " << round << ", scenario " << i);
            scenario(model, dtype, tree, random, jobs, tally);
        }
    }
    CHECK(tally.compared > 4'000);
    CHECK(tally.beyond_a_tile > 2'000);
    CHECK(tally.batches > 200);
    CHECK(tally.slices > 1'000);
    CHECK(tally.prefills > 200);
    CHECK(tally.forks > 60);
    CHECK(tally.regrown > 60);
}

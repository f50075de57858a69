// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Context shift and what it does to shared blocks (context.hpp, sequence.hpp).
#include <decant/model/context.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/thread_pool.hpp>
#include <decant/quant/formats.hpp>

#include "model/support.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

using decant::BlockPool;
using decant::Context;
using decant::DType;
using decant::ErrorCode;
using decant::KvCache;
using decant::Model;
using decant::PassPart;
using decant::Sequence;
using decant::Simd;
using decant::ThreadPool;
using decant::Token;
using decant::Want;
using decant_test::Floats;
using decant_test::Random;
using decant_test::random_tokens;
using decant_test::same_bits;
using decant_test::taken;
using decant_test::TinyFile;
using decant_test::Tokens;
using decant_test::whole;

namespace {

template <class B>
using Pool = std::shared_ptr<BlockPool<B>>;

template <class B>
Pool<B> make_pool(const Model<B>& model, std::uint32_t block, DType dtype, std::size_t tokens) {
    return std::make_shared<BlockPool<B>>(
        taken(BlockPool<B>::create(model.backend(), {model.spec().cache_layers(), block, dtype}, tokens)));
}

/// The cached key or value of one position, all heads, read by the layout that `CacheShape` states.
template <class B>
Floats cached(const Pool<B>& pool, const Sequence<B>& sequence, std::size_t layer, std::size_t position, bool value) {
    const decant::CacheShape& shape = pool->shape();
    const auto block = static_cast<std::size_t>(sequence.table()[position / shape.block_tokens]);
    const std::size_t row = shape.row_bytes(layer);
    const std::byte* at = pool->buffer().data() + block * shape.block_bytes() + shape.layer_offset(layer) +
                          (value ? shape.block_tokens * row : 0) + position % shape.block_tokens * row;
    Floats numbers(std::size_t{shape.layers[layer].kv_heads} * shape.layers[layer].head_dim);
    decant::dequantize_row(shape.dtype, at, numbers.size(), numbers.data());
    return numbers;
}

/// Rotary embedding of all heads by a number of positions, from its definition.
void turn(const decant::RopeTable& table, double positions, std::vector<double>& heads) {
    const std::size_t dim = table.rope.dim;
    const bool halves = table.rope.layout == decant::RopeLayout::halves;
    for (std::size_t head = 0; head < heads.size(); head += table.rope.head_dim) {
        for (std::size_t i = 0; i < dim / 2; ++i) {
            double& x = heads[head + (halves ? i : 2 * i)];
            double& y = heads[head + (halves ? i + dim / 2 : 2 * i + 1)];
            const double angle = positions * static_cast<double>(table.frequencies[i]);
            const double turned = x * std::cos(angle) - y * std::sin(angle);
            y = x * std::sin(angle) + y * std::cos(angle);
            x = turned;
        }
    }
}

double farthest(std::span<const float> a, std::span<const float> b) {
    double most = a.size() == b.size() ? 0.0 : INFINITY;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
        const double gap = std::abs(double{a[i]} - double{b[i]});
        most = gap <= most ? most : gap;  // a NaN counts
    }
    return most;
}

template <class Values>
void cut(Values& values, std::size_t first, std::size_t count) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(first);
    values.erase(at, at + static_cast<std::ptrdiff_t>(count));
}

/// A model of one layer, whose keys and values depend on the token and its position alone.
template <class B>
Model<B> one_layer(const std::string& scaling) {
    return decant_test::bind<B>(TinyFile(DType::f32, 32, 64, 1).open([&](decant::GgufWriter& writer) {
        if (scaling.empty()) return;
        writer.add("llama.rope.scaling.type", scaling);
        writer.add("llama.rope.scaling.factor", 4.0f);
        writer.add("llama.rope.scaling.original_context_length", std::uint32_t{64});
    }));
}

/// A sequence with the operations that made it, so that a sequence on its own can repeat them.
template <class B>
struct Line {
    struct Step {
        Tokens appended;            // if any, else:
        std::size_t first, erased;  // erased == 0: truncated to `first`
    };
    Sequence<B> sequence;
    Tokens text = {};
    std::vector<Step> steps = {};

    Line fork() const { return {sequence.fork(), text, steps}; }
    void append(std::span<const Token> more) {
        text.insert(text.end(), more.begin(), more.end());
        steps.push_back({{more.begin(), more.end()}, 0, 0});
    }
    void erase(std::size_t first, std::size_t count) {
        cut(text, first, count);
        if (count > 0) steps.push_back({{}, first, count});
    }
    void truncate(std::size_t size) {
        sequence.truncate(size);
        text.resize(size);
        steps.push_back({{}, size, 0});
    }
    /// Blocks of positions [first, last) that are used elsewhere too.
    template <class Users>
    std::size_t shared(const Users& users, std::size_t block, std::size_t first, std::size_t last) const {
        std::size_t count = 0;
        for (std::size_t b = first / block; b * block < last; ++b) count += users.at(sequence.table()[b]) > 1;
        return count;
    }
};

/// Logits of `probe` after the steps of a line, in a cache and a context of its own.
template <class B>
Floats replayed(const Model<B>& model, const Line<B>& line, Token probe, DType dtype) {
    Context context(model, {.rows = 64, .sequences = 1, .logits = 1});
    const KvCache cache(context, {.tokens = 128, .dtype = dtype});
    auto sequence = taken(cache.sequence());
    for (const auto& step : line.steps) {
        if (!step.appended.empty()) {
            REQUIRE(context.prefill(sequence, step.appended));
        } else if (step.erased > 0) {
            REQUIRE(context.erase(sequence, step.first, step.erased));
        } else {
            sequence.truncate(step.first);
        }
    }
    REQUIRE(std::ranges::equal(sequence.tokens(), line.text));
    return decant_test::row(taken(context.decode(sequence, probe)));
}

/// The same on a fork of the line. Needs a free block.
template <class B>
Floats probed(Context<B>& context, const Line<B>& line, Token probe) {
    auto fork = line.sequence.fork();
    return decant_test::row(taken(context.decode(fork, probe)));
}

/// How many sequences use each block that is used.
template <class B>
std::map<std::int32_t, std::size_t> users_of(const std::vector<Line<B>>& lines) {
    std::map<std::int32_t, std::size_t> users;
    for (const Line<B>& line : lines)
        for (const std::int32_t block : line.sequence.table()) ++users[block];
    return users;
}

std::size_t end_of(const nlohmann::json& step, std::size_t size) {
    return step.at("p1") == "end" ? size : step.at("p1").get<std::size_t>();
}

}  // namespace

TEMPLATE_TEST_CASE("erasing turns later keys back by the gap and keeps their values", "[model]", decant::Eigen, Simd) {
    Random random{41};
    for (const char* name : {"llama2", "llama3", "llama_linear", "llama_yarn"}) {
        const auto model = decant_test::bind<TestType>(decant_test::tiny(name));
        const std::size_t layers = model.spec().layers.size();
        for (const DType dtype : {DType::f32, DType::f16}) {
            for (const std::uint32_t block : {1u, 5u, 16u}) {
                INFO(name << ", " << decant::name(dtype) << ", blocks of " << block);
                Context context(model, {.rows = block == 5 ? 7u : 128u});
                const auto pool = make_pool(model, block, dtype, 128);
                Sequence<TestType> sequence(pool);
                Tokens text = decant_test::random_tokens(random, 100, model.spec().vocabulary);
                REQUIRE(context.prefill(sequence, text));

                std::vector<std::vector<std::vector<double>>> keys(layers);
                std::vector<std::vector<Floats>> values(layers);
                double largest = 0.0;
                for (std::size_t l = 0; l < layers; ++l) {
                    for (std::size_t p = 0; p < text.size(); ++p) {
                        const Floats key = cached(pool, sequence, l, p, false);
                        keys[l].emplace_back(key.begin(), key.end());
                        values[l].push_back(cached(pool, sequence, l, p, true));
                        for (const double x : keys[l].back()) largest = (std::max)(largest, std::abs(x));
                    }
                }
                REQUIRE(largest > 0.1);
                double worst = 0.0;
                int times = 0;
                for (; text.size() > 4; ++times) {
                    const std::size_t first = random.below(text.size());
                    const std::size_t count = (std::min)(text.size() - first, random.below(12));
                    REQUIRE(context.erase(sequence, first, count));
                    cut(text, first, count);
                    REQUIRE(std::ranges::equal(sequence.tokens(), text));
                    CHECK(sequence.table().size() == (text.size() + block - 1) / block);
                    CHECK(pool->free_blocks() == pool->blocks() - sequence.table().size());
                    for (std::size_t l = 0; l < layers; ++l) {
                        cut(keys[l], first, count);
                        cut(values[l], first, count);
                        const decant::RopeTable& rope = model.spec().ropes[model.spec().layers[l].rope];
                        for (std::size_t p = first; p < text.size(); ++p)
                            turn(rope, -static_cast<double>(count), keys[l][p]);
                        for (std::size_t p = 0; p < text.size(); ++p) {
                            const Floats key = cached(pool, sequence, l, p, false);
                            for (std::size_t i = 0; i < key.size(); ++i)
                                worst = (std::max)(worst, std::abs(double{key[i]} - keys[l][p][i]));
                            if (!same_bits(cached(pool, sequence, l, p, true), values[l][p]))
                                FAIL("value of layer " << l << " at " << p);
                        }
                    }
                }
                CHECK(times > 10);
                // Half a unit of the last place per turn, in the worst case all in one direction.
                const double unit = dtype == DType::f32 ? 4e-7 : 5e-4;
                INFO(worst << " off after " << times << " times, keys up to " << largest);
                CHECK(worst < unit * largest * times);
            }
        }
    }
}

// Where keys and values depend on the token alone, erasing is as if the erased had never been there.
TEMPLATE_TEST_CASE("with one layer, erasing equals a prompt without the erased tokens", "[model]", decant::Eigen,
                   Simd) {
    Random random{42};
    for (const char* scaling : {"", "linear", "yarn"}) {
        const auto model = one_layer<TestType>(scaling);
        for (const std::uint32_t rows : {4u, 64u}) {
            Context context(model, ThreadPool{2}, {.rows = rows});
            const KvCache cache(context, {.tokens = 128, .block_tokens = 4, .dtype = DType::f32});
            for (int round = 0; round < 10; ++round) {
                auto sequence = taken(cache.sequence());
                Tokens text = decant_test::random_tokens(random, 90, 24);
                const Floats before = decant_test::row(taken(context.prefill(sequence, text)));
                for (int time = 0; time < 4; ++time) {
                    const std::size_t first = random.below(text.size());
                    const std::size_t count = 1 + random.below((std::min)(text.size() - first, std::size_t{20}));
                    REQUIRE(context.erase(sequence, first, count));
                    cut(text, first, count);
                }
                const Token next{static_cast<std::int32_t>(random.below(24))};
                text.push_back(next);
                const Floats found = decant_test::row(taken(context.decode(sequence, next)));
                const Floats expected = whole<TestType>(model, text, DType::f32).back();
                INFO(scaling << " rows " << rows << " round " << round);
                CHECK(farthest(found, expected) < 1e-4);
                CHECK(farthest(found, before) > 1e-3);  // the difference would be seen
            }
        }
    }
}

// The same where entries are rounded: moved rows are as near to those of the shorter prompt as both are to exact ones.
TEMPLATE_TEST_CASE("with one layer of small cache entries, erasing comes near a prompt without the erased tokens",
                   "[model]", decant::Eigen, Simd) {
    Random random{52};
    const auto model = decant_test::bind<TestType>(TinyFile(DType::f32, 32, 64, 1, 64).open());
    for (const DType dtype : {DType::bf16, DType::q8_0, DType::q4_0}) {
        Context context(model, {.rows = 64});
        const KvCache cache(context, {.tokens = 128, .block_tokens = 4, .dtype = dtype});
        double moved = 0.0, rounded = 0.0, seen = 0.0;
        for (int round = 0; round < 20; ++round) {
            auto sequence = taken(cache.sequence());
            Tokens text = decant_test::random_tokens(random, 60, 24);
            const Floats before = decant_test::row(taken(context.prefill(sequence, text)));
            const std::size_t first = random.below(40), count = 1 + random.below(20);
            REQUIRE(context.erase(sequence, first, count));
            cut(text, first, count);
            const Token next{static_cast<std::int32_t>(random.below(24))};
            text.push_back(next);
            const Floats found = decant_test::row(taken(context.decode(sequence, next)));
            const Floats exact = whole<TestType>(model, text, DType::f32).back();
            moved += farthest(found, exact);
            rounded += farthest(whole<TestType>(model, text, dtype).back(), exact);
            seen += farthest(before, exact);
        }
        INFO(decant::name(dtype) << ": " << moved << " after moving, " << rounded << " before, of " << seen);
        CHECK(rounded > 0.0);
        CHECK(moved < 3.0 * rounded);
        CHECK(moved < 0.2 * seen);  // the difference would be seen
    }
}

TEMPLATE_TEST_CASE("erasing in small steps comes close to erasing at once", "[model]", decant::Eigen, Simd) {
    Random random{43};
    for (const char* name : {"llama2", "llama3", "llama_linear", "llama_yarn"}) {
        const auto model = decant_test::bind<TestType>(decant_test::tiny(name));
        Context context(model, {.rows = 64});
        const KvCache cache(context, {.tokens = 512, .block_tokens = 8, .dtype = DType::f32});
        for (int round = 0; round < 6; ++round) {
            const Tokens text = decant_test::random_tokens(random, 60, model.spec().vocabulary);
            const std::size_t first = random.below(40);
            const std::size_t count = 1 + random.below(19);
            auto origin = taken(cache.sequence());
            REQUIRE(context.prefill(origin, text));
            auto once = origin.fork();
            auto steps = origin.fork();
            REQUIRE(context.erase(once, first, count));
            for (std::size_t left = count; left > 0;) {
                const std::size_t part = 1 + random.below((std::min)(left, std::size_t{3}));
                REQUIRE(context.erase(steps, first + random.below(left - part + 1), part));
                left -= part;
            }
            REQUIRE(std::ranges::equal(once.tokens(), steps.tokens()));
            const Token next = text[0];
            const Floats a = decant_test::row(taken(context.decode(once, next)));
            const Floats b = decant_test::row(taken(context.decode(steps, next)));
            const Floats c = decant_test::row(taken(context.decode(origin, next)));
            INFO(name << " erased " << count << " from " << first);
            CHECK(farthest(a, b) < 1e-3);
            CHECK(farthest(a, c) > 1e-3);
        }
    }
}

TEMPLATE_TEST_CASE("how an erasure is run changes no bit", "[model]", decant::Eigen, Simd) {
    auto models = decant_test::models<TestType>();
    models.push_back(decant_test::bind<TestType>(TinyFile(DType::q4_1, 32, 64, 2, 96).open()));
    for (const auto& model : models) {
        const Tokens text = random_tokens(90, 44, model.spec().vocabulary);
        for (const DType dtype : {DType::f32, DType::f16, DType::q8_0, DType::q4_0}) {
            const bool blocks = decant::traits(dtype).block_elements > 1;
            if (blocks != (model.spec().layers[0].attention.head_dim == 96)) continue;  // the model made for them
            Floats expected;
            for (const std::uint32_t rows : {200u, 1u, 7u}) {
                for (const std::size_t threads : {1u, 3u}) {
                    for (const std::uint32_t block : {16u, 1u, 64u}) {
                        Context context(model, ThreadPool{threads, threads}, {.rows = rows});
                        const KvCache cache(context, {.tokens = 128, .block_tokens = block, .dtype = dtype});
                        Random random{block};
                        decant_test::scatter_free_blocks(cache, random);
                        auto sequence = taken(cache.sequence());
                        REQUIRE(context.prefill(sequence, text));
                        REQUIRE(context.erase(sequence, 5, 17));
                        REQUIRE(context.erase(sequence, 0, 1));
                        REQUIRE(context.erase(sequence, 60, 3));
                        const Floats found = decant_test::row(taken(context.decode(sequence, text[0])));
                        if (expected.empty()) expected = found;
                        INFO("passes of " << rows << ", " << threads << " threads, blocks of " << block);
                        CHECK(same_bits(found, expected));
                    }
                }
            }
        }
    }
}

TEMPLATE_TEST_CASE("the ends of erasing: nothing, the tail, everything, ranges outside", "[model]", decant::Eigen,
                   Simd) {
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    const Tokens text = random_tokens(30, 45, 160);
    const auto expected = whole<TestType>(model, text);
    Context context(model, {.rows = 32});
    const KvCache cache(context, {.tokens = 64, .block_tokens = 4});
    auto sequence = taken(cache.sequence());
    REQUIRE(context.erase(sequence, 0, 0));  // of an empty sequence
    REQUIRE(context.prefill(sequence, text));

    for (const std::size_t first : {0u, 7u, 30u}) REQUIRE(context.erase(sequence, first, 0));
    constexpr std::size_t huge = (std::numeric_limits<std::size_t>::max)();
    const std::vector<std::pair<std::size_t, std::size_t>> outside{{31, 0},   {30, 1},   {0, 31},
                                                                   {7, huge}, {huge, 2}, {huge, huge}};
    for (const auto& [first, count] : outside) {
        const auto erased = context.erase(sequence, first, count);
        REQUIRE_FALSE(erased);
        CHECK(erased.error().code == ErrorCode::invalid_argument);
        CHECK(decant_test::contains(erased.error().message(), "a sequence of 30"));
    }
    const KvCache elsewhere(decant_test::bind<TestType>(TinyFile{}.open()));
    auto foreign = taken(elsewhere.sequence());
    Context own(decant_test::bind<TestType>(TinyFile{}.open()));
    REQUIRE(own.prefill(foreign, random_tokens(9, 1, 24)));
    const auto misfit = context.erase(foreign, 0, 2);
    REQUIRE_FALSE(misfit);
    CHECK(misfit.error().code == ErrorCode::invalid_argument);
    CHECK(foreign.size() == 9);
    CHECK(sequence.size() == 30);

    // Nothing has changed so far, and the tail goes as `truncate` takes it.
    REQUIRE(context.erase(sequence, 11, 19));
    CHECK(sequence.size() == 11);
    CHECK(sequence.table().size() == 3);
    CHECK(same_bits(decant_test::row(taken(context.prefill(sequence, std::span(text).subspan(11)))), expected.back()));

    REQUIRE(context.erase(sequence, 0, 30));
    CHECK(sequence.size() == 0);
    CHECK(cache.free_blocks() == cache.blocks());
    CHECK(same_bits(decant_test::row(taken(context.prefill(sequence, text))), expected.back()));
}

TEMPLATE_TEST_CASE("forks never see what another one erases", "[model]", decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    const Tokens text = random_tokens(40, 46, 160);
    const auto expected = whole<TestType>(model, text);
    Context context(model, {.rows = 40, .sequences = 3});
    for (const std::size_t first : {0u, 1u, 4u, 9u, 22u}) {
        for (const std::size_t count : {1u, 3u, 4u, 11u}) {
            INFO("erased " << count << " from " << first);
            const KvCache cache(context, {.tokens = 120, .block_tokens = 4});
            auto origin = taken(cache.sequence());
            REQUIRE(context.prefill(origin, std::span(text).first(38)));  // in 10 blocks
            auto fork = origin.fork();
            auto lone = taken(cache.sequence());
            REQUIRE(context.erase(fork, first, count));
            const std::size_t still_shared = first / 4;
            const std::size_t left = (38 - count + 3) / 4;
            CHECK(fork.table().size() == left);
            CHECK(cache.free_blocks() == cache.blocks() - 10 - (left - still_shared));
            for (std::size_t b = 0; b < left; ++b) CHECK((fork.table()[b] == origin.table()[b]) == (b < still_shared));
            CHECK(std::ranges::equal(origin.tokens(), std::span(text).first(38)));

            // As the same on a sequence that shares nothing.
            REQUIRE(context.prefill(lone, std::span(text).first(38)));
            REQUIRE(context.erase(lone, first, count));
            CHECK(same_bits(decant_test::row(taken(context.decode(fork, text[38]))),
                            decant_test::row(taken(context.decode(lone, text[38])))));
            CHECK(same_bits(decant_test::row(taken(context.prefill(origin, std::span(text).subspan(38)))),
                            expected.back()));
        }
    }
}

TEMPLATE_TEST_CASE("erasing where shared blocks cannot be copied is an error that changes nothing", "[model]",
                   decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    const Tokens text = random_tokens(24, 47, 160);
    const auto expected = whole<TestType>(model, text);
    Context context(model, {.rows = 24});
    const KvCache cache(context, {.tokens = 28, .block_tokens = 4});
    auto origin = taken(cache.sequence());
    REQUIRE(context.prefill(origin, std::span(text).first(20)));  // 5 of 7 blocks
    auto fork = origin.fork();
    const std::vector<std::int32_t> table(fork.table().begin(), fork.table().end());
    for (int i = 0; i < 2; ++i) {
        const auto full = context.erase(fork, 5, 2);  // writes into 4
        REQUIRE_FALSE(full);
        CHECK(full.error().code == ErrorCode::cache_full);
        CHECK(decant_test::contains(full.error().message(), "4 shared blocks"));
        CHECK_FALSE(full.error().hint.empty());
        CHECK(std::ranges::equal(fork.tokens(), std::span(text).first(20)));
        CHECK(std::ranges::equal(fork.table(), table));
        CHECK(cache.free_blocks() == 2);
    }
    REQUIRE(context.erase(fork, 13, 2));  // writes into 2
    CHECK(cache.free_blocks() == 0);
    fork.truncate(13);  // of the two copies one is still in use
    CHECK(cache.free_blocks() == 1);
    REQUIRE(context.prefill(fork, std::span(text).subspan(13, 7)));
    CHECK(cache.free_blocks() == 0);
    const auto full = context.decode(fork, text[20]);
    REQUIRE_FALSE(full);
    CHECK(full.error().code == ErrorCode::cache_full);
    { const auto gone = std::move(origin); }
    REQUIRE(cache.free_blocks() == 2);
    CHECK(same_bits(decant_test::row(taken(context.prefill(fork, std::span(text).subspan(20)))), expected.back()));
    REQUIRE(context.erase(fork, 0, 3));  // alone: nothing to copy
    CHECK(fork.table().size() == 6);
}

// Case KV-01 of ../shared/cases. Positions are dense here: `erase` is removal and shift in one, a shift by 0 is
// nothing, and a shift of a part of the positions or below 0 cannot be said.
TEMPLATE_TEST_CASE("case KV-01: two removals with their shifts", "[model]", decant::Eigen, Simd) {
    const auto path = decant_test::shared("cases/files/KV-01.ops.json");
    if (!std::filesystem::exists(path)) DECANT_SKIP("no cases/files/KV-01.ops.json in ../shared");
    const nlohmann::json script = decant_test::read_json(path).at("script");
    for (const char* name : {"llama2", "llama3", "llama_linear", "llama_yarn"}) {
        const auto model = decant_test::bind<TestType>(decant_test::tiny(name));
        const Tokens text = random_tokens(11, 48, model.spec().vocabulary);
        Context context(model, {.rows = 16});
        const KvCache cache(context, {.tokens = 64, .block_tokens = 4, .dtype = DType::f32});
        auto sequence = taken(cache.sequence());
        REQUIRE(context.prefill(sequence, std::span(text).first(10)));
        auto once = sequence.fork();

        std::size_t erasures = 0;
        std::size_t inexpressible = 0;
        for (std::size_t i = 0; i < script.size(); ++i) {
            const nlohmann::json& step = script[i];
            const auto p0 = step.at("p0").get<std::size_t>();
            if (step.at("op") == "remove") {
                const std::size_t count = end_of(step, sequence.size()) - p0;
                const nlohmann::json& shift = script.at(++i);
                REQUIRE(shift.at("op") == "shift");
                REQUIRE(shift.at("p0") == p0 + count);
                REQUIRE(shift.at("p1") == "end");
                REQUIRE(shift.at("delta") == -static_cast<int>(count));
                REQUIRE(context.erase(sequence, p0, count));
                REQUIRE(sequence.size() == shift.at("expect_positions").size());
                CHECK(shift.at("expect_positions").back() == sequence.size() - 1);
                ++erasures;
            } else if (step.at("delta") == 0) {
                REQUIRE(context.erase(sequence, p0, 0));
                CHECK(sequence.size() == step.at("expect_positions").size());
            } else {
                ++inexpressible;
            }
        }
        CHECK(erasures == 2);
        CHECK(inexpressible == 2);

        REQUIRE(context.erase(once, 1, 3));  // what both took, with one turn of the keys
        REQUIRE(std::ranges::equal(sequence.tokens(), once.tokens()));
        CHECK(farthest(decant_test::row(taken(context.decode(sequence, text[10]))),
                       decant_test::row(taken(context.decode(once, text[10])))) < 1e-3);
    }
}

// Case KV-03 of ../shared/cases. There is no saving of sequences here: a fork stands in for save and load.
TEMPLATE_TEST_CASE("case KV-03: the end of the cache, borders of batches, the last token again", "[model]",
                   decant::Eigen, Simd) {
    const auto path = decant_test::shared("cases/files/KV-03.table.json");
    if (!std::filesystem::exists(path)) DECANT_SKIP("no cases/files/KV-03.table.json in ../shared");
    const nlohmann::json table = decant_test::read_json(path);
    const auto cells = table.at("n_ctx").get<std::size_t>();
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    const Tokens text = random_tokens(cells + 2, 49, 160);
    const auto expected = whole<TestType>(model, text);
    std::size_t rows_seen = 0;
    for (const std::uint32_t block : {1u, 4u, 8u}) {
        for (const nlohmann::json& row : table.at("cases")) {
            INFO("blocks of " << block << ": " << row.dump());
            ++rows_seen;
            const auto number = [&](const char* key, std::size_t otherwise) { return row.value(key, otherwise); };
            const std::size_t batch = number("batch", 64);
            const std::size_t pass = number("ubatch", batch);
            Context context(model, {.rows = static_cast<std::uint32_t>(pass)});
            const KvCache cache(context, {.tokens = cells, .block_tokens = block});
            auto sequence = taken(cache.sequence());
            const auto used = [&] { return sequence.size(); };

            if (row.contains("resume")) {
                const auto what = row.at("resume").template get<std::string>();
                if (decant_test::contains(what, "save after 6 of 7")) {
                    REQUIRE(context.prefill(sequence, std::span(text).first(6)));
                    sequence = sequence.fork();
                } else {
                    REQUIRE(decant_test::contains(what, "all 7 cached"));
                    REQUIRE(context.prefill(sequence, std::span(text).first(7)));
                    sequence.truncate(6);
                }
                CHECK(same_bits(decant_test::row(taken(context.decode(sequence, text[6]))), expected[6]));
                CHECK(used() == 7);
                CHECK(cache.free_blocks() == cache.blocks() - (7 + block - 1) / block);
                continue;
            }
            const auto prompt = row.at("prompt").template get<std::size_t>();
            if (row.contains("batch")) {
                if (batch == 0) {
                    const auto refused = context.prefill(sequence, std::span(text).first(prompt));
                    REQUIRE_FALSE(refused);
                    CHECK(refused.error().code == ErrorCode::invalid_argument);
                    CHECK(used() == 0);
                    continue;
                }
                // The host's batches, each in passes of `ubatch`, and batches of 1.
                for (const std::size_t size : {batch, std::size_t{1}}) {
                    sequence.truncate(0);
                    Floats last;
                    for (std::size_t at = 0; at < prompt; at += size) {
                        const auto part = std::span(text).subspan(at, (std::min)(size, prompt - at));
                        last = decant_test::row(taken(context.prefill(sequence, part)));
                    }
                    CHECK(same_bits(last, expected[prompt - 1]));
                }
                continue;
            }
            const auto generate = row.at("generate").template get<std::size_t>();
            const auto first = context.prefill(sequence, std::span(text).first(prompt));
            if (prompt == 0 || prompt > cells) {
                REQUIRE_FALSE(first);
                CHECK(first.error().code == (prompt == 0 ? ErrorCode::invalid_argument : ErrorCode::cache_full));
                CHECK(used() == 0);
                CHECK(cache.free_blocks() == cache.blocks());
                continue;
            }
            // A generated token exists once the logits before it do; the next one needs it in the cache.
            CHECK(same_bits(decant_test::row(taken(first)), expected[prompt - 1]));
            std::size_t generated = 1;
            for (; used() < cells; ++generated) {
                const Floats found = decant_test::row(taken(context.decode(sequence, text[used()])));
                CHECK(same_bits(found, expected[used() - 1]));
            }
            CHECK(generated == cells - prompt + 1);
            CHECK(generated >= (prompt == cells ? 1 : generate));
            CHECK(used() == cells);
            CHECK(cache.free_blocks() == 0);
            const auto full = context.decode(sequence, text[cells]);
            REQUIRE_FALSE(full);
            CHECK(full.error().code == ErrorCode::cache_full);
            CHECK(used() == cells);
        }
    }
    CHECK(rows_seen == 3 * 12);
}

// Case KV-06 of ../shared/cases. A copy is a fork that is cut; an unknown sequence has no name here, only one that was
// moved from. Removing from the middle closes the gap, so the oracle repeats the removal.
TEMPLATE_TEST_CASE("case KV-06: forks, partial copies, removals and scattered cells", "[model]", decant::Eigen, Simd) {
    const auto path = decant_test::shared("cases/files/KV-06.ops.json");
    if (!std::filesystem::exists(path)) DECANT_SKIP("no cases/files/KV-06.ops.json in ../shared");
    const nlohmann::json script = decant_test::read_json(path);
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    Context context(model, {.rows = 16});
    const KvCache cache(context,
                        {.tokens = script.at("cells").get<std::size_t>(), .block_tokens = 1, .dtype = DType::f32});
    Random random{50};
    std::map<int, Line<TestType>> lines;
    const auto line = [&](int seq) -> Line<TestType>& {
        const auto found = lines.find(seq);
        return found != lines.end() ? found->second
                                    : lines.emplace(seq, Line<TestType>{taken(cache.sequence())}).first->second;
    };
    // Cells in use after each step: 6, shared by two, by three, 4 more, the same without their origin, 3 more, 3..4
    // gone (three cells at the end, less the copy of 2), 4 more; then all, and a refusal.
    const std::vector<std::size_t> cells_used{6, 6, 6, 10, 10, 13, 11, 15, 15, 15, 0, 16, 16};
    const nlohmann::json& steps = script.at("script");
    REQUIRE(steps.size() == cells_used.size());
    std::size_t probes = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const nlohmann::json& step = steps[i];
        INFO("step " << i << ": " << step.dump());
        const std::string op = step.at("op");
        if (op == "decode") {
            Line<TestType>& one = line(step.at("seq"));
            const std::size_t size = one.text.size();
            if (step.contains("at")) REQUIRE(step.at("at") == size);
            const Tokens more = decant_test::random_tokens(random, step.at("n"), 160);
            const auto logits = context.prefill(one.sequence, more);
            if (step.value("expect", "") == "context full") {
                REQUIRE_FALSE(logits);
                CHECK(logits.error().code == ErrorCode::cache_full);
            } else {
                REQUIRE(logits);
                one.append(more);
            }
        } else if (op == "copy" && step.at("src") == step.at("dst")) {
            Line<TestType>& one = line(step.at("src"));
            one.sequence = one.sequence.fork();
        } else if (op == "copy" && !lines.contains(step.at("src").get<int>())) {
            auto gone = taken(cache.sequence());
            { const auto taker = std::move(gone); }
            const auto refused = context.decode(gone, Token{1});
            REQUIRE_FALSE(refused);
            CHECK(refused.error().code == ErrorCode::invalid_argument);
        } else if (op == "copy") {
            REQUIRE(step.at("p0") == 0);
            auto copy = line(step.at("src")).fork();
            copy.truncate(end_of(step, copy.text.size()));
            lines.emplace(step.at("dst").get<int>(), std::move(copy));
        } else if (op == "remove") {
            Line<TestType>& one = line(step.at("seq"));
            const auto p0 = step.at("p0").get<std::size_t>();
            const std::size_t count = end_of(step, one.text.size()) - p0;
            REQUIRE(context.erase(one.sequence, p0, count));
            one.erase(p0, count);
        } else {
            REQUIRE(op == "clear");
            lines.clear();
        }
        CHECK(cache.blocks() - cache.free_blocks() == cells_used[i]);
        for (const auto& [seq, one] : lines) {
            INFO("sequence " << seq);
            CHECK(std::ranges::equal(one.sequence.tokens(), one.text));
            if (cache.free_blocks() == 0) continue;
            const Token probe{static_cast<std::int32_t>(random.below(160))};
            const Floats found = probed(context, one, probe);
            CHECK(same_bits(found, replayed(model, one, probe, DType::f32)));
            const bool erased = std::ranges::any_of(one.steps, [](const auto& s) { return s.erased > 0; });
            if (!erased) {  // the same tokens in a context of their own
                Tokens text = one.text;
                text.push_back(probe);
                CHECK(same_bits(found, whole<TestType>(model, text, DType::f32).back()));
            }
            ++probes;
        }
    }
    CHECK(probes > 20);
    lines.clear();
    CHECK(cache.free_blocks() == cache.blocks());
}

TEMPLATE_TEST_CASE("ten thousand random forks, copies, removals and passes against single sequences", "[model]",
                   decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(TinyFile(DType::q4_1).open());
    Context context(model, {.rows = 24, .sequences = 6, .logits = 6});
    constexpr std::size_t longest = 40;
    std::size_t verified = 0, fulls = 0, erasures = 0, copies = 0;
    for (const std::uint32_t block : {1u, 3u, 16u, 5u}) {
        const KvCache cache(context, {.tokens = 130, .block_tokens = block, .dtype = DType::f32});
        Random random{block};
        std::vector<Line<TestType>> lines;
        const auto needs = [&](const Line<TestType>& one, std::size_t count) {
            const std::size_t size = one.text.size();
            const std::size_t blocks = (size + count + block - 1) / block;
            const std::size_t copy = one.shared(users_of(lines), block, size - size % block, size);
            return blocks - one.sequence.table().size() + copy;
        };
        for (int step = 0; step < 2'500; ++step) {
            INFO("blocks of " << block << ", step " << step);
            const std::size_t kind = random.below(100);
            const std::size_t free = cache.free_blocks();
            if (lines.empty() || (kind < 6 && lines.size() < 8)) {
                lines.push_back({taken(cache.sequence())});
                continue;
            }
            const std::size_t at = random.below(lines.size());
            Line<TestType>& one = lines[at];
            if (kind < 12 || one.steps.size() > 30) {
                std::swap(one, lines.back());
                lines.pop_back();
            } else if (kind < 26 && lines.size() < 8) {
                auto copy = one.fork();
                if (random.below(2) == 0) copy.truncate(random.below(copy.text.size() + 1));
                lines.push_back(std::move(copy));
                if (cache.free_blocks() != free) FAIL("a fork took blocks");
            } else if (kind < 32) {
                one.truncate(random.below(one.text.size() + 1));
            } else if (kind < 50) {
                const std::size_t first = random.below(one.text.size() + 1);
                const std::size_t count = random.below((std::min)(one.text.size() - first, std::size_t{9}) + 1);
                const std::size_t size = one.text.size() - count;
                const std::size_t copied =
                    count == 0 || first == size ? 0 : one.shared(users_of(lines), block, first, size);
                const auto erased = context.erase(one.sequence, first, count);
                if (bool(erased) != (copied <= free)) FAIL("erase");
                if (erased) {
                    one.erase(first, count);
                    ++erasures;
                    copies += copied;
                } else {
                    ++fulls;
                    if (erased.error().code != ErrorCode::cache_full || cache.free_blocks() != free) FAIL("refused");
                }
            } else if (kind < 75) {
                const Tokens more = decant_test::random_tokens(random, 1 + random.below(12), 24);
                if (one.text.size() + more.size() > longest) continue;
                const bool fits = needs(one, more.size()) <= free;
                const auto logits = context.prefill(one.sequence, more);
                if (bool(logits) != fits) FAIL("prefill");
                if (logits) {
                    one.append(more);
                } else {
                    ++fulls;
                    if (logits.error().code != ErrorCode::cache_full || cache.free_blocks() != free) FAIL("refused");
                }
            } else {
                std::vector<PassPart<TestType>> parts;
                const Tokens more = decant_test::random_tokens(random, lines.size(), 24);
                std::vector<std::size_t> chosen;
                for (std::size_t s = 0; s < lines.size() && chosen.size() < 6; ++s) {
                    if (random.below(2) == 0 || lines[s].text.size() >= longest) continue;
                    parts.push_back({&lines[s].sequence, {&more[s], 1}, static_cast<Want>(random.below(3))});
                    chosen.push_back(s);
                }
                if (chosen.empty()) continue;
                if (const auto logits = context.pass(parts)) {
                    for (const std::size_t s : chosen) lines[s].append({&more[s], 1});
                } else {
                    ++fulls;
                    if (logits.error().code != ErrorCode::cache_full || cache.free_blocks() != free) FAIL("refused");
                }
            }

            const auto users = users_of(lines);
            bool good = cache.free_blocks() == cache.blocks() - users.size();
            for (const Line<TestType>& line : lines) {
                good = good && std::ranges::equal(line.sequence.tokens(), line.text);
                good = good && line.sequence.table().size() == (line.text.size() + block - 1) / block;
            }
            if (!good) FAIL("the cache and the plain model differ");
            if (step % 10 == 0 && !lines.empty() && cache.free_blocks() > 0) {
                const Line<TestType>& line = lines[random.below(lines.size())];
                const Token probe{static_cast<std::int32_t>(random.below(24))};
                if (!same_bits(probed(context, line, probe), replayed(model, line, probe, DType::f32)))
                    FAIL("other bits");
                ++verified;
            }
        }
        lines.clear();
        CHECK(cache.free_blocks() == cache.blocks());
    }
    CHECK(verified > 500);
    CHECK(fulls > 100);
    CHECK(erasures > 500);
    CHECK(copies > 200);
}

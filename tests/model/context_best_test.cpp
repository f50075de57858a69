// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The best tokens of a row against the whole row of logits (context.hpp, best.hpp, adjustment.hpp).
#include <decant/model/context.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/thread_pool.hpp>

#include "model/support.hpp"
#include "support/numbers.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

using decant::BestTokens;
using decant::Context;
using decant::DType;
using decant::ErrorCode;
using decant::KvCache;
using decant::LogitAdjustment;
using decant::PassPart;
using decant::Sequence;
using decant::Simd;
using decant::ThreadPool;
using decant::Token;
using decant::Want;
using decant_test::Floats;
using decant_test::Random;
using decant_test::same_bits;
using decant_test::taken;
using decant_test::TinyFile;
using decant_test::Tokens;

namespace {

using decant_test::infinity;
constexpr float largest = (std::numeric_limits<float>::max)();

/// A Llama file with a vocabulary of any size, tokens `twins` of which have the same embedding, and so the same logits.
TinyFile with_vocabulary(std::uint32_t vocabulary, const std::vector<std::size_t>& twins) {
    TinyFile file;
    file.remove("token_embd.weight");
    file.vocabulary = vocabulary;
    file.add("token_embd.weight", DType::f32, vocabulary, file.width);
    auto& bytes = file.at("token_embd.weight").bytes;
    const std::size_t row = file.width * sizeof(float);
    for (const std::size_t twin : twins) std::memcpy(bytes.data() + twin * row, bytes.data() + twins[0] * row, row);
    return file;
}

/// What `best` should say of a row, from the whole row.
struct Expected {
    std::vector<std::size_t> order;  // allowed tokens above -inf, best first, equal ones by id
    Floats logits;
    double log_sum_exp = -std::numeric_limits<double>::infinity();

    Expected(std::span<const float> row, std::span<const LogitAdjustment> adjustments,
             std::span<const std::uint32_t> allowed)
        : logits(row.begin(), row.end()) {
        for (const LogitAdjustment& a : adjustments) {
            float& x = logits[static_cast<std::size_t>(id(a.token))];
            x = x > 0.0f ? x / a.repetition : x * a.repetition;
            x = (std::min)((std::min)(x, largest) + a.bias, largest);
        }
        for (std::size_t t = 0; t < logits.size(); ++t)
            if (!allowed.empty() && (allowed[t / 32] >> (t % 32) & 1u) == 0) logits[t] = -infinity;
        for (std::size_t t = 0; t < logits.size(); ++t)
            if (logits[t] > -infinity) order.push_back(t);
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
        if (order.empty()) return;
        const double peak = logits[order[0]];
        double sum = 0.0;
        for (const std::size_t t : order) sum += std::exp(logits[t] - peak);
        log_sum_exp = peak + std::log(sum);
    }

    bool operator==(const BestTokens& best) const {
        bool good = best.size() == (std::min)(best.asked(), order.size()) && best.bad() == -1;
        for (std::size_t i = 0; good && i < best.size(); ++i)
            good = static_cast<std::size_t>(id(best.token(i))) == order[i] && best.logit(i) == logits[order[i]];
        const double found = best.log_sum_exp();
        return good && (order.empty() ? found == log_sum_exp
                                      : std::abs(found - log_sum_exp) <= 1e-5 * (std::max)(1.0, std::abs(log_sum_exp)));
    }
};

std::vector<LogitAdjustment> random_adjustments(Random& random, std::size_t vocabulary) {
    std::vector<LogitAdjustment> adjustments;
    const std::size_t rarity = 1 + random.below(10);
    for (std::size_t t = 0; t < vocabulary; ++t) {
        if (random.below(rarity) != 0) continue;
        LogitAdjustment a{Token{static_cast<std::int32_t>(t)}};
        if (random.below(2) == 0) a.repetition = 1.0f + 0.7f * random.number();
        if (random.below(2) == 0) a.bias = 3.0f * random.number();
        if (random.below(20) == 0) a.bias = -infinity;
        if (random.below(400) == 0) a.repetition = 1e-39f;  // beyond the largest number, both ways
        if (random.below(400) == 0) a.bias = largest;
        adjustments.push_back(a);
    }
    return adjustments;
}

std::vector<std::uint32_t> random_mask(Random& random, std::size_t vocabulary) {
    std::vector<std::uint32_t> mask((vocabulary + 31) / 32);
    const std::size_t rarity = 1 + random.below(100);
    for (std::size_t t = 0; t < vocabulary; ++t)
        if (random.below(rarity) == 0) mask[t / 32] |= 1u << (t % 32);
    if (random.below(4) == 0) mask.back() |= ~0u << ((vocabulary - 1) % 32) << 1;  // bits of no token mean nothing
    return mask;
}

}  // namespace

TEMPLATE_TEST_CASE("the best tokens are those of the whole row", "[model]", decant::Eigen, Simd) {
    Random random{61};
    const std::vector<std::size_t> twins{3, 4, 17, 20};
    const std::vector<std::size_t> far_twins{5, 700, 1023, 1024, 2999};
    std::size_t rows_seen = 0, ties = 0, cut_short = 0, none_left = 0;
    for (const auto& model : {decant_test::bind<TestType>(with_vocabulary(24, twins).open()),
                              decant_test::bind<TestType>(with_vocabulary(3000, far_twins).open()),
                              decant_test::bind<TestType>(decant_test::tiny("llama3"))}) {
        const std::size_t vocabulary = model.spec().vocabulary;
        Context whole(model, {.rows = 64, .sequences = 4, .logits = 64});
        for (const std::uint32_t k : {1u, 2u, 7u, 40u, 200u, 1000u}) {
            Context context(model, ThreadPool{1 + k % 3}, {.rows = 64, .sequences = 4, .logits = 64, .best = k});
            const KvCache cache(context, {.tokens = 2048});
            std::vector<Sequence<TestType>> sequences;
            for (int s = 0; s < 4; ++s) sequences.push_back(taken(cache.sequence()));
            for (int pass = 0; pass < (k == 1000 ? 3 : 8); ++pass) {
                INFO(vocabulary << " tokens, the best " << k << ", pass " << pass);
                std::vector<Tokens> tokens;
                std::vector<std::vector<LogitAdjustment>> adjustments;
                std::vector<std::vector<std::uint32_t>> masks;
                std::vector<Sequence<TestType>> forks;
                for (std::size_t s = 0; s < 4; ++s) {
                    tokens.push_back(decant_test::random_tokens(random, 1 + random.below(8), vocabulary));
                    adjustments.push_back(random.below(3) == 0 ? std::vector<LogitAdjustment>{}
                                                               : random_adjustments(random, vocabulary));
                    masks.push_back(random.below(3) == 0 ? std::vector<std::uint32_t>{}
                                                         : random_mask(random, vocabulary));
                    forks.push_back(sequences[s].fork());
                }
                std::vector<PassPart<TestType>> parts;
                std::vector<PassPart<TestType>> plain;
                std::vector<std::size_t> owners;  // of the rows
                for (std::size_t s = 0; s < 4; ++s) {
                    const auto want = static_cast<Want>(random.below(3));
                    parts.push_back({&sequences[s], tokens[s], want, adjustments[s], masks[s]});
                    plain.push_back({&forks[s], tokens[s], want});
                    owners.insert(owners.end(),
                                  want == Want::all    ? tokens[s].size()
                                  : want == Want::last ? std::size_t{1}
                                                       : std::size_t{0},
                                  s);
                }
                const auto logits = taken(whole.pass(plain));
                const auto best = taken(context.best(parts));
                REQUIRE(best.rows() == owners.size());
                REQUIRE(logits.rows() == owners.size());
                for (std::size_t r = 0; r < owners.size(); ++r, ++rows_seen) {
                    const Expected expected(logits.row(r), adjustments[owners[r]], masks[owners[r]]);
                    const BestTokens found = best.row(r);
                    CHECK(found.asked() == k);
                    if (!(expected == found)) FAIL("row " << r);
                    for (std::size_t i = 1; i < found.size(); ++i) ties += found.logit(i) == found.logit(i - 1);
                    cut_short += found.size() < k;
                    none_left += found.size() == 0;
                }
                for (std::size_t s = 0; s < 4; ++s) CHECK(std::ranges::equal(sequences[s].tokens(), forks[s].tokens()));
                // The cache holds what a pass leaves there, and a pass here still gives whole rows.
                const Token next = tokens[0][0];
                auto fork = sequences[1].fork();
                CHECK(same_bits(decant_test::row(taken(context.decode(fork, next))),
                                decant_test::row(taken(whole.decode(forks[1], next)))));
            }
        }
    }
    CHECK(rows_seen > 800);
    CHECK(ties > 100);
    CHECK(cut_short > 100);
    CHECK(none_left > 3);
}

TEMPLATE_TEST_CASE("fewer best tokens are the first of more", "[model]", decant::Eigen, Simd) {
    Random random{62};
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    const auto adjustments = random_adjustments(random, 160);
    const auto mask = random_mask(random, 160);
    Context few(model, {.rows = 8, .best = 6});
    Context many(model, ThreadPool{2}, {.rows = 8, .best = 50});
    const KvCache cache(few, {.tokens = 256});
    auto a = taken(cache.sequence());
    for (int step = 0; step < 30; ++step) {
        auto b = a.fork();
        const Tokens tokens = decant_test::random_tokens(random, 1 + random.below(4));
        const bool masked = step % 2 == 0;
        const auto of = [&](Sequence<TestType>& sequence) {
            PassPart<TestType> part{&sequence, tokens, Want::last, adjustments};
            if (masked) part.allowed = mask;
            return part;
        };
        const auto some = taken(few.best({of(a)}));
        const auto more = taken(many.best({of(b)}));
        const BestTokens first = some;
        const BestTokens all = more;
        REQUIRE(first.size() == (std::min)(all.size(), std::size_t{6}));
        for (std::size_t i = 0; i < first.size(); ++i) {
            CHECK(first.token(i) == all.token(i));
            CHECK(first.logit(i) == all.logit(i));
        }
        CHECK(first.log_sum_exp() == all.log_sum_exp());
    }
}

TEMPLATE_TEST_CASE("logits that are no numbers are reported", "[model]", decant::Eigen, Simd) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::size_t reported = 0;
    for (const float value : {nan, infinity, -infinity}) {
        for (const std::vector<std::size_t>& broken : {std::vector<std::size_t>{5}, {23, 9}, {0}, {1500, 2800}}) {
            TinyFile file = with_vocabulary(broken[0] < 24 ? 24 : 3000, {0});
            auto& bytes = file.at("token_embd.weight").bytes;
            for (const std::size_t token : broken)
                std::memcpy(bytes.data() + token * file.width * sizeof(float), &value, sizeof value);
            const auto model = decant_test::bind<TestType>(file.open());
            Context context(model, {.best = 4});
            const KvCache cache(context, {.tokens = 64});
            for (const Token token : {Token{1}, Token{2}, Token{3}, Token{4}}) {
                auto sequence = taken(cache.sequence());
                auto again = taken(cache.sequence());
                const Floats logits = decant_test::row(taken(context.decode(again, token)));
                const auto bad = std::ranges::find_if(logits, [](float x) { return std::isnan(x) || x == infinity; });
                const auto first = bad == logits.end() ? -1 : static_cast<std::int32_t>(bad - logits.begin());
                const auto best = taken(context.best({{&sequence, {&token, 1}}}));
                CHECK(BestTokens(best).bad() == first);
                if (std::isnan(value)) CHECK(first == static_cast<std::int32_t>(std::ranges::min(broken)));
                reported += first >= 0;
            }
        }
    }
    CHECK(reported > 16);  // of the infinite ones some are -inf, which is nothing bad
}

TEMPLATE_TEST_CASE("what `best` cannot use is refused and changes nothing", "[model]", decant::Eigen, Simd) {
    const auto model = decant_test::bind<TestType>(decant_test::tiny("llama3"));
    Context context(model, {.rows = 8, .best = 3});
    const KvCache cache(context, {.tokens = 64, .block_tokens = 4});
    auto a = taken(cache.sequence());
    auto b = taken(cache.sequence());
    const Tokens tokens = decant_test::random_tokens(4, 63, 160);
    const auto refuses = [&](Context<TestType>& here, std::span<const LogitAdjustment> adjustments,
                             std::span<const std::uint32_t> allowed, std::string_view text) {
        const PassPart<TestType> part{&a, tokens, Want::last, adjustments, allowed};
        for (const bool second : {false, true}) {
            std::vector<PassPart<TestType>> parts{{&b, std::span(tokens).first(2)}, part};
            if (!second) std::swap(parts[0], parts[1]);
            const auto best = here.best(parts);
            REQUIRE_FALSE(best);
            INFO(best.error().message());
            CHECK(best.error().code == ErrorCode::invalid_argument);
            CHECK(decant_test::contains(best.error().message(), text));
            CHECK_FALSE(best.error().hint.empty());
        }
        CHECK(a.size() == 0);
        CHECK(b.size() == 0);
        CHECK(cache.free_blocks() == cache.blocks());
    };
    using Adjustments = std::vector<LogitAdjustment>;
    for (const Adjustments& wrong : {Adjustments{{Token{7}}, {Token{6}}},
                                     {{Token{7}}, {Token{7}}},
                                     {{Token{-1}}},
                                     {{Token{160}}},
                                     {{Token{3}}, {Token{2147483647}}}}) {
        refuses(context, wrong, {}, "an adjustment of token " + std::to_string(id(wrong.back().token)));
    }
    for (const std::size_t words : {1u, 4u, 6u, 160u}) {
        const std::vector<std::uint32_t> mask(words, ~0u);
        refuses(context, {}, mask, "a mask of " + std::to_string(words) + " words");
    }
    Context without(model, {.rows = 8});
    refuses(without, {}, {}, "without `best`");
    CHECK_FALSE(context.best(std::span<const PassPart<TestType>>{}));

    // A pass takes no notice of what only `best` weighs.
    const Adjustments unsorted{{Token{7}}, {Token{6}}};
    const auto logits = taken(context.pass({{&a, tokens, Want::last, unsorted}}));
    CHECK(same_bits(decant_test::row(logits), decant_test::whole<TestType>(model, tokens).back()));
}

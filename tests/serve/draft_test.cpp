// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/serve/draft.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

using decant::DraftLedger;
using decant::DraftLength;
using decant::Token;

namespace {

std::vector<int> found(std::initializer_list<int> ids, std::size_t most) {
    std::vector<Token> tokens;
    for (const int one : ids) tokens.push_back(Token{one});
    std::vector<int> out;
    for (const Token token : decant::prompt_lookup(tokens, most)) out.push_back(id(token));
    return out;
}

}  // namespace

TEST_CASE("draft: what followed the same tokens before", "[serve][draft]") {
    CHECK(found({}, 4).empty());
    CHECK(found({1}, 4).empty());
    CHECK(found({1, 2}, 4).empty());
    CHECK(found({1, 2, 3, 4, 5}, 4).empty());
    CHECK(found({1, 2, 3, 4, 1, 2}, 4) == std::vector<int>{3, 4, 1, 2});
    CHECK(found({1, 2, 3, 4, 1, 2}, 1) == std::vector<int>{3});
    CHECK(found({1, 2, 3, 9, 1, 2, 4, 1, 2}, 1) == std::vector<int>{4});        // the last time
    CHECK(found({7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2}, 1) == std::vector<int>{3});  // the longer match
    CHECK(found({1, 1, 1, 1}, 3) == std::vector<int>{1});
    CHECK(found({1, 2, 3, 4, 1, 2}, 0).empty());
}

TEST_CASE("draft: drafts that are always wrong are hardly made", "[serve][draft]") {
    DraftLength draft(8);
    std::size_t drafted = 0;
    for (int step = 0; step < 2000; ++step) {
        const std::size_t n = draft.next();
        drafted += n;
        draft.learn(n, 0);
    }
    CHECK(drafted > 0);
    CHECK(drafted < 40);  // rows beside 2000: 2 %
}

TEST_CASE("draft: drafts that are right become longer, and come back after bad times", "[serve][draft]") {
    DraftLength draft(8);
    CHECK(draft.next() == 4);
    draft.learn(4, 4);
    CHECK(draft.next() == 8);
    draft.learn(8, 3);
    CHECK(draft.next() == 3);
    for (int step = 0; step < 1000; ++step) draft.learn(draft.next(), 0);
    std::size_t waited = 0, n = 0;
    while ((n = draft.next()) == 0) ++waited;
    CHECK(waited <= 256);
    for (int step = 0; step < 10; ++step) {
        draft.learn(n, n);
        n = draft.next();
    }
    CHECK(n == 8);
    CHECK(DraftLength().next() == 0);
}

TEST_CASE("draft: a draft model that never pays costs the start and its share", "[serve][draft]") {
    for (const double cost : {0.01, 0.3, 1.0, 5.0}) {
        DraftLedger ledger(0.03);
        CHECK_FALSE(ledger.pays());  // before the first pass
        double spent = 0.0;
        constexpr int steps = 5000;
        for (int step = 0; step < steps; ++step) {
            const bool drafts = ledger.pays();
            if (drafts) {
                ledger.spend(cost * 0.02);
                spent += cost;
                ledger.save(0, 1);
            }
            ledger.pass(0.02, !drafts);
        }
        CAPTURE(cost, spent);
        CHECK(spent > 0.0);
        CHECK(spent <= 0.03 * steps + 32.0 + cost);
    }
}

TEST_CASE("draft: a draft model that pays is never shut out, and one that begins to pay is let in", "[serve][draft]") {
    DraftLedger ledger(0.03);
    const auto run = [&](int steps, std::size_t accepted, std::size_t answers) {
        int drafts = 0;
        for (int step = 0; step < steps; ++step) {
            if (ledger.pays()) {
                ++drafts;
                ledger.spend(0.5);
                ledger.pass(1.1, false);
                ledger.save(accepted, answers);
            } else {
                ledger.pass(1.0, true);
            }
        }
        return drafts;
    };
    run(1, 0, 1);
    CHECK(run(1000, 1, 1) == 1000);  // saves 1 for 0.5
    CHECK(run(2000, 0, 1) < 250);    // 3 % of the time, and the start, for 0.5 each
    CHECK(run(1000, 2, 1) > 300);    // after 8 / 0.03 passes at most
    CHECK(run(1000, 2, 1) == 1000);
    CHECK(run(2000, 2, 16) < 300);  // one of many saves a small part of a pass
    CHECK(DraftLedger().pays() == false);
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "support.hpp"

#include <decant/text/stream.hpp>

#include <random>
#include <string>
#include <vector>

using decant::Token;

TEST_CASE("the stream's text is the decoded text, in whole characters", "[text][stream][real]") {
    const auto& tokenizer = decant_test::smollm2_tokenizer();
    std::mt19937 random(9);
    for (int round = 0; round < 300; ++round) {
        std::vector<Token> tokens;  // arbitrary tokens: characters are cut and broken everywhere
        for (std::size_t n = random() % 60; n > 0; --n)
            tokens.push_back(Token{static_cast<std::int32_t>(random() % (round % 2 == 0 ? 49152 : 300))});
        for (const bool control : {false, true}) {
            decant::TextStream stream{tokenizer, {.control = control}};
            std::string text;
            for (const Token token : tokens) {
                const auto piece = stream.push(token);
                REQUIRE(decant::is_utf8(piece));
                text += piece;
            }
            text += stream.finish();
            REQUIRE(text == tokenizer.decode(tokens, {.control = control}));
            REQUIRE(stream.finish().empty());
        }
    }
}

TEST_CASE("corpus lines come back through a stream", "[text][stream][real]") {
    const auto& tokenizer = decant_test::smollm2_tokenizer();
    for (const auto& line : decant_test::read_json(decant_test::data("text/corpus.json"))) {
        decant::TextStream stream{tokenizer};
        std::string text;
        for (const Token token : tokenizer.encode(line.get<std::string>())) text += stream.push(token);
        text += stream.finish();
        REQUIRE(text == line.get<std::string>());
    }
}

TEST_CASE("a character split over tokens appears when it is whole; a copy goes on by itself", "[text][stream]") {
    const auto tokenizer = decant_test::tokenizer(decant_test::byte_tokenizer().open());
    const auto tokens = tokenizer.encode("\xF0\x9F\x98\x80");
    REQUIRE(tokens.size() == 4);
    decant::TextStream stream{tokenizer};
    for (int i = 0; i < 3; ++i) CHECK(stream.push(tokens[static_cast<std::size_t>(i)]).empty());
    decant::TextStream fork = stream;
    CHECK(stream.push(tokens[3]) == "\xF0\x9F\x98\x80");
    CHECK(fork.finish() == "\xEF\xBF\xBD");
    CHECK(stream.finish().empty());
    CHECK(stream.push(Token{-1}).empty());
}

TEST_CASE("control tokens are shown on demand only", "[text][stream][real]") {
    decant::TextStream hidden{decant_test::smollm2_tokenizer()};
    decant::TextStream shown{decant_test::smollm2_tokenizer(), {.control = true}};
    CHECK(hidden.push(Token{2}).empty());
    CHECK(shown.push(Token{2}) == "<|im_end|>");
}

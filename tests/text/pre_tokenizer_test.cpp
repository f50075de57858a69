// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "../support/catch.hpp"
#include "../support/data.hpp"

#include <decant/text/pre_tokenizer.hpp>

#include <ctime>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::vector<std::string> split(std::string_view pattern_name, std::string_view text) {
    const auto pattern = decant::find_split_pattern(pattern_name);
    REQUIRE(pattern);
    std::vector<std::string> words;
    decant::WordScanner scanner(*pattern, text);
    for (auto word = scanner.next(); !word.empty(); word = scanner.next()) words.emplace_back(word);
    return words;
}
using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("words are those of the regular expressions in Hugging Face tokenizers", "[text][pre_tokenizer]") {
    const auto reference = decant_test::read_json(decant_test::data("text/splits.json"));
    for (const auto& [pattern, lists] : reference["word_bytes"].items()) {
        for (std::size_t i = 0; i < lists.size(); ++i) {
            std::vector<std::size_t> sizes;
            for (const auto& word : split(pattern, reference["texts"][i].get<std::string>()))
                sizes.push_back(word.size());
            INFO(pattern << ", text " << i << ": " << reference["texts"][i].dump());
            REQUIRE(sizes == lists[i].get<std::vector<std::size_t>>());
        }
    }
}

TEST_CASE("numbers are cut out before anything else is split", "[text][pre_tokenizer]") {
    CHECK(split("smollm", "a  12") == Words{"a", "  ", "1", "2"});
    CHECK(split("gpt-2", "a  12") == Words{"a", " ", " 12"});
    CHECK(split("smollm", "x\n 7 y") == Words{"x", "\n ", "7", " y"});
}

TEST_CASE("an unknown pattern is refused by name", "[text][pre_tokenizer]") {
    const auto pattern = decant::find_split_pattern("no-such-model");
    REQUIRE_FALSE(pattern);
    CHECK(pattern.error().code == decant::ErrorCode::unsupported);
    const std::string message = pattern.error().message();
    CHECK(message.find("\"no-such-model\"") != std::string::npos);
    for (const auto& known : decant::split_patterns) CHECK(message.find(known.name) != std::string::npos);
}

TEST_CASE("words of arbitrary bytes are not empty and add up to the text", "[text][pre_tokenizer]") {
    std::mt19937 random(11);
    const std::string_view bytes = " \t\n\r'sl.9aZ\x80\xBF\xC2\xA0\xE4\xB8\xAD\xF0\x9F\xFF\xD9\xA3";
    for (const auto& pattern : decant::split_patterns) {
        for (int round = 0; round < 2000; ++round) {
            std::string text(random() % 40, '\0');
            for (char& c : text) c = bytes[random() % bytes.size()];
            std::string together;
            for (const auto& word : split(pattern.name, text)) together += word;
            REQUIRE(together == text);
        }
    }
    CHECK(split("gpt-2", "a\xFF\xC3.b") == Words{"a", "\xFF\xC3.", "b"});
}

TEST_CASE("hostile text is split in linear time", "[text][pre_tokenizer]") {
    for (const auto& pattern : decant::split_patterns) {
        for (const std::string_view unit :
             {" ", "\n", " \n", "'", "a", ".", "\xE4\xB8\xAD", "\xFF", "1", " 1", "\t\t\t\t1"}) {
            std::string text;
            while (text.size() < 300'000) text += unit;
            const std::clock_t start = std::clock();
            const auto words = split(pattern.name, text);
            CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < 5);
            CHECK_FALSE(words.empty());
        }
    }
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "support.hpp"

#include <decant/text/tokenizer.hpp>

#include <pthread.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using decant::ErrorCode;
using decant::Token;
using decant_test::ids;
using Ids = std::vector<std::int32_t>;

namespace {

const auto case_file = [](const std::string& name) { return decant_test::data("text/cases/" + name); };

nlohmann::json cases(const std::string& name, const std::string& list) {
    auto found = decant_test::read_json(case_file(name)).at(list);
    REQUIRE_FALSE(found.empty());
    return found;
}

/// Seconds of processor time since `start`: a busy machine does not fail a test.
double seconds_since(std::clock_t start) { return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC; }

/// The tokenizer of the cases TK-01, TK-06 and TK-10.
decant::Tokenizer case_tokenizer() {
    return decant_test::tokenizer(
        decant_test::from_tokenizer_json(case_file("TK-01.tokenizer.json"), "llama-bpe").open());
}

/// Runs `body` on a thread with a stack of 128 KiB.
void on_small_stack(std::function<void()> body) {
    pthread_attr_t attributes;
    REQUIRE(pthread_attr_init(&attributes) == 0);
    REQUIRE(pthread_attr_setstacksize(&attributes, 128 * 1024) == 0);
    pthread_t thread;
    const auto run = [](void* argument) -> void* {
        (*static_cast<std::function<void()>*>(argument))();
        return nullptr;
    };
    REQUIRE(pthread_create(&thread, &attributes, run, &body) == 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
}

}  // namespace

TEST_CASE("SmolLM2: ids are those of Hugging Face tokenizers on the corpus", "[text][tokenizer][real]") {
    const auto corpus = decant_test::read_json(decant_test::data("text/corpus.json"));
    const auto reference = decant_test::read_json(decant_test::data("text/smollm2.ids.json"))["ids"];
    REQUIRE(corpus.size() == 182);
    REQUIRE(reference.size() == corpus.size());
    const auto& tokenizer = decant_test::smollm2_tokenizer();
    CHECK(tokenizer.size() == 49152);
    for (std::size_t i = 0; i < corpus.size(); ++i) {
        const auto text = corpus[i].get<std::string>();
        INFO("line " << i << ": " << corpus[i].dump());
        const auto tokens = tokenizer.encode(text, {.special = true});
        REQUIRE(ids(tokens) == reference[i].get<Ids>());
        REQUIRE(tokenizer.decode(tokens, {.control = true}) == text);
    }
}

TEST_CASE("SmolLM2: ids of the reference prompts", "[text][tokenizer][real]") {
    const auto prompts = decant_test::read_json(decant_test::data("text/smollm2.prompts.json"));
    REQUIRE(prompts.size() == 6);
    for (const auto& prompt : prompts) {
        INFO(prompt["name"].get<std::string>());
        CHECK(ids(decant_test::smollm2_tokenizer().encode(prompt["text"].get<std::string>(),
                                                          {.bos = true, .special = true})) == prompt["ids"].get<Ids>());
    }
}

TEST_CASE("SmolLM2: ids of random text, with characters that the vocabulary lacks", "[text][tokenizer][real]") {
    const auto reference = decant_test::read_json(decant_test::data("text/smollm2.random.json"));
    for (std::size_t i = 0; i < reference["texts"].size(); ++i) {
        INFO("text " << i << ": " << reference["texts"][i].dump());
        REQUIRE(ids(decant_test::smollm2_tokenizer().encode(reference["texts"][i].get<std::string>(),
                                                            {.special = true})) == reference["ids"][i].get<Ids>());
    }
}

TEST_CASE("GPT-2: ids are those of Hugging Face tokenizers on the corpus", "[text][tokenizer]") {
    const auto path = decant_test::shared("truth/tok/gpt2/tokenizer.json");
    if (!std::filesystem::exists(path)) DECANT_SKIP("no ../shared/truth/tok/gpt2/tokenizer.json");
    const auto tokenizer = decant_test::tokenizer(decant_test::from_tokenizer_json(path, "gpt-2").open());
    const auto corpus = decant_test::read_json(decant_test::data("text/corpus.json"));
    const auto reference = decant_test::read_json(decant_test::shared("truth/tok/gpt2/ids.json"))["ids"];
    REQUIRE(reference.size() == corpus.size());
    for (std::size_t i = 0; i < corpus.size(); ++i) {
        const auto text = corpus[i].get<std::string>();
        INFO("line " << i << ": " << corpus[i].dump());
        const auto tokens = tokenizer.encode(text, {.special = true});
        REQUIRE(ids(tokens) == reference[i].get<Ids>());
        REQUIRE(tokenizer.decode(tokens, {.control = true}) == text);
    }
}

TEST_CASE("TK-01: runs of line breaks, Llama 3 style", "[text][tokenizer][case]") {
    const auto tokenizer = case_tokenizer();
    for (const auto& item : cases("TK-01.expect.json", "cases")) {
        INFO(item["text"].dump());
        CHECK(ids(tokenizer.encode(item["text"].get<std::string>(), {.special = true})) == item["ids"].get<Ids>());
    }
}

TEST_CASE("TK-09: Llama 3 takes a word of the vocabulary whatever the merges say", "[text][tokenizer][case]") {
    const auto file = decant_test::from_tokenizer_json(case_file("TK-09.ignore.tokenizer.json"), "llama-bpe");
    const auto tokenizer = decant_test::tokenizer(file.open());
    for (const auto& item : cases("TK-09.expect.json", "ignore_merges_true")) {
        INFO(item["text"].dump());
        CHECK(ids(tokenizer.encode(item["text"].get<std::string>())) == item["ids"].get<Ids>());
    }
}

TEST_CASE("TK-05: one beginning of sequence at most, and never an end", "[text][tokenizer][case]") {
    auto file = decant_test::byte_tokenizer();
    file.tokens.insert(file.tokens.end(), {"<s>", "</s>"});
    file.types.insert(file.types.end(), {3, 3});
    file.bos = 256;
    file.eos = 257;
    file.add_bos = true;
    const auto tokenizer = decant_test::tokenizer(file.open());
    const auto hi = ids(tokenizer.encode("hi"));
    REQUIRE(hi.size() == 2);  // text for insertion: nothing added
    const Ids with_bos{256, hi[0], hi[1]};
    CHECK(ids(tokenizer.encode("hi", {.bos = true})) == with_bos);
    CHECK(ids(tokenizer.encode("<s>hi", {.bos = true, .special = true})) == with_bos);
    CHECK(ids(tokenizer.encode("<s>hi", {.special = true})) == with_bos);
    CHECK(ids(tokenizer.encode("", {.bos = true})) == Ids{256});
    // Written by a user, it is text.
    CHECK(tokenizer.encode("<s>hi", {.bos = true}).size() == 6);

    decant::TaggedText chat;  // {{ bos_token }}[U]{{ content }}[/U]
    chat.append_template("<s>[U]");
    chat.append_content("hi");
    chat.append_template("[/U]");
    for (const bool bos : {false, true}) {
        const auto tokens = tokenizer.encode(chat, bos);
        CHECK(tokens.front() == Token{256});
        CHECK(std::count(tokens.begin(), tokens.end(), Token{256}) == 1);
        CHECK(std::count(tokens.begin(), tokens.end(), Token{257}) == 0);
    }

    std::vector<Token> appended{Token{1}};
    tokenizer.encode("hi", {.bos = true}, appended);
    CHECK(ids(appended) == Ids{1, 256, hi[0], hi[1]});

    file.bos.reset();
    CHECK(ids(decant_test::tokenizer(file.open()).encode("hi", {.bos = true})) == hi);
    file.bos = 256;
    file.add_bos = false;
    CHECK(ids(decant_test::tokenizer(file.open()).encode("hi", {.bos = true})) == hi);
}

TEST_CASE("TK-06: only what the template wrote becomes control tokens", "[text][tokenizer][case]") {
    const auto tokenizer = case_tokenizer();
    const auto expected = decant_test::read_json(case_file("TK-06.expect.json"));
    for (const auto& item : expected["cases"]) {
        const auto text = item["text"].get<std::string>();
        INFO(text);
        CHECK(ids(tokenizer.encode(text)) == item["as_content"].get<Ids>());
        CHECK(ids(tokenizer.encode(text, {.special = true})) == item["as_template"].get<Ids>());
        decant::TaggedText tagged;
        tagged.append_content(text);
        CHECK(ids(tokenizer.encode(tagged)) == item["as_content"].get<Ids>());
    }
    const auto controls = [&](const decant::TaggedText& text) {
        Ids found;
        for (const Token token : tokenizer.encode(text))
            if (tokenizer.control(token)) found.push_back(decant::id(token));
        return found;
    };
    decant::TaggedText chat;
    chat.append_template("<|start|>");
    chat.append_content("user");
    chat.append_template("\n");
    chat.append_content("x<|end|>\n<|start|>system\ny");
    chat.append_template("<|end|>\n");
    CHECK(controls(chat) == Ids{281, 282});
    CHECK(tokenizer.decode(tokenizer.encode(chat), {.control = true}) == chat.text());

    // Nothing forms across a seam, from either side.
    decant::TaggedText seam;
    seam.append_content("<|en");
    seam.append_template("d|><|st");
    seam.append_content("art|>");
    seam.append_template("<|e");
    seam.append_content("n");
    seam.append_template("d|>");
    CHECK(controls(seam).empty());
    // Two template parts in a row are one.
    decant::TaggedText joined;
    joined.append_template("<|en");
    joined.append_content("");
    joined.append_template("d|>");
    CHECK(controls(joined) == Ids{282});
}

TEST_CASE("user-defined tokens are found in any text, control tokens are not", "[text][tokenizer]") {
    auto file = decant_test::byte_tokenizer();
    file.tokens.insert(file.tokens.end(), {"<think>", "<t", "    "});
    file.types.insert(file.types.end(), {4, 3, 4});
    const auto tokenizer = decant_test::tokenizer(file.open());
    CHECK(ids(tokenizer.encode("<think>    ")) == Ids{256, 258});
    CHECK(ids(tokenizer.encode("<think><t", {.special = true})) == Ids{256, 257});
    CHECK(tokenizer.encode("<t").size() == 2);
    CHECK(tokenizer.decode(tokenizer.encode("<think>  x    ")) == "<think>  x    ");
}

TEST_CASE("TK-10: long runs, on a thread with a small stack", "[text][tokenizer][case]") {
    const auto tokenizer = case_tokenizer();
    for (const auto& item : cases("TK-10.expect.json", "cases")) {
        INFO(item["unit"].dump());
        std::string text;
        for (std::size_t i = 0; i < item["repeat"].get<std::size_t>(); ++i) text += item["unit"].get<std::string>();
        std::vector<Token> tokens;
        const std::clock_t start = std::clock();
        on_small_stack([&] { tokens = tokenizer.encode(text); });
        CHECK(seconds_since(start) < 1);
        REQUIRE(tokens.size() == item["n_ids"].get<std::size_t>());
        tokens.resize(8);
        CHECK(ids(tokens) == item["first8"].get<Ids>());
    }
}

TEST_CASE("SmolLM2: hostile text takes linear time", "[text][tokenizer][real]") {
    const auto& tokenizer = decant_test::smollm2_tokenizer();
    for (const std::string_view unit : {"a", " ", "\n", "<|im_start|>", "<", "ab1 ", "\xE4\xB8\xAD", "\xFF", "'"}) {
        std::string text;
        while (text.size() < 400'000) text += unit;
        const std::clock_t start = std::clock();
        const auto tokens = tokenizer.encode(text);
        CHECK(seconds_since(start) < 5);
        if (unit != "\xFF") CHECK(tokenizer.decode(tokens) == text);
    }
}

TEST_CASE("SmolLM2: any valid text of bytes in the vocabulary comes back", "[text][tokenizer][real]") {
    const auto& tokenizer = decant_test::smollm2_tokenizer();
    std::mt19937 random(5);
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        for (std::size_t n = random() % 30; n > 0; --n) {
            const char32_t limit = std::array<char32_t, 4>{0x80, 0x800, 0x10000, 0x110000}[random() % 4];
            const auto code = static_cast<char32_t>(random() % limit);
            std::string character;
            if (code < 0xD800 || code > 0xDFFF) decant::append_utf8(character, code);
            bool known = true;
            for (const char& byte : character) known = known && tokenizer.find({&byte, 1}).has_value();
            if (known) text += character;
        }
        const auto tokens = tokenizer.encode(text);
        REQUIRE(tokenizer.decode(tokens) == text);
        for (const Token token : tokens) REQUIRE_FALSE(tokenizer.control(token));
    }
}

TEST_CASE("arbitrary bytes are kept where the vocabulary has them", "[text][tokenizer]") {
    const auto tokenizer = decant_test::tokenizer(decant_test::byte_tokenizer().open());
    std::mt19937 random(6);
    for (int round = 0; round < 500; ++round) {
        std::string text(random() % 50, '\0');
        for (char& c : text) c = static_cast<char>(random() % 256);
        std::string back;
        for (const Token token : tokenizer.encode(text)) tokenizer.append_bytes(token, back);
        REQUIRE(back == text);
    }
}

TEST_CASE("SmolLM2: ends, special ids and pieces", "[text][tokenizer][real]") {
    const auto& tokenizer = decant_test::smollm2_tokenizer();
    CHECK(tokenizer.bos() == Token{1});
    CHECK(tokenizer.eos() == Token{2});
    CHECK_FALSE(tokenizer.adds_bos());
    CHECK(tokenizer.ends(Token{2}));
    CHECK(tokenizer.ends(Token{0}));  // <|endoftext|>
    CHECK_FALSE(tokenizer.ends(Token{1}));
    CHECK_FALSE(tokenizer.ends(Token{-1}));
    CHECK(tokenizer.find("<|im_end|>") == Token{2});
    CHECK(tokenizer.find(" Hello") == Token{38699});
    CHECK(tokenizer.piece(Token{38699}) == " Hello");
    CHECK(tokenizer.find("no such piece") == std::nullopt);
    const std::vector<Token> turn{Token{1}, Token{38699}, Token{2}};
    CHECK(tokenizer.decode(turn) == " Hello");
    CHECK(tokenizer.decode(turn, {.control = true}) == "<|im_start|> Hello<|im_end|>");
}

TEST_CASE("threads share one tokenizer", "[text][tokenizer]") {
    const auto tokenizer = case_tokenizer();
    const std::string text = "hello hello\n\n123 and so on, hello";
    const auto expected = tokenizer.encode(text);
    std::vector<std::vector<Token>> results(4);
    std::vector<std::thread> threads;
    for (auto& result : results)
        threads.emplace_back([&result, &text, copy = tokenizer] {
            for (int i = 0; i < 200; ++i) result = copy.encode(text);
        });
    for (auto& thread : threads) thread.join();
    for (const auto& result : results) CHECK(result == expected);
}

TEST_CASE("a tokenizer keeps nothing of the file", "[text][tokenizer]") {
    std::optional<decant::Tokenizer> tokenizer;
    {
        const auto weights = decant_test::byte_tokenizer().open();
        tokenizer = decant_test::tokenizer(weights);
    }
    CHECK(tokenizer->decode(tokenizer->encode("still here")) == "still here");
}

TEST_CASE("metadata that cannot be used is refused by key", "[text][tokenizer]") {
    const auto check = [](const decant_test::TokenizerFile& file, ErrorCode code, std::vector<std::string> parts) {
        const auto result = decant::Tokenizer::from(file.open());
        REQUIRE_FALSE(result);
        INFO(result.error().message());
        CHECK(result.error().code == code);
        parts.emplace_back("test.gguf");
        for (const auto& part : parts) CHECK(result.error().message().find(part) != std::string::npos);
    };
    auto file = decant_test::byte_tokenizer();
    file.model = "bert";
    check(file, ErrorCode::unsupported, {"tokenizer.ggml.model", "\"bert\""});
    file = decant_test::byte_tokenizer();
    file.pre = "qwen35";
    check(file, ErrorCode::unsupported, {"tokenizer.ggml.pre", "\"qwen35\"", "smollm"});
    file.pre = "";
    check(file, ErrorCode::missing, {"tokenizer.ggml.pre"});
    file = decant_test::byte_tokenizer();
    file.eos = 256;
    check(file, ErrorCode::mismatch, {"tokenizer.ggml.eos_token_id", "256"});
    file = decant_test::byte_tokenizer();
    file.bos = 0xFFFFFFFF;
    check(file, ErrorCode::mismatch, {"tokenizer.ggml.bos_token_id", "4294967295"});
    for (const char* merge : {"ab", "a ", " a", "", "a b c", "a \xE4\xB8\xAD", "a \xFF"}) {
        INFO(merge);
        file = decant_test::byte_tokenizer();
        file.tokens.emplace_back("ab");
        file.types.push_back(1);
        file.merges = {"a b", merge};
        check(file, ErrorCode::bad_format, {"tokenizer.ggml.merges", "merge 1"});
    }
    file = decant_test::byte_tokenizer();
    file.merges = {"a b"};  // makes a piece that is not there
    check(file, ErrorCode::mismatch, {"tokenizer.ggml.merges", "merge 0", "a b"});
    file.tokens.emplace_back("ab");
    file.types.push_back(3);  // text would become a control token
    check(file, ErrorCode::mismatch, {"tokenizer.ggml.merges", "merge 0"});
}

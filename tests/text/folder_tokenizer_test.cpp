// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/text/folder_tokenizer.hpp>

#include "../files/support.hpp"

#include <decant/text/chat.hpp>
#include <decant/text/tokenizer.hpp>

#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

using decant::ErrorCode;
using decant::Token;
using decant::Tokenizer;
using decant::Weights;
using decant_test::bytes_of;
using decant_test::contains;
using decant_test::TemporaryFolder;
using nlohmann::json;
using Ids = std::vector<std::int32_t>;

namespace {

Ids as_ids(const std::vector<Token>& tokens) {
    Ids out;
    for (const Token token : tokens) out.push_back(id(token));
    return out;
}

/// A Hugging Face folder with one small tensor and the files that are written into it.
class ModelFolder {
 public:
    ModelFolder() : folder_("tokenizer") {
        write("model.safetensors", std::string("\x37\0\0\0\0\0\0\0", 8) +
                                       R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}  )" + "xy");
    }
    void write(const std::string& name, const std::string& text) { (void)folder_.write(name, bytes_of(text)); }
    void write(const std::string& name, const json& value) { write(name, value.dump()); }
    [[nodiscard]] Weights open() const { return Weights::open(folder_.path()).value(); }
    [[nodiscard]] decant::Result<Tokenizer> read() const { return Tokenizer::from(open()); }
    [[nodiscard]] Tokenizer tokenizer() const {
        auto result = read();
        INFO((result ? std::string() : result.error().message()));
        REQUIRE(result);
        return *result;
    }
    [[nodiscard]] decant::Error refusal() const {
        const auto result = read();
        REQUIRE_FALSE(result);
        CHECK(contains(result.error().message(), "decant-files-tokenizer"));
        CHECK(result.error().message().size() < 1000);
        return result.error();
    }

 private:
    TemporaryFolder folder_;
};

const json& recorded() {
    static const json file = decant_test::read_json(decant_test::data("text/folder_tokenizers.json"));
    return file;
}

json file_of(const json& recording) {
    json out = recording.at("form");
    out["model"] = recorded().at("models").at(recording.at("model").get<std::string>());
    out["model"].update(recording.at("changes"));
    return out;
}

json tokenizer_json(const std::string& name) {
    for (const json& recording : recorded().at("tokenizers"))
        if (recording.at("name") == name) return file_of(recording);
    FAIL("no recording " << name);
    return {};
}

/// What a command prints; empty if it fails.
std::string output_of(const std::string& command) {
    std::string out;
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return out;
    std::array<char, 65536> buffer;
    for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) out.append(buffer.data(), n);
    return ::pclose(pipe) == 0 ? out : std::string();
}

/// The published tokenizer.json of that name, unpacked if it is packed; empty if it is not there.
std::string published(const std::string& name) {
    const auto plain = decant_test::shared("truth/tok/" + name + "/tokenizer.json");
    if (std::filesystem::exists(plain)) {
        const auto bytes = decant_test::read_file(plain);
        return {bytes.begin(), bytes.end()};
    }
    return output_of("xz -dc '" + plain.string() + ".xz' 2>&1");
}

void grade(const std::string& name) {
    if (!std::filesystem::exists(decant_test::shared("truth/tok/corpus.json")))
        DECANT_SKIP("published tokenizers absent: ../shared/truth/tok");
    const std::string text = published(name);
    if (text.empty()) DECANT_SKIP("no xz to unpack ../shared/truth/tok");
    ModelFolder folder;
    folder.write("tokenizer.json", text);
    const Weights weights = folder.open();
    const std::clock_t start = std::clock();
    const Tokenizer tokenizer = Tokenizer::from(weights).value();
    // Generous, for sanitizers and builds without optimization.
    CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < 20.0);

    const json corpus = decant_test::read_json(decant_test::shared("truth/tok/corpus.json"));
    const json truth = decant_test::read_json(decant_test::shared("truth/tok/" + name + "/ids.json"));
    REQUIRE(truth.at("ids").size() == corpus.size());
    REQUIRE(corpus.size() >= 182);
    for (std::size_t i = 0; i < corpus.size(); ++i) {
        const auto line = corpus[i].get<std::string>();
        INFO(name << ", line " << i << ": " << corpus[i].dump(-1, ' ', true));
        REQUIRE(as_ids(tokenizer.encode(line, {.special = true})) == truth.at("ids")[i].get<Ids>());
        const auto plain = tokenizer.encode(line);
        const json& differs = truth.at("decode_where_it_differs_from_text");
        if (!differs.contains(std::to_string(i))) CHECK(tokenizer.decode(plain) == line);
    }
    CHECK(as_ids(tokenizer.encode("a", {.bos = true, .special = true})) == truth.at("template_on_a").get<Ids>());
    CHECK(as_ids(tokenizer.encode("", {.bos = true, .special = true})) == truth.at("template_on_empty").get<Ids>());
}

}  // namespace

TEST_CASE("SmolLM2's tokenizer.json gives the ids of Hugging Face tokenizers", "[text][folder]") { grade("smollm2"); }
TEST_CASE("GPT-2's tokenizer.json gives the ids of Hugging Face tokenizers", "[text][folder]") { grade("gpt2"); }
TEST_CASE("Llama 3's tokenizer.json gives the ids of Hugging Face tokenizers", "[text][folder]") { grade("llama3"); }
TEST_CASE("Qwen's tokenizer.json gives the ids of Hugging Face tokenizers", "[text][folder]") { grade("qwen2-qwen3"); }
TEST_CASE("Llama 2's tokenizer.json gives the ids of Hugging Face tokenizers", "[text][folder]") { grade("llama2"); }
TEST_CASE("Phi-3's tokenizer.json gives the ids of Hugging Face tokenizers", "[text][folder]") { grade("phi-3-mini"); }

TEST_CASE("published tokenizers of other kinds are refused by name", "[text][folder]") {
    ModelFolder folder;
    const std::map<std::string, const char*> kinds{{"t5-small-unigram", "BPE"}, {"deepseek-v4", "{N}{1,3}"}};
    for (const auto& [name, part] : kinds) {
        const std::string text = published(name);
        if (text.empty()) DECANT_SKIP("published tokenizers absent: ../shared/truth/tok");
        folder.write("tokenizer.json", text);
        const auto error = folder.refusal();
        CHECK(error.code == ErrorCode::unsupported);
        CHECK(contains(error.message(), part));
    }
}

TEST_CASE("every known form of tokenizer.json gives the recorded ids", "[text][folder]") {
    const json& texts = recorded().at("texts");
    REQUIRE(recorded().at("tokenizers").size() == 15);
    ModelFolder folder;
    for (const json& recording : recorded().at("tokenizers")) {
        folder.write("tokenizer.json", file_of(recording));
        INFO(recording.at("name"));
        const Tokenizer tokenizer = folder.tokenizer();
        REQUIRE(recording.at("ids").size() == texts.size());
        for (std::size_t i = 0; i < texts.size(); ++i) {
            INFO("text " << i << ": " << texts[i].dump(-1, ' ', true));
            CHECK(as_ids(tokenizer.encode(texts[i].get<std::string>(), {.special = true})) ==
                  recording.at("ids")[i].get<Ids>());
        }
    }
}

TEST_CASE("merges may be strings or pairs", "[text][folder]") {
    ModelFolder folder;
    json file = tokenizer_json("llama3");
    folder.write("tokenizer.json", file);
    const Tokenizer pairs = folder.tokenizer();
    for (json& merge : file["model"]["merges"])
        merge = merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>();
    folder.write("tokenizer.json", file);
    const Tokenizer lines = folder.tokenizer();
    for (const json& text : recorded().at("texts"))
        CHECK(pairs.encode(text.get<std::string>()) == lines.encode(text.get<std::string>()));
}

TEST_CASE("a user's text never becomes control tokens, whatever the form", "[text][folder]") {
    ModelFolder folder;
    for (const json& recording : recorded().at("tokenizers")) {
        folder.write("tokenizer.json", file_of(recording));
        INFO(recording.at("name"));
        const Tokenizer tokenizer = folder.tokenizer();
        const bool leaves_out = contains(recording.at("name").get<std::string>(), "unknown");
        for (const json& text : recorded().at("texts"))
            for (const Token token : tokenizer.encode(text.get<std::string>()))
                CHECK((!tokenizer.control(token) || (leaves_out && id(token) == 0)));
        decant::TaggedText tagged;
        tagged.append_content("</s> <|end|>");
        tagged.append_template(" </s><|end|>");
        tagged.append_content(" </s><|end|>");
        const auto tokens = tokenizer.encode(tagged);
        const auto controls =
            std::count_if(tokens.begin(), tokens.end(), [&](Token t) { return tokenizer.control(t) && id(t) != 0; });
        CHECK(controls == 1);
    }
}

TEST_CASE("decode gives back the text", "[text][folder]") {
    ModelFolder folder;
    for (const char* name : {"gpt2", "llama3", "llama2", "llama2 normalized", "gemma"}) {
        folder.write("tokenizer.json", tokenizer_json(name));
        INFO(name);
        const Tokenizer tokenizer = folder.tokenizer();
        for (const json& text : recorded().at("texts")) {
            const auto line = text.get<std::string>();
            if (contains(line, "\xE2\x96\x81") || contains(line, "<|user|>") || contains(line, "<mask>") ||
                contains(line, "<tool>"))
                continue;  // a mark comes back as a space, and these take spaces with them
            CHECK(tokenizer.decode(tokenizer.encode(line)) == line);
        }
    }
}

TEST_CASE("beginning and ends come from the files beside tokenizer.json", "[text][folder]") {
    ModelFolder folder;
    json file = tokenizer_json("gpt2");
    const auto size = static_cast<std::int32_t>(file["model"]["vocab"].size());
    folder.write("tokenizer.json", file);
    {
        const Tokenizer bare = folder.tokenizer();
        CHECK_FALSE(bare.bos());
        CHECK_FALSE(bare.eos());
        CHECK_FALSE(bare.adds_bos());
    }
    folder.write("config.json", json{{"bos_token_id", 3}, {"eos_token_id", {4, 5}}, {"pad_token_id", nullptr}});
    {
        const Tokenizer tokenizer = folder.tokenizer();
        CHECK(tokenizer.bos() == Token{3});
        CHECK(tokenizer.eos() == Token{4});
        CHECK((tokenizer.ends(Token{4}) && tokenizer.ends(Token{5}) && !tokenizer.ends(Token{3})));
    }
    folder.write("generation_config.json", json{{"bos_token_id", 6}, {"eos_token_id", 7}});
    {
        const Tokenizer tokenizer = folder.tokenizer();
        CHECK(tokenizer.bos() == Token{6});
        CHECK(tokenizer.eos() == Token{7});
        CHECK((tokenizer.ends(Token{4}) && tokenizer.ends(Token{7})));
    }
    folder.write("tokenizer_config.json",
                 json{{"bos_token", {{"content", "<think>"}, {"lstrip", false}}}, {"eos_token", "<|end|>"}});
    {
        const Tokenizer tokenizer = folder.tokenizer();
        CHECK(tokenizer.bos() == Token{size + 1});
        CHECK(tokenizer.eos() == Token{size});
        CHECK(tokenizer.control(Token{size + 1}));  // named as the beginning, though the file does not call it special
        CHECK((tokenizer.ends(Token{size}) && tokenizer.ends(Token{7})));
        CHECK_FALSE(tokenizer.adds_bos());
        CHECK(as_ids(tokenizer.encode("", {.bos = true})).empty());
    }
    folder.write("tokenizer_config.json", json{{"add_bos_token", true}, {"bos_token", "<think>"}});
    CHECK(as_ids(folder.tokenizer().encode("", {.bos = true})) == Ids{size + 1});
    folder.write("tokenizer.json", tokenizer_json("llama2"));
    folder.write("tokenizer_config.json", json{{"add_bos_token", false}});
    CHECK_FALSE(folder.tokenizer().adds_bos());
    folder.write("tokenizer_config.json", json{{"bos_token", "</s>"}});
    CHECK(as_ids(folder.tokenizer().encode("", {.bos = true})) == Ids{1});  // what the template says
    for (const char* name : {"llama2", "llama2 normalized"}) {  // a beginning that is written out is no second one
        folder.write("tokenizer.json", tokenizer_json(name));
        const auto twice = as_ids(folder.tokenizer().encode("<s>a <s>", {.bos = true, .special = true}));
        CHECK(std::count(twice.begin(), twice.end(), 1) == 2);
        CHECK(twice.front() == 1);
        CHECK(twice.at(1) != 1);
    }

    folder.write("tokenizer.json", file);
    const auto refused = [&](const char* part) {
        const auto error = folder.refusal();
        INFO(error.message());
        CHECK(error.code == ErrorCode::mismatch);
        CHECK(contains(error.message(), part));
    };
    folder.write("config.json", json{{"eos_token_id", 4000000000U}});
    refused("config.json");
    folder.write("config.json", json{{"eos_token_id", -1}});
    refused("config.json");
    folder.write("config.json", json{{"eos_token_id", "x"}});
    refused("eos_token_id");
    folder.write("config.json", json::object());
    folder.write("generation_config.json", json::object());
    folder.write("tokenizer_config.json", json{{"add_bos_token", true}});
    refused("add_bos_token");
}

TEST_CASE("what is wrong in a tokenizer.json is named", "[text][folder]") {
    ModelFolder folder;
    CHECK(folder.refusal().code == ErrorCode::missing);
    const auto refused = [&](const json& file, ErrorCode code, const char* part) {
        folder.write("tokenizer.json", file);
        const auto error = folder.refusal();
        INFO(error.message());
        CHECK(contains(error.message(), "tokenizer.json"));
        CHECK(contains(error.message(), part));
        CHECK(error.code == code);
    };
    for (const char* text :
         {"{", "[]", "3", "{}", "{\"model\":{\"vocab\":{\"a\":\"b\"}}}", "{\"model\":{\"vocab\":{\"a\":{}}}}",
          "{\"model\":{\"merges\":[[\"a\"]]}}", "{\"model\":{\"merges\":[[\"a\",\"b\",\"c\"]]}}",
          "{\"model\":{\"merges\":[3]}}", "{\"model\":{\"merges\":[[[]]]}}",
          "{\"model\":{\"vocab\":{\"a\":0},\"vocab\":{\"b\":1}}}"}) {
        folder.write("tokenizer.json", std::string(text));
        INFO(text);
        const auto code = folder.refusal().code;
        CHECK((code == ErrorCode::bad_format || code == ErrorCode::unsupported));
    }
    const json bytes = tokenizer_json("gpt2"), marks = tokenizer_json("llama2");
    const auto with = [](json file, const char* pointer, const json& value) {
        file[json::json_pointer(pointer)] = value;
        return file;
    };
    constexpr auto unsupported = ErrorCode::unsupported, bad = ErrorCode::bad_format, mismatch = ErrorCode::mismatch;
    refused(with(bytes, "/model/type", "WordPiece"), unsupported, "WordPiece");
    refused(with(bytes, "/model/dropout", 0.1), unsupported, "dropout");
    refused(with(bytes, "/model/end_of_word_suffix", "</w>"), unsupported, "end_of_word_suffix");
    refused(with(bytes, "/model/vocab", json::object()), bad, "empty");
    refused(with(bytes, "/model/vocab/a", 4000000000U), bad, "4000000000");
    refused(with(bytes, "/model/vocab/a", 1), bad, "same id 1");
    refused(with(bytes, "/model/vocab/", 1), bad, "empty");
    refused(with(bytes, "/model/vocab/a", -1), bad, "model.vocab");
    refused(with(bytes, "/model/unk_token", "nothing"), mismatch, "nothing");
    refused(with(bytes, "/model/merges/3", json::array({"a", "nothing"})), mismatch, "merge 3");
    refused(with(bytes, "/model/merges/3", "ab"), bad, "merge 3");
    refused(with(bytes, "/model/merges/3", json::array({"a"})), bad, "element 3");
    refused(with(bytes, "/added_tokens/0/id", 4000000000U), bad, "4000000000");
    refused(with(bytes, "/added_tokens/0/content", nullptr), bad, "added_tokens, element 0");
    refused(with(marks, "/added_tokens/1/id", 2), mismatch, "<s>");
    refused(with(bytes, "/added_tokens/1/single_word", true), unsupported, "<think>");
    refused(with(bytes, "/normalizer", {{"type", "NFKC"}}), unsupported, "NFKC");
    refused(with(bytes, "/normalizer", {{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}}), unsupported, "space");
    refused(with(bytes, "/pre_tokenizer/add_prefix_space", true), unsupported, "add_prefix_space");
    refused(with(bytes, "/pre_tokenizer/use_regex", false), unsupported, "split");
    refused(with(bytes, "/pre_tokenizer", nullptr), unsupported, "pre_tokenizer");
    refused(with(bytes, "/pre_tokenizer", {{"type", "Whitespace"}}), unsupported, "Whitespace");
    refused(with(bytes, "/post_processor", {{"type", "BertProcessing"}}), unsupported, "BertProcessing");
    refused(with(tokenizer_json("llama3"), "/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{Lu}+"), unsupported,
            "p{Lu}+");
    refused(with(tokenizer_json("llama3"), "/pre_tokenizer/pretokenizers/0/behavior", "Removed"), unsupported,
            "Removed");
    refused(with(marks, "/model/ignore_merges", true), unsupported, "ignore_merges");
    refused(with(marks, "/normalizer/normalizers/1/content", "_"), unsupported, "Replace");
    refused(with(marks, "/pre_tokenizer", {{"type", "ByteLevel"}}), unsupported, "byte-level");
    refused(with(marks, "/post_processor/special_tokens/<s>/ids", json::array({1, 2})), unsupported, "<s>");
    refused(with(marks, "/post_processor/special_tokens/<s>/ids", json::array({100000})), mismatch, "100000");
    refused(with(with(marks, "/added_tokens/1/normalized", true), "/added_tokens/1/lstrip", true), unsupported, "<s>");
}

TEST_CASE("hostile tokenizers cost no more than they are long", "[text][folder]") {
    ModelFolder folder;
    const std::clock_t start = std::clock();
    folder.write("tokenizer.json", "{\"added_tokens\":" + std::string(1'000'000, '['));
    CHECK(contains(folder.refusal().message(), "levels deep"));
    std::string many = "{\"added_tokens\":[0";
    for (int i = 0; i < 1'100'000; ++i) many += ",0";
    folder.write("tokenizer.json", many + "]}");
    CHECK(contains(folder.refusal().message(), "values"));
    std::string equal = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0";
    for (int i = 0; i < 200'000; ++i) equal += ",\"a\":" + std::to_string(i + 1);
    folder.write("tokenizer.json", equal + "},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}");
    CHECK(folder.tokenizer().size() == 200'001);
    CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < 20.0);
}

TEST_CASE("a damaged tokenizer.json is refused or works", "[text][folder]") {
    json small = tokenizer_json("llama2 normalized");
    json& vocab = small["model"]["vocab"];
    for (auto at = vocab.begin(); at != vocab.end();) at = at.value() > 280 ? vocab.erase(at) : std::next(at);
    small["model"]["merges"] = json::array();
    const std::string text = small.dump();
    ModelFolder folder;
    std::mt19937 random(7);
    int worked = 0;
    for (int i = 0; i < 1500; ++i) {
        std::string changed = text;
        for (int k = 0; k < 2; ++k)
            changed[random() % changed.size()] = static_cast<char>(i % 3 == 0 ? random() : ' ' + random() % 95);
        if (i % 5 == 0) changed.resize(random() % changed.size());
        folder.write("tokenizer.json", changed);
        if (const auto tokenizer = folder.read()) {
            ++worked;
            const auto tokens =
                tokenizer->encode("<s> Hello \xFF\xF0</s> <tool><|user|> x", {.bos = true, .special = true});
            (void)tokenizer->decode(tokens);
        }
    }
    CHECK(worked > 100);
}

TEST_CASE("a folder's chat template is found where it lies", "[text][folder][chat]") {
    constexpr const char* chatml =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
        "'\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    const auto render = [](const Weights& weights) {
        const std::array messages{decant::Message{"user", "hi"}};
        return decant::ChatTemplate::from(weights).value().render(messages).value();
    };
    constexpr const char* expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    ModelFolder folder;
    CHECK(decant::ChatTemplate::from(folder.open()).error().code == ErrorCode::missing);
    folder.write("tokenizer_config.json", json{{"chat_template", nullptr}});
    CHECK(decant::ChatTemplate::from(folder.open()).error().code == ErrorCode::missing);
    folder.write("tokenizer_config.json", json{{"chat_template", chatml}});
    CHECK(render(folder.open()) == expected);
    folder.write("tokenizer_config.json",
                 json{{"chat_template",
                       {{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", chatml}}}}});
    CHECK(render(folder.open()) == expected);
    folder.write("tokenizer_config.json", json{{"chat_template", "{{ raise_exception('no') }}"}});
    const auto refused = decant::ChatTemplate::from(folder.open());
    CHECK(refused.error().code == ErrorCode::unsupported);
    CHECK(contains(refused.error().message(), "tokenizer_config.json"));
    folder.write("chat_template.jinja", std::string(chatml));
    CHECK(render(folder.open()) == expected);
    folder.write("chat_template.jinja", std::string("{% if x %}"));
    CHECK(contains(decant::ChatTemplate::from(folder.open()).error().message(), "chat_template.jinja"));
}

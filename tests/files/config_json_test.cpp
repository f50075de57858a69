// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/config_json.hpp>

#include "files/support.hpp"

#include <decant/files/metadata.hpp>
#include <decant/files/reader.hpp>

#include <cmath>
#include <map>
#include <set>
#include <string>

using decant::ErrorCode;
using decant::Metadata;
using decant::Weights;
using decant::WeightsFormat;
using decant_test::bytes_of;
using decant_test::contains;
using decant_test::TemporaryFolder;
using nlohmann::json;

namespace {

/// The pairs of a text, and the metadata that view them.
struct Config {
    decant::detail::ConfigPairs pairs;
    Metadata metadata;
};

decant::Result<Config> read(std::string_view text) {
    DECANT_TRY(auto pairs, decant::detail::read_config_json(text));
    Config out{std::move(pairs), {}};
    decant::ByteReader in(out.pairs.bytes);
    DECANT_TRY(out.metadata, Metadata::read(in, out.pairs.count));
    REQUIRE(in.remaining() == 0);
    return out;
}

decant::Error refusal(std::string_view text) {
    const auto config = read(text);
    INFO(text.substr(0, 200));
    REQUIRE_FALSE(config);
    return config.error();
}

bool is_tagged_float(const json& value) {
    return value.is_object() && value.size() == 1 && value.contains("__float__");
}

double as_double(const json& value) {
    return is_tagged_float(value) ? std::stod(value.at("__float__").get<std::string>()) : value.get<double>();
}

bool all(const json& array, bool (*is)(const json&)) { return std::all_of(array.begin(), array.end(), is); }

/// Compares one value that is no object with what the metadata hold for it.
void compare(const Metadata& metadata, const std::string& key, const json& value) {
    INFO(key << " = " << value.dump());
    if (value.is_null()) {
        CHECK_FALSE(metadata.contains(key));
        return;
    }
    REQUIRE(metadata.contains(key));
    const bool is_float = is_tagged_float(value);
    if (value.is_boolean()) {
        CHECK(metadata.boolean(key).value() == value.get<bool>());
    } else if (value.is_number_unsigned()) {
        CHECK(metadata.uint(key).value() == value.get<std::uint64_t>());
    } else if (value.is_number() || is_float) {
        CHECK_FALSE(metadata.boolean(key));
        if (std::isfinite(as_double(value)))
            CHECK(metadata.number(key).value() == as_double(value));
        else
            CHECK(metadata.number(key).error().code == ErrorCode::bad_format);
        CHECK((value.is_number_integer() || metadata.uint(key).error().code == ErrorCode::mismatch));
    } else if (value.is_string()) {
        CHECK(metadata.string(key).value() == value.get<std::string>());
    } else if (all(value, [](const json& v) { return v.is_number_integer(); })) {
        CHECK(metadata.ints(key).value() == value.get<std::vector<std::int64_t>>());
    } else if (all(value, [](const json& v) { return v.is_number() || is_tagged_float(v); })) {
        std::vector<double> expected;
        for (const json& element : value) expected.push_back(as_double(element));
        CHECK(metadata.numbers(key).value() == expected);
        CHECK(metadata.floats(key).value() == std::vector<float>(expected.begin(), expected.end()));
    } else if (all(value, [](const json& v) { return v.is_boolean(); })) {
        CHECK(metadata.booleans(key).value() == value.get<std::vector<bool>>());
    } else if (all(value, [](const json& v) { return v.is_string(); })) {
        const auto strings = metadata.strings(key).value();
        CHECK(std::vector<std::string>(strings.begin(), strings.end()) == value.get<std::vector<std::string>>());
    } else {
        CHECK(json::parse(metadata.string(key).value()) == value);
    }
}

/// Walks an object and counts what has a value.
std::size_t compare_object(const Metadata& metadata, const std::string& path, const json& object) {
    std::size_t pairs = 0;
    for (const auto& [name, value] : object.items()) {
        const std::string key = path.empty() ? name : path + "." + name;
        if (value.is_object() && !is_tagged_float(value)) {
            pairs += compare_object(metadata, key, value);
        } else {
            compare(metadata, key, value);
            pairs += value.is_null() ? 0 : 1;
        }
    }
    return pairs;
}

}  // namespace

TEST_CASE("every tiny model's config.json reads as another JSON library reads it", "[files][config]") {
    std::size_t files = 0;
    for (const char* set : {"truth/tiny", "truth/tiny-extra"}) {
        if (!std::filesystem::exists(decant_test::shared(set)))
            DECANT_SKIP("reference models absent: ../shared/truth/tiny, ../shared/truth/tiny-extra");
        for (const auto& folder : std::filesystem::directory_iterator(decant_test::shared(set))) {
            for (const char* name : {"config.json", "config.v5.json"}) {
                const auto path = folder.path() / name;
                if (!std::filesystem::exists(path)) continue;
                INFO(path.string());
                const auto bytes = decant_test::read_file(path);
                const auto config = read({bytes.data(), bytes.size()});
                REQUIRE(config);
                CHECK(compare_object(config->metadata, "", decant_test::read_json(path)) == config->metadata.size());
                ++files;
            }
        }
    }
    CHECK(files >= 200);
}

TEST_CASE("objects flatten, numbers keep their kind, null leaves no key", "[files][config]") {
    const auto config = read(R"({
        "a": {"b": {"c": 1}, "none": null, "empty": {}}, "u": 18446744073709551615, "i": -3, "r": 1.0, "t": true,
        "s": "x\"\u00e9", "inf": {"__float__": "-Infinity"}, "bare": Infinity, "text": "not Infinity \" NaN",
        "nan": NaN, "minus": -Infinity})");
    REQUIRE(config);
    const Metadata& m = config->metadata;
    using Keys = std::vector<std::string_view>;
    CHECK(m.keys() == Keys{"a.b.c", "bare", "i", "inf", "minus", "nan", "r", "s", "t", "text", "u"});
    CHECK(m.uint("a.b.c").value() == 1);
    CHECK(m.uint("u").value() == 18446744073709551615U);
    CHECK(m.number("i").value() == -3.0);
    CHECK(m.uint("i").error().code == ErrorCode::mismatch);
    CHECK(m.number("r").value() == 1.0);
    CHECK(m.uint("r").error().code == ErrorCode::mismatch);
    CHECK(m.string("s").value() == "x\"\xc3\xa9");
    CHECK(m.string("text").value() == "not Infinity \" NaN");
    for (const char* key : {"inf", "bare", "nan", "minus"}) CHECK(m.number(key).error().code == ErrorCode::bad_format);
}

TEST_CASE("arrays are of one type or text", "[files][config]") {
    const auto config = read(R"({
        "empty": [], "ints": [1, -2], "large": [1, 18446744073709551615], "mixed": [1, 2.5], "limits": [0.0, Infinity],
        "tagged": [{"__float__": "NaN"}, 2], "bools": [true, false], "strings": ["a", "b\n"],
        "too_wide": [-1, 18446744073709551615], "inexact": [9007199254740993, 0.5], "nested": [[1, 2], [3.0]],
        "objects": [{"a": [1, {"b": "c\"\\\u0001"}], "d": true}, {}], "null": [1, null], "both": [1, true, "x"],
        "not_tagged": [{"__float__": "1"}], "two": [{"__float__": "NaN", "x": 1}], "deep": [[{"__float__": "NaN"}]]})");
    REQUIRE(config);
    const Metadata& m = config->metadata;
    CHECK(m.ints("empty").value().empty());
    CHECK(m.ints("ints").value() == std::vector<std::int64_t>{1, -2});
    CHECK(m.numbers("large").value() == std::vector<double>{1, 18446744073709551615.0});
    CHECK(m.ints("large").error().code == ErrorCode::mismatch);
    CHECK(m.numbers("mixed").value() == std::vector<double>{1, 2.5});
    CHECK(m.numbers("limits").value() == std::vector<double>{0, std::numeric_limits<double>::infinity()});
    REQUIRE(m.numbers("tagged").value().size() == 2);
    CHECK(std::isnan(m.numbers("tagged").value()[0]));
    CHECK(m.booleans("bools").value() == std::vector<bool>{true, false});
    CHECK(m.numbers("bools").error().code == ErrorCode::mismatch);
    CHECK(m.strings("strings").value() == std::vector<std::string_view>{"a", "b\n"});
    CHECK(m.string("too_wide").value() == "[-1,18446744073709551615]");
    CHECK(m.string("inexact").value() == "[9007199254740993,0.5]");
    CHECK(m.string("nested").value() == "[[1,2],[3.0]]");
    CHECK(m.string("objects").value() == R"([{"a":[1,{"b":"c\"\\\u0001"}],"d":true},{}])");
    CHECK(m.string("null").value() == "[1,null]");
    CHECK(m.string("both").value() == R"([1,true,"x"])");
    CHECK(m.string("not_tagged").value() == R"([{"__float__":"1"}])");
    CHECK(m.string("two").value() == R"([{"__float__":"NaN","x":1}])");
    CHECK(m.string("deep").value() == R"([[{"__float__":"NaN"}]])");
}

TEST_CASE("hostile configs are errors that say where", "[files][config]") {
    for (const char* text :
         {"", "[]", "[1]", "3", "\"x\"", "null", "true", "{", "{\"a\":}", "{\"a\":1}x", "{\"a\":1e999}", "{\"a\":Inf}",
          "Infinity", "{\"a\":\"\xff\"}", "{\"a\":+Infinity}", "{Infinity:1}", "{\"a\":[1,}", "\\", "{\"a\\"})
        CHECK(refusal(text).code == ErrorCode::bad_format);

    for (const char* text :
         {R"({"a":1,"b":2,"a":1})", R"({"a":null,"a":1})", R"({"a":{"b":1},"a":{"c":2}})", R"({"a":{"b":1},"a.b":2})",
          R"({"a":{"__float__":"NaN"},"a":1})", R"({"a.__float__":"NaN","a":1})", R"({"a":[],"a":[]})"}) {
        const auto error = refusal(text);
        CHECK(contains(error.message(), "occurs twice"));
        CHECK(contains(error.where, "key \"a"));
    }
    CHECK(contains(refusal(R"({"":1})").message(), "0 bytes"));
    CHECK(refusal(R"({".__float__":"NaN"})").code == ErrorCode::bad_format);
    CHECK(contains(refusal("{\"" + std::string(1025, 'k') + "\":1}").message(), "1025"));
    CHECK(read("{\"" + std::string(1024, 'k') + "\":1}"));

    std::string deep;
    for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
    CHECK(contains(refusal(deep).message(), "levels deep"));
    CHECK(contains(refusal("{\"a\":" + std::string(100'000, '[')).message(), "levels deep"));

    // A long key around many short ones would be repeated for each.
    std::string wide = "{\"" + std::string(1000, 'k') + "\":{";
    for (int i = 0; i < 50'000; ++i) wide += "\"" + std::to_string(i) + "\":1,";
    const auto error = refusal(wide + "\"x\":1}}");
    CHECK(contains(error.message(), "too long"));
    CHECK(error.message().size() < 400);
}

TEST_CASE("any single byte of a config may be wrong", "[files][config]") {
    const std::string text =
        R"({"a":{"b":[1,-2,2.5,{"__float__":"NaN"}],"c":"\u00e9"},"d":[true,"x",null],"e":[0.0,Infinity],"f":1e5})";
    REQUIRE(read(text));
    std::size_t accepted = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        for (int byte = 0; byte < 256; ++byte) {
            std::string changed = text;
            changed[at] = static_cast<char>(byte);
            if (const auto config = read(changed)) accepted += config->metadata.size() > 0;
        }
        (void)read(std::string_view(text).substr(0, at));
    }
    CHECK(accepted > 0);
}

TEST_CASE("a folder's metadata are its config.json, its companions are mapped", "[files][config][folder]") {
    const std::string shard =
        std::string("\x37\0\0\0\0\0\0\0", 8) + R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}  )" + "xy";
    const TemporaryFolder folder("config");
    const auto single = folder.write("model.safetensors", bytes_of(shard));
    {
        const Weights weights = Weights::open(folder.path()).value();
        CHECK(weights.format() == WeightsFormat::folder);
        CHECK(weights.metadata().size() == 0);
        CHECK(weights.companion("config.json").empty());
        CHECK(weights.companion("tokenizer.json").empty());
    }
    (void)folder.write("config.json", bytes_of(R"({"model_type": "llama", "rope_scaling": {"factor": 8.0}})"));
    (void)folder.write("tokenizer.json", bytes_of("{}"));
    (void)folder.write("secret.json", bytes_of("{}"));
    {
        Weights weights = Weights::open(folder.path()).value();
        const Weights copy = weights;
        CHECK(weights.metadata().string("model_type").value() == "llama");
        weights = Weights::open(single).value();  // the copy keeps everything
        CHECK(weights.format() == WeightsFormat::safetensors);
        CHECK(weights.metadata().size() == 0);
        CHECK(weights.companion("config.json").empty());
        CHECK(copy.metadata().number("rope_scaling.factor").value() == 8.0);
        const auto tokenizer = copy.companion("tokenizer.json");
        CHECK(std::equal(tokenizer.begin(), tokenizer.end(), bytes_of("{}").begin(), bytes_of("{}").end()));
        CHECK(copy.companion("secret.json").empty());
        CHECK(copy.companion("../config/config.json").empty());
        const Weights bare = Weights::with_tensors(copy, {}, nullptr, "bare").value();
        CHECK(bare.format() == WeightsFormat::folder);
        CHECK(bare.metadata().string("model_type").value() == "llama");
        CHECK(bare.companion("tokenizer.json").data() == tokenizer.data());
        CHECK(copy.mapped_bytes() == std::filesystem::file_size(single));
        const auto missing = copy.metadata().uint("hidden_size");
        REQUIRE_FALSE(missing);
        CHECK(contains(missing.error().message(), "config.json"));
        CHECK(contains(missing.error().message(), "hidden_size"));
    }
    (void)folder.write("config.json", {});
    CHECK(Weights::open(folder.path()).error().code == ErrorCode::bad_format);
    (void)folder.write("config.json", bytes_of("{\"a\":1,\"a\":2}"));
    const auto twice = Weights::open(folder.path());
    REQUIRE_FALSE(twice);
    CHECK(contains(twice.error().message(), "config.json"));
    CHECK(contains(twice.error().message(), "occurs twice"));
}

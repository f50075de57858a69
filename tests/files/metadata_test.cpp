// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/metadata.hpp>

#include <decant/files/gguf_writer.hpp>

#include "files/support.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using decant::ErrorCode;
using decant::GgufWriter;
using decant::Weights;
using decant_test::case_file;
using decant_test::contains;
using decant_test::open_copy;

namespace {

decant::Result<Weights> written(const GgufWriter& writer) { return open_copy(writer.finish()); }

template <class T>
void round_trip_integer() {
    GgufWriter writer;
    const std::vector<T> ends{(std::numeric_limits<T>::min)(), 0, 1, 100, (std::numeric_limits<T>::max)()};
    writer.add("least", ends.front());
    writer.add("most", ends.back());
    writer.add("some", T{100});
    writer.add("all", std::span<const T>(ends));
    const Weights weights = written(writer).value();
    const decant::Metadata& metadata = weights.metadata();
    CHECK(metadata.uint("most").value() == static_cast<std::uint64_t>(ends.back()));
    CHECK(metadata.number("some").value() == 100.0);
    CHECK(metadata.number("least").value() == static_cast<double>(ends.front()));
    if (std::is_signed_v<T>) {
        const auto negative = metadata.uint("least");
        REQUIRE_FALSE(negative);
        CHECK(negative.error().code == ErrorCode::mismatch);
        CHECK(contains(negative.error().message(), std::to_string(ends.front())));
    } else {
        CHECK(metadata.uint("least").value() == 0);
    }
    CHECK(metadata.array_size("all").value() == ends.size());
    if (std::is_same_v<T, std::uint64_t>) {
        CHECK(metadata.ints("all").error().code == ErrorCode::mismatch);  // the last does not fit
    } else {
        const auto values = metadata.ints("all").value();
        REQUIRE(values.size() == ends.size());
        for (std::size_t i = 0; i < ends.size(); ++i) CHECK(values[i] == static_cast<std::int64_t>(ends[i]));
    }
}

}  // namespace

TEST_CASE("integers of every width come back as written", "[files][metadata]") {
    round_trip_integer<std::uint8_t>();
    round_trip_integer<std::int8_t>();
    round_trip_integer<std::uint16_t>();
    round_trip_integer<std::int16_t>();
    round_trip_integer<std::uint32_t>();
    round_trip_integer<std::int32_t>();
    round_trip_integer<std::uint64_t>();
    round_trip_integer<std::int64_t>();
}

TEST_CASE("floats, bools and strings come back as written", "[files][metadata]") {
    GgufWriter writer;
    writer.add("f32", 0.1f);
    writer.add("f64", 0.1);
    writer.add("nan", std::numeric_limits<float>::quiet_NaN());
    writer.add("inf", std::numeric_limits<double>::infinity());
    writer.add("yes", true);
    writer.add("no", false);
    writer.add("text", "caf\xc3\xa9");
    writer.add("empty", "");
    const std::vector<float> floats{1.5f, -2.0f};
    const std::vector<double> doubles{1.5, -2.0};
    const std::vector<std::string_view> strings{"a", "", "ccc"};
    writer.add("floats", std::span<const float>(floats));
    writer.add("doubles", std::span<const double>(doubles));
    writer.add("strings", std::span<const std::string_view>(strings));
    const Weights weights = written(writer).value();
    const decant::Metadata& metadata = weights.metadata();
    CHECK(metadata.number("f32").value() == static_cast<double>(0.1f));
    CHECK(metadata.number("f64").value() == 0.1);
    CHECK(metadata.number("nan").error().code == ErrorCode::bad_format);
    CHECK(metadata.number("inf").error().code == ErrorCode::bad_format);
    CHECK(metadata.boolean("yes").value());
    CHECK_FALSE(metadata.boolean("no").value());
    CHECK(metadata.string("text").value() == "caf\xc3\xa9");
    CHECK(metadata.string("empty").value().empty());
    CHECK(metadata.floats("floats").value() == floats);
    CHECK(metadata.floats("doubles").value() == floats);
    CHECK(metadata.strings("strings").value() == strings);
    CHECK(metadata.size() == 11);
    CHECK(metadata.contains("yes"));
    CHECK_FALSE(metadata.contains("ye"));
}

TEST_CASE("absent keys and wrong types are errors that name key, expected and found type", "[files][metadata]") {
    GgufWriter writer;
    writer.add("count", std::uint32_t{3});
    writer.add("text", "three");
    const std::vector<std::int16_t> numbers{1, 2};
    writer.add("numbers", std::span<const std::int16_t>(numbers));
    const Weights weights = written(writer).value();
    const decant::Metadata& metadata = weights.metadata();

    const auto absent = metadata.uint("no.such.key");
    CHECK(absent.error().code == ErrorCode::missing);
    CHECK(contains(absent.error().message(), "no.such.key"));
    CHECK(contains(absent.error().message(), "memory"));

    const auto wrong = metadata.uint("text");
    CHECK(wrong.error().code == ErrorCode::mismatch);
    for (const char* part : {"\"text\"", "integer", "found string"}) CHECK(contains(wrong.error().message(), part));
    CHECK(contains(metadata.string("count").error().message(), "expected a string, found u32"));
    CHECK(contains(metadata.strings("numbers").error().message(), "found array of 2 i16"));
    CHECK(metadata.number("text").error().code == ErrorCode::mismatch);
    CHECK(metadata.boolean("count").error().code == ErrorCode::mismatch);
    CHECK(metadata.array_size("count").error().code == ErrorCode::mismatch);
    CHECK(metadata.ints("text").error().code == ErrorCode::mismatch);
    CHECK(metadata.floats("numbers").error().code == ErrorCode::mismatch);
    CHECK(metadata.booleans("numbers").error().code == ErrorCode::mismatch);
    CHECK(metadata.uint("numbers").error().code == ErrorCode::mismatch);
}

TEST_CASE("MF-12: tokenizer arrays are read by their type, not only by their count", "[files][metadata][cases]") {
    DECANT_NEEDS_CASES();
    const auto open = [](const char* name) { return Weights::open(case_file(name)).value(); };
    const char* const tokens = "tokenizer.ggml.tokens";
    const char* const scores = "tokenizer.ggml.scores";
    const char* const types = "tokenizer.ggml.token_type";

    const Weights ok = open("MF-12-ok.gguf");
    CHECK(ok.metadata().strings(tokens).value().size() == 260);
    CHECK(ok.metadata().floats(scores).value().size() == 260);
    const auto mixed = ok.metadata().ints(types).value();
    REQUIRE(mixed.size() == 260);
    CHECK(mixed[0] == 2);  // unknown, two controls, then bytes
    CHECK(mixed[1] == 3);
    CHECK(mixed[3] == 6);

    const auto narrow = open("MF-12-scores-u8.gguf").metadata().floats(scores);
    CHECK(narrow.error().code == ErrorCode::mismatch);
    CHECK(contains(narrow.error().message(), scores));
    CHECK(contains(narrow.error().message(), "array of 260 u8"));

    const std::vector<std::int64_t> ones(260, 1);  // what these two files hold, in other widths
    CHECK(open("MF-12-types-u8.gguf").metadata().ints(types).value() == ones);
    CHECK(open("MF-12-types-i64.gguf").metadata().ints(types).value() == ones);
    CHECK(open("MF-12-scores-short.gguf").metadata().array_size(scores).value() == 10);
    CHECK(open("MF-12-types-missing.gguf").metadata().ints(types).error().code == ErrorCode::missing);
    CHECK(open("MF-12-tokens-not-array.gguf").metadata().strings(tokens).error().code == ErrorCode::mismatch);
    CHECK(open("MF-12-tokens-ints.gguf").metadata().strings(tokens).error().code == ErrorCode::mismatch);
    CHECK(open("MF-12-tokens-empty.gguf").metadata().strings(tokens).value().empty());
}

TEST_CASE("nested arrays are stepped over and have a size", "[files][metadata][cases]") {
    DECANT_NEEDS_CASES();
    const Weights two = Weights::open(case_file("MF-08-nest-2.gguf")).value();
    CHECK(two.metadata().array_size("x").value() == 2);
    CHECK(two.metadata().ints("x").error().code == ErrorCode::mismatch);
    CHECK(two.metadata().string("general.architecture").value() == "llama");  // what follows is still in step
    const Weights wide = Weights::open(case_file("MF-08-wide-empty-4096.gguf")).value();
    CHECK(wide.metadata().array_size("x").value() == 4096);
    CHECK(wide.metadata().string("general.architecture").value() == "llama");
}

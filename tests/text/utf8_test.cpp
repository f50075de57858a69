// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "../support/catch.hpp"
#include "../support/data.hpp"

#include <decant/text/utf8.hpp>

#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::string from_hex(const std::string& hex) {
    std::string out;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    return out;
}

std::string repaired(std::string_view bytes) {
    decant::Utf8Stream stream;
    std::string out;
    stream.push(bytes, out);
    stream.finish(out);
    return out;
}

}  // namespace

TEST_CASE("every scalar value survives a round trip, and no other value is accepted", "[text][utf8]") {
    std::size_t wrong = 0;
    for (char32_t code = 0; code <= 0x10FFFF; ++code) {
        std::string bytes;
        decant::append_utf8(bytes, code);
        const auto c = decant::decode_utf8(bytes);
        const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        const bool read = c.status == decant::Utf8Status::valid && c.code == code && c.bytes == bytes.size();
        if (read == surrogate) ++wrong;
    }
    CHECK(wrong == 0);
    CHECK_FALSE(decant::is_utf8("\xF4\x90\x80\x80"));  // U+110000
    CHECK_FALSE(decant::is_utf8("\xC0\x80"));
    CHECK_FALSE(decant::is_utf8("\xE0\x9F\xBF"));
    CHECK_FALSE(decant::is_utf8("\xF0\x8F\xBF\xBF"));
    CHECK_FALSE(decant::is_utf8("ok\xE4\xB8"));
    CHECK(decant::is_utf8(""));
}

TEST_CASE("ill-formed text is replaced by maximal subparts", "[text][utf8]") {
    // The examples of The Unicode Standard 16.0, tables 3-8 to 3-11.
    const auto fffd = [](int n) {
        std::string out;
        for (; n > 0; --n) out += "\xEF\xBF\xBD";
        return out;
    };
    CHECK(repaired("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") == fffd(8) + "A");
    CHECK(repaired("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41") == fffd(8) + "A");
    CHECK(repaired("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42") == fffd(5) + "A" + fffd(2) + "B");
    CHECK(repaired("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == fffd(4) + "A");
}

TEST_CASE("TK-07: a stream holds what may become a character and replaces what cannot", "[text][utf8][case]") {
    const auto cases = decant_test::read_json(decant_test::data("text/cases/TK-07.stream.json"));
    REQUIRE(cases.size() == 9);
    for (const auto& item : cases) {
        INFO(item["name"].get<std::string>());
        decant::Utf8Stream stream;
        std::string whole_bytes;
        std::string whole_text;
        for (std::size_t i = 0; i < item["pieces_hex"].size(); ++i) {
            const std::string piece = from_hex(item["pieces_hex"][i].get<std::string>());
            std::string out;
            stream.push(piece, out);
            CHECK(out == item["expect_out_per_step"][i].get<std::string>());
            CHECK(stream.held() <= 3);
            whole_bytes += piece;
            whole_text += out;
        }
        std::string out;
        stream.finish(out);
        CHECK(out == item["expect_after_finish"].get<std::string>());
        CHECK(repaired(whole_bytes) == whole_text + out);
    }
}

TEST_CASE("the text of a stream does not depend on how the bytes are cut, and is valid", "[text][utf8]") {
    std::mt19937 random(7);
    const std::string_view leads = "\x41\x80\xBF\xC2\xE0\xE4\xED\xF0\xF4\xF5\xA0\x90\x9F\x8F";
    for (int round = 0; round < 3000; ++round) {
        std::string bytes(random() % 24, '\0');
        for (char& c : bytes) c = leads[random() % leads.size()];
        decant::Utf8Stream stream;
        std::string out;
        for (std::size_t at = 0; at < bytes.size();) {
            const std::size_t size = 1 + random() % 4;
            stream.push(std::string_view(bytes).substr(at, size), out);
            at += size;
        }
        stream.finish(out);
        REQUIRE(decant::is_utf8(out));
        REQUIRE(out == repaired(bytes));
        if (decant::is_utf8(bytes)) REQUIRE(out == bytes);
    }
}

TEST_CASE("a space that is to be skipped is left out once, where it comes next", "[text][utf8]") {
    decant::Utf8Stream stream;
    std::string out;
    stream.skip_space();
    stream.push("", out);
    stream.push("  a", out);
    CHECK(out == " a");
    stream.skip_space();
    stream.push("b c", out);
    CHECK(out == " ab c");
    stream.push("\xE4\xB8", out);
    stream.skip_space();
    stream.push(" d", out);
    CHECK(out ==
          " ab c\xEF\xBF\xBD"
          "d");
    stream.skip_space();
    stream.finish(out);
    stream.push(" e", out);
    CHECK(out ==
          " ab c\xEF\xBF\xBD"
          "d e");
}

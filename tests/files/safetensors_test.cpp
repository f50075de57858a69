// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/safetensors.hpp>

#include "files/support.hpp"

#include <string>

using decant::DType;
using decant::ErrorCode;
using decant::Weights;
using decant_test::as_floats;
using decant_test::bytes_of;
using decant_test::case_file;
using decant_test::contains;
using decant_test::open_copy;
using decant_test::refused;

namespace {

std::string file_of(const std::string& header, const std::string& data) {
    std::string out;
    for (int i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> (8 * i));
    return out + header + data;
}
decant::Result<Weights> open_text(const std::string& header, const std::string& data) {
    return open_copy(bytes_of(file_of(header, data)));
}

}  // namespace

TEST_CASE("MF-10: only consistent safetensors files load", "[files][safetensors][cases]") {
    DECANT_NEEDS_CASES();
    const Weights ok = Weights::open(case_file("MF-10-ok.safetensors")).value();
    REQUIRE(ok.tensors().size() == 2);
    CHECK(as_floats(ok.tensor("a").value()) == std::vector<float>{0, 1, 2, 3});
    CHECK(as_floats(ok.tensor("b").value()) == std::vector<float>{4, 5, 6, 7});
    CHECK(ok.tensor("a").value().rows() == 2);
    CHECK(ok.tensor("a").value().dtype == DType::f32);

    const Weights zero = Weights::open(case_file("MF-10-zero-size-ok.safetensors")).value();
    CHECK(zero.tensor("c").value().bytes.empty());
    CHECK(zero.tensor("c").value().rows() == 0);
    CHECK(zero.tensor("c").value().columns() == 5);

    for (const char* name : {"reversed", "past-end", "shape-too-big", "shape-overflow", "negative", "gap", "overlap",
                             "one-offset", "trailing", "cut"})
        CHECK(refused(std::string("MF-10-") + name + ".safetensors", {"tensor \"b\""}) == ErrorCode::bad_format);
    refused("MF-10-past-end.safetensors", {"16", "4096", "32"});
    refused("MF-10-negative.safetensors", {"-16"});
    refused("MF-10-shape-too-big.safetensors", {"[1000, 1000]", "4000000", "16"});
}

TEST_CASE("types that nothing computes with keep their spelling and size", "[files][safetensors]") {
    const auto weights = open_text(R"({"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]},)"
                                   R"("b":{"dtype":"I32","shape":[],"data_offsets":[3,7]},)"
                                   R"("c":{"dtype":"F4","shape":[2],"data_offsets":[7,8]},)"
                                   R"("d":{"dtype":"BF16","shape":[1,1],"data_offsets":[8,10]}})",
                                   "aaabbbbcdd");
    REQUIRE(weights);
    CHECK(weights->tensor("a").value().type_name == "F8_E4M3");
    CHECK(weights->tensor("a").value().dtype == DType::other);
    CHECK(weights->tensor("b").value().shape.rank == 0);
    CHECK(weights->tensor("b").value().columns() == 1);
    CHECK(weights->tensor("d").value().dtype == DType::bf16);
    CHECK(weights->bytes() == 10);
    CHECK_FALSE(open_text(R"({"c":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "cc"));  // 12 bits
    const auto unknown = open_text(R"({"c":{"dtype":"F99","shape":[1],"data_offsets":[0,2]}})", "cc");
    REQUIRE_FALSE(unknown);
    CHECK(unknown.error().code == ErrorCode::unsupported);
    CHECK(contains(unknown.error().message(), "F99"));
}

TEST_CASE("every type that a Python writer gives comes with its shape", "[files][safetensors]") {
    const auto folder = decant_test::shared("truth/quant/dtypes");
    if (!std::filesystem::exists(folder)) DECANT_SKIP("reference files absent: ../shared/truth/quant/dtypes");
    const Weights weights = Weights::open(folder / "dtypes.safetensors").value();
    const auto expected = decant_test::read_json(folder / "expect.json");
    std::size_t compared = 0;
    for (const auto& [name, tensor] : expected.items()) {
        const decant::Tensor* found = weights.find(name);
        INFO(name);
        REQUIRE(found != nullptr);
        const auto shape = tensor.at("shape").get<std::vector<std::uint64_t>>();
        REQUIRE(static_cast<std::size_t>(found->shape.rank) == shape.size());
        for (std::size_t i = 0; i < shape.size(); ++i) CHECK(found->shape.dims[i] == shape[i]);
        if (found->dtype == DType::f32) CHECK(as_floats(*found) == tensor.at("values").get<std::vector<float>>());
        ++compared;
    }
    CHECK(compared == weights.tensors().size());
}

TEST_CASE("the header's structure is checked", "[files][safetensors]") {
    const std::string good = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
    CHECK(open_text(good, "aa"));
    CHECK(open_text(good + "   ", "aa"));  // the format pads with spaces
    CHECK(open_text("{}", ""));
    const char* const bad[] = {
        R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":[2],"shape":[2],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1,2]}})",
        R"({"a":{"dtype":"U8","shape":[2]}})",
        R"({"a":{"dtype":"U8","data_offsets":[0,2]}})",
        R"({"a":{"shape":[2],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":["2"],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":[[2]],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":["U8"],"shape":[2],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":[1,1,1,1,2],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"more":1}})",
        R"({"a":[0,2]})",
        R"({"a":null})",
        R"({"__metadata__":{"a":1}})",
        R"({"__metadata__":[]})",
        R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}} x)",
        R"({"a")",
    };
    for (const char* header : bad) {
        INFO(header);
        CHECK_FALSE(open_text(header, "aa"));
    }
}

TEST_CASE("a header length beyond the file is refused", "[files][safetensors]") {
    std::string file = file_of("{}", "");
    for (std::size_t i = 0; i < 8; ++i) {
        std::string changed = file;
        changed[i] = '\x7f';
        CHECK_FALSE(open_copy(bytes_of(changed)));
    }
    for (std::size_t size = 0; size < file.size(); ++size) CHECK_FALSE(open_copy(bytes_of(file.substr(0, size))));
}

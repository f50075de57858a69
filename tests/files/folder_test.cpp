// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/folder.hpp>

#include "files/support.hpp"

#include <string>

using decant::ErrorCode;
using decant::Weights;
using decant_test::as_floats;
using decant_test::bytes_of;
using decant_test::case_file;
using decant_test::contains;
using decant_test::refused;
using decant_test::TemporaryFolder;

TEST_CASE("MF-15: the index decides which file holds which tensor", "[files][folder][cases]") {
    DECANT_NEEDS_CASES();
    CHECK(refused("MF-15-missing-shard", {"model-00002-of-00002.safetensors"}) == ErrorCode::missing);
    CHECK(refused("MF-15-index-names-absent-tensor", {"m1.safetensors", "w.zz"}) == ErrorCode::missing);

    const Weights unindexed = Weights::open(case_file("MF-15-unindexed-tensor")).value();
    CHECK(unindexed.tensors().size() == 2);
    CHECK(as_floats(unindexed.tensor("w.b").value()) == std::vector<float>{1, 2, 3, 4});

    const Weights stray = Weights::open(case_file("MF-15-stray-file")).value();
    REQUIRE(stray.tensors().size() == 1);
    CHECK(stray.tensors()[0].name == "w.a");
    CHECK(stray.mapped_bytes() == std::filesystem::file_size(case_file("MF-15-stray-file/m1.safetensors")));
}

TEST_CASE("a sharded folder holds what its index lists", "[files][folder]") {
    const auto path = decant_test::shared("truth/quant/sharded3");
    if (!std::filesystem::exists(path)) DECANT_SKIP("reference files absent: ../shared/truth/quant/sharded3");
    const Weights weights = Weights::open(path).value();
    const auto index = decant_test::read_json(path / "model.safetensors.index.json");
    CHECK(weights.tensors().size() == index.at("weight_map").size());
    for (const auto& [name, file] : index.at("weight_map").items()) {
        const Weights shard = Weights::open(path / file.get<std::string>()).value();
        const decant::Tensor expected = shard.tensor(name).value();
        const decant::Tensor found = weights.tensor(name).value();
        CHECK(found.shape == expected.shape);
        CHECK(std::equal(found.bytes.begin(), found.bytes.end(), expected.bytes.begin(), expected.bytes.end()));
    }
    CHECK(weights.bytes() == index.at("metadata").at("total_size").get<std::uint64_t>());
}

namespace {

const std::string shard =
    std::string("\x37\0\0\0\0\0\0\0", 8) + R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}  )" + "xy";

decant::Result<Weights> open_with_index(const TemporaryFolder& folder, const std::string& index) {
    (void)folder.write("model.safetensors.index.json", bytes_of(index));
    return Weights::open(folder.path());
}

}  // namespace

TEST_CASE("a folder without an index is its model.safetensors", "[files][folder]") {
    const TemporaryFolder folder("single");
    const auto empty = Weights::open(folder.path());
    REQUIRE_FALSE(empty);
    CHECK(empty.error().code == ErrorCode::missing);
    CHECK(contains(empty.error().message(), "model.safetensors"));
    (void)folder.write("model.safetensors", bytes_of(shard));
    const auto weights = Weights::open(folder.path());
    REQUIRE(weights);
    CHECK(weights->tensor("w").value().bytes.size() == 2);
    CHECK(weights->name() == folder.path().string());
}

TEST_CASE("shard names cannot leave the folder", "[files][folder]") {
    const TemporaryFolder folder("names");
    (void)folder.write("m.safetensors", bytes_of(shard));
    CHECK(open_with_index(folder, R"({"weight_map":{"w":"m.safetensors"}})"));
    for (const char* name : {"../m.safetensors", "/etc/passwd", "..", ".", "", "a/m.safetensors", "a\\\\m", "C:m",
                             "m.safetensors\\u0000"}) {
        const auto weights = open_with_index(folder, R"({"weight_map":{"w":")" + std::string(name) + "\"}}");
        INFO(name);
        REQUIRE_FALSE(weights);
        CHECK(weights.error().code == ErrorCode::bad_format);
        CHECK(contains(weights.error().message(), "plain file name"));
    }
}

TEST_CASE("the index's structure is checked", "[files][folder]") {
    const TemporaryFolder folder("index");
    (void)folder.write("m.safetensors", bytes_of(shard));
    CHECK(open_with_index(folder, R"({"metadata":{"a":[{"b":1}]},"weight_map":{"w":"m.safetensors"},"x":null})"));
    for (const char* index :
         {R"({})", R"([])", R"({"weight_map":[]})", R"({"weight_map":"m.safetensors"})", R"({"weight_map":{"w":1}})",
          R"({"weight_map":{"w":{"a":"m.safetensors"}}})", R"({"weight_map":{"w":["m.safetensors"]}})",
          R"({"weight_map":{"w":"m.safetensors"},"weight_map":{}})",
          R"({"weight_map":{"w":"m.safetensors","w":"m.safetensors"}})", R"({"weight_map")", ""}) {
        INFO(index);
        CHECK_FALSE(open_with_index(folder, index));
    }
}

TEST_CASE("views of a folder survive copies and moves of the handle", "[files][folder]") {
    const TemporaryFolder folder("moves");
    (void)folder.write("m.safetensors", bytes_of(shard));
    auto first = open_with_index(folder, R"({"weight_map":{"w":"m.safetensors"}})");
    REQUIRE(first);
    const decant::Tensor tensor = first->tensor("w").value();
    const Weights copy = *first;
    first = decant::Error{};
    CHECK(tensor.name == "w");
    CHECK(std::to_integer<char>(tensor.bytes[1]) == 'y');
    CHECK(copy.find("w")->bytes.data() == tensor.bytes.data());
}

TEST_CASE("opening a folder tells its progress by shard, and can be stopped", "[files][folder]") {
    const TemporaryFolder folder("progress");
    std::string map;
    for (const char name : {'a', 'b', 'c'}) {
        std::string content = shard;
        content[content.find('w')] = name;
        (void)folder.write(std::string(1, name) + ".safetensors", bytes_of(content));
        map += std::string(map.empty() ? "" : ",") + '"' + name + "\":\"" + name + ".safetensors\"";
    }
    REQUIRE(open_with_index(folder, "{\"weight_map\":{" + map + "}}"));

    std::vector<std::uint64_t> done;
    const auto opened = Weights::open(folder.path(), {.progress = [&](decant::Progress progress) {
                                          CHECK(progress.total == 3);
                                          done.push_back(progress.done);
                                      }});
    REQUIRE(opened);
    CHECK(done == std::vector<std::uint64_t>{0, 1, 2, 3});
    for (std::uint64_t moment = 0; moment <= 3; ++moment) {
        const auto stopped = Weights::open(
            folder.path(), {.progress = [&](decant::Progress progress) { return progress.done < moment; }});
        REQUIRE(!stopped);
        CHECK(stopped.error().code == ErrorCode::cancelled);
    }
    decant::StopFlag stop;
    stop.request();
    CHECK(!Weights::open(folder.path(), {.stop = &stop}));
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/weights.hpp>

#include <decant/files/gguf_writer.hpp>

#include "files/support.hpp"

#include <cerrno>
#include <memory>
#include <vector>

using decant::DType;
using decant::ErrorCode;
using decant::GgufWriter;
using decant::Weights;
using decant_test::bytes_of;
using decant_test::contains;
using decant_test::TemporaryFolder;

namespace {

std::vector<std::byte> small_file() {
    static const std::vector<float> numbers{1, 2, 3, 4, 5, 6};
    GgufWriter writer;
    writer.add("general.architecture", "llama");
    writer.add_tensor("b", DType::f32, {{2, 3}, 2}, std::as_bytes(std::span(numbers)));
    writer.add_tensor("a", DType::f32, {{2}, 1}, std::as_bytes(std::span(numbers).first(2)));
    return writer.finish();
}

}  // namespace

TEST_CASE("files are told apart by extension, then by their first bytes", "[files][weights]") {
    const TemporaryFolder folder("weights");
    const auto gguf = small_file();
    const std::string safetensors(std::string("\x02\0\0\0\0\0\0\0", 8) + "{}");
    CHECK(Weights::open(folder.write("a.gguf", gguf)));
    CHECK(Weights::open(folder.write("a.bin", gguf)));
    CHECK(Weights::open(folder.write("b.safetensors", bytes_of(safetensors))));
    CHECK(Weights::open(folder.write("b.bin", bytes_of(safetensors))));
    CHECK_FALSE(Weights::open(folder.write("c.gguf", bytes_of(safetensors))));
    CHECK_FALSE(Weights::open(folder.write("c.safetensors", gguf)));
    CHECK_FALSE(Weights::open(folder.write("c.txt", bytes_of("hello, this is a text"))));
    CHECK(Weights::open(folder.path() / "absent.gguf").error().code == ErrorCode::missing);
    // 123 tensors are '{' at the byte where safetensors files have it.
    GgufWriter writer;
    const std::vector<std::byte> number(4);
    for (int i = 0; i < 123; ++i) writer.add_tensor(std::to_string(i), DType::f32, {}, number);
    const auto many = writer.finish();
    CHECK(Weights::open(folder.write("d.bin", many)));
    CHECK(Weights::from_memory(many));
}

TEST_CASE("host memory is used in place and kept by its owner", "[files][weights]") {
    auto bytes = std::make_shared<std::vector<std::byte>>(small_file());
    const std::byte* begin = bytes->data();
    const std::byte* end = begin + bytes->size();
    const std::weak_ptr<std::vector<std::byte>> watch = bytes;
    {
        const auto weights = Weights::from_memory(*bytes, bytes, "asset pack");
        bytes.reset();
        REQUIRE(weights);
        CHECK_FALSE(watch.expired());
        const decant::Tensor tensor = weights->tensor("b").value();
        CHECK(tensor.bytes.data() > begin);
        CHECK(tensor.bytes.data() + tensor.bytes.size() <= end);
        CHECK(decant_test::as_floats(tensor) == std::vector<float>{1, 2, 3, 4, 5, 6});
        CHECK(weights->name() == "asset pack");
        CHECK(weights->mapped_bytes() == 0);
        CHECK(weights->bytes() == 32);
    }
    CHECK(watch.expired());
    CHECK_FALSE(Weights::from_memory({}));
}

TEST_CASE("any alignment of the memory will do", "[files][weights]") {
    const auto file = small_file();
    for (std::size_t shift = 0; shift < 8; ++shift) {
        std::vector<std::byte> shifted(shift);
        shifted.insert(shifted.end(), file.begin(), file.end());
        const auto weights = Weights::from_memory(std::span(shifted).subspan(shift));
        REQUIRE(weights);
        CHECK(decant_test::as_floats(weights->tensor("a").value()) == std::vector<float>{1, 2});
    }
}

TEST_CASE("lookup finds what is there, and names what is missing", "[files][weights]") {
    const TemporaryFolder folder("lookup");
    errno = 33;
    const auto weights = Weights::open(folder.write("model.gguf", small_file()));
    REQUIRE(weights);
    REQUIRE(weights->tensors().size() == 2);
    CHECK(weights->tensors()[0].name == "b");  // the file's order
    CHECK(weights->find("a") == &weights->tensors()[1]);
    CHECK(weights->find("") == nullptr);
    CHECK(weights->find("c") == nullptr);
    const auto missing = weights->tensor("output.weight");
    CHECK(missing.error().code == ErrorCode::missing);
    CHECK(contains(missing.error().message(), "output.weight"));
    CHECK(contains(missing.error().message(), "model.gguf"));
    errno = 33;
    (void)Weights::open(folder.path() / "model.gguf").value();
    (void)Weights::open(folder.path()).has_value();
    CHECK(errno == 33);
}

TEST_CASE("warming up reads every byte once, tells how far it is, and can be stopped", "[files][weights]") {
    const auto weights = Weights::open(decant_test::data("tiny-gguf/llama3.gguf")).value();
    std::uint64_t last = 0;
    REQUIRE(weights.warm_up({.progress = [&](decant::Progress progress) {
        CHECK(progress.total == weights.mapped_bytes());
        CHECK(progress.done >= last);
        last = progress.done;
    }}));
    CHECK(last == weights.mapped_bytes());
    const auto stopped = weights.warm_up({.progress = [](decant::Progress) { return false; }});
    REQUIRE(!stopped);
    CHECK(stopped.error().code == decant::ErrorCode::cancelled);
}

TEST_CASE("the real model opens", "[files][weights][model]") {
    const auto weights = Weights::open(decant_test::smollm2());
    REQUIRE(weights);
    CHECK(weights->metadata().string("general.architecture").value() == "llama");
    CHECK(weights->metadata().uint("llama.block_count").value() == 30);
    CHECK(weights->metadata().strings("tokenizer.ggml.tokens").value().size() == 49152);
    const decant::Tensor table = weights->tensor("token_embd.weight").value();
    CHECK(table.rows() == 49152);
    CHECK(table.columns() == 576);
    CHECK(weights->bytes() <= weights->mapped_bytes());
}

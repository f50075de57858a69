// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/requantize.hpp>

#include <decant/backend/eigen/eigen.hpp>

#include "model/support.hpp"
#include "support/arena.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

using decant::DType;
using decant::ErrorCode;
using decant::Memory;
using decant::Progress;
using decant::requantize;
using decant::StopFlag;
using decant::Tensor;
using decant::Weights;
using decant_test::contains;
using decant_test::same_bits;
using decant_test::taken;
using decant_test::TinyFile;

namespace {

bool same_bytes(const Tensor& a, std::span<const std::byte> b) { return std::ranges::equal(a.bytes, b); }

void check_same_logits(const Weights& a, const Weights& b, std::size_t vocabulary) {
    const auto tokens = decant_test::random_tokens(40, 3, vocabulary);
    const auto first = decant_test::whole(decant_test::bind<decant::Eigen>(a), tokens);
    const auto second = decant_test::whole(decant_test::bind<decant::Eigen>(b), tokens);
    REQUIRE(first.size() == second.size());
    for (std::size_t i = 0; i < first.size(); ++i) REQUIRE(same_bits(first[i], second[i]));
}

}  // namespace

TEST_CASE("requantize: an expansion to F32 computes the same logits bit for bit") {
    for (const DType dtype : {DType::q4_1, DType::q5_0, DType::q8_0, DType::bf16, DType::q6_k}) {
        const auto width = dtype == DType::q6_k ? 256u : 32u;
        CAPTURE(decant::name(dtype));
        const Weights source = TinyFile(dtype, width, 2 * width, 1).open();
        const Weights expanded = taken(requantize(source, DType::f32));
        std::size_t matrices = 0;
        for (const Tensor& tensor : expanded.tensors()) {
            REQUIRE(tensor.dtype == DType::f32);
            matrices += tensor.shape.rank == 2;
        }
        CHECK(matrices == 8);
        CHECK(expanded.bytes() > source.bytes());
        check_same_logits(source, expanded, 24);
    }
}

TEST_CASE("requantize: a folder's build keeps its configuration and its other files") {
    const auto path = decant_test::shared("truth/tiny/qwen3");
    if (!std::filesystem::exists(path)) DECANT_SKIP("tiny models absent: ../shared/truth/tiny");
    const Weights source = taken(Weights::open(path));
    const Weights expanded = taken(requantize(source, DType::f32));
    CHECK(expanded.bytes() > source.bytes());
    CHECK(expanded.format() == source.format());
    CHECK_FALSE(expanded.companion("config.json").empty());
    check_same_logits(source, expanded, 160);
    const Weights small = taken(requantize(source, DType::q8_0));
    CHECK(small.bytes() < source.bytes());
    const auto tokens = decant_test::random_tokens(10, 5, 160);
    const auto exact = decant_test::whole(decant_test::bind<decant::Eigen>(source), tokens);
    const auto rounded = decant_test::whole(decant_test::bind<decant::Eigen>(small), tokens);
    CHECK_FALSE(same_bits(exact.back(), rounded.back()));
    const auto [low, high] = std::ranges::minmax(exact.back());
    for (std::size_t i = 0; i < exact.back().size(); ++i)
        REQUIRE(std::fabs(exact.back()[i] - rounded.back()[i]) < 0.05f * (high - low));
}

TEST_CASE("requantize: the reference's bytes of every dtype that can be written") {
    const std::vector<char> numbers = decant_test::read_file(decant_test::data("quant/weights.f32.bin"));
    decant::GgufWriter writer;
    writer.add("general.architecture", "none");
    writer.add_tensor("matrix", DType::f32, {{16, 128}, 2}, std::as_bytes(std::span(numbers)));
    writer.add_tensor("experts", DType::f32, {{2, 2, 512}, 3}, std::as_bytes(std::span(numbers)));
    writer.add_tensor("experts.bias", DType::f32, {{2, 1024}, 2}, std::as_bytes(std::span(numbers)));
    writer.add_tensor("vector", DType::f32, {{2048}, 1}, std::as_bytes(std::span(numbers)));
    writer.add_tensor("one row", DType::f32, {{1, 2048}, 2}, std::as_bytes(std::span(numbers)));
    writer.add_tensor("ragged", DType::f32, {{2, 48}, 2}, std::as_bytes(std::span(numbers)).first(2 * 48 * 4));
    writer.add_tensor("narrow", DType::f32, {{512, 4}, 2}, std::as_bytes(std::span(numbers)));
    const auto file = writer.finish();
    const Weights source = Weights::from_memory(file, {}, "made.gguf").value();

    for (const DType dtype : {DType::f16, DType::bf16, DType::q4_0, DType::q4_1, DType::q8_0}) {
        const std::string name(decant::name(dtype));
        CAPTURE(name);
        const std::vector<char> expected =
            decant_test::read_file(decant_test::data("quant/" + name + ".quantized.bin"));
        const Weights made = taken(requantize(source, dtype));
        CHECK(made.name() == "made.gguf as " + name);
        CHECK(made.metadata().string("general.architecture").value() == "none");
        REQUIRE(made.tensors().size() == source.tensors().size());
        for (const Tensor& tensor : made.tensors()) {
            const Tensor& original = *source.find(tensor.name);
            CAPTURE(tensor.name);
            CHECK(tensor.shape == original.shape);
            if (tensor.name == "matrix" || tensor.name == "experts" ||
                (name.ends_with("16") && tensor.name == "ragged")) {
                CHECK(tensor.dtype == dtype);
                CHECK(tensor.type_name == name);
                const auto bytes = std::as_bytes(std::span(expected));
                const std::size_t size = tensor.name == "ragged" ? 2 * 48 * 2 : bytes.size();
                CHECK(same_bytes(tensor, bytes.first(size)));
            } else {  // a view
                CHECK(tensor.dtype == DType::f32);
                CHECK(tensor.bytes.data() == original.bytes.data());
            }
        }
    }
    CHECK(requantize(source, DType::q6_k).error().code == ErrorCode::invalid_argument);
    CHECK(requantize(source, DType::other).error().code == ErrorCode::invalid_argument);
    // What is stored so already stays where it is.
    const Weights same = taken(requantize(source, DType::f32));
    CHECK(same.find("matrix")->bytes.data() == source.find("matrix")->bytes.data());
}

TEST_CASE("requantize: the new handle keeps what it views, and gives its memory back") {
    decant_test::Arena arena;
    const Memory memory({.source = arena.source()});
    {
        auto source = std::make_unique<Weights>(TinyFile(DType::q8_0).open());
        const Weights expected = taken(requantize(*source, DType::q4_0));
        auto made = std::make_unique<Weights>(taken(requantize(*source, DType::q4_0, {}, memory)));
        source.reset();
        CHECK(arena.blocks == 1);
        CHECK(memory.used() == arena.bytes);
        const Weights copy = *made;
        made.reset();
        check_same_logits(copy, expected, 24);
    }
    CHECK(arena.blocks == 0);
    CHECK(memory.used() == 0);
}

TEST_CASE("requantize: a limit and a stop are errors that leave nothing behind") {
    const Weights source = TinyFile(DType::f32, 64, 4096).open();  // pieces: its largest matrices have 2^18 numbers
    const std::size_t needed = [&] {
        const Memory counted(decant::MemoryOptions{});
        const Weights made = taken(requantize(source, DType::q8_0, {}, counted));
        return counted.used();
    }();

    const Memory small({.limit = needed - 1});
    const auto refused = requantize(source, DType::q8_0, {}, small);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::out_of_memory);
    CHECK(contains(refused.error().message(), "made.gguf"));
    const Memory enough({.limit = needed});
    CHECK(requantize(source, DType::q8_0, {}, enough));

    std::vector<Progress> told;
    taken(requantize(source, DType::q8_0, {.progress = [&](Progress p) { told.push_back(p); }}));
    REQUIRE(told.size() > 3);
    CHECK(told.front().done == 0);
    CHECK(told.back().done == told.back().total);
    CHECK(std::ranges::is_sorted(told, {}, &Progress::done));
    CHECK(std::ranges::all_of(told, [&](Progress p) { return p.total == told.back().total; }));

    for (std::size_t cut = 0; cut < told.size(); ++cut) {  // by progress, and by a flag that progress raises
        std::size_t calls = 0;
        const auto stopped =
            requantize(source, DType::q8_0, {.progress = [&](Progress) { return calls++ < cut; }}, enough);
        CHECK(stopped.error().code == ErrorCode::cancelled);
        CHECK(calls == cut + 1);
        StopFlag stop;
        calls = 0;
        const auto flagged = requantize(source, DType::q8_0,
                                        {.stop = &stop,
                                         .progress =
                                             [&](Progress) {
                                                 if (calls++ == cut) stop.request();
                                             }},
                                        enough);
        CHECK(flagged.error().code == ErrorCode::cancelled);
        CHECK(calls == cut + 1);
        CHECK(enough.used() == 0);
    }
}

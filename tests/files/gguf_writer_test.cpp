// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/files/gguf_writer.hpp>

#include "files/support.hpp"

#include <array>
#include <numeric>
#include <string>
#include <vector>

using decant::DType;
using decant::GgufWriter;
using decant::Shape;
using decant::Weights;
using decant_test::open_copy;

TEST_CASE("every tensor type comes back as written", "[files][gguf_writer]") {
    std::vector<std::vector<std::byte>> data;
    std::vector<std::uint32_t> ids;
    for (std::uint32_t id = 0; id < decant::detail::ggml_types.size(); ++id) {
        const auto* type = decant::detail::ggml_type(id);
        if (type == nullptr) continue;
        ids.push_back(id);
        data.emplace_back(std::size_t{2} * 3 * type->block_bytes, static_cast<std::byte>(id + 1));
    }
    for (const std::uint32_t alignment : {1u, 8u, 32u, 4096u}) {
        GgufWriter writer(alignment);
        writer.add("general.architecture", "llama");
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const Shape shape{{3, 2 * std::uint64_t{decant::detail::ggml_type(ids[i])->block_elements}}, 2};
            writer.add_tensor("t" + std::to_string(ids[i]), ids[i], shape, data[i]);
        }
        const auto weights = open_copy(writer.finish());
        REQUIRE(weights);
        REQUIRE(weights->tensors().size() == ids.size());
        std::uint64_t total = 0;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const decant::Tensor tensor = weights->tensor("t" + std::to_string(ids[i])).value();
            CHECK(tensor.type_name == decant::detail::ggml_type(ids[i])->name);
            CHECK(tensor.rows() == 3);
            CHECK(tensor.columns() == 2 * decant::detail::ggml_type(ids[i])->block_elements);
            CHECK(std::equal(tensor.bytes.begin(), tensor.bytes.end(), data[i].begin(), data[i].end()));
            if (tensor.dtype != DType::other)
                CHECK(tensor.bytes.size() == 3 * row_bytes(tensor.dtype, static_cast<std::size_t>(tensor.columns())));
            total += tensor.bytes.size();
        }
        CHECK(weights->bytes() == total);
    }
}

TEST_CASE("shapes are outermost first, the file's are innermost first", "[files][gguf_writer]") {
    const std::vector<float> numbers(2 * 3 * 4 * 5);
    GgufWriter writer;
    writer.add_tensor("t", DType::f32, {{2, 3, 4, 5}, 4}, std::as_bytes(std::span(numbers)));
    writer.add_tensor("s", DType::f32, {}, std::as_bytes(std::span(numbers).first(1)));
    const auto file = writer.finish();
    const std::array<unsigned char, 4> innermost{5, 4, 3, 2};
    for (std::size_t i = 0; i < 4; ++i)  // header 24, name 8 + 1, rank 4
        CHECK(std::to_integer<unsigned char>(file[37 + 8 * i]) == innermost[i]);
    const Weights weights = open_copy(file).value();
    CHECK(weights.tensor("t").value().shape == Shape{{2, 3, 4, 5}, 4});
    CHECK(weights.tensor("t").value().rows() == 24);
    CHECK(weights.tensor("t").value().columns() == 5);
    CHECK(weights.tensor("s").value().bytes.size() == 4);
}

TEST_CASE("an empty file of the writer is a valid file", "[files][gguf_writer]") {
    const auto weights = open_copy(GgufWriter().finish());
    REQUIRE(weights);
    CHECK(weights->tensors().empty());
    CHECK(weights->metadata().size() == 0);
}

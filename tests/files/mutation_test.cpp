// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Damaged files: whatever is done to the bytes, opening gives an error or a file whose every view can be read. Run
// under the address and undefined-behaviour sanitizers to see more than crashes.
#include <decant/files/weights.hpp>

#include <decant/files/gguf_writer.hpp>

#include "files/support.hpp"
#include "support/random.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

using decant::DType;
using decant::GgufWriter;
using decant::Weights;
using decant_test::open_copy;
using decant_test::Random;
using decant_test::touch;

namespace {

std::vector<std::byte> small_gguf() {
    const std::vector<float> numbers(64, 1.0f);
    const std::vector<std::byte> blocks(144);
    const std::vector<std::string_view> tokens{"<s>", "", "a", "bc"};
    const std::vector<float> scores{0, 1, 2, 3};
    const std::vector<std::int32_t> types{3, 1, 1, 1};
    GgufWriter writer;
    writer.add("general.alignment", std::uint32_t{32});
    writer.add("general.architecture", "llama");
    writer.add("llama.block_count", std::uint32_t{2});
    writer.add("llama.rope.freq_base", 10000.0);
    writer.add("tokenizer.ggml.add_bos_token", true);
    writer.add("tokenizer.ggml.tokens", std::span<const std::string_view>(tokens));
    writer.add("tokenizer.ggml.scores", std::span<const float>(scores));
    writer.add("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
    writer.add_tensor("token_embd.weight", DType::f32, {{4, 16}, 2}, std::as_bytes(std::span(numbers)));
    writer.add_tensor("blk.0.attn_q.weight", DType::q4_k, {{1, 256}, 2}, blocks);
    writer.add_tensor("output_norm.weight", DType::f32, {{16}, 1}, std::as_bytes(std::span(numbers).first(16)));
    return writer.finish();
}

std::vector<std::byte> small_safetensors() {
    const std::string header = R"({"__metadata__":{"format":"pt"},)"
                               R"("model.a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                               R"("model.b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";
    std::string file;
    for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
    file += header + std::string(32, 'x');
    const auto bytes = decant_test::bytes_of(file);
    return {bytes.begin(), bytes.end()};
}

/// Numbers at which checks go wrong.
constexpr std::array<std::uint64_t, 16> edges{0,
                                              1,
                                              2,
                                              4,
                                              9,
                                              0x7f,
                                              0xff,
                                              0x7fffffff,
                                              0x80000000,
                                              0xffffffff,
                                              0x100000000,
                                              0x2000000000000000,
                                              0x7fffffffffffffff,
                                              0x8000000000000000,
                                              0xffffffffffffffe0,
                                              0xffffffffffffffff};

/// One to three changes within the first `region` bytes.
void mutate(std::vector<std::byte>& bytes, std::size_t region, Random& random) {
    for (std::size_t changes = 1 + random.below(3); changes != 0; --changes) {
        const std::size_t at = random.below(region);
        switch (random.below(5)) {
            case 0: bytes[at] ^= static_cast<std::byte>(1u << random.below(8)); break;
            case 1: bytes[at] = static_cast<std::byte>(random.next()); break;
            case 2:
            case 3: {
                const std::uint64_t edge = edges[random.below(edges.size())];
                const std::size_t width = std::size_t{1} << random.below(4);
                for (std::size_t i = 0; i < width && at + i < bytes.size(); ++i)
                    bytes[at + i] = static_cast<std::byte>(edge >> (8 * i));
                break;
            }
            default: {  // a piece of the file over another
                const std::size_t from = random.below(region);
                const std::size_t size = random.below(32);
                for (std::size_t i = 0; i < size && at + i < bytes.size() && from + i < bytes.size(); ++i)
                    bytes[at + i] = bytes[from + i];
            }
        }
    }
}

struct Outcome {
    int opened = 0;
    int refused = 0;
    double sum = 0;
};

/// Opens `rounds` mutations of a file; errors must say something.
Outcome mutations(const std::vector<std::byte>& original, std::size_t region, int rounds, std::uint64_t seed) {
    Random random{seed};
    Outcome outcome;
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::byte> bytes = original;
        mutate(bytes, region, random);
        const auto weights = open_copy(bytes);
        if (weights) {
            outcome.sum += touch(*weights);
            ++outcome.opened;
        } else {
            if (weights.error().what.empty() || weights.error().where.empty()) FAIL("round " << round);
            ++outcome.refused;
        }
    }
    return outcome;
}

/// The files here end with the last byte that a tensor needs, so nothing of them can be cut off.
void refuses_truncations(const std::vector<std::byte>& file) {
    REQUIRE(open_copy(file));
    for (std::size_t size = 0; size < file.size(); ++size) CHECK_FALSE(open_copy(std::span(file).first(size)));
}

}  // namespace

TEST_CASE("every truncation of a file is refused", "[files][mutation]") {
    refuses_truncations(small_gguf());
    refuses_truncations(small_safetensors());
}

TEST_CASE("mutations of a small GGUF file never do harm", "[files][mutation]") {
    const auto file = small_gguf();
    const Outcome outcome = mutations(file, file.size(), 20'000, 1);
    CHECK(outcome.opened > 0);  // both ways are taken
    CHECK(outcome.refused > 0);
}

TEST_CASE("mutations of a safetensors file never do harm", "[files][mutation]") {
    const auto file = small_safetensors();
    const Outcome outcome = mutations(file, file.size() - 32, 20'000, 2);
    CHECK(outcome.opened > 0);
    CHECK(outcome.refused > 0);
}

TEST_CASE("mutations of another tool's header never do harm", "[files][mutation]") {
    const auto path = decant_test::shared("truth/tiny-gguf/llama2.gguf");
    if (!std::filesystem::exists(path)) DECANT_SKIP("tiny models absent: ../shared/truth/tiny-gguf");
    const auto file = decant_test::read_bytes(path);
    const Weights weights = open_copy(file).value();
    const auto header = file.size() - static_cast<std::size_t>(weights.bytes());
    const Outcome outcome = mutations(file, header, 3'000, 3);
    CHECK(outcome.opened > 0);
    CHECK(outcome.refused > 0);
}

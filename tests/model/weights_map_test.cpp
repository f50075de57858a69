// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Finding a model's tensors (weights_map.hpp, model.hpp): every dtype binds and runs, every contradiction is an error.
#include <decant/model/weights_map.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>

#include "model/support.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

using decant::Context;
using decant::DType;
using decant::ErrorCode;
using decant::KvCache;
using decant::Model;
using decant::Simd;
using decant::Weights;
using decant_test::Floats;
using decant_test::TinyFile;

namespace {

ErrorCode refused(const Weights& weights, std::initializer_list<std::string_view> parts) {
    const auto model = Model<Simd>::bind(weights);
    REQUIRE_FALSE(model);
    for (const std::string_view part : parts) {
        INFO(model.error().message() << " should hold: " << part);
        CHECK(decant_test::contains(model.error().message(), part));
    }
    return model.error().code;
}

template <class B>
Floats logits_of(const Weights& weights, DType cache_dtype = DType::f32) {
    Context context(decant_test::bind<B>(weights), {.rows = 16, .sequences = 1, .logits = 1});
    const KvCache cache(context, {.tokens = 64, .dtype = cache_dtype});
    auto sequence = decant_test::taken(cache.sequence());
    decant_test::Random random{3};
    const auto tokens = decant_test::random_tokens(random, 9, context.spec().vocabulary);
    return decant_test::row(decant_test::taken(context.prefill(sequence, tokens)));
}

double largest(const Floats& values) {
    double most = 0.0;
    for (const float value : values) most = (std::max)(most, std::abs(static_cast<double>(value)));
    return most;
}
double difference(const Floats& a, const Floats& b) {
    REQUIRE(a.size() == b.size());
    double most = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) most = (std::max)(most, std::abs(static_cast<double>(a[i]) - b[i]));
    return most;
}

}  // namespace

TEST_CASE("weights of every dtype bind and give the same logits on both backends", "[model]") {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q4_0, DType::q4_1, DType::q5_0, DType::q8_0,
                              DType::q4_k, DType::q6_k}) {
        INFO(decant::name(dtype));
        const bool k = decant::traits(dtype).block_elements == 256;
        const TinyFile tiny(dtype, k ? 256 : 32, k ? 256 : 64);
        REQUIRE(tiny.tensors.front().dtype == dtype);
        const Floats eigen = logits_of<decant::Eigen>(tiny.open());
        const Floats simd = logits_of<Simd>(tiny.open());
        REQUIRE(eigen.size() == tiny.vocabulary);
        const double scale = largest(eigen);
        CHECK(std::isfinite(scale));
        CHECK(scale > 0.0);
        // Products of block formats round their input to 8 bits: a relative error of 1/254 per element at most.
        const bool blocks = decant::traits(dtype).block_elements > 1;
        CHECK(difference(eigen, simd) <= scale * (blocks ? 0.05 : 1e-5));
    }
}

TEST_CASE("a head of its own is used instead of the embedding", "[model]") {
    TinyFile tiny;
    const Floats tied = logits_of<decant::Eigen>(tiny.open());
    tiny.add("output.weight", DType::f32, tiny.vocabulary, tiny.width);
    auto& head = tiny.at("output.weight");
    head.bytes = tiny.at("token_embd.weight").bytes;
    CHECK(decant_test::same_bits(logits_of<decant::Eigen>(tiny.open()), tied));
    // Row 3 doubled: its logit doubles, the others stay.
    auto* values = reinterpret_cast<float*>(head.bytes.data());
    for (std::uint32_t i = 0; i < tiny.width; ++i) values[3 * tiny.width + i] *= 2.0f;
    const Floats other = logits_of<decant::Eigen>(tiny.open());
    for (std::size_t i = 0; i < other.size(); ++i) CHECK(other[i] == (i == 3 ? 2.0f * tied[i] : tied[i]));
}

TEST_CASE("biases of all projections are bound and added", "[model]") {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        TinyFile tiny;
        const Floats plain = logits_of<decant::Eigen>(tiny.open());
        for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
            TinyFile biased;
            const std::string bias = std::string("blk.1.") + name + ".bias";
            const std::uint64_t rows = biased.at(std::string("blk.1.") + name + ".weight").shape.rows();
            biased.add(bias, dtype, 1, rows);
            biased.at(bias).shape = {{rows}, 1};
            const Floats eigen = logits_of<decant::Eigen>(biased.open());
            INFO(name);
            CHECK(difference(eigen, plain) > 1e-4 * largest(plain));
            CHECK(difference(eigen, logits_of<Simd>(biased.open())) <= 1e-5 * largest(eigen));
        }
    }
}

TEST_CASE("every tensor of the model is needed", "[model]") {
    const TinyFile whole;
    for (const auto& entry : whole.tensors) {
        TinyFile tiny;
        tiny.remove(entry.name);
        CHECK(refused(tiny.open(), {"\"" + entry.name + "\""}) == ErrorCode::missing);
    }
}

TEST_CASE("a shape that contradicts the metadata is refused with both shapes", "[model]") {
    const TinyFile whole;
    for (const auto& entry : whole.tensors) {
        INFO(entry.name);
        {
            TinyFile tiny;
            auto& changed = tiny.at(entry.name);
            const std::uint64_t columns = changed.shape.columns();
            changed.shape.dims[static_cast<std::size_t>(changed.shape.rank - 1)] = columns / 2;
            changed.bytes.resize(changed.bytes.size() / 2);
            CHECK(refused(tiny.open(), {entry.name, "expected", "x " + std::to_string(columns / 2)}) ==
                  ErrorCode::mismatch);
        }
        if (entry.name == "token_embd.weight") continue;  // its rows are the vocabulary
        TinyFile tiny;
        auto& changed = tiny.at(entry.name);
        const std::uint64_t rows = changed.shape.rows() * 2;
        changed.shape = {{rows, changed.shape.columns()}, 2};
        changed.bytes.resize(changed.bytes.size() * 2);
        CHECK(refused(tiny.open(), {entry.name, std::to_string(rows) + " x "}) == ErrorCode::mismatch);
    }
    TinyFile transposed;
    auto& gate = transposed.at("blk.0.ffn_gate.weight");
    std::swap(gate.shape.dims[0], gate.shape.dims[1]);
    CHECK(refused(transposed.open(), {"ffn_gate", "expected 64 (feed_forward_length) x 32 (embedding_length)",
                                      "found 32 x 64"}) == ErrorCode::mismatch);
    // Dimensions but the last count as rows, as they do where experts are stacked.
    TinyFile deep;
    deep.at("blk.0.ffn_gate.weight").shape = {{2, 32, 32}, 3};
    CHECK(decant_test::same_bits(logits_of<Simd>(deep.open()), logits_of<Simd>(whole.open())));
    deep.at("blk.0.ffn_gate.weight").shape = {{2, 16, 64}, 3};
    CHECK(refused(deep.open(), {"ffn_gate", "found 32 x 64"}) == ErrorCode::mismatch);
}

TEST_CASE("layers that the metadata does not count are refused, and so are those that it counts in vain", "[model]") {
    TinyFile few;
    few.layers = 1;
    CHECK(refused(few.open(), {"blk.1.", "of layer 1", "block_count says 1"}) == ErrorCode::mismatch);
    TinyFile many;
    many.layers = 3;
    CHECK(refused(many.open(), {"blk.2.attn_norm.weight"}) == ErrorCode::missing);
}

TEST_CASE("nothing in a file is silently ignored", "[model]") {
    for (const char* name : {"blk.0.attn_q_norm.weight", "blk.0.attn_norm.bias", "output.bias",
                             "blk.0.attn_sinks.weight", "rope_freqs.weight.1"}) {
        TinyFile tiny;
        tiny.vector(name, 16);
        CHECK(refused(tiny.open(), {name, "llama"}) == ErrorCode::unsupported);
    }
}

TEST_CASE("a dtype that nothing computes with is refused by name", "[model]") {
    // I8 is number 24 of the format; IQ4_NL, 32 numbers in 18 bytes, is 20.
    TinyFile tiny;
    const auto with_type = [&](const char* name, std::uint32_t type, std::size_t bytes) {
        decant::GgufWriter writer;
        writer.add("general.architecture", "llama");
        writer.add("llama.block_count", tiny.layers);
        writer.add("llama.embedding_length", tiny.width);
        writer.add("llama.feed_forward_length", tiny.hidden);
        writer.add("llama.attention.head_count", tiny.heads);
        writer.add("llama.attention.head_count_kv", tiny.kv_heads);
        writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
        const std::vector<std::byte> content(bytes);
        for (const auto& entry : tiny.tensors) {
            if (entry.name == name)
                writer.add_tensor(entry.name, type, entry.shape, content);
            else
                writer.add_tensor(entry.name, entry.dtype, entry.shape, entry.bytes);
        }
        const auto owner = std::make_shared<const std::vector<std::byte>>(writer.finish());
        return decant_test::taken(Weights::from_memory(*owner, owner));
    };
    CHECK(refused(with_type("blk.1.attn_q.weight", 24, 32 * 32), {"blk.1.attn_q.weight", "I8", "Q4_1"}) ==
          ErrorCode::unsupported);
    CHECK(refused(with_type("blk.1.ffn_up.weight", 20, 64 * 18), {"blk.1.ffn_up.weight", "IQ4_NL"}) ==
          ErrorCode::unsupported);
    CHECK(refused(with_type("token_embd.weight", 24, 24 * 32), {"token_embd.weight", "I8"}) == ErrorCode::unsupported);
    CHECK(refused(with_type("output_norm.weight", 24, 32), {"output_norm.weight", "I8"}) == ErrorCode::unsupported);
}

TEST_CASE("a vector in blocks is refused", "[model]") {
    for (const char* name : {"output_norm.weight", "blk.0.attn_norm.weight", "blk.1.ffn_norm.weight"}) {
        TinyFile tiny;
        tiny.remove(name);
        tiny.add(name, DType::q8_0, 1, 32);
        tiny.at(name).shape = {{32}, 1};
        CHECK(refused(tiny.open(), {name, "Q8_0"}) == ErrorCode::unsupported);
    }
    TinyFile tiny;
    tiny.add("blk.0.attn_q.bias", DType::q8_0, 1, 32);
    CHECK(refused(tiny.open(), {"blk.0.attn_q.bias", "Q8_0"}) == ErrorCode::unsupported);
}

TEST_CASE("norms in half precision are read as such", "[model]") {
    for (const DType dtype : {DType::f16, DType::bf16}) {
        TinyFile half;
        half.remove("output_norm.weight");
        half.add("output_norm.weight", dtype, 1, 32);
        half.at("output_norm.weight").shape = {{32}, 1};
        // The same numbers in F32 give the same logits.
        TinyFile full;
        auto& entry = full.at("output_norm.weight");
        decant::dequantize_row(dtype, half.at("output_norm.weight").bytes.data(), 32,
                               reinterpret_cast<float*>(entry.bytes.data()));
        CHECK(decant_test::same_bits(logits_of<decant::Eigen>(half.open()), logits_of<decant::Eigen>(full.open())));
        CHECK(decant_test::same_bits(logits_of<Simd>(half.open()), logits_of<Simd>(full.open())));
    }
}

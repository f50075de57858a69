// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Reading a spec from metadata (spec.hpp, model_keys.hpp, families.hpp, families/llama.hpp).
#include <decant/model/families.hpp>

#include <decant/backend/simd/simd.hpp>

#include "model/support.hpp"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

using decant::DType;
using decant::ErrorCode;
using decant::GgufWriter;
using decant::Model;
using decant::ModelSpec;
using decant::Simd;
using decant::Weights;
using decant_test::TinyFile;

namespace {

using Change = std::function<void(GgufWriter&)>;

/// The usual keys but those in `without`, and what `change` adds.
Weights file(const std::set<std::string>& without, const Change& change, const TinyFile& tiny = TinyFile{}) {
    GgufWriter writer;
    const auto add = [&](const char* key, auto value) {
        if (!without.contains(key)) writer.add(key, value);
    };
    add("general.architecture", "llama");
    add("llama.block_count", tiny.layers);
    add("llama.context_length", std::uint32_t{256});
    add("llama.embedding_length", tiny.width);
    add("llama.feed_forward_length", tiny.hidden);
    add("llama.attention.head_count", tiny.heads);
    add("llama.attention.head_count_kv", tiny.kv_heads);
    add("llama.attention.key_length", tiny.head_dim);
    add("llama.attention.value_length", tiny.head_dim);
    add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    change(writer);
    for (const auto& entry : tiny.tensors) writer.add_tensor(entry.name, entry.dtype, entry.shape, entry.bytes);
    const auto owner = std::make_shared<const std::vector<std::byte>>(writer.finish());
    return decant_test::taken(Weights::from_memory(*owner, owner, "made.gguf"));
}

/// A file whose `key` is replaced.
template <class T>
Weights with(const char* key, T value) {
    return file({key}, [&](GgufWriter& writer) { writer.add(key, value); });
}

/// Refused by the spec and by the model, with an error that holds all `parts` and names the file.
ErrorCode refused(const Weights& weights, std::initializer_list<std::string_view> parts) {
    const auto spec = decant::read_spec(weights);
    REQUIRE_FALSE(spec);
    for (const std::string_view part : parts) {
        INFO(spec.error().message() << " should hold: " << part);
        CHECK(decant_test::contains(spec.error().message(), part));
    }
    const auto model = Model<Simd>::bind(weights);
    REQUIRE_FALSE(model);
    CHECK(model.error().code == spec.error().code);
    const std::string message = model.error().message();
    CHECK(message.starts_with(weights.name()));
    CHECK(message.rfind(weights.name() + ",") == 0);  // once is enough
    return spec.error().code;
}

ModelSpec spec_of(const Weights& weights) { return decant_test::taken(decant::read_spec(weights)); }

constexpr auto nothing = [](GgufWriter&) {};

}  // namespace

TEST_CASE("a spec holds what the file says", "[model]") {
    const ModelSpec spec = spec_of(file({}, nothing));
    CHECK(spec.family == "llama");
    CHECK(spec.width == 32);
    CHECK(spec.context_length == 256);
    CHECK(spec.norm.epsilon == 1e-5f);
    REQUIRE(spec.layers.size() == 2);
    for (const auto& layer : spec.layers) {
        CHECK(layer.attention.heads == 2);
        CHECK(layer.attention.kv_heads == 1);
        CHECK(layer.attention.head_dim == 16);
        CHECK(layer.attention.scale == 0.25f);
        CHECK(layer.hidden == 64);
        CHECK(layer.rope == 0);
    }
    REQUIRE(spec.ropes.size() == 1);
    CHECK(spec.ropes[0].rope.layout == decant::RopeLayout::interleaved);
    CHECK(spec.ropes[0].rope.head_dim == 16);
    CHECK(spec.ropes[0].rope.dim == 16);
    CHECK(spec.ropes[0].rope.magnitude == 1.0f);
    REQUIRE(spec.ropes[0].frequencies.size() == 8);
    CHECK(spec.ropes[0].frequencies[4] == Approx(0.01));
    CHECK(spec.cache_layers() == std::vector<decant::CacheLayer>(2, {1, 16}));
}

TEST_CASE("keys that may be absent have GGUF's defaults", "[model]") {
    const ModelSpec spec = spec_of(file({"llama.attention.head_count_kv", "llama.attention.key_length",
                                         "llama.attention.value_length", "llama.context_length"},
                                        nothing));
    CHECK(spec.layers[0].attention.kv_heads == 2);   // as many as query heads
    CHECK(spec.layers[0].attention.head_dim == 16);  // width / heads
}

TEST_CASE("a partial rotary embedding, another base", "[model]") {
    const ModelSpec spec = spec_of(file({}, [](GgufWriter& writer) {
        writer.add("llama.rope.dimension_count", std::uint32_t{8});
        writer.add("llama.rope.freq_base", 1e6f);
    }));
    CHECK(spec.ropes[0].rope.dim == 8);
    REQUIRE(spec.ropes[0].frequencies.size() == 4);
    CHECK(spec.ropes[0].frequencies[2] == Approx(1e-3));
}

TEST_CASE("rope scaling rules of a file", "[model]") {
    const auto scaled = [](const Change& change) { return spec_of(file({}, change)).ropes[0]; };
    const auto plain = scaled(nothing);
    CHECK(scaled([](GgufWriter& w) { w.add("llama.rope.scaling.type", "none"); }).frequencies == plain.frequencies);

    const auto linear = scaled([](GgufWriter& w) {
        w.add("llama.rope.scaling.type", "linear");
        w.add("llama.rope.scaling.factor", 4.0f);
    });
    for (std::size_t i = 0; i < 8; ++i) CHECK(linear.frequencies[i] == Approx(plain.frequencies[i] / 4));
    CHECK(linear.rope.magnitude == 1.0f);

    // Values: see rope_scaling_test.cpp.
    const auto yarn = scaled([](GgufWriter& w) {
        w.add("llama.rope.scaling.type", "yarn");
        w.add("llama.rope.scaling.factor", 4.0f);
        w.add("llama.rope.scaling.original_context_length", std::uint32_t{4096});
    });
    CHECK(yarn.frequencies[3] == Approx(0.02569350598886808));
    CHECK(yarn.frequencies[7] == Approx(7.905694150420948e-05));
    CHECK(yarn.rope.magnitude == Approx(1.138629436111989));
}

TEST_CASE("rope factors of a file", "[model]") {
    TinyFile tiny;
    tiny.vector("rope_freqs.weight", 8);
    const float factors[8] = {1, 1, 2, 4, 8, 8, 8, 8};
    std::memcpy(tiny.at("rope_freqs.weight").bytes.data(), factors, sizeof factors);
    const auto plain = spec_of(file({}, nothing)).ropes[0].frequencies;
    const auto spec = spec_of(tiny.open());
    for (std::size_t i = 0; i < 8; ++i) CHECK(spec.ropes[0].frequencies[i] == plain[i] / factors[i]);
    CHECK(decant_test::bind<Simd>(tiny.open()).spec().ropes[0].frequencies == spec.ropes[0].frequencies);

    for (const float bad : {0.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        std::memcpy(tiny.at("rope_freqs.weight").bytes.data() + 8, &bad, sizeof bad);
        CHECK(refused(tiny.open(), {"rope_freqs.weight"}) == ErrorCode::bad_format);
    }
    tiny.remove("rope_freqs.weight");
    tiny.vector("rope_freqs.weight", 9);
    CHECK(refused(tiny.open(), {"rope_freqs.weight", "8"}) == ErrorCode::mismatch);
    tiny.remove("rope_freqs.weight");
    tiny.add("rope_freqs.weight", DType::f16, 1, 8);
    tiny.at("rope_freqs.weight").shape = {{8}, 1};
    CHECK(refused(tiny.open(), {"rope_freqs.weight"}) == ErrorCode::mismatch);
}

TEST_CASE("a missing key is named", "[model]") {
    for (const char* key :
         {"general.architecture", "llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
          "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"})
        CHECK(refused(file({key}, nothing), {key}) == ErrorCode::missing);
    for (const char* rule : {"linear", "yarn"})
        CHECK(refused(with("llama.rope.scaling.type", rule), {"llama.rope.scaling.factor"}) == ErrorCode::missing);
}

TEST_CASE("an unknown architecture is refused with the known ones", "[model]") {
    for (const char* name : {"", "%s%s%n", "LLAMA", "llama2"})
        CHECK(refused(with("general.architecture", name),
                      {"general.architecture", "\"" + std::string(name) + "\"", "llama"}) == ErrorCode::unsupported);
    CHECK(refused(with("general.architecture", std::uint32_t{3}), {"general.architecture"}) == ErrorCode::mismatch);
}

TEST_CASE("Gemma 3: five layers with a window for each that sees everything", "[model]") {
    const ModelSpec spec = spec_of(decant_test::tiny("gemma3_std"));
    CHECK(spec.family == "gemma3");
    CHECK(spec.gate.activation == decant::Activation::gelu_tanh);
    CHECK(spec.embedding_scale == std::sqrt(static_cast<float>(spec.width)));
    REQUIRE(spec.ropes.size() == 2);
    CHECK(spec.ropes[0].frequencies.back() < spec.ropes[1].frequencies.back());  // the larger base turns slower
    REQUIRE(spec.layers.size() >= 6);
    for (std::size_t l = 0; l < spec.layers.size(); ++l) {
        const bool everything = l % 6 == 5;
        CHECK((spec.layers[l].attention.window == 0) == everything);
        CHECK(spec.layers[l].rope == (everything ? 0 : 1));
        CHECK(spec.layers[l].qk_norm);
        CHECK(spec.layers[l].post_norms);
    }
}

TEST_CASE("Qwen: pairs of halves, and norms of q and k in the third", "[model]") {
    for (const char* name : {"qwen2", "qwen3"}) {
        const ModelSpec spec = spec_of(decant_test::tiny(name));
        CHECK(spec.family == name);
        CHECK(spec.ropes[0].rope.layout == decant::RopeLayout::halves);
        CHECK(spec.layers[0].qk_norm == (spec.family == "qwen3"));
    }
}

TEST_CASE("counts that cannot be are refused with key and value", "[model]") {
    for (const char* key : {"llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                            "llama.attention.head_count", "llama.attention.head_count_kv", "llama.attention.key_length",
                            "llama.attention.value_length", "llama.context_length", "llama.rope.dimension_count"}) {
        CHECK(refused(with(key, std::uint32_t{0}), {key, "value 0"}) == ErrorCode::bad_format);
        CHECK(refused(with(key, 0xffffffffu), {key, "value 4294967295"}) == ErrorCode::bad_format);
        CHECK(refused(with(key, ~std::uint64_t{0}), {key, "18446744073709551615"}) == ErrorCode::bad_format);
        CHECK(refused(with(key, std::int32_t{-1}), {key, "-1"}) == ErrorCode::mismatch);
        CHECK(refused(with(key, "7"), {key, "string"}) == ErrorCode::mismatch);
        CHECK(refused(with(key, 2.0f), {key}) == ErrorCode::mismatch);
    }
    // Any integer type will do.
    CHECK(spec_of(with("llama.embedding_length", std::int64_t{32})).width == 32);
    CHECK(spec_of(with("llama.attention.head_count", std::uint8_t{2})).layers[0].attention.heads == 2);
}

TEST_CASE("numbers that cannot be are refused with the key", "[model]") {
    const float infinity = std::numeric_limits<float>::infinity();
    for (const char* key : {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"}) {
        CHECK(refused(with(key, std::numeric_limits<float>::quiet_NaN()), {key, "nan"}) == ErrorCode::bad_format);
        CHECK(refused(with(key, infinity), {key, "inf"}) == ErrorCode::bad_format);
        CHECK(refused(with(key, -1.0f), {key, "-1"}) == ErrorCode::bad_format);
        CHECK(refused(with(key, 0.0f), {key, "value 0"}) == ErrorCode::bad_format);
        CHECK(refused(with(key, 1e300), {key, "1e+300"}) == ErrorCode::bad_format);
        CHECK(refused(with(key, "small"), {key}) == ErrorCode::mismatch);
    }
    const auto yarn = [](const char* key, double value) {
        return file({}, [&](GgufWriter& w) {
            w.add("llama.rope.scaling.type", "yarn");
            for (const char* needed : {"llama.rope.scaling.factor", "llama.rope.scaling.original_context_length"})
                if (std::string(needed) != key) w.add(needed, 4.0f);
            w.add(key, value);
        });
    };
    for (const char* key :
         {"llama.rope.scaling.factor", "llama.rope.scaling.original_context_length",
          "llama.rope.scaling.yarn_beta_fast", "llama.rope.scaling.yarn_beta_slow", "llama.rope.scaling.attn_factor"})
        CHECK(refused(yarn(key, -2.0), {key, "-2"}) == ErrorCode::bad_format);
    CHECK(refused(yarn("llama.rope.freq_base", 1.0), {"llama.rope.freq_base", "1"}) == ErrorCode::bad_format);
}

TEST_CASE("counts that do not divide are refused", "[model]") {
    CHECK(refused(with("llama.attention.head_count_kv", std::uint32_t{3}), {"head_count_kv", "value 3", "2"}) ==
          ErrorCode::bad_format);
    CHECK(refused(file({"llama.attention.head_count", "llama.attention.key_length"},
                       [](GgufWriter& w) { w.add("llama.attention.head_count", std::uint32_t{5}); }),
                  {"llama.attention.head_count", "value 5", "32"}) == ErrorCode::bad_format);
    CHECK(refused(with("llama.rope.dimension_count", std::uint32_t{7}), {"rope.dimension_count", "value 7"}) ==
          ErrorCode::bad_format);
    CHECK(refused(with("llama.rope.dimension_count", std::uint32_t{18}), {"rope.dimension_count", "value 18", "16"}) ==
          ErrorCode::bad_format);
    CHECK(refused(file({"llama.attention.head_count", "llama.attention.key_length", "llama.attention.value_length"},
                       [](GgufWriter& w) {
                           w.add("llama.attention.head_count", 1u << 24);
                           w.add("llama.attention.key_length", 1u << 24);
                       }),
                  {"llama.attention.head_count", "16777216"}) == ErrorCode::bad_format);
    CHECK(refused(with("llama.block_count", std::uint32_t{1000}), {"llama.block_count", "value 1000", "20"}) ==
          ErrorCode::mismatch);
}

TEST_CASE("options that are not known are refused", "[model]") {
    CHECK(refused(with("llama.rope.scaling.type", "longrope"), {"llama.rope.scaling.type", "\"longrope\""}) ==
          ErrorCode::unsupported);
    CHECK(refused(with("llama.attention.value_length", std::uint32_t{8}),
                  {"llama.attention.value_length", "value 8"}) == ErrorCode::unsupported);
    for (const char* key : {"llama.attn_logit_softcapping", "llama.logit_scale", "llama.attention.scale"})
        CHECK(refused(with(key, 2.0f), {key}) == ErrorCode::unsupported);
    CHECK(refused(with("llama.expert_count", std::uint32_t{8}), {"llama.expert_used_count"}) == ErrorCode::missing);
}

TEST_CASE("the handed cases of bad hyper-parameters", "[model]") {
    const auto folder = decant_test::shared("cases/files");
    if (!std::filesystem::exists(folder)) DECANT_SKIP("case files absent: ../shared/cases/files");
    struct Case {
        const char* name;
        std::initializer_list<std::string_view> parts;
    };
    const auto refused_case = [&](const Case& c) {
        INFO(c.name);
        const auto weights = Weights::open(folder / c.name);
        const auto model = weights ? Model<Simd>::bind(*weights) : decant::Result<Model<Simd>>(weights.error());
        REQUIRE_FALSE(model);
        for (const std::string_view part : c.parts) {
            INFO(model.error().message() << " should hold: " << part);
            CHECK(decant_test::contains(model.error().message(), part));
        }
        const std::string message = model.error().message();
        CHECK(decant_test::contains(message, c.name));
        CHECK(message.find(c.name) == message.rfind(c.name));  // once is enough
    };
    refused_case({"MF-18-head0.gguf", {"llama.attention.head_count", "0"}});
    refused_case({"MF-18-blockcount-str.gguf", {"llama.block_count", "string"}});
    refused_case({"MF-18-no-tensors.gguf", {"llama.block_count", "0"}});
    refused_case({"MF-18-block-4g.gguf", {"llama.block_count", "4294967295"}});
    refused_case({"MF-18-arch-empty.gguf", {"general.architecture", "\"\""}});
    refused_case({"MF-18-arch-percent.gguf", {"general.architecture", "%s%s%n"}});
    refused_case({"MF-18-eps-nan.gguf", {"llama.attention.layer_norm_rms_epsilon", "nan"}});
    refused_case({"MF-18-shape-mismatch.gguf", {"48", "16"}});

    const auto control = Model<Simd>::bind(decant_test::taken(Weights::open(folder / "_control/tiny-ok.gguf")));
    INFO((control ? std::string() : control.error().message()));
    CHECK(control);
}

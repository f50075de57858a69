// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Binding of files that are odd, or that lie (bind.hpp, binder.hpp, workspace.hpp).
#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/model/bind.hpp>
#include <decant/quant/requantize.hpp>

#include "model/config_folder.hpp"
#include "model/support.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using decant::DType;
using decant::Model;
using decant::Tensor;
using decant::Weights;
using decant_test::ConfigFolder;
using decant_test::Floats;
using decant_test::taken;

namespace {

/// A tiny folder with other keys and other tensors.
class Forged {
 public:
    explicit Forged(const std::string& name)
        : folder_(decant_test::data("tiny/" + name)),
          config(decant_test::read_json(decant_test::data("tiny/" + name + "/config.json"))) {}

    /// An F32 tensor, new or instead of another.
    void set(const std::string& name, std::vector<std::uint64_t> dims, const Floats& values) {
        names_.push_back(name);
        data_.push_back(values);
        Tensor tensor{names_.back(), "F32", DType::f32, {}, std::as_bytes(std::span<const float>(data_.back()))};
        for (const std::uint64_t dim : dims) tensor.shape.dims[static_cast<std::size_t>(tensor.shape.rank++)] = dim;
        forged_.push_back(tensor);
    }
    Weights open() {
        const Weights source = taken(folder_.open(config.dump()));
        std::vector<Tensor> tensors = forged_;
        for (const Tensor& tensor : source.tensors()) {
            if (std::none_of(forged_.begin(), forged_.end(), [&](const Tensor& f) { return f.name == tensor.name; }))
                tensors.push_back(tensor);
        }
        return taken(Weights::with_tensors(source, tensors, {}, "forged"));
    }

 private:
    ConfigFolder folder_;
    std::deque<std::string> names_;
    std::deque<Floats> data_;
    std::vector<Tensor> forged_;

 public:
    nlohmann::json config;
};

template <class B>
Floats logits(const Weights& weights, std::uint32_t rows = 16) {
    decant::Context context(decant_test::bind<B>(weights), {.rows = rows, .sequences = 1, .logits = 1});
    const decant::KvCache cache(context, {.tokens = 64, .dtype = DType::f32});
    auto sequence = taken(cache.sequence());
    return decant_test::row(taken(context.prefill(sequence, decant_test::random_tokens(20, 7, 160))));
}

std::string refused(const Weights& weights) {
    const auto model = Model<decant::Simd>::bind(weights);
    REQUIRE_FALSE(model);
    return model.error().message();
}

std::string mixer(std::size_t layer) { return "backbone.layers." + std::to_string(layer) + ".mixer."; }

}  // namespace

TEST_CASE("scratch holds a convolution's longest kernel", "[model]") {
    Forged file("mamba2");
    constexpr std::uint64_t kernel = 1024;
    file.config["conv_kernel"] = kernel;
    for (std::size_t l = 0; l < 2; ++l)
        file.set(mixer(l) + "conv1d.weight", {192, 1, kernel}, Floats(192 * kernel, 0.01f));
    const Weights weights = file.open();
    CHECK(decant::widest_input(taken(decant::read_spec(weights))) >= kernel);
    const Floats one = logits<decant::Simd>(weights, 1), many = logits<decant::Simd>(weights);
    CHECK(one == many);
}

TEST_CASE("a state space's step has the bias of its map and one of its own", "[model]") {
    Forged added("mamba2"), both("mamba2");
    both.config["use_bias"] = true;
    const Weights plain = taken(Weights::open(decant_test::data("tiny/mamba2")));
    for (std::size_t l = 0; l < 2; ++l) {
        const Tensor steps = taken(plain.tensor(mixer(l) + "dt_bias"));
        Floats sum(8);
        decant::dequantize_row(steps.dtype, steps.bytes.data(), sum.size(), sum.data());
        for (float& value : sum) value += 0.75f;
        added.set(mixer(l) + "dt_bias", {8}, sum);
        Floats map(328, 0.0f);
        std::fill(map.end() - 8, map.end(), 0.75f);
        both.set(mixer(l) + "in_proj.bias", {328}, map);
        both.set(mixer(l) + "out_proj.bias", {64}, Floats(64, 0.0f));
    }
    const Floats expected = logits<decant::Eigen>(added.open());
    CHECK(expected != logits<decant::Eigen>(plain));
    CHECK(expected == logits<decant::Eigen>(both.open()));
}

TEST_CASE("either every expert has a bias or none has", "[model]") {
    for (const char* expert : {"0", "3"}) {
        Forged file("mixtral");
        const std::string name = "model.layers.1.block_sparse_moe.experts." + std::string(expert) + ".w1.bias";
        file.set(name, {48}, Floats(48, 1.0f));
        CHECK(decant_test::contains(refused(file.open()), "some experts have a bias"));
    }
}

TEST_CASE("experts of different formats are multiplied by activations in the form that each reads", "[model]") {
    const Weights plain = taken(Weights::open(decant_test::data("tiny/mixtral")));
    const Weights blocks = taken(decant::requantize(plain, DType::q8_0));
    std::vector<Tensor> tensors;
    for (const Tensor& tensor : plain.tensors())
        tensors.push_back(decant_test::contains(std::string(tensor.name), "experts.0.") ? tensor
                                                                                        : *blocks.find(tensor.name));
    const Weights mixed =
        taken(Weights::with_tensors(plain, tensors, std::make_shared<const Weights>(blocks), "mixed"));
    const Floats exact = logits<decant::Eigen>(mixed), fast = logits<decant::Simd>(mixed);
    for (std::size_t i = 0; i < exact.size(); ++i) CHECK(fast[i] == Approx(exact[i]).margin(0.15));
}

TEST_CASE("every tiny model can be requantized", "[model]") {
    for (const char* folder : {"tiny", "tiny-gguf"}) {
        for (const auto& entry : std::filesystem::directory_iterator(decant_test::data(folder))) {
            INFO(entry.path().string());
            if (entry.is_directory() && !std::filesystem::exists(entry.path() / "model.safetensors")) continue;
            const Weights weights = taken(Weights::open(entry.path()));
            const Floats exact = logits<decant::Eigen>(weights);
            const Floats coarse = logits<decant::Eigen>(taken(decant::requantize(weights, DType::q8_0)));
            double square = 0.0, difference = 0.0;
            for (std::size_t i = 0; i < exact.size(); ++i) {
                square += static_cast<double>(exact[i]) * exact[i];
                difference += std::pow(static_cast<double>(coarse[i]) - exact[i], 2);
            }
            CHECK(difference < 0.01 * square);  // 8 bits: a tenth of the size at most
        }
    }
}

TEST_CASE("numbers that no model has are refused before anything is sized by them", "[model]") {
    const auto with = [](const char* name, const char* key, std::uint64_t value) {
        Forged file(name);
        file.config[key] = value;
        return refused(file.open());
    };
    for (const auto& [name, key, value] : {std::tuple{"llama3", "head_dim", std::uint64_t{1} << 24},
                                           std::tuple{"llama3", "num_hidden_layers", std::uint64_t{5000}},
                                           std::tuple{"mixtral", "num_experts_per_tok", std::uint64_t{300}},
                                           std::tuple{"deepseek_v3", "kv_lora_rank", std::uint64_t{1} << 20}}) {
        INFO(key);
        const std::string message = with(name, key, value);
        INFO(message);
        CHECK((decant_test::contains(message, key) || decant_test::contains(message, "num_attention_heads")));
    }
}

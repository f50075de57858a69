// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Every family against what transformers computed from the same tiny models in F32 (tests/data/tiny), read from
// config.json as the hub has it and as transformers 5 writes it, and from GGUF.
#include <decant/model/families.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/model/context.hpp>

#include "model/config_folder.hpp"
#include "model/support.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <string>
#include <vector>

using decant::Context;
using decant::KvCache;
using decant::Simd;
using decant::Token;
using decant::Want;
using decant::Weights;
using decant_test::taken;
using nlohmann::json;

namespace {

constexpr float near_tie = 2e-4f;  // twice the tolerance of a logit

int argmax(std::span<const float> logits) {
    return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Last logits, the argmax at every position, and twelve greedy steps, which are fed with the reference's tokens.
template <class B>
void check(const Weights& weights, const json& reference) {
    const auto model = decant_test::bind<B>(weights);
    INFO(weights.name() << ", family " << model.spec().family);
    CHECK_FALSE(model.spec().family.empty());
    Context context(model, {.rows = 64, .sequences = 2, .logits = 64});
    const KvCache cache(context, {.tokens = 256, .dtype = decant::DType::f32, .sequences = 2});
    REQUIRE(reference["sequences"].size() == 2);
    for (const json& expected : reference["sequences"]) {
        auto sequence = taken(cache.sequence());
        const auto tokens = decant_test::tokens_of(expected["ids"]);
        const auto logits = taken(context.pass({{&sequence, tokens, Want::all}}));
        const auto last = logits.row(tokens.size() - 1);
        REQUIRE(last.size() == expected["last_logits"].size());
        double most = 0.0;
        for (std::size_t i = 0; i < last.size(); ++i)
            most = (std::max)(most, std::abs(last[i] - expected["last_logits"][i].get<double>()));
        CHECK(most <= 1e-4);
        REQUIRE(expected["argmax"].size() == tokens.size());
        for (std::size_t r = 0; r < tokens.size(); ++r) {
            if (argmax(logits.row(r)) == expected["argmax"][r].get<int>()) continue;
            INFO("position " << r);
            CHECK(expected["top1_margin"][r].get<float>() <= near_tie);
        }
        int found = argmax(last);
        REQUIRE(expected["greedy12"].size() == 12);
        for (std::size_t step = 0; step < 12; ++step) {
            const int id = expected["greedy12"][step];
            INFO("step " << step);
            CHECK((found == id || expected["greedy12_margin"][step].get<float>() <= near_tie));
            found = argmax(taken(context.decode(sequence, Token{id})));
        }
    }
}
void check_both(const Weights& weights, const json& reference) {
    check<decant::Eigen>(weights, reference);
    check<Simd>(weights, reference);
}

/// A folder with its config.json and with its config.v5.json.
void check_folder(const std::filesystem::path& folder) {
    const json reference = decant_test::read_json(folder / "reference.json");
    check_both(taken(Weights::open(folder)), reference);
    const decant_test::ConfigFolder copy(folder);
    const auto config = decant_test::read_file(folder / "config.v5.json");
    check_both(taken(copy.open({config.begin(), config.end()})), reference);
}

}  // namespace

TEST_CASE("the tiny models of every family equal transformers", "[model]") {
    std::set<std::string> families;
    for (const char* name : {"deepseek_v3", "ernie4_5", "gemma2", "gemma3_text", "gpt_neox", "gpt_oss_trunc", "llama3",
                             "mamba2", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe", "stablelm"}) {
        check_folder(decant_test::data("tiny/" + std::string(name)));
        families.insert(
            decant_test::read_json(decant_test::data("tiny/" + std::string(name) + "/config.json"))["model_type"]);
    }
    for (const decant::Family& family : decant::families) {
        INFO("no tiny model of the family " << family.model_type);
        CHECK(families.contains(std::string(family.model_type)));
    }
}

TEST_CASE("the tiny models equal transformers from GGUF", "[model]") {
    for (const char* name : {"deepseek_v3", "ernie4_5", "gemma3_std", "gpt_neox", "gpt_oss_trunc", "llama2", "llama3",
                             "llama_linear", "llama_yarn", "mamba2", "mixtral", "qwen2", "qwen3", "stablelm"})
        check_both(decant_test::tiny(name),
                   decant_test::read_json(decant_test::data("tiny/" + std::string(name) + "/reference.json")));
}

TEST_CASE("variants of the families equal transformers", "[model]") {
    const auto folder = decant_test::shared("truth/tiny");
    if (!std::filesystem::exists(folder)) DECANT_SKIP("tiny models absent: ../shared/truth/tiny");
    for (const char* name : {"gemma2_std", "gemma3_std", "gpt_oss", "kimi_k2_like_v3", "llama2", "llama_linear",
                             "llama_yarn", "qwen2_yarn"})
        check_folder(folder / name);
    for (const char* name : {"gemma2_std", "kimi_k2_like_v3", "qwen2_yarn"}) {
        const auto file = decant_test::shared("truth/tiny-gguf/" + std::string(name) + ".gguf");
        check_both(taken(Weights::open(file)), decant_test::read_json(folder / name / "reference.json"));
    }
}

TEST_CASE("what a family cannot do is refused", "[model]") {
    const auto folder = decant_test::shared("truth/tiny");
    if (!std::filesystem::exists(folder)) DECANT_SKIP("tiny models absent: ../shared/truth/tiny");
    // LongRoPE changes its frequencies with the length of the sequence.
    for (const char* style : {"config.json", "config.v5.json"}) {
        const decant_test::ConfigFolder copy(folder / "phi3_longrope");
        const auto config = decant_test::read_file(folder / "phi3_longrope" / style);
        const auto model = decant::Model<Simd>::bind(taken(copy.open({config.begin(), config.end()})));
        REQUIRE_FALSE(model);
        INFO(model.error().message());
        CHECK(decant_test::contains(model.error().message(), "longrope"));
    }
    // All other tiny models are of families that are not known, and say which.
    std::size_t refused = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const json config = decant_test::read_json(entry.path() / "config.json");
        const std::string type = config["model_type"];
        const bool known = std::any_of(decant::families.begin(), decant::families.end(),
                                       [&](const decant::Family& family) { return family.model_type == type; });
        if (known) continue;
        const auto model = decant::Model<Simd>::bind(taken(Weights::open(entry.path())));
        REQUIRE_FALSE(model);
        CHECK(model.error().code == decant::ErrorCode::unsupported);
        CHECK(decant_test::contains(model.error().message(), "\"" + type + "\""));
        ++refused;
    }
    CHECK(refused > 30);
}

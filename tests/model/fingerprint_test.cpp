// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/model/fingerprint.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/quant/requantize.hpp>

#include "model/support.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

using decant::DType;
using decant::Simd;
using decant_test::taken;
using decant_test::TinyFile;

namespace {

std::uint64_t fingerprint(const decant::Weights& weights) { return decant_test::bind<Simd>(weights).fingerprint(); }

}  // namespace

TEST_CASE("a file has one fingerprint, whoever opens it and on whatever backend", "[model][fingerprint]") {
    for (const char* name : {"llama3", "gemma3_std", "mamba2", "mixtral"}) {
        INFO(name);
        const auto model = decant_test::bind<Simd>(decant_test::tiny(name));
        CHECK(model.fingerprint() == model.fingerprint());
        CHECK(model.fingerprint() == fingerprint(decant_test::tiny(name)));
        CHECK(model.fingerprint() == decant_test::bind<decant::Eigen>(decant_test::tiny(name)).fingerprint());
    }
}

TEST_CASE("another model, another precision and other numbers have another fingerprint", "[model][fingerprint]") {
    std::set<std::uint64_t> seen;
    std::size_t count = 0;
    for (const char* name : {"llama2", "llama3", "llama_linear", "llama_yarn", "gemma3_std", "qwen2", "qwen3", "mamba2",
                             "mixtral", "stablelm", "gpt_neox"}) {
        seen.insert(fingerprint(decant_test::tiny(name)));
        ++count;
    }
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q4_0, DType::q8_0}) {
        seen.insert(fingerprint(taken(decant::requantize(decant_test::tiny("llama3"), dtype, {}))));
        count += dtype != DType::f32;  // which it is
    }
    CHECK(seen.size() == count);
}

TEST_CASE("what the metadata say of a layer counts", "[model][fingerprint]") {
    const auto weights = decant_test::tiny("gemma3_std");
    const decant::ModelSpec spec = decant_test::bind<Simd>(weights).spec();
    const auto changed = [&](auto change) {
        decant::ModelSpec other = spec;
        change(other);
        return decant::fingerprint(other, weights) != decant::fingerprint(spec, weights);
    };
    CHECK_FALSE(changed([](decant::ModelSpec&) {}));
    CHECK(changed([](auto& s) { s.layers.back().attention.window += 1; }));
    CHECK(changed([](auto& s) { s.layers.front().attention.scale *= 2; }));
    CHECK(changed([](auto& s) { s.layers.front().rope = 1 - s.layers.front().rope; }));
    CHECK(changed([](auto& s) { s.ropes.front().frequencies.back() *= 1.0001f; }));
    CHECK(changed([](auto& s) { s.norm.epsilon *= 10; }));
    CHECK(changed([](auto& s) { s.vocabulary += 1; }));
    CHECK(changed([](auto& s) {
        std::swap(s.layers.front(), s.layers.back());
        s.layers.front().hidden += 1;
    }));
}

TEST_CASE("the fingerprint of a real model takes milliseconds", "[model][fingerprint]") {
    const auto weights = taken(decant::Weights::open(decant_test::smollm2()));
    const auto model = decant_test::bind<Simd>(weights);
    REQUIRE(model.fingerprint() != 0);
    double best = 1.0;
    for (int i = 0; i < 5; ++i) {
        const auto start = std::chrono::steady_clock::now();
        REQUIRE(decant::fingerprint(model.spec(), weights) == model.fingerprint());
        best = (std::min)(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    CHECK(best < 0.1);
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// What batching saves: a pass of many sequences reads the weights as often as a pass of one.
#include "backend/counting.hpp"

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/model/context.hpp>

#include "model/support.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include "backend/opaque.hpp"
#define DECANT_TEST_OPAQUE , decant_test::Opaque
#else
#define DECANT_TEST_OPAQUE
#endif

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

using decant::Context;
using decant::DType;
using decant::KvCache;
using decant::Model;
using decant::PassPart;
using decant::Sequence;
using decant::Token;
using decant::Want;
using decant_test::Counting;
using decant_test::CountingKernels;
using decant_test::taken;
using decant_test::TinyFile;
using decant_test::Work;
using PortableKernels = decant::simd::Kernels<decant::simd::Portable>;

static_assert(decant::Backend<Counting<decant::Eigen>> && decant::Backend<Counting<decant::Simd>>);
static_assert(decant::Backend<decant::HostBackend<CountingKernels<decant::EigenKernels>>>);

namespace {

constexpr std::size_t many = 16;
constexpr std::size_t layers = 3;

decant::Weights file() { return TinyFile(DType::q8_0, 64, 96, layers).open(); }

/// Bytes of what a forward pass multiplies with: every matrix of the file, the tied embedding as the head.
std::uint64_t matrix_bytes(const decant::Weights& weights) {
    std::uint64_t bytes = 0;
    for (const auto& tensor : weights.tensors()) bytes += tensor.shape.rank == 2 ? tensor.bytes.size() : 0;
    return bytes;
}

/// Sequences with pasts of different lengths.
template <class B>
struct Crowd {
    explicit Crowd(const Model<B>& model)
        : context(model, {.rows = 64, .sequences = many, .logits = many}), cache(context, {.tokens = 1024}) {
        decant_test::Random random{9};
        for (std::size_t s = 0; s < many; ++s) {
            sequences.push_back(taken(cache.sequence()));
            REQUIRE(context.prefill(sequences.back(), decant_test::random_tokens(random, 1 + s, 24)));
        }
    }
    /// One token of each of the first `count` sequences, or several of each.
    void pass(std::size_t count, std::size_t tokens = 1) {
        const std::vector<Token> next(tokens, Token{3});
        std::vector<PassPart<B>> parts;
        for (std::size_t s = 0; s < count; ++s) parts.push_back({&sequences[s], next, Want::last});
        REQUIRE(taken(context.pass(parts)).rows() == count);
    }
    Context<B> context;
    KvCache<B> cache;
    std::vector<Sequence<B>> sequences;
};

}  // namespace

TEMPLATE_TEST_CASE("counting: sixteen sequences execute what one executes", "[model][counting]", decant::Eigen,
                   decant::Simd DECANT_TEST_OPAQUE) {
    const auto weights = file();
    const auto model = decant_test::bind<Counting<TestType>>(weights);
    Crowd crowd(model);
    const auto& runs = model.backend().runs();
    REQUIRE(runs.size() == many);  // the prompts
    crowd.pass(1);
    crowd.pass(many);
    crowd.pass(many, 4);
    REQUIRE(runs.size() == many + 3);
    CHECK(model.backend().recordings() == 1);

    const Work one = runs[many];
    const Work all = runs[many + 1];
    CHECK(one.operations.at("linear") == 4 * layers + 1);
    CHECK(one.operations.at("attend") == layers);
    CHECK(one.products.size() == 7 * layers + 1);
    for (const auto& [weight, count] : one.products) CHECK(count == 1);
    CHECK(all == one);
    CHECK(runs[many + 2] == one);

    CHECK(one.weight_bytes == matrix_bytes(weights));

    // The same sixteen tokens one by one: sixteen times the bytes.
    Work singly;
    for (std::size_t s = 0; s < many; ++s) {
        REQUIRE(crowd.context.decode(crowd.sequences[s], Token{4}));
        singly += runs.back();
    }
    CHECK(singly.weight_bytes == many * all.weight_bytes);
    CHECK(singly.operations.at("linear") == many * all.operations.at("linear"));
}

TEMPLATE_TEST_CASE("counting: tiles read every weight row once, whatever the number of rows", "[model][counting]",
                   decant::EigenKernels, PortableKernels) {
    const auto weights = file();
    const auto model = decant_test::bind<decant::HostBackend<CountingKernels<TestType>>>(weights);
    Crowd crowd(model);
    auto read = [&, before = model.backend().kernels().weight_bytes()]() mutable {
        const std::uint64_t now = model.backend().kernels().weight_bytes();
        return now - std::exchange(before, now);
    };
    for (const std::size_t count : {std::size_t{1}, many}) {
        crowd.pass(count);
        CHECK(read() == matrix_bytes(weights));
        crowd.pass(count, 4);
        CHECK(read() == matrix_bytes(weights));
    }
}

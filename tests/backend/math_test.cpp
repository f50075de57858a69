// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The functions of math.inl on every set, through the rows that use them, against the system's in double precision over
// floats of all sizes.
#include <decant/backend/simd/lanes.hpp>

#include "backend/sets.hpp"
#include "support/catch.hpp"
#include "support/numbers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using decant::Activation;

namespace {

using decant_test::infinity;
constexpr float no_number = std::numeric_limits<float>::quiet_NaN();

/// Every `stride`-th float of both signs from the least to `largest`, and an even grid of those near zero.
std::vector<float> sweep(float largest, std::uint32_t stride = 4001) {
    std::vector<float> x{0.0f, -0.0f, largest, -largest};
    for (std::uint32_t bits = 1; bits < std::bit_cast<std::uint32_t>(largest); bits += stride) {
        x.push_back(std::bit_cast<float>(bits));
        x.push_back(-std::bit_cast<float>(bits));
    }
    for (int i = -200000; i <= 200000; ++i) x.push_back(static_cast<float>(i) * 5.1e-5f);
    return x;
}

/// The distance in units in the last place of `expected` as a float, where `least` is the smallest size that counts.
double units(float got, double expected, double least = 0x1p-126) {
    const int exponent = std::ilogb((std::max)(std::abs(expected), least));
    return std::abs(got - expected) / std::ldexp(1.0, exponent - 23);
}

template <class Set>
std::vector<float> activated(Activation which, const std::vector<float>& x) {
    std::vector<float> y(x.size());
    Set::gate({which}, x.data(), nullptr, y.data(), x.size());
    return y;
}

/// e^x of one number.
template <class Set>
float power(float x) {
    return static_cast<float>(Set::exp_sum(&x, 1, 0.0f));
}

}  // namespace

TEMPLATE_TEST_CASE("math: exp is within 2 units", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    double worst = 0.0;
    std::size_t wrong = 0;
    for (const float x : sweep(1e30f)) {
        const float got = power<TestType>(x);
        const double expected = std::exp(double{x});
        if (x > 88.73f) {
            wrong += got != infinity;
        } else if (x < -87.0f) {
            wrong += !(got >= 0.0f && got <= 2e-38f);
        } else {
            worst = (std::max)(worst, units(got, expected));
        }
    }
    CHECK(worst <= 2.0);
    CHECK(wrong == 0);
    CHECK(power<TestType>(0.0f) == 1.0f);
    CHECK(power<TestType>(-infinity) == 0.0f);
    CHECK(power<TestType>(infinity) == infinity);
    CHECK(power<TestType>(88.72f) < infinity);
    CHECK(std::isnan(power<TestType>(no_number)));
}

TEMPLATE_TEST_CASE("math: tanh is within 4 units", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    const std::vector<float> x = sweep(1e30f);
    std::vector<float> y(x.size());
    TestType::soft_cap(x.data(), 1.0f, y.data(), x.size());
    double worst = 0.0;
    std::size_t beyond = 0, turned = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        worst = (std::max)(worst, units(y[i], std::tanh(double{x[i]})));
        beyond += std::abs(y[i]) > 1.0f;
        turned += std::signbit(y[i]) != std::signbit(x[i]);
    }
    CHECK(worst <= 4.0);
    CHECK(beyond == 0);
    CHECK(turned == 0);
    const float odd[] = {infinity, -infinity, no_number};
    float got[3];
    TestType::soft_cap(odd, 1.0f, got, 3);
    CHECK(got[0] == 1.0f);
    CHECK(got[1] == -1.0f);
    CHECK(std::isnan(got[2]));
}

TEMPLATE_TEST_CASE("math: silu", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    const std::vector<float> x = sweep(1e30f);
    const std::vector<float> y = activated<TestType>(Activation::silu, x);
    double worst = 0.0;
    // Results below 1e-36, where exp(-x) is infinite, may be 0.
    for (std::size_t i = 0; i < x.size(); ++i)
        worst = (std::max)(
            worst, units(y[i], x[i] / (1.0 + std::exp(-double{x[i]})), std::abs(x[i]) > 1.0f ? 1e-30 : 0x1p-126));
    CHECK(worst <= 4.0);
    const std::vector<float> odd = activated<TestType>(Activation::silu, {infinity, no_number, -1000.0f});
    CHECK(odd[0] == infinity);
    CHECK(std::isnan(odd[1]));
    CHECK(odd[2] == 0.0f);
}

TEMPLATE_TEST_CASE("math: gelu by tanh", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    const std::vector<float> x = sweep(1e30f);
    const std::vector<float> y = activated<TestType>(Activation::gelu_tanh, x);
    double worst = 0.0, worst_tail = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double v = x[i], inner = std::sqrt(2.0 / 3.14159265358979323846) * (v + 0.044715 * v * v * v);
        // 1 + tanh(a) = 2 / (1 + exp(-2a)), which loses no digits.
        const double expected = v / (1.0 + std::exp(-2.0 * inner));
        if (v > -3.0)
            worst = (std::max)(worst, units(y[i], expected));
        else
            worst_tail = (std::max)(worst_tail, std::abs(y[i] - expected));
    }
    CHECK(worst <= 16.0);  // the argument of exp is rounded, and up to 10
    CHECK(worst_tail <= 1e-8);
    const std::vector<float> odd = activated<TestType>(Activation::gelu_tanh, {infinity, no_number, -1000.0f, -1e30f});
    CHECK(odd[0] == infinity);
    CHECK(std::isnan(odd[1]));
    CHECK(odd[2] == 0.0f);
    CHECK(odd[3] == 0.0f);
}

TEMPLATE_TEST_CASE("math: gelu", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    const std::vector<float> x = sweep(1e30f);
    const std::vector<float> y = activated<TestType>(Activation::gelu, x);
    double worst = 0.0, worst_negative = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = 0.5 * x[i] * std::erfc(-x[i] / std::sqrt(2.0));
        if (x[i] > -1.0f)
            worst = (std::max)(worst, units(y[i], expected));
        else
            worst_negative = (std::max)(worst_negative, std::abs(y[i] - expected));
    }
    CHECK(worst <= 4.0);
    CHECK(worst_negative <= 5e-8);
    const std::vector<float> odd =
        activated<TestType>(Activation::gelu, {infinity, no_number, -infinity, -1000.0f, -1e30f});
    CHECK(odd[0] == infinity);
    CHECK(std::isnan(odd[1]));
    for (std::size_t i = 2; i < odd.size(); ++i) CHECK(std::abs(odd[i]) < 1e-8f);
}

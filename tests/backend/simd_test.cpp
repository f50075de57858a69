// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The kernels of the instruction sets, where their contracts ask for equal bits.
#include <decant/backend/simd/simd.hpp>

#include "backend/support.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

using decant::simd::activation_block;
using decant_test::QuantizedRow;
using decant_test::Random;

#if DECANT_X86
#define DECANT_TEST_SETS decant::simd::Portable, decant::simd::Avx2, decant::simd::Avx512Vnni
#else
#define DECANT_TEST_SETS decant::simd::Portable
#endif

namespace {

/// Rows of many sizes, with blocks of zeros, subnormal numbers, ties, and what is not finite.
std::vector<float> hard_blocks(Random& random, std::size_t blocks) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    std::vector<float> x;
    for (std::size_t b = 0; b < blocks; ++b) {
        std::vector<float> block = random.floats(activation_block, std::pow(10.0f, random.uniform(-40.0f, 38.0f)));
        const std::size_t one = random.between(0, activation_block - 1);
        switch (b % 12) {
            case 0: std::fill(block.begin(), block.end(), 0.0f); break;
            case 1: std::fill(block.begin(), block.end(), -0.0f); break;
            case 2: block = random.floats(activation_block, 1e-39f); break;
            case 3: block = random.floats(activation_block, 3e-35f); break;
            case 4: block[one] = std::numeric_limits<float>::quiet_NaN(); break;
            case 5: block[one] = random.coin() ? infinity : -infinity; break;
            case 6:  // ties
                for (float& value : block) value = static_cast<float>(random.between(0, 252)) - 126.5f;
                block[one] = -127.0f;
                break;
            case 7:
                for (float& value : block) value = random.coin() ? 1.0f : -1.0f;
                if (random.coin()) std::fill(block.begin(), block.end(), block[0]);
                break;
            case 8:
                std::fill(block.begin(), block.end(), 0.0f);
                block[one] = (std::numeric_limits<float>::max)();
                break;
            case 9:
                std::fill(block.begin(), block.end(), std::numeric_limits<float>::denorm_min());
                block[one] = -1.0f;
                break;
            default: break;
        }
        x.insert(x.end(), block.begin(), block.end());
    }
    return x;
}

}  // namespace

TEMPLATE_TEST_CASE("simd: quantized activations are within half a step, and equal in every set", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(31);
    const std::size_t blocks = 600;
    const std::vector<float> x = hard_blocks(random, blocks);
    QuantizedRow row(x.size());
    TestType::quantize(x.data(), x.size(), row.view());
    std::size_t far = 0, wrong_sums = 0, beyond = 0, unseen = 0, wasted = 0;
    for (std::size_t b = 0; b < blocks; ++b) {
        float peak = 0.0f;
        bool finite = true;
        for (std::size_t i = b * activation_block; i < (b + 1) * activation_block; ++i) {
            finite = finite && std::isfinite(x[i]);
            peak = (std::max)(peak, std::abs(x[i]));
        }
        unseen += !finite && !std::isnan(row.scales[b]);
        int most = 0;
        for (std::size_t half = 0; half < 2; ++half) {
            std::int32_t sum = 0;
            for (std::size_t i = 0; i < activation_block / 2; ++i) {
                const std::size_t at = b * activation_block + half * activation_block / 2 + i;
                const int code = row.codes[at];
                sum += code;
                most = (std::max)(most, std::abs(code));
                const double step = row.scales[b];
                // What is smaller than the smallest usable magnitude counts as zero.
                far += finite && std::abs(x[at] - step * code) > 0.50001 * step + 1e-35;
            }
            wrong_sums += sum != row.sums[2 * b + half];
        }
        beyond += most > 127;
        wasted += finite && peak >= decant::simd::smallest_magnitude && most != 127;
    }
    CHECK(far == 0);
    CHECK(wrong_sums == 0);
    CHECK(beyond == 0);
    CHECK(unseen == 0);
    CHECK(wasted == 0);

    QuantizedRow portable(x.size());
    decant::simd::Portable::quantize(x.data(), x.size(), portable.view());
    CHECK(row.codes == portable.codes);
    CHECK(row.sums == portable.sums);
    std::size_t different = 0;
    for (std::size_t b = 0; b < blocks; ++b)
        different += std::memcmp(&row.scales[b], &portable.scales[b], sizeof(float)) != 0 &&
                     !(std::isnan(row.scales[b]) && std::isnan(portable.scales[b]));
    CHECK(different == 0);
}

TEMPLATE_TEST_CASE("simd: ties go to even codes", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    std::vector<float> x(std::size_t{8} * activation_block, 127.0f);
    for (std::size_t i = 0; i < x.size(); ++i)
        if (i % activation_block != 0) x[i] = static_cast<float>(i % 254) - 126.5f;
    QuantizedRow row(x.size());
    TestType::quantize(x.data(), x.size(), row.view());
    std::size_t odd = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
        odd += i % activation_block != 0 && (row.codes[i] % 2 != 0 || std::abs(row.codes[i] - x[i]) != 0.5f);
    CHECK(odd == 0);
}

TEMPLATE_TEST_CASE("simd: halves convert as IEEE 754 says, at any alignment and length", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    std::vector<std::byte> halves(1 + 2 * 65536);
    for (std::uint32_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        std::memcpy(&halves[1 + 2 * i], &bits, sizeof bits);
    }
    std::vector<float> floats(65536);
    TestType::from_half(halves.data() + 1, floats.data(), floats.size());
    std::size_t wrong = 0;
    for (std::uint32_t i = 0; i < 65536; ++i) {
        const float expected = decant::half_to_float(static_cast<std::uint16_t>(i));
        wrong +=
            std::isnan(expected) ? !std::isnan(floats[i]) : std::memcmp(&floats[i], &expected, sizeof expected) != 0;
    }
    CHECK(wrong == 0);

    Random random(32);
    for (std::size_t n = 0; n < 70; ++n) {
        std::vector<float> from(n);
        for (float& value : from) {
            const std::uint32_t bits = random.bits();  // any float at all
            std::memcpy(&value, &bits, sizeof value);
            if (random.coin()) value = random.uniform(-1.0f, 1.0f) * std::pow(2.0f, random.uniform(-26.0f, 17.0f));
        }
        std::vector<std::byte> to(1 + 2 * n + 2, std::byte{0xEE});
        TestType::to_half(from.data(), to.data() + 1, n);
        std::size_t different = 0;
        for (std::size_t i = 0; i < n; ++i) {
            std::uint16_t bits;
            std::memcpy(&bits, &to[1 + 2 * i], sizeof bits);
            different += bits != decant::float_to_half(from[i]);
        }
        CHECK(different == 0);
        CHECK(to.back() == std::byte{0xEE});
    }
}

TEMPLATE_TEST_CASE("simd: dot and axpy of every length", "", DECANT_TEST_SETS) {
    if (!decant::supported(TestType::isa)) return;
    Random random(33);
    for (std::size_t n = 0; n < 150; ++n) {
        const std::vector<float> a = random.floats(n);
        const std::vector<float> b = random.floats(n);
        std::vector<float> y = random.floats(n);
        const std::vector<float> before = y;
        double sum = 0.0, size = 0.0;
        for (std::size_t i = 0; i < n; ++i) {
            sum += double{a[i]} * b[i];
            size += std::abs(double{a[i]} * b[i]);
        }
        CHECK(std::abs(TestType::dot(a.data(), b.data(), n) - sum) <= 1e-6 * size);
        TestType::axpy(1.5f, a.data(), y.data(), n);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i) wrong += std::abs(y[i] - (before[i] + 1.5 * a[i])) > 2e-7;
        CHECK(wrong == 0);
    }
}

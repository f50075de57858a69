// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Products by tiles of BF16: with the tiles of the processor, where this machine has them, and everywhere with tiles
// that are arrays and that fault where the processor would.
#include <decant/backend/simd/amx.hpp>
#include <decant/backend/simd/simd.hpp>

#include "backend/matrices.hpp"
#include "backend/sets.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <vector>

using decant::DType;
using decant::simd::PairBlock;
using decant::simd::tile_rows;
using decant::simd::TileShapes;
using decant_test::Matrix;
using decant_test::Random;

namespace {

/// AMX in plain C++ (Intel SDM, volume 2: LDTILECFG, TILELOADD, TDPBF16PS).
struct Emulator {
    TileShapes shapes;
    bool configured = false;
    std::uint8_t tiles[8][16][64] = {};
    std::size_t faults = 0, configurations = 0, products = 0;

    void require(bool condition) { faults += condition ? 0 : 1; }
    bool usable(std::size_t tile) const { return configured && shapes.rows[tile] > 0 && shapes.row_bytes[tile] > 0; }
};
Emulator emulator;

template <decant::Isa Of>
struct EmulatedTiles {
    static constexpr decant::Isa isa = Of;
    using Shapes = TileShapes;

    static void configure(const TileShapes& shapes) noexcept {
        emulator.require(!emulator.configured);
        emulator.require(shapes.palette == 1 && shapes.start_row == 0);
        for (const std::uint8_t byte : shapes.reserved) emulator.require(byte == 0);
        for (std::size_t tile = 0; tile < 16; ++tile) {
            const std::size_t rows = shapes.rows[tile], bytes = shapes.row_bytes[tile];
            emulator.require(rows <= 16 && bytes <= 64 && (rows == 0) == (bytes == 0) && (tile < 8 || rows == 0));
        }
        emulator.shapes = shapes;
        emulator.configured = true;
        std::memset(emulator.tiles, 0xA5, sizeof emulator.tiles);
        ++emulator.configurations;
    }
    static void release() noexcept {
        emulator.require(emulator.configured);
        emulator.configured = false;
    }
    template <int Tile>
    static void zero() noexcept {
        emulator.require(emulator.usable(Tile));
        std::memset(emulator.tiles[Tile], 0, sizeof emulator.tiles[Tile]);
    }
    template <int Tile>
    static void load(const void* from, std::ptrdiff_t stride) noexcept {
        emulator.require(emulator.usable(Tile));
        std::memset(emulator.tiles[Tile], 0, sizeof emulator.tiles[Tile]);
        const auto* const bytes = static_cast<const std::byte*>(from);
        for (std::ptrdiff_t row = 0; row < emulator.shapes.rows[Tile]; ++row)
            std::memcpy(emulator.tiles[Tile][row], bytes + row * stride, emulator.shapes.row_bytes[Tile]);
    }
    template <int Tile>
    static void store(void* to, std::ptrdiff_t stride) noexcept {
        emulator.require(emulator.usable(Tile));
        auto* const bytes = static_cast<std::byte*>(to);
        for (std::ptrdiff_t row = 0; row < emulator.shapes.rows[Tile]; ++row)
            std::memcpy(bytes + row * stride, emulator.tiles[Tile][row], emulator.shapes.row_bytes[Tile]);
    }
    template <int Sum, int A, int B>
    static void add_products() noexcept {
        static_assert(Sum != A && Sum != B && A != B);
        const TileShapes& s = emulator.shapes;
        emulator.require(emulator.usable(Sum) && emulator.usable(A) && emulator.usable(B));
        emulator.require(s.rows[Sum] == s.rows[A] && s.row_bytes[Sum] == s.row_bytes[B]);
        emulator.require(s.row_bytes[A] == 4 * s.rows[B] && s.row_bytes[B] % 4 == 0);
        for (std::size_t m = 0; m < s.rows[A]; ++m) {
            for (std::size_t n = 0; n < s.row_bytes[B] / 4; ++n) {
                float sums[2] = {0.0f, 0.0f};
                for (std::size_t k = 0; k < s.rows[B]; ++k)
                    for (std::size_t i = 0; i < 2; ++i)
                        sums[i] += number(A, m, 2 * k + i) * number(B, k, 2 * n + i);  // the product is exact
                float sum = 0.0f;
                std::memcpy(&sum, &emulator.tiles[Sum][m][4 * n], sizeof sum);
                sum += sums[0] + sums[1];
                std::memcpy(&emulator.tiles[Sum][m][4 * n], &sum, sizeof sum);
            }
        }
        ++emulator.products;
    }

 private:
    static float number(int tile, std::size_t row, std::size_t i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, &emulator.tiles[tile][row][2 * i], sizeof bits);
        return std::bit_cast<float>(std::uint32_t{bits} << 16);
    }
};

template <class Base>
using Emulated = decant::simd::Tiled<Base, EmulatedTiles<Base::isa>>;

constexpr float untouched = 12345.0f;

/// [tokens][Set::most_rows(tokens)], and then rows that may be overwritten.
template <class Set>
std::vector<float> products(const Matrix& w, std::size_t first, std::size_t count,
                            const std::vector<const PairBlock*>& x) {
    std::vector<float> sums((x.size() + decant::simd::spare_rows) * Set::most_rows(x.size()), untouched);
    std::vector<std::byte> memory(decant::simd::product_bytes + 64);
    std::byte* scratch = memory.data();
    while (reinterpret_cast<std::uintptr_t>(scratch) % 64 != 0) ++scratch;
    const std::size_t row_bytes = decant::row_bytes(w.dtype, w.columns);
    decant::visit_format(w.dtype, [&]<class Format>(Format) {
        if constexpr (decant::CodeFormat<Format>)
            Set::template multiply<Format>({w.data() + first * row_bytes, row_bytes, count, w.columns}, x.data(),
                                           x.size(), sums.data(), scratch);
    });
    return sums;
}

/// Rows of activations with a distance between them.
struct Activations {
    std::size_t columns, stride;
    std::vector<float> values;  // [tokens][columns]
    std::vector<PairBlock> blocks;

    Activations(Random& random, std::size_t tokens, std::size_t width)
        : columns(width), stride(width / decant::simd::activation_block + 1), blocks(tokens * stride) {
        for (std::size_t t = 0; t < tokens; ++t) {
            const std::vector<float> x = random.floats(columns, random.pick({0.01f, 1.0f, 100.0f}));
            values.insert(values.end(), x.begin(), x.end());
            decant::simd::Portable::pair(x.data(), columns, &blocks[t * stride]);
        }
    }
    std::vector<const PairBlock*> rows(std::size_t tokens) const {
        std::vector<const PairBlock*> rows(tokens);
        for (std::size_t t = 0; t < tokens; ++t) rows[t] = &blocks[t * stride];
        return rows;
    }
};

/// Results are near the sums of exact products, where each factor is off by half a unit of BF16 at most, at random.
template <class Set>
void check_values(Random& random, DType dtype, std::size_t columns) {
    constexpr std::size_t tokens = 19;
    const Matrix w = decant_test::random_matrix(random, dtype, tile_rows, columns);
    const std::vector<float> weights = w.values();
    const Activations x(random, tokens, columns);
    const std::vector<float> got = products<Set>(w, 0, tile_rows, x.rows(tokens));
    double worst = 0.0;
    for (std::size_t t = 0; t < tokens; ++t) {
        for (std::size_t r = 0; r < tile_rows; ++r) {
            double sum = 0.0, squares = 0.0;
            for (std::size_t c = 0; c < columns; ++c) {
                const double product = double{weights[r * columns + c]} * x.values[t * columns + c];
                sum += product;
                squares += product * product;
            }
            const double deviation = std::sqrt(squares * 2.0 / 3.0) * 0x1p-8;
            worst = (std::max)(worst, std::abs(got[t * Set::most_rows(tokens) + r] - sum) / deviation);
        }
    }
    CAPTURE(decant::name(dtype), columns);
    CHECK(worst < 5.0);
    CHECK(worst > 0.5);  // rounded they are
}

/// A tile of `count` rows of a random weight, whose activations lie in order, backwards, or anywhere: a token's results
/// are those that it has alone, or in the company of Other.
template <class Set, class Other>
void check_sameness(Random& random, DType dtype, std::size_t columns, std::size_t count) {
    Matrix w = decant_test::random_matrix(random, dtype, count + 3, columns);
    constexpr std::size_t most = 70;
    const Activations x(random, most, columns);
    std::vector<float> alone;  // [most][count]
    for (std::size_t t = 0; t < most; ++t) {
        const std::vector<float> one = products<Other>(w, 1, count, {x.rows(most)[t]});
        alone.insert(alone.end(), one.begin(), one.begin() + static_cast<std::ptrdiff_t>(count));
    }
    for (const std::size_t tokens : std::initializer_list<std::size_t>{2, 8, 15, 16, 17, 31, 32, 33, 49, 64, 70}) {
        for (int order = 0; order < 3; ++order) {
            std::vector<const PairBlock*> rows = x.rows(tokens);
            if (order == 1) std::reverse(rows.begin(), rows.end());
            if (order == 2) random.shuffle(rows);
            const std::vector<float> got = products<Set>(w, 1, count, rows);
            std::size_t wrong = 0;
            for (std::size_t t = 0; t < tokens; ++t) {
                const auto token = static_cast<std::size_t>(rows[t] - x.blocks.data()) / x.stride;
                const std::span<const float> here(&got[t * Set::most_rows(tokens)], count);
                wrong += decant_test::same_bits(here, {&alone[token * count], count}) ? 0 : 1;
            }
            CAPTURE(decant::name(dtype), columns, count, tokens, order);
            CHECK(wrong == 0);
        }
    }
}

template <class Set, class Other>
void check_all() {
    if (!decant::supported(Set::isa)) return;
    Random random(7);
    for (const DType dtype : decant_test::all_dtypes) {
        if (!decant_test::is_block_format(dtype)) continue;
        const std::size_t block = decant::traits(dtype).block_elements;
        for (const std::size_t columns : {block, 512 + block, 1024 + 512 / block / 3 * block}) {
            check_values<Set>(random, dtype, columns);
            check_sameness<Set, Other>(random, dtype, columns, random.pick<std::size_t>({1, 15, 16, 17, 31}));
        }
        check_sameness<Set, Other>(random, dtype, 768, tile_rows);
    }
}

}  // namespace

#if DECANT_X86
#define DECANT_TEST_BASES decant::simd::Portable, decant::simd::Avx512Vnni
#else
#define DECANT_TEST_BASES decant::simd::Portable
#endif

TEMPLATE_TEST_CASE("amx: products by emulated tiles are right, and the same in any company", "", DECANT_TEST_BASES) {
    emulator = {};
    check_all<Emulated<TestType>, Emulated<TestType>>();
    CHECK((emulator.products > 0 || !decant::supported(TestType::isa)));
    CHECK(emulator.faults == 0);
    CHECK(!emulator.configured);
}

TEST_CASE("amx: activations and weights are rounded to nearest") {
    float x[32] = {};
    x[0] = 1.0f + 0x1p-8f;    // in the middle
    x[1] = -1.0f - 0x1p-8f;   // in the middle
    x[2] = 1.0f + 0x1.8p-9f;  // nearer to 1
    x[16] = 3.0e38f;
    PairBlock block;
    decant::simd::Portable::pair(x, 32, &block);
    CHECK((block.pairs[0] & 0xFFFFu) == 0x3F81);
    CHECK((block.pairs[1] & 0xFFFFu) == 0xBF81);
    CHECK((block.pairs[2] & 0xFFFFu) == 0x3F80);
    CHECK(block.pairs[0] >> 16 == decant::float_to_bfloat16(x[16]));
}

TEST_CASE("amx: the tiles are shaped once a product, and once more for tokens that are left") {
    Random random(8);
    const Matrix w = decant_test::random_matrix(random, DType::q4_0, tile_rows, 1024);
    const Activations x(random, 75, 1024);
    emulator = {};
    products<Emulated<decant::simd::Portable>>(w, 0, tile_rows, x.rows(64));
    CHECK(emulator.configurations == 1);
    CHECK(emulator.products == 4 * 2 * 1024 / 32);  // four groups of tokens and two panels, block by block
    emulator = {};
    products<Emulated<decant::simd::Portable>>(w, 0, tile_rows, x.rows(75));
    CHECK(emulator.shapes.rows[4] == 11);
    CHECK(emulator.products == 5 * 2 * 1024 / 32);
#if DECANT_X86
    if (!decant::supported(decant::Isa::avx512_vnni)) return;
    emulator = {};
    products<Emulated<decant::simd::Avx512Vnni>>(w, 0, tile_rows, x.rows(16));
    CHECK(emulator.configurations == 1);
    CHECK(emulator.products == 2 * 1024 / 32);
#endif
}

TEST_CASE("amx: nothing is written beyond the tokens") {
    Random random(9);
    const Matrix w = decant_test::random_matrix(random, DType::q4_k, tile_rows, 512);
    const Activations x(random, 35, 512);
    const std::vector<float> sums = products<Emulated<decant::simd::Portable>>(w, 0, tile_rows, x.rows(35));
    for (std::size_t i = 35 * tile_rows; i < sums.size(); ++i) CHECK(sums[i] == untouched);
}

#if DECANT_AMX
TEST_CASE("amx: is there where the machine has it and the host has allowed it, and used if asked for") {
    std::ifstream in("/proc/cpuinfo");
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const bool has = text.find(" amx_tile") != std::string::npos && text.find(" amx_bf16") != std::string::npos;
    const decant::Result<void> allowed = decant::allow_amx();
    CHECK((has || !allowed));
    CHECK(decant::supported(decant::Isa::amx) == allowed.has_value());
    if (!allowed) CHECK(allowed.error().code == decant::ErrorCode::unsupported);
    CHECK(decant::allow_amx().has_value() == allowed.has_value());
    CHECK(decant::Simd{}.pass(1).kernels().isa() != decant::Isa::amx);
    if (allowed) CHECK(decant::Simd{decant::SimdKernels{decant::Isa::amx}}.pass(1).kernels().isa() == decant::Isa::amx);
}

TEST_CASE("amx: products by the processor's tiles are those by emulated tiles, bit for bit") {
    if (!decant::allow_amx()) return;
    emulator = {};
    check_all<decant::simd::Amx, Emulated<decant::simd::Avx512Vnni>>();
    CHECK(emulator.faults == 0);
}
#else
TEST_CASE("amx: is refused elsewhere") {
    CHECK(!decant::allow_amx());
    CHECK(!decant::supported(decant::Isa::amx));
}
#endif

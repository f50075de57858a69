// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/cache/pool.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

using decant::BlockPool;
using decant::CacheShape;
using decant::DType;
using decant::Error;
using decant::ErrorCode;
using decant::Result;

namespace {

/// As much of a backend as a pool needs, with a limit on memory.
struct Fake {
    using Buffer = std::vector<std::byte>;

    std::size_t limit = 1 << 20;
    std::shared_ptr<std::size_t> copies = std::make_shared<std::size_t>(0);

    [[nodiscard]] Result<Buffer> allocate(std::size_t bytes) const {
        if (bytes > limit) return Error{ErrorCode::out_of_memory, "the fake's limit", "Fake", ""};
        return Buffer(bytes);
    }
    void copy(Buffer& buffer, std::size_t from, std::size_t to, std::size_t bytes) const {
        std::memcpy(buffer.data() + to, buffer.data() + from, bytes);
        ++*copies;
    }
};

using Pool = BlockPool<Fake>;

// Two layers of different width: 2 * 3 * 8 + 2 * 1 * 4 = 56 numbers per token.
CacheShape shape(std::uint32_t block_tokens, DType dtype = DType::f16) {
    return {{{3, 8}, {1, 4}}, block_tokens, dtype};
}

ErrorCode refused(const CacheShape& wanted, std::size_t tokens, std::string_view part) {
    const auto pool = Pool::create({}, wanted, tokens);
    REQUIRE_FALSE(pool);
    INFO(pool.error().message());
    CHECK(pool.error().message().find(part) != std::string::npos);
    CHECK_FALSE(pool.error().hint.empty());
    return pool.error().code;
}

}  // namespace

TEST_CASE("a cache's layout in bytes", "[cache]") {
    const CacheShape half = shape(16);
    CHECK(half.row_bytes(0) == 48);
    CHECK(half.row_bytes(1) == 8);
    CHECK(half.layer_offset(0) == 0);
    CHECK(half.layer_offset(1) == 2 * 16 * 48);
    CHECK(half.block_bytes() == 2 * 16 * (48 + 8));
    CHECK(shape(16, DType::f32).block_bytes() == 2 * half.block_bytes());
    CHECK(shape(16, DType::bf16).block_bytes() == half.block_bytes());
}

TEST_CASE("a cache's layout in blocks of 32 numbers", "[cache]") {
    // 3 x 64 numbers are 6 blocks, of 34 or 18 bytes; a latent layer of 64 + 512 keeps 18 blocks once.
    CacheShape shape{{{3, 64}, {1, 576, 64}}, 16, DType::q8_0};
    CHECK(shape.head_bytes(0) == 2 * 34);
    CHECK(shape.row_bytes(0) == 6 * 34);
    CHECK(shape.row_bytes(1) == 18 * 34);
    CHECK(shape.block_bytes() == 16 * (2 * 6 + 18) * 34);
    CHECK(shape.rotation(0) == 0);
    shape.dtype = DType::q4_0;
    CHECK(shape.row_bytes(0) == 6 * 18);
    CHECK(shape.block_bytes() == 16 * (2 * 6 + 18) * 18);
    shape.layers.push_back({1, 96});
    shape.layers.push_back({1, 256});
    shape.layers.push_back({1, 320, 32});  // what is skipped must stay apart
    shape.layers.push_back({0, 0, 0, 8});  // a state alone
    for (const auto& [layer, rotation] :
         {std::pair<std::size_t, std::size_t>{0, 64}, {1, 64}, {2, 32}, {3, 256}, {4, 32}, {5, 0}})
        CHECK(shape.rotation(layer) == rotation);
    CHECK(Pool::blocks_for(shape, 100).value() == 7);
}

TEST_CASE("a pool has whole blocks for the tokens asked for", "[cache]") {
    for (const auto& [tokens, block, blocks] : {std::tuple<std::size_t, std::uint32_t, std::size_t>{1, 16, 1},
                                                {16, 16, 1},
                                                {17, 16, 2},
                                                {4096, 1, 4096},
                                                {100, 3, 34},
                                                {5, 64, 1}}) {
        const auto pool = Pool::create({}, shape(block), tokens).value();
        CHECK(pool.blocks() == blocks);
        CHECK(pool.free_blocks() == blocks);
        CHECK(pool.bytes() == blocks * pool.shape().block_bytes());
    }
}

TEST_CASE("impossible pools are refused", "[cache]") {
    constexpr auto most = static_cast<std::size_t>((std::numeric_limits<std::int32_t>::max)());
    CHECK(refused(shape(16, DType::q4_1), 64, "Q4_1") == ErrorCode::invalid_argument);
    CHECK(refused(shape(16, DType::other), 64, "other") == ErrorCode::invalid_argument);
    for (const DType dtype : {DType::q8_0, DType::q4_0}) {
        CHECK(refused(shape(16, dtype), 64, "heads of 8 numbers, which is no multiple of 32") ==
              ErrorCode::unsupported);
        CHECK(refused({{{1, 64}, {2, 48}}, 16, dtype}, 64, "heads of 48 numbers") == ErrorCode::unsupported);
        CHECK(refused({{{1, 64, 16}}, 16, dtype}, 64, "16") == ErrorCode::unsupported);
        CHECK(Pool::create({}, {{{1, 64}, {2, 96}}, 16, dtype}, 64));
    }
    CHECK(Pool::create({}, shape(16, DType::bf16), 64));
    CHECK(refused(shape(0), 64, "blocks of 0") == ErrorCode::invalid_argument);
    CHECK(refused(shape(16), 0, "0 tokens") == ErrorCode::invalid_argument);
    CHECK(refused(shape(16), most, "2147483647 tokens") == ErrorCode::invalid_argument);
    CHECK(refused(shape(1), (std::numeric_limits<std::size_t>::max)(), "18446744073709551615 tokens") ==
          ErrorCode::invalid_argument);
    CHECK(refused(shape((std::numeric_limits<std::uint32_t>::max)()), 1, "4294967295") == ErrorCode::invalid_argument);
}

TEST_CASE("memory that is not there is an error", "[cache]") {
    const auto pool = Pool::create({.limit = 1000}, shape(16), 64);
    REQUIRE_FALSE(pool);
    CHECK(pool.error().code == ErrorCode::out_of_memory);
    // A block of more bytes than fit into the address space, and a product that would wrap.
    CacheShape huge{{{1u << 24, 1u << 24}}, 1u << 14, DType::f32};
    const auto wrapped = Pool::create({}, huge, std::size_t{1} << 30);
    REQUIRE_FALSE(wrapped);
    CHECK(wrapped.error().code == ErrorCode::out_of_memory);
    huge.dtype = DType::q4_0;
    const auto smaller = Pool::create({}, huge, std::size_t{1} << 30);
    REQUIRE_FALSE(smaller);
    CHECK(smaller.error().code == ErrorCode::out_of_memory);
}

TEST_CASE("every block is given once, and comes back with its last reference", "[cache]") {
    auto pool = Pool::create({}, shape(4), 20).value();
    std::set<std::int32_t> taken;
    while (pool.free_blocks() > 0) taken.insert(pool.take());
    CHECK(taken == std::set<std::int32_t>{0, 1, 2, 3, 4});
    CHECK_FALSE(pool.shared(2));
    pool.share(2);
    pool.share(2);
    CHECK(pool.shared(2));
    pool.release(2);
    CHECK(pool.shared(2));
    pool.release(2);
    CHECK_FALSE(pool.shared(2));
    CHECK(pool.free_blocks() == 0);
    pool.release(2);
    CHECK(pool.free_blocks() == 1);
    CHECK(pool.take() == 2);
}

TEST_CASE("a copied block has the bytes and a reference of its own", "[cache]") {
    const Fake fake;
    auto pool = Pool::create(fake, shape(4), 12).value();
    const std::size_t bytes = pool.shape().block_bytes();
    const std::int32_t first = pool.take();
    const auto at = [&](std::int32_t block) { return pool.buffer().data() + static_cast<std::size_t>(block) * bytes; };
    for (std::size_t i = 0; i < bytes; ++i) at(first)[i] = static_cast<std::byte>(i * 7);
    pool.share(first);
    const std::int32_t second = pool.copy(first);
    CHECK(second != first);
    CHECK(*fake.copies == 1);
    CHECK(std::memcmp(at(first), at(second), bytes) == 0);
    CHECK(pool.shared(first));
    CHECK_FALSE(pool.shared(first, 1));
    CHECK_FALSE(pool.shared(second));
    CHECK(pool.free_blocks() == 1);
    pool.release(first);
    CHECK_FALSE(pool.shared(first));
}

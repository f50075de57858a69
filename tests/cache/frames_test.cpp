// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// A cache that was handed over goes on bit for bit; whatever is no frame of it is refused and changes nothing.
#include <decant/cache/frames.hpp>

#include <decant/backend/eigen/eigen.hpp>
#include <decant/backend/simd/simd.hpp>
#include <decant/core/hash.hpp>
#include <decant/core/thread_pool.hpp>

#include "model/support.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include "backend/opaque.hpp"

#include <csignal>
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using decant::CacheOptions;
using decant::Context;
using decant::DType;
using decant::ErrorCode;
using decant::export_frame;
using decant::import_frame;
using decant::KvCache;
using decant::Sequence;
using decant::Simd;
using decant::Token;
using decant_test::Floats;
using decant_test::Random;
using decant_test::taken;
using decant_test::Tokens;

namespace {

using Bytes = std::vector<std::byte>;

/// A model opened for itself, as another process would, with a cache.
template <class B = Simd>
struct End {
    decant::Model<B> model;
    Context<B> context;
    KvCache<B> cache;
    Sequence<B> sequence = taken(cache.sequence());

    End(const decant::Weights& weights, CacheOptions options, std::size_t threads = 1, std::uint32_t rows = 16)
        : model(decant_test::bind<B>(weights)),
          context(model, decant::ThreadPool(threads), {.rows = rows, .sequences = 4, .logits = 4}),
          cache(context, options) {}
    explicit End(const std::string& name, CacheOptions options = {.tokens = 128, .block_tokens = 4})
        : End(decant_test::tiny(name), options) {}

    Floats decode(Token token) { return decant_test::row(taken(context.decode(sequence, token))); }
};

/// Computes `tokens` in parts of random size and exports each part.
template <class B>
std::vector<Bytes> send(End<B>& from, const Tokens& tokens, Random& random) {
    std::vector<Bytes> frames;
    for (std::size_t at = 0; at < tokens.size();) {
        const std::size_t part = (std::min)(1 + random.below(13), tokens.size() - at);
        taken(from.context.prefill(from.sequence, std::span(tokens).subspan(at, part)));
        frames.push_back(taken(export_frame(from.model, from.sequence, at)));
        at += part;
    }
    return frames;
}

template <class A, class B>
void go_on_the_same(End<A>& one, End<B>& other, std::uint64_t seed) {
    REQUIRE(std::ranges::equal(one.sequence.tokens(), other.sequence.tokens()));
    Random random{seed};
    for (const Token token : decant_test::random_tokens(random, 12)) {
        if (!decant_test::same_bits(one.decode(token), other.decode(token)))
            FAIL("after " << one.sequence.size() << " tokens");
    }
}

/// The right checksum for changed bytes.
void sign(Bytes& bytes) {
    decant::Hash64 hash;
    hash.add(std::span<const std::byte>(bytes).first(bytes.size() - 8));
    for (std::size_t i = 0; i < 8; ++i) bytes[bytes.size() - 8 + i] = static_cast<std::byte>(hash.value() >> 8 * i);
}

/// Refused with that code, and everything as it was.
template <class B>
void refused(End<B>& end, std::span<const std::byte> bytes, ErrorCode code, std::string_view what = {}) {
    const Tokens before(end.sequence.tokens().begin(), end.sequence.tokens().end());
    const std::size_t free = end.cache.free_blocks();
    const auto done = import_frame(end.model, end.sequence, bytes);
    REQUIRE_FALSE(done);
    INFO(done.error().message());
    CHECK(done.error().code == code);
    CHECK(decant_test::contains(done.error().message(), what));
    CHECK(std::ranges::equal(end.sequence.tokens(), before));
    CHECK(end.cache.free_blocks() == free);
}

constexpr const char* kinds[] = {"llama3", "gemma3_std", "mamba2", "deepseek_v3"};

}  // namespace

TEST_CASE("a cache that was handed over goes on bit for bit", "[cache][frames]") {
    Random random{1};
    for (const char* name : kinds) {
        for (const DType dtype : {DType::f32, DType::f16}) {
            for (const std::uint32_t block_tokens : {4u, 7u, 16u, 1u}) {
                INFO(name << ", " << decant::name(dtype) << ", blocks of " << block_tokens);
                const auto weights = decant_test::tiny(name);
                End sender(weights, {.tokens = 96, .block_tokens = 4, .dtype = dtype});
                End receiver(weights, {.tokens = 200, .block_tokens = block_tokens, .dtype = dtype}, 2, 5);
                decant_test::scatter_free_blocks(receiver.cache, random);
                const Tokens prompt = decant_test::random_tokens(random, 53);
                const auto frames = send(sender, prompt, random);
                for (const Bytes& frame : frames) REQUIRE(import_frame(receiver.model, receiver.sequence, frame));
                CHECK(taken(export_frame(receiver.model, receiver.sequence)) ==
                      taken(export_frame(sender.model, sender.sequence)));
                go_on_the_same(sender, receiver, 2);
            }
        }
    }
}

TEST_CASE("whatever the entries are, a cache goes on bit for bit, and is none of another type", "[cache][frames]") {
    Random random{12};
    const auto weights = decant_test::TinyFile(DType::q4_1, 64, 64, 2, 64).open();
    constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0};
    const Tokens prompt = decant_test::random_tokens(random, 53, 24);
    for (const DType dtype : dtypes) {
        INFO(decant::name(dtype));
        End sender(weights, {.tokens = 96, .block_tokens = 4, .dtype = dtype});
        End receiver(weights, {.tokens = 200, .block_tokens = 7, .dtype = dtype}, 2, 5);
        decant_test::scatter_free_blocks(receiver.cache, random);
        const auto frames = send(sender, prompt, random);
        for (const DType other : dtypes) {
            if (other == dtype) continue;
            End stranger(weights, {.tokens = 96, .block_tokens = 4, .dtype = other});
            refused(stranger, frames[0], ErrorCode::mismatch, "of another type");
        }
        for (const Bytes& frame : frames) REQUIRE(import_frame(receiver.model, receiver.sequence, frame));
        for (const Token token : decant_test::random_tokens(random, 12, 24))
            CHECK(decant_test::same_bits(sender.decode(token), receiver.decode(token)));
    }
}

TEST_CASE("a part of a cache is a frame, too", "[cache][frames]") {
    End sender("llama3"), receiver("llama3");
    Random random{3};
    taken(sender.context.prefill(sender.sequence, decant_test::random_tokens(random, 30)));
    for (std::size_t at = 0; at < 30;) {
        const std::size_t count = 1 + random.below(11);
        const Bytes frame = taken(export_frame(sender.model, sender.sequence, at, count));
        REQUIRE(import_frame(receiver.model, receiver.sequence, frame));
        at += (std::min)(count, 30 - at);
        CHECK(receiver.sequence.size() == at);
    }
    go_on_the_same(sender, receiver, 4);

    // Beginnings are enough: the rest is computed.
    End late("llama3");
    REQUIRE(import_frame(late.model, late.sequence, taken(export_frame(sender.model, sender.sequence, 0, 21))));
    const std::span<const Token> rest = sender.sequence.tokens().subspan(21);
    taken(late.context.prefill(late.sequence, rest));
    go_on_the_same(sender, late, 5);
}

TEST_CASE("values that remember what was erased are handed over as they are", "[cache][frames]") {
    End sender("llama3"), receiver("llama3");
    Random random{6};
    taken(sender.context.prefill(sender.sequence, decant_test::random_tokens(random, 30)));
    REQUIRE(sender.context.erase(sender.sequence, 3, 9));
    REQUIRE(import_frame(receiver.model, receiver.sequence, taken(export_frame(sender.model, sender.sequence))));
    go_on_the_same(sender, receiver, 7);
}

TEST_CASE("an import into a fork leaves its origin", "[cache][frames]") {
    for (const char* name : {"llama3", "mamba2"}) {
        INFO(name);
        End sender(name), receiver(name), alone(name);
        Random random{8};
        const Tokens prompt = decant_test::random_tokens(random, 25);
        const std::span<const Token> head = std::span(prompt).first(10);
        for (End<Simd>* end : {&sender, &receiver, &alone}) taken(end->context.prefill(end->sequence, head));
        taken(sender.context.prefill(sender.sequence, std::span(prompt).subspan(10)));
        Sequence<Simd> origin = std::exchange(receiver.sequence, receiver.sequence.fork());
        REQUIRE(
            import_frame(receiver.model, receiver.sequence, taken(export_frame(sender.model, sender.sequence, 10))));
        go_on_the_same(sender, receiver, 9);
        receiver.sequence = std::move(origin);
        go_on_the_same(alone, receiver, 10);
    }
}

TEST_CASE("another backend takes a frame and stays near", "[cache][frames]") {
    const auto weights = decant_test::tiny("llama3");
    End<decant::Eigen> sender(weights, {.tokens = 64, .dtype = DType::f32});
    End<Simd> receiver(weights, {.tokens = 64, .dtype = DType::f32});
    taken(sender.context.prefill(sender.sequence, decant_test::random_tokens(40, 11, 160)));
    REQUIRE(import_frame(receiver.model, receiver.sequence, taken(export_frame(sender.model, sender.sequence))));
    const Floats a = sender.decode(Token{5}), b = receiver.decode(Token{5});
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-3f);
}

TEST_CASE("frames of something else are refused by name", "[cache][frames]") {
    Random random{12};
    const Tokens prompt = decant_test::random_tokens(random, 40);
    const CacheOptions options{.tokens = 64, .block_tokens = 8};
    End sender("llama3", options);
    const auto frames = send(sender, prompt, random);
    REQUIRE(frames.size() > 3);

    End receiver("llama3", options);
    refused(receiver, frames[1], ErrorCode::mismatch, "begins at position");
    REQUIRE(import_frame(receiver.model, receiver.sequence, frames[0]));
    refused(receiver, frames[0], ErrorCode::mismatch, "begins at position");
    refused(receiver, frames[2], ErrorCode::mismatch, "begins at position");

    End other("llama3", options);  // as many tokens, others
    taken(other.context.prefill(other.sequence, decant_test::random_tokens(random, receiver.sequence.size())));
    refused(other, frames[1], ErrorCode::mismatch, "other tokens came before");

    End coarse(decant_test::tiny("llama3"), {.tokens = 64, .dtype = DType::f32});
    refused(coarse, frames[0], ErrorCode::mismatch, "F32");
    for (const char* name : {"llama2", "gemma3_std", "mamba2"}) {
        End stranger(name, options);
        refused(stranger, frames[0], ErrorCode::mismatch, "another model");
    }
    End<Simd> requantized(decant_test::TinyFile(DType::q8_0).open(), options);
    refused(requantized, frames[0], ErrorCode::mismatch, "another model");

    for (const std::string_view text : {"", "D", "DCKV", "DCRQ and more than sixty bytes of something quite different",
                                        "DCKV and more than sixty bytes of something that is no cache at all"}) {
        refused(receiver, std::as_bytes(std::span(text)), ErrorCode::bad_format);
    }
    for (const int version : {1, 3}) {
        Bytes newer = frames[1];
        newer[4] = static_cast<std::byte>(version);
        sign(newer);
        refused(receiver, newer, ErrorCode::unsupported, "version " + std::to_string(version));
    }
    Bytes strange = frames[1];  // a token that the vocabulary lacks
    strange[48 + 3] = std::byte{1};
    sign(strange);
    refused(receiver, strange, ErrorCode::bad_format, "token 1677");

    for (std::size_t i = 1; i < frames.size(); ++i) REQUIRE(import_frame(receiver.model, receiver.sequence, frames[i]));
    go_on_the_same(sender, receiver, 13);
}

TEST_CASE("an export of nothing, or of a state that is gone, is refused", "[cache][frames]") {
    const auto code = [](auto& end, std::size_t first, std::size_t count = 1000) {
        const auto made = export_frame(end.model, end.sequence, first, count);
        return made ? std::optional<ErrorCode>() : made.error().code;
    };
    End plain("llama3"), recurrent("mamba2");
    CHECK(code(plain, 0) == ErrorCode::invalid_argument);
    for (auto* end : {&plain, &recurrent}) taken(end->context.prefill(end->sequence, Tokens(9, Token{3})));
    CHECK(code(plain, 9) == ErrorCode::invalid_argument);
    CHECK(code(plain, 2, 0) == ErrorCode::invalid_argument);
    CHECK_FALSE(code(plain, 2, 3));
    CHECK(code(recurrent, 2, 3) == ErrorCode::unsupported);
    CHECK_FALSE(code(recurrent, 2));
    CHECK(export_frame(recurrent.model, plain.sequence).error().code == ErrorCode::invalid_argument);
    const Sequence<Simd> moved = std::move(plain.sequence);
    CHECK(code(plain, 0) == ErrorCode::invalid_argument);
    CHECK(import_frame(plain.model, plain.sequence, {}).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("a frame that has no room is refused until there is some", "[cache][frames]") {
    for (const char* name : {"llama3", "mamba2"}) {
        INFO(name);
        End sender(name);
        taken(sender.context.prefill(sender.sequence, Tokens(30, Token{3})));
        const Bytes frame = taken(export_frame(sender.model, sender.sequence));
        End receiver(decant_test::tiny(name), {.tokens = 64, .block_tokens = 4, .sequences = 1});
        std::vector<Sequence<Simd>> others;
        for (int i = 0; i < 3; ++i) {
            others.push_back(taken(receiver.cache.sequence()));
            if (std::string_view(name) == "mamba2")
                taken(receiver.context.prefill(others.back(), Tokens(1, Token{1})));  // takes a state each
            else
                REQUIRE(others.back().reserve(20));
        }
        refused(receiver, frame, ErrorCode::cache_full);
        others.clear();
        REQUIRE(import_frame(receiver.model, receiver.sequence, frame));
        go_on_the_same(sender, receiver, 14);
    }
}

TEST_CASE("two thousand damaged frames are refused and leak nothing", "[cache][frames]") {
    Random random{15};
    for (const char* name : {"llama3", "mamba2"}) {
        INFO(name);
        const CacheOptions options{.tokens = 64, .block_tokens = 4, .sequences = 1};
        End sender(decant_test::tiny(name), options), receiver(decant_test::tiny(name), options);
        const Tokens prompt = decant_test::random_tokens(random, 21);
        const auto frames = send(sender, prompt, random);
        const Bytes& original = frames[1];
        REQUIRE(import_frame(receiver.model, receiver.sequence, frames[0]));
        const std::size_t free = receiver.cache.free_blocks(), size = receiver.sequence.size();

        constexpr std::size_t header = 48;  // before the tokens
        std::size_t accepted = 0, different = 0;
        for (int round = 0; round < 1000; ++round) {
            Bytes mutated = original;
            const auto any = [&] { return random.below(mutated.size()); };
            switch (random.below(7)) {
                case 0: mutated[any()] ^= static_cast<std::byte>(1 << random.below(8)); break;
                case 1:
                    for (int i = 0; i < 4; ++i) mutated[any()] = static_cast<std::byte>(random.below(256));
                    break;
                case 2: mutated.resize(any()); break;
                case 3: mutated.insert(mutated.end(), 1 + random.below(100), std::byte{0}); break;
                case 4: std::swap(mutated[any()], mutated[any()]); break;
                case 5: {  // the beginning of one, the end of another
                    const Bytes& other = frames[random.below(frames.size())];
                    const std::size_t cut = (std::min)(any(), other.size());
                    std::copy_n(other.begin(), cut, mutated.begin());
                    break;
                }
                default: {  // a number of the header that somebody vouches for
                    const std::size_t at = random.below(header / 8) * 8;
                    const std::uint64_t value =
                        std::uint64_t{1} << random.below(64) | (random.below(2) ? ~std::uint64_t{0} : random.next());
                    std::memcpy(mutated.data() + at, &value, sizeof value);
                    sign(mutated);
                }
            }
            if (mutated == original) continue;
            ++different;
            accepted += import_frame(receiver.model, receiver.sequence, mutated) ? 1 : 0;
            REQUIRE(receiver.cache.free_blocks() == free);
            REQUIRE(receiver.sequence.size() == size);
        }
        CHECK(accepted == 0);
        CHECK(different > 900);
        for (std::size_t i = 1; i < frames.size(); ++i)
            REQUIRE(import_frame(receiver.model, receiver.sequence, frames[i]));
        go_on_the_same(sender, receiver, 16);
    }
}

TEST_CASE("every byte of a frame counts", "[cache][frames]") {
    End sender("llama3"), receiver("llama3");
    taken(sender.context.prefill(sender.sequence, Tokens(5, Token{3})));
    Bytes frame = taken(export_frame(sender.model, sender.sequence));
    std::size_t accepted = 0;
    for (std::size_t i = 0; i < frame.size(); ++i) {
        frame[i] ^= std::byte{0x10};
        accepted += import_frame(receiver.model, receiver.sequence, frame) ? 1 : 0;
        frame[i] ^= std::byte{0x10};
        accepted += import_frame(receiver.model, receiver.sequence, std::span(frame).first(i)) ? 1 : 0;
    }
    CHECK(accepted == 0);
    CHECK(receiver.cache.free_blocks() == receiver.cache.blocks());
    CHECK(import_frame(receiver.model, receiver.sequence, frame));
}

#if defined(__unix__) || defined(__APPLE__)

TEST_CASE("frames go into and out of memory that the host cannot reach", "[cache][frames]") {
    using decant_test::Opaque;
    for (const char* name : {"llama3", "mamba2"}) {
        INFO(name);
        const auto weights = decant_test::tiny(name);
        const CacheOptions options{.tokens = 96, .block_tokens = 4};
        End<decant::Eigen> host(weights, options);
        End<Opaque> device(weights, options);
        Random random{17};
        for (const Bytes& frame : send(host, decant_test::random_tokens(random, 22), random))
            REQUIRE(import_frame(device.model, device.sequence, frame));
        go_on_the_same(host, device, 18);

        End<decant::Eigen> back(weights, options);
        const Bytes frame = taken(export_frame(device.model, device.sequence));
        REQUIRE(import_frame(back.model, back.sequence, frame));
        go_on_the_same(host, back, 19);

        End<Opaque> dies(weights, options);
        REQUIRE(kill(dies.model.backend().child(), SIGKILL) == 0);
        refused(dies, frame, ErrorCode::io);
        CHECK(export_frame(device.model, device.sequence));
        REQUIRE(kill(device.model.backend().child(), SIGKILL) == 0);
        CHECK(export_frame(device.model, device.sequence).error().code == ErrorCode::io);
    }
}

#endif

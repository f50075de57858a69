// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The test backend whose memory lies in another process (opaque.hpp): that it keeps the rules it is there to check.
#include "support/catch.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include "backend/opaque.hpp"
#include "backend/support.hpp"

#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <concepts>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using decant::ErrorCode;
using decant::PassShape;
using decant::RunState;
using decant_test::Batch;
using decant_test::Opaque;
using Floats = std::vector<float>;

static_assert(decant::Backend<Opaque>);
static_assert(!std::copyable<Opaque::Buffer> && std::movable<Opaque::Buffer>);
// Nothing that the host holds leads to the device's memory, and no such thing can go over the wire.
template <class T>
concept Reachable = requires(T value) {
    value.data();
}
|| requires(T value) { value.data; };
static_assert(Reachable<decant::Eigen::Buffer> && Reachable<decant::Eigen::View> && Reachable<decant::Eigen::Weight>);
static_assert(!Reachable<Opaque::Buffer> && !Reachable<Opaque::View> && !Reachable<Opaque::Weight>);
static_assert(!decant_test::opaque::Plain<float*> && !decant_test::opaque::Plain<decant::host::View> &&
              !decant_test::opaque::Plain<std::span<const float>>);

namespace {

/// Two operations on one buffer: x = table[tokens], y = table[tokens] + product x.
template <class B>
struct Rehearsal {
    static constexpr std::uint32_t columns = 32;
    static constexpr std::uint32_t out_columns = 5;

    explicit Rehearsal(B made = {}) : backend(std::move(made)), pass(backend.pass(1)) {}

    B backend;
    decant_test::Random random{1};
    decant_test::Matrix table = decant_test::random_matrix(random, decant::DType::f16, 7, columns);
    decant_test::Matrix matrix = decant_test::random_matrix(random, decant::DType::q8_0, out_columns, columns);
    typename B::Weight rows = backend.weight(table.tensor()).value();
    typename B::Weight product = backend.weight(matrix.tensor()).value();
    typename B::Weight bias = backend.constant({1, 2, 3, 4, 5}).value();
    typename B::Buffer buffer = backend.allocate(8 * (columns + out_columns) * sizeof(float)).value();
    typename B::Buffer cache = backend.allocate(64).value();
    decant::CacheShape cache_shape;
    typename B::View x = backend.view(buffer, 0, columns, decant::RowSet::tokens);
    typename B::View y = backend.view(buffer, 8 * columns, out_columns, decant::RowSet::tokens);
    typename B::Pass pass;
    Batch batch{PassShape{}};
    int bodies = 0;

    void record() {
        pass.record([&](typename B::Pass& p) {
            ++bodies;
            p.embed(rows, x);
            p.linear(x, {{&product, &bias, y}});
        });
    }
    void prepare(const PassShape& shape = {4, 1, 1, 1}) {
        REQUIRE(pass.reserve(shape, columns));
        record();
    }
    void upload(const std::vector<std::size_t>& tokens) {
        batch = Batch({4, 1, 1, 1});
        for (const std::size_t token : tokens) batch.add(token);
        backend.upload(pass, batch.inputs(), cache, cache_shape);
    }
    auto read(std::size_t count) { return backend.wait(backend.download(y, count)); }
    Floats results(const std::vector<std::size_t>& tokens) {
        upload(tokens);
        REQUIRE(pass.run(decant::AnyExecutor{}) == RunState::finished);
        const auto values = read(tokens.size()).value();
        return {values.begin(), values.end()};
    }
};

constexpr decant::StateSpec state{2, 4, 1, 8, 3, 0.0f, 1.0f};

/// The results of every operation that takes more than views and plain numbers, or that Rehearsal lacks.
template <class B>
std::vector<Floats> run_operations() {
    decant_test::Random random(2);
    const auto matrix = [&](decant::DType dtype, std::size_t rows, std::size_t columns) {
        return decant_test::random_matrix(random, dtype, rows, columns);
    };
    constexpr std::uint32_t width = 32, chosen = 2;
    Batch batch({7, 2, 1, 1});
    for (const std::size_t row : {0u, 1u, 2u}) batch.add(row, row, 0, row);
    for (const std::size_t row : {3u, 4u}) batch.add(row, row - 3, 1, 8 + row - 3);
    batch.table(0, {0});
    batch.table(1, {1});
    batch.state(0, -1, 2);
    batch.state(1, -1, 0);
    decant_test::Rig<B> rig(batch.shape, chosen * width);
    decant_test::TestCache<B> cache(rig.backend(),
                                    {{{1, 16}, {0, 0, 0, state.floats()}, {2, 16, 8}}, 8, decant::DType::f16, 3}, 2);
    // Everything is made before the recording, in which nothing but operations may go over.
    using Fed = std::pair<const typename B::Weight*, typename B::View>;
    std::vector<Fed> tables;
    std::vector<typename B::View> results;
    const auto feed = [&](std::size_t columns) {
        const auto* table = &rig.weight(decant_test::float_matrix(random.floats(5 * columns), columns));
        return tables.emplace_back(table, rig.view(columns)).second;
    };
    const auto made = [&](std::size_t columns) { return results.emplace_back(rig.view(columns)); };
    const auto weight = [&](decant::DType dtype, std::size_t rows, std::size_t columns) {
        return &rig.weight(matrix(dtype, rows, columns));
    };
    const auto x = feed(width), scores = feed(4), in = feed(state.mixed()), steps = feed(state.heads);
    const auto normed = made(width), attended = made(24), grouped = made(6), gated = made(width), other = made(width),
               routes = made(2 * chosen), each = made(chosen * width), again = made(chosen * width), sum = made(width),
               mixed = made(state.mixed()), scanned = made(state.channels());
    const auto *scale = weight(decant::DType::f32, 1, width), *bias = weight(decant::DType::f16, 1, width),
               *sinks = weight(decant::DType::f16, 1, 2), *halves = weight(decant::DType::bf16, 6, width / 2),
               *choice = weight(decant::DType::f32, 1, 4), *kernel = weight(decant::DType::f32, state.mixed(), 3),
               *skip = weight(decant::DType::f16, 1, state.heads), *rates = &rig.constant({-1.0f, -0.5f});
    std::vector<decant_test::Matrix> matrices, offsets;
    for (int e = 0; e < 4; ++e) {
        matrices.push_back(matrix(decant::DType::q8_0, width, width));
        offsets.push_back(matrix(decant::DType::f32, 1, width));
    }
    const auto experts = rig.list(matrices), biases = rig.list(offsets);
    rig.pass().record([&](auto& pass) {
        for (const Fed& fed : tables) pass.embed(*fed.first, fed.second);
        pass.norm(x, *scale, {1e-5f, 1.0f, true}, normed, false, bias, 4);
        pass.store(normed, normed, 2);
        pass.attend(normed, 2, {2, 2, 16, 0.25f, 2, 5.0f, 4}, attended, sinks);
        pass.linear(normed, {{halves, nullptr, grouped}});
        pass.gate(normed, x, {decant::Activation::silu, 1.702f, 2.0f}, gated);
        pass.activate(normed, decant::Activation::gelu, other);
        pass.copy(x, other, {2, 3, 16, 1, 16, 8});
        pass.softcap(other, 0.5f);
        pass.route(scores, choice, {decant::RouteSpec::Scoring::sigmoid, true, 4, chosen, 2, 1, 2.5f}, routes);
        pass.experts(x, experts, biases, routes, each);
        pass.experts(each, experts, {}, routes, again);
        pass.mix(again, routes, sum, false);
        pass.mix(each, routes, sum, true);
        pass.convolve(in, *kernel, nullptr, 1, mixed);
        pass.scan(mixed, steps, *rates, *skip, state, 1, scanned);
    });
    rig.run(batch, cache);
    std::vector<Floats> values;
    for (const auto& view : results) values.push_back(rig.read(view));
    // Once more, from the states that the first pass has left.
    batch.state(0, 2, 1);
    batch.state(1, 0, 2);
    rig.run(batch, cache);
    values.push_back(rig.read(results.back()));
    return values;
}

std::size_t open_descriptors() {
    const std::filesystem::directory_iterator all("/dev/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

bool no_children() { return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

void end(pid_t child) { REQUIRE(kill(child, SIGKILL) == 0); }

}  // namespace

TEST_CASE("opaque: the bits of Eigen", "[opaque]") {
    Rehearsal<decant::Eigen> here;
    Rehearsal<Opaque> there;
    here.prepare();
    there.prepare();
    for (const auto& tokens : std::vector<std::vector<std::size_t>>{{0}, {3, 1, 6, 2}, {5, 5}}) {
        const Floats expected = here.results(tokens);
        REQUIRE(expected.size() == tokens.size() * 5);
        CHECK(decant_test::same_bits(there.results(tokens), expected));
    }
}

TEST_CASE("opaque: the bits of Eigen from operations with lists, specs and states", "[opaque]") {
    const auto expected = run_operations<decant::Eigen>();
    const auto found = run_operations<Opaque>();
    REQUIRE(found.size() == expected.size());
    for (std::size_t n = 0; n < expected.size(); ++n) {
        INFO(n);
        CHECK(decant_test::same_bits(found[n], expected[n]));
        for (const float value : expected[n]) REQUIRE(std::isfinite(value));
    }
    CHECK(expected.back() != expected[expected.size() - 2]);
}

TEST_CASE("opaque: a shape is recorded once and replayed with new inputs", "[opaque]") {
    Rehearsal<Opaque> rig;
    rig.prepare();
    CHECK(rig.backend.counts().recordings == 1);
    const auto before = rig.backend.counts();
    rig.record();
    rig.record();
    CHECK(rig.backend.counts().messages == before.messages);
    CHECK(rig.bodies == 1);
    std::set<Floats> different;
    for (std::size_t token = 0; token < 7; ++token) {
        different.insert(rig.results({token}));
        rig.record();
    }
    CHECK(different.size() == 7);
    const auto after = rig.backend.counts();
    CHECK(rig.bodies == 1);
    CHECK(after.recordings == 1);
    CHECK(after.weights == 2);
    CHECK(after.uploads - before.uploads == 7);
    CHECK(after.replays - before.replays == 7);
    CHECK(after.messages - before.messages == 7 * 4);  // upload, run, download, fetch

    CHECK(rig.pass.run(decant::AnyExecutor{}) == RunState::finished);  // no new inputs, nothing to do
    CHECK(rig.backend.counts().replays == after.replays);
    rig.prepare({4, 1, 1, 2});
    CHECK(rig.bodies == 2);
    CHECK(rig.backend.counts().recordings == 2);
}

TEST_CASE("opaque: a read inside a pass is refused", "[opaque]") {
    Rehearsal<Opaque> rig;
    rig.prepare();
    const Floats expected = rig.results({2, 4});
    const auto refused = [&](const auto& read) {
        REQUIRE_FALSE(read);
        CHECK(read.error().code == ErrorCode::invalid_argument);
        CHECK(read.error().what.find("inside") != std::string::npos);
    };

    const auto early = rig.backend.download(rig.y, 2);  // whose pass is over when it is waited for
    rig.upload({2, 4});
    refused(rig.read(2));
    refused(rig.backend.wait(early));
    decant::StopFlag stop;
    stop.request();
    CHECK(rig.pass.run(decant::AnyExecutor{}, {.stop = &stop}) == RunState::stopped);
    CHECK(rig.pass.run(decant::AnyExecutor{}, {.tiles = 0}) == RunState::stopped);
    refused(rig.read(2));
    const auto late = rig.backend.download(rig.y, 2);
    CHECK(rig.backend.counts().replays == 1);
    CHECK(rig.pass.run(decant::AnyExecutor{}) == RunState::finished);
    CHECK(rig.backend.counts().replays == 2);
    refused(rig.backend.wait(late));  // asked for too early
    const auto values = rig.read(2).value();
    CHECK(decant_test::same_bits({values.begin(), values.end()}, expected));

    // Another buffer may be read meanwhile.
    auto other = rig.backend.allocate(64).value();
    rig.upload({1});
    CHECK(rig.backend.wait(rig.backend.download(rig.backend.view(other, 0, 4, decant::RowSet::tokens), 1)));
    refused(rig.read(1));
    std::vector<std::byte> bytes(4);
    const auto raw = rig.backend.read(rig.buffer, 0, bytes);
    REQUIRE_FALSE(raw);
    CHECK(raw.error().what == "a read inside of a pass");
    CHECK(rig.backend.read(other, 0, bytes));
}

TEST_CASE("opaque: nothing but operations inside of record, no operation outside", "[opaque]") {
    Rehearsal<Opaque> rig;
    REQUIRE(rig.pass.reserve({4, 1, 1, 1}, rig.columns));
    std::optional<ErrorCode> read, allocated;
    rig.pass.record([&](Opaque::Pass& p) {
        p.embed(rig.rows, rig.x);
        auto result = rig.read(1);
        if (!result) read = result.error().code;
        auto buffer = rig.backend.allocate(64);
        if (!buffer) allocated = buffer.error().code;
        rig.backend.copy(rig.buffer, 0, 64, 64);
        p.linear(rig.x, {{&rig.product, &rig.bias, rig.y}});
    });
    CHECK(read == ErrorCode::invalid_argument);
    CHECK(allocated == ErrorCode::invalid_argument);
    const auto told = [&](const char* what) {
        const auto result = rig.read(1);
        REQUIRE_FALSE(result);
        CHECK(result.error().what == what);
        CHECK(rig.read(1));  // once
    };
    told("a command to the device inside of record()");
    rig.pass.gather(rig.x, rig.x);
    told("an operation outside of record()");
    CHECK(rig.results({1, 2}).size() == 10);  // the recording is whole
    auto never = rig.backend.pass(1);
    rig.backend.upload(never, {}, rig.cache, rig.cache_shape);
    told("an upload to a pass that was not recorded");

    // A body that throws has recorded nothing.
    REQUIRE(rig.pass.reserve({4, 1, 1, 1}, rig.columns));
    CHECK_THROWS_AS(rig.pass.record([](Opaque::Pass&) { throw 1; }), int);
    rig.record();
    CHECK(rig.results({1, 2}).size() == 10);
}

TEST_CASE("opaque: the device checks sizes and says so with the next result", "[opaque]") {
    Rehearsal<Opaque> rig;
    rig.prepare();
    const auto told = [&](std::string_view what) {
        const auto result = rig.read(1);
        REQUIRE_FALSE(result);
        CHECK(result.error().what == what);
        CHECK(rig.read(1));
    };
    Batch batch({4, 1, 1, 1});
    batch.add(3);
    batch.tokens[2] = 0;  // a row that is not used
    rig.backend.upload(rig.pass, batch.inputs(), rig.cache, rig.cache_shape);
    CHECK(rig.pass.run(decant::AnyExecutor{}) == RunState::finished);
    told("inputs that are not as long as the shape says, or not padded by -1");
    batch.tokens[2] = -1;
    batch.tables.resize(5);
    rig.backend.upload(rig.pass, batch.inputs(), rig.cache, rig.cache_shape);
    CHECK(rig.pass.run(decant::AnyExecutor{}) == RunState::finished);
    told("inputs that are not as long as the shape says, or not padded by -1");
    // Room for two states of two floats.
    const decant::CacheShape states{{{0, 0, 0, 2}}, 4, decant::DType::f16, 2};
    using Slots = std::array<std::int32_t, 2>;  // from, to
    for (const Slots slots : {Slots{-1, -1}, {-1, 2}, {-2, 0}, {2, 0}, {1, 1}, {0, 1}, {-1, 1}}) {
        batch = Batch({4, 1, 1, 1});
        batch.add(3);
        batch.state(0, slots[0], slots[1]);
        rig.backend.upload(rig.pass, batch.inputs(), rig.cache, states);
        CHECK(rig.pass.run(decant::AnyExecutor{}) == RunState::finished);
        INFO(slots[0] << " to " << slots[1]);
        if (slots[0] < 1 && slots[1] == 1) {
            CHECK(rig.read(1));
        } else {
            told("a pass over states that the cache lacks, or from one to itself");
        }
    }
    rig.backend.copy(rig.cache, 0, 32, 33);
    told("a copy outside its buffer");
    static_cast<void>(rig.backend.download(rig.y, 1000));
    told("a download outside its buffer");

    // What the device's own backend refuses is told as it says it.
    auto unknown = rig.table.tensor();
    unknown.dtype = decant::DType::other;
    const auto weight = rig.backend.weight(unknown);
    REQUIRE_FALSE(weight);
    CHECK(weight.error().message() == decant::Eigen{}.weight(unknown).error().message());
    const auto vast = rig.backend.allocate(std::size_t{1} << 62);
    REQUIRE_FALSE(vast);
    CHECK(vast.error().code == ErrorCode::out_of_memory);
    CHECK(rig.results({1}).size() == 5);
}

TEST_CASE("opaque: a copy is made in the order of the commands", "[opaque]") {
    Rehearsal<Opaque> rig;
    rig.prepare();
    const Floats one = rig.results({1});
    const std::size_t from = 8 * rig.columns * sizeof(float);
    rig.backend.copy(rig.buffer, from, from + one.size() * sizeof(float), one.size() * sizeof(float));
    const Floats two = rig.results({2});
    const auto both = rig.read(2).value();
    CHECK(decant_test::same_bits({both.begin(), both.begin() + 5}, two));
    CHECK(decant_test::same_bits({both.begin() + 5, both.end()}, one));
}

TEST_CASE("opaque: bytes go in and come out in the order of the commands", "[opaque]") {
    const Opaque backend;
    auto buffer = backend.allocate(64).value();
    std::vector<std::byte> bytes(24);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
    REQUIRE(backend.write(buffer, 3, bytes));
    backend.copy(buffer, 3, 35, 24);
    std::vector<std::byte> found(24);
    REQUIRE(backend.read(buffer, 35, found));
    CHECK(found == bytes);
    REQUIRE(backend.write(buffer, 0, std::span<const std::byte>{}));

    const auto told = [](const decant::Result<void>& result, const char* what) {
        REQUIRE_FALSE(result);
        CHECK(result.error().what == what);
    };
    told(backend.read(buffer, 41, found), "a read outside its buffer");
    told(backend.write(buffer, 41, bytes), "a write outside its buffer");
    backend.copy(buffer, 0, 60, 5);
    told(backend.read(buffer, 0, found), "a copy outside its buffer");
    REQUIRE(backend.read(buffer, 35, found));
    CHECK(found == bytes);
    end(backend.child());
    for (const auto& result : {backend.read(buffer, 0, found), backend.write(buffer, 0, bytes)}) {
        REQUIRE_FALSE(result);
        CHECK(result.error().code == ErrorCode::io);
    }
}

TEST_CASE("opaque: a device that dies is an error", "[opaque]") {
    const auto gone = [](const auto& result) {
        REQUIRE_FALSE(result);
        CHECK(result.error().code == ErrorCode::io);
    };
    {
        Rehearsal<Opaque> rig;
        rig.prepare();
        rig.upload({1});
        end(rig.backend.child());
        CHECK(rig.pass.run(decant::AnyExecutor{}) == RunState::finished);
        gone(rig.read(1));
        gone(rig.read(1));
        rig.upload({1});
        rig.backend.copy(rig.buffer, 0, 4, 4);
        gone(rig.backend.allocate(64));
        gone(rig.backend.weight(rig.table.tensor()));
        gone(rig.backend.constant({1}));
        gone(rig.pass.reserve({4, 1, 1, 1}, 32));
    }
    {
        // While the host waits for it.
        Rehearsal<Opaque> rig;
        rig.prepare();
        rig.upload({1});
        const pid_t child = rig.backend.child();
        REQUIRE(kill(child, SIGSTOP) == 0);
        std::thread killer([child] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            kill(child, SIGKILL);
        });
        CHECK(rig.pass.run(decant::AnyExecutor{}) == RunState::finished);
        const auto result = rig.read(1);
        killer.join();
        gone(result);
    }
    {
        // In the middle of more than the socket holds.
        const Opaque backend;
        const pid_t child = backend.child();
        REQUIRE(kill(child, SIGSTOP) == 0);
        std::thread killer([child] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            kill(child, SIGKILL);
        });
        const auto weight = backend.constant(Floats(std::size_t{1} << 22));
        killer.join();
        gone(weight);
    }
    CHECK(no_children());
}

TEST_CASE("opaque: nothing is left behind", "[opaque]") {
    const std::size_t before = open_descriptors();
    REQUIRE(no_children());
    for (int i = 0; i < 20; ++i) {
        // Two at once, the older ones gone first or last: each child has inherited the ends of those before it.
        auto first = std::make_unique<Rehearsal<Opaque>>();
        auto second = std::make_unique<Rehearsal<Opaque>>();
        CHECK(first->backend.child() != second->backend.child());
        for (auto* rig : {first.get(), second.get()}) {
            rig->prepare();
            CHECK(rig->results({1}).size() == 5);
        }
        if (i % 2 == 0) first.reset();
        second.reset();
    }
    CHECK(no_children());
    CHECK(open_descriptors() == before);

    // What was made by a backend keeps it.
    std::optional<Opaque> backend;
    backend.emplace();
    std::optional<Opaque::Weight> weight(backend->constant({1, 2}).value());
    auto buffer = std::make_unique<Opaque::Buffer>(backend->allocate(64).value());
    backend.reset();
    CHECK_FALSE(no_children());
    weight.reset();
    CHECK_FALSE(no_children());
    buffer.reset();
    CHECK(no_children());
    CHECK(open_descriptors() == before);
}

#else

TEST_CASE("opaque: needs a system with fork") { SUCCEED("none here"); }

#endif

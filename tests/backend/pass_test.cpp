// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The order, the limits and the interruption of a pass, with kernels that only keep a journal.
#include <decant/backend/host/pass.hpp>

#include "backend/support.hpp"
#include "core/executors.hpp"

#include <decant/core/stop.hpp>
#include <decant/core/thread_pool.hpp>

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

using decant::AnyExecutor;
using decant::RowSet;
using decant::RunLimits;
using decant::RunState;
using decant::StopFlag;
using decant_test::Batch;

namespace {

struct Journal {
    std::mutex mutex;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> tiles;  // (step, tile) in the order they were finished
    std::atomic<int> shared_scratch{0};                          // times a scratch was used by two at once
    StopFlag* stop = nullptr;                                    // requested after every `stop_every` tiles
    std::size_t stop_every = 0;
};

/// Steps are told apart by the columns of their output; a product is step 5.
struct JournalKernels {
    Journal* journal;

    static constexpr bool fuses = true;
    static bool prepares(const decant::host::Weight& weight) { return decant::traits(weight.dtype).block_elements > 1; }
    static std::size_t scratch_bytes(const decant::PassShape&, std::uint32_t) { return 1; }
    static std::size_t prepared_bytes(const decant::PassShape&, std::uint32_t) { return 0; }
    void use_prepared(std::byte*, const decant::PassShape&, std::uint32_t) {}

    template <class Op>
    void run(const Op& op, const decant::host::Frame&, std::uint32_t tile, std::byte* scratch) const {
        if (*scratch != std::byte{0}) ++journal->shared_scratch;
        *scratch = std::byte{1};
        if constexpr (requires { op.y; }) {
            const std::lock_guard lock(journal->mutex);
            const bool product = std::same_as<Op, decant::host::Linear>;
            journal->tiles.emplace_back(product ? 5 : op.y.columns, tile);
            if (journal->stop_every != 0 && journal->tiles.size() % journal->stop_every == 0) journal->stop->request();
        }
        *scratch = std::byte{0};
    }
};

using Pass = decant::host::Pass<JournalKernels>;
constexpr decant::host::View rows{nullptr, 0, RowSet::tokens};

const decant::host::Weight wide{decant::DType::f16, 4000, 8, nullptr, 16, nullptr};

/// Steps 0 to 5 of 7, 0, 3 (three key heads of a block of rows), 7, 7 and 32 tiles; a row goes through 3 and 4 at once.
void record(Pass& pass) {
    pass.record([](Pass& p) {
        const auto to = [](std::uint32_t step, RowSet set) { return decant::host::View{nullptr, step, set}; };
        p.gate(rows, rows, decant::Activation::silu, to(0, RowSet::tokens));
        p.gather(rows, to(1, RowSet::wanted));
        p.attend(rows, 0, {6, 3, 1, 1.0f}, to(2, RowSet::tokens));
        p.gate(rows, rows, decant::Activation::silu, to(3, RowSet::tokens));
        p.gate(rows, rows, decant::Activation::silu, to(4, RowSet::tokens));
        p.linear(to(8, RowSet::tokens), {{&wide, nullptr, to(wide.rows, RowSet::tokens), false}});
    });
}
/// Steps that are done at once, and their tiles.
struct Stage {
    std::uint32_t first, steps, tiles;
};
constexpr Stage stages[] = {{0, 1, 7}, {1, 1, 0}, {2, 1, 3}, {3, 2, 7}, {5, 1, 32}};
constexpr std::size_t all_tiles = 49, all_entries = 56, most_at_once = 8;

/// Entries of the journal when so many tiles are done.
std::size_t entries(std::size_t tiles) {
    std::size_t sum = 0;
    for (const Stage& stage : stages) {
        const std::size_t done = (std::min)(tiles, std::size_t{stage.tiles});
        sum += done * stage.steps;
        tiles -= done;
    }
    return sum;
}

Batch seven_rows() {
    Batch batch({10, 1, 3, 1});
    for (int row = 0; row < 7; ++row) batch.add(0);
    return batch;
}

/// Stages in order, each complete before the next, every tile once, and its steps in order.
void check_journal(Journal& journal) {
    CHECK(journal.shared_scratch == 0);
    REQUIRE(journal.tiles.size() == all_entries);
    std::size_t at = 0;
    for (const Stage& stage : stages) {
        std::vector<std::uint32_t> seen(stage.tiles);
        for (std::uint32_t i = 0; i < stage.tiles * stage.steps; ++i, ++at) {
            const auto [step, tile] = journal.tiles[at];
            REQUIRE(tile < stage.tiles);
            REQUIRE(step == stage.first + seen[tile]++);
        }
        CHECK(std::all_of(seen.begin(), seen.end(), [&](std::uint32_t count) { return count == stage.steps; }));
    }
    journal.tiles.clear();
}

template <class F>
void with_executors(F f) {
    f(AnyExecutor{});
    f(AnyExecutor(decant_test::ReversedExecutor{}));
    f(AnyExecutor(decant_test::ShuffledExecutor{}));
    for (const std::size_t threads : {2u, 3u, 4u}) f(AnyExecutor(decant::ThreadPool(threads, threads)));
}

/// A recorded pass of seven rows, and what it has done.
struct Recorded {
    const decant::CacheShape none;
    const Batch batch = seven_rows();
    Journal journal;
    Pass pass;

    explicit Recorded(std::size_t participants) : pass({&journal}, participants) {
        REQUIRE(pass.reserve(batch.shape, 1));
        record(pass);
    }
    void upload() { pass.upload(batch.inputs(), nullptr, none); }
};

}  // namespace

TEST_CASE("pass: every tile of every step runs once, steps in order") {
    for (const std::size_t participants : {1u, 3u, 8u}) {
        Recorded scene(participants);
        record(scene.pass);  // recorded once
        with_executors([&](const AnyExecutor& executor) {
            for (int round = 0; round < 50; ++round) {
                scene.upload();
                CHECK(scene.pass.run(executor) == RunState::finished);
                check_journal(scene.journal);
            }
            CHECK(scene.pass.run(executor) == RunState::finished);  // nothing is left to do
            CHECK(scene.journal.tiles.empty());
        });
    }
}

TEST_CASE("pass: a limit of tiles is kept exactly") {
    Recorded scene(4);
    with_executors([&](const AnyExecutor& executor) {
        for (const std::size_t limit : {1u, 2u, 5u, 7u, 8u, 11u, 13u, 17u, 48u, 49u, 50u}) {
            scene.upload();
            CHECK(scene.pass.run(executor, {nullptr, 0}) == RunState::stopped);
            CHECK(scene.journal.tiles.empty());
            std::size_t done = 0;
            while (done < all_tiles) {
                const RunState state = scene.pass.run(executor, {nullptr, limit});
                done = (std::min)(done + limit, all_tiles);
                REQUIRE(scene.journal.tiles.size() == entries(done));
                CHECK((state == RunState::finished) == (done == all_tiles));
            }
            check_journal(scene.journal);
        }
    });
}

TEST_CASE("pass: stops between two tiles and goes on where it stood") {
    for (const std::size_t stop_every : {1u, 2u, 3u, 10u}) {
        with_executors([&](const AnyExecutor& executor) {
            StopFlag stop;
            Recorded scene(3);
            scene.journal.stop = &stop;
            scene.journal.stop_every = stop_every;
            scene.upload();
            std::size_t runs = 0;
            for (RunState state = RunState::stopped; state == RunState::stopped; ++runs) {
                const std::size_t before = scene.journal.tiles.size();
                REQUIRE(runs <= all_entries);
                state = scene.pass.run(executor, {&stop, (std::numeric_limits<std::uint64_t>::max)()});
                // Each participant may finish the tiles that it had claimed.
                CHECK(scene.journal.tiles.size() - before < stop_every + 3 * most_at_once);
                stop.clear();
            }
            CHECK(runs > 1);
            check_journal(scene.journal);
        });
    }
}

TEST_CASE("pass: a stop that was requested before does nothing at all") {
    StopFlag stop;
    stop.request();
    CHECK(stop.requested());
    Recorded scene(2);
    scene.upload();
    with_executors([&](const AnyExecutor& executor) {
        CHECK(scene.pass.run(executor, {&stop}) == RunState::stopped);
        CHECK(scene.journal.tiles.empty());
    });
    stop.clear();
    CHECK(scene.pass.run(AnyExecutor{}, {&stop}) == RunState::finished);
    check_journal(scene.journal);
}

TEST_CASE("pass: a time that has passed leaves each call some tiles, and a stop none") {
    using Clock = decant::RunLimits::Clock;
    Recorded scene(2);
    StopFlag stop;
    stop.request();
    with_executors([&](const AnyExecutor& executor) {
        scene.journal.tiles.clear();
        scene.upload();
        const auto past = Clock::now() - std::chrono::seconds(1);
        CHECK(scene.pass.run(executor, {.stop = &stop, .until = past}) == RunState::stopped);
        CHECK(scene.journal.tiles.empty());
        std::size_t calls = 0;
        for (RunState state = RunState::stopped; state == RunState::stopped; ++calls) {
            const std::size_t before = scene.journal.tiles.size();
            REQUIRE(before < all_entries);
            state = scene.pass.run(executor, {.until = past});
            CHECK(scene.journal.tiles.size() > before);
            CHECK(scene.journal.tiles.size() <= before + most_at_once);
        }
        CHECK(calls > 5);
        check_journal(scene.journal);
        scene.upload();
        CHECK(scene.pass.run(executor, {.tiles = 1, .until = past}) == RunState::stopped);
        CHECK(scene.journal.tiles.size() == 1);
        scene.journal.tiles.clear();
        scene.upload();
        CHECK(scene.pass.run(executor, {.until = Clock::now() + std::chrono::hours(1)}) == RunState::finished);
        check_journal(scene.journal);
    });
}

TEST_CASE("pass: an upload starts over after a stop") {
    Recorded scene(2);
    for (const std::uint64_t limit : {3u, 7u, 12u, 20u}) {
        scene.upload();
        CHECK(scene.pass.run(AnyExecutor{}, {nullptr, limit}) == RunState::stopped);
        scene.journal.tiles.clear();
        scene.upload();
        CHECK(scene.pass.run(AnyExecutor{}) == RunState::finished);
        check_journal(scene.journal);
    }
}

TEST_CASE("pass: x is prepared once for all products that share it, and only if one needs it") {
    Journal journal;
    Pass pass({&journal}, 1);
    REQUIRE(pass.reserve({1, 1, 1, 1}, 32));
    const decant::host::Weight q4{decant::DType::q4_1, 8, 32, nullptr, 20, nullptr};
    const decant::host::Weight f16{decant::DType::f16, 8, 32, nullptr, 64, nullptr};
    pass.record([&](Pass& p) {
        p.linear(rows, {{&f16, nullptr, rows, false}});
        p.linear(rows, {{&f16, nullptr, rows, false}, {&q4, nullptr, rows, false}, {&q4, nullptr, rows, false}});
    });
    REQUIRE(pass.steps().size() == 3);
    CHECK(std::holds_alternative<decant::host::Linear>(pass.steps()[0]));
    CHECK(std::holds_alternative<decant::host::Prepare>(pass.steps()[1]));
    CHECK(std::holds_alternative<decant::host::Linear>(pass.steps()[2]));
    REQUIRE(pass.reserve({1, 1, 1, 1}, 32));
    CHECK(pass.steps().empty());  // another shape is recorded anew
}

TEST_CASE("pass: a gate is merged with the product before it only if the product is its two halves and nothing else") {
    using decant::host::Linear;
    using decant::host::Prepare;
    Journal journal;
    const decant::host::Weight q4{decant::DType::q4_1, 32, 32, nullptr, 20, nullptr};
    const decant::host::Weight f16{decant::DType::f16, 32, 32, nullptr, 64, nullptr};
    const decant::host::Weight narrow{decant::DType::f16, 32, 16, nullptr, 32, nullptr};
    float memory[6] = {};
    const auto view = [&](std::size_t i) { return decant::host::View{&memory[i], 32, RowSet::tokens}; };
    const auto x = view(0), g = view(1), u = view(2), y = view(3), z = view(4);
    const auto steps_of = [&](auto&& body) {
        Pass pass({&journal}, 1);
        REQUIRE(pass.reserve({1, 1, 1, 1}, 32));
        pass.record(body);
        return std::vector<Pass::Step>(pass.steps().begin(), pass.steps().end());
    };
    const auto gated = [&](const Pass::Step& step) { return std::get<Linear>(step).gated; };
    const auto prepares = [&](const Pass::Step& step) { return std::get<Linear>(step).prepares; };

    // The next product reads what the gate prepared; the one after that is prepared for again.
    auto steps = steps_of([&](Pass& p) {
        p.linear(x, {{&q4, nullptr, g, false}, {&q4, nullptr, u, false}});
        p.gate(g, u, decant::Activation::silu, y);
        p.linear(y, {{&q4, nullptr, x, true}});
        p.linear(x, {{&q4, nullptr, z, false}});
    });
    REQUIRE(steps.size() == 5);
    CHECK((gated(steps[1]) && prepares(steps[1]) && std::get<Linear>(steps[1]).y.data == y.data));
    CHECK(std::get<Prepare>(steps[0]).slot == std::get<Linear>(steps[1]).reads);
    CHECK(std::get<Linear>(steps[2]).reads != std::get<Linear>(steps[1]).reads);
    CHECK(std::get<Prepare>(steps[3]).slot == std::get<Linear>(steps[4]).reads);

    // A product that reads floats needs y itself.
    steps = steps_of([&](Pass& p) {
        p.linear(x, {{&f16, nullptr, g, false}, {&f16, nullptr, u, false}});
        p.gate(g, u, decant::Activation::silu, y);
        p.linear(y, {{&f16, nullptr, z, false}, {&q4, nullptr, x, true}});
    });
    REQUIRE(steps.size() == 3);
    CHECK((gated(steps[0]) && !prepares(steps[0])));

    // What the product reads is not overwritten by it.
    steps = steps_of([&](Pass& p) {
        p.linear(x, {{&f16, nullptr, g, false}, {&f16, nullptr, u, false}});
        p.gate(g, u, decant::Activation::silu, x);
    });
    REQUIRE(steps.size() == 2);
    CHECK(!gated(steps[0]));

    // So does whatever else comes next.
    steps = steps_of([&](Pass& p) {
        p.linear(x, {{&q4, nullptr, g, false}, {&q4, nullptr, u, false}});
        p.gate(g, u, decant::Activation::silu, y);
        p.softcap(y, 1.0f);
        p.linear(y, {{&q4, nullptr, x, true}});
    });
    REQUIRE(steps.size() == 5);
    CHECK((gated(steps[1]) && !prepares(steps[1])));

    const auto apart = [&](auto&& product, decant::host::View gate, decant::host::View up) {
        const auto made = steps_of([&](Pass& p) {
            product(p);
            p.gate(gate, up, decant::Activation::silu, y);
        });
        CHECK(std::holds_alternative<decant::host::Gate>(made.back()));
    };
    const auto halves = [&](Pass& p) { p.linear(x, {{&f16, nullptr, g, false}, {&f16, nullptr, u, false}}); };
    apart(halves, u, g);
    apart(halves, g, z);
    apart(halves, g, g);
    apart([&](Pass& p) { p.linear(x, {{&f16, nullptr, g, false}}); }, g, u);
    apart(
        [&](Pass& p) {
            p.linear(x, {{&f16, nullptr, g, false}, {&f16, nullptr, u, false}, {&f16, nullptr, z, false}});
        },
        g, u);
    apart([&](Pass& p) { p.linear(x, {{&f16, nullptr, g, true}, {&f16, nullptr, u, false}}); }, g, u);
    apart([&](Pass& p) { p.linear(x, {{&f16, nullptr, g, false}, {&narrow, nullptr, u, false}}); }, g, u);
    apart(
        [&](Pass& p) {
            halves(p);
            p.softcap(u, 1.0f);
        },
        g, u);
}

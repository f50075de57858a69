// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// `convolve` and `scan` on every backend: sequences whose states are carried from pass to pass, against the formulas in
// double precision, and the same bits however the tokens are cut into passes.
#include <decant/backend/host/ops.hpp>

#include "backend/support.hpp"
#include "core/executors.hpp"
#include "support/numbers.hpp"

#include <decant/core/thread_pool.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

using decant::AnyExecutor;
using decant::DType;
using decant::RunState;
using decant_test::Batch;
using decant_test::Machine;
using decant_test::Matrix;
using decant_test::Random;
using decant_test::Rig;
using decant_test::TestCache;
using decant_test::Worst;

namespace {

using decant_test::infinity;
constexpr std::size_t other_state = 5;  // floats that the layer in front keeps
constexpr std::uint32_t layer = 1;

/// Weights of the two operations, and the inputs of all tokens of all sequences, one row for each.
struct Mixer {
    decant::StateSpec spec;
    Matrix kernel;
    std::optional<Matrix> bias;
    std::vector<float> a;
    Matrix skip;
    std::vector<std::size_t> lengths, first;
    std::size_t rows = 0;
    std::vector<float> x, steps;

    Mixer(Random& random, const decant::StateSpec& state, std::vector<std::size_t> sequence_lengths)
        : spec(state),
          kernel(decant_test::random_matrix(random, random.pick({DType::f32, DType::f16, DType::bf16}), spec.mixed(),
                                            spec.kernel)),
          a(random.floats(spec.heads)),
          skip(decant_test::random_matrix(random, random.pick({DType::f32, DType::f16, DType::bf16}), 1, spec.heads)),
          lengths(std::move(sequence_lengths)) {
        if (random.coin())
            bias = decant_test::random_matrix(random, random.pick({DType::f32, DType::f16}), 1, spec.mixed());
        for (float& rate : a) rate = -0.1f - 3.0f * std::abs(rate);
        for (const std::size_t length : lengths) {
            first.push_back(rows);
            rows += length;
        }
        x = random.floats(rows * spec.mixed(), 2.0f);
        steps = random.floats(rows * spec.heads, 6.0f);
        steps[random.between(0, steps.size() - 1)] = 30.0f;
    }
};

Mixer random_mixer(Random& random, std::vector<std::size_t> lengths) {
    const auto groups = static_cast<std::uint32_t>(random.between(1, 3));
    const auto heads = groups * static_cast<std::uint32_t>(random.between(1, 3));
    const float largest = random.pick({infinity, 0.1f});
    return {random,
            {heads, random.pick<std::uint32_t>({1, 4, 7, 16}), groups, random.pick<std::uint32_t>({1, 5, 8, 16, 33}),
             random.pick<std::uint32_t>({1, 2, 4}), random.pick({0.0f, 0.01f}), largest},
            std::move(lengths)};
}

/// What every token gives, by row of the inputs.
struct Answers {
    std::vector<float> mixed, y;
};
bool same_bits(const Answers& a, const Answers& b) {
    return decant_test::same_bits(a.mixed, b.mixed) && decant_test::same_bits(a.y, b.y);
}

/// Some tokens of a sequence in a pass.
struct Part {
    std::size_t sequence, position, count;
};

/// The operations with a pool of states; every sequence goes on from where it was left.
template <class B>
class Runner {
 public:
    Runner(const Mixer& mixer, std::size_t most_rows, std::size_t participants = 1)
        : mixer_(mixer),
          rig_({static_cast<std::uint32_t>(most_rows + 2), static_cast<std::uint32_t>(mixer.lengths.size() + 1), 0, 1},
               mixer.spec.mixed(), participants),
          cache_(B{},
                 {{{0, 0, 0, other_state}, {0, 0, 0, mixer.spec.floats()}, {1, 4}},
                  4,
                  DType::f16,
                  static_cast<std::uint32_t>(2 * mixer.lengths.size() + 1)},
                 2),
          current_(mixer.lengths.size(), -1) {
        for (std::int32_t state = 0; state < static_cast<std::int32_t>(cache_.shape.states); ++state)
            free_.push_back(state);
        answers_.mixed.resize(mixer.rows * mixer.spec.mixed());
        answers_.y.resize(mixer.rows * mixer.spec.channels());
        rig_.pass().record([&](auto& pass) {
            const auto x = rig_.feed(mixer.x, mixer.spec.mixed());
            const auto steps = rig_.feed(mixer.steps, mixer.spec.heads);
            mixed_ = rig_.view(mixer.spec.mixed());
            y_ = rig_.view(mixer.spec.channels());
            const auto* bias = mixer.bias ? &rig_.weight(*mixer.bias) : nullptr;
            pass.convolve(x, rig_.weight(mixer.kernel), bias, layer, mixed_);
            pass.scan(mixed_, steps, rig_.constant(mixer.a), rig_.weight(mixer.skip), mixer.spec, layer, y_);
        });
    }

    /// One pass; `run(pass)` runs it.
    template <class Run>
    void pass(Random& random, const std::vector<Part>& parts, Run run) {
        Batch batch(rig_.shape());
        random.shuffle(free_);
        std::vector<std::int32_t> left;
        for (std::size_t s = 0; s < parts.size(); ++s) {
            const Part part = parts[s];
            for (std::size_t i = 0; i < part.count; ++i)
                batch.add(mixer_.first[part.sequence] + part.position + i, part.position + i, s);
            const std::int32_t to = free_.back();
            free_.pop_back();
            batch.state(s, current_[part.sequence], to);
            if (current_[part.sequence] >= 0) left.push_back(current_[part.sequence]);
            current_[part.sequence] = to;
        }
        free_.insert(free_.end(), left.begin(), left.end());
        rig_.upload(batch, cache_);
        run(rig_.pass());
        take(batch);
    }
    void pass(Random& random, const std::vector<Part>& parts) {
        pass(random, parts, [](auto& recorded) { REQUIRE(recorded.run(AnyExecutor{}) == RunState::finished); });
    }

    /// Two sequences go on from one state with the same tokens.
    bool twins_agree(const Part& part) {
        Batch batch(rig_.shape());
        for (std::size_t s = 0; s < 2; ++s) {
            for (std::size_t i = 0; i < part.count; ++i)
                batch.add(mixer_.first[part.sequence] + part.position + i, part.position + i, s);
            batch.state(s, current_[part.sequence], free_[s]);
        }
        rig_.run(batch, cache_);
        const auto y = rig_.read(y_);
        const auto half = y.begin() + static_cast<std::ptrdiff_t>(y.size() / 2);
        return decant_test::same_bits({y.begin(), half}, {half, y.end()}) &&
               decant_test::same_bits(state(free_[0]), state(free_[1]));
    }

    const Answers& answers() const { return answers_; }
    std::vector<float> state_of(std::size_t sequence) { return state(current_[sequence]); }
    bool padding_untouched() {
        return rig_.padding_untouched(mixed_, mixer_.spec.mixed()) &&
               rig_.padding_untouched(y_, mixer_.spec.channels());
    }
    /// Neither the states of the other layer, nor states that nobody was given, nor the blocks.
    bool others_untouched(std::size_t states_used) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(cache_.buffer.data());
        const std::size_t each = cache_.shape.state_bytes();
        REQUIRE(each == (other_state + mixer_.spec.floats()) * sizeof(float));
        const auto untouched = [&](std::size_t from, std::size_t to) {
            return std::all_of(bytes + from, bytes + to, [](unsigned char byte) { return byte == 0xFF; });
        };
        std::size_t written = 0;
        bool good = untouched(cache_.shape.states * each, cache_.buffer.size());
        for (std::size_t state = 0; state < cache_.shape.states; ++state) {
            good = good && untouched(state * each, state * each + other_state * sizeof(float));
            written += !untouched(state * each, (state + 1) * each);
        }
        return good && written <= states_used;
    }

 private:
    std::vector<float> state(std::int32_t slot) {
        std::vector<float> values(mixer_.spec.floats());
        const std::size_t at =
            static_cast<std::size_t>(slot) * cache_.shape.state_bytes() + other_state * sizeof(float);
        std::memcpy(values.data(), cache_.buffer.data() + at, values.size() * sizeof(float));
        return values;
    }
    void take(const Batch& batch) {
        const auto keep = [&](const std::vector<float>& rows, std::size_t columns, std::vector<float>& all) {
            for (std::size_t t = 0; t < batch.rows; ++t)
                std::copy_n(&rows[t * columns], columns, &all[static_cast<std::size_t>(batch.tokens[t]) * columns]);
        };
        keep(rig_.read(mixed_), mixer_.spec.mixed(), answers_.mixed);
        keep(rig_.read(y_), mixer_.spec.channels(), answers_.y);
    }

    const Mixer& mixer_;
    Rig<B> rig_;
    TestCache<B> cache_;
    std::vector<std::int32_t> current_, free_;
    typename B::View mixed_{}, y_{};
    Answers answers_;
};

/// Every sequence as a whole, one after the other.
template <class B>
Answers answer_whole(Random& random, const Mixer& mixer) {
    Runner<B> runner(mixer, *std::max_element(mixer.lengths.begin(), mixer.lengths.end()));
    for (std::size_t s = 0; s < mixer.lengths.size(); ++s) runner.pass(random, {{s, 0, mixer.lengths[s]}});
    return runner.answers();
}

/// All tokens in random passes over some of the sequences; `each(parts)` runs one.
template <class Each>
void in_parts(Random& random, const Mixer& mixer, std::size_t most_rows, Each each) {
    std::vector<std::size_t> done(mixer.lengths.size(), 0);
    std::size_t left = mixer.rows;
    while (left > 0) {
        std::vector<std::size_t> order(mixer.lengths.size());
        for (std::size_t s = 0; s < order.size(); ++s) order[s] = s;
        random.shuffle(order);
        std::vector<Part> parts;
        std::size_t room = most_rows;
        for (const std::size_t s : order) {
            const std::size_t most = (std::min)(room, mixer.lengths[s] - done[s]);
            if (most == 0 || random.between(0, 3) == 0) continue;
            const std::size_t count = random.coin() ? 1 : random.between(1, most);
            parts.push_back({s, done[s], count});
            done[s] += count;
            room -= count;
            left -= count;
        }
        if (!parts.empty()) each(parts);
    }
}

std::vector<float> values_or_zeros(const std::optional<Matrix>& matrix, std::size_t n) {
    return matrix ? matrix->values() : std::vector<float>(n);
}

}  // namespace

TEMPLATE_TEST_CASE("states: convolve and scan against their formulas", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(51);
    for (int round = 0; round < 25; ++round) {
        const Mixer mixer = random_mixer(random, {random.between(1, 40), 1, random.between(1, 9)});
        const decant::StateSpec& spec = mixer.spec;
        Runner<TestType> runner(mixer, 12);
        in_parts(random, mixer, 12, [&](const auto& parts) { runner.pass(random, parts); });
        const Answers got = runner.answers();

        const std::vector<float> kernel = mixer.kernel.values(), skip = mixer.skip.values();
        const std::vector<float> bias = values_or_zeros(mixer.bias, spec.mixed());
        Worst convolved, scanned, left;
        for (std::size_t s = 0; s < mixer.lengths.size(); ++s) {
            const std::size_t first = mixer.first[s], length = mixer.lengths[s];
            for (std::size_t p = 0; p < length; ++p) {
                for (std::size_t i = 0; i < spec.mixed(); ++i) {
                    double sum = bias[i], size = std::abs(bias[i]);
                    for (std::size_t j = 0; j < spec.kernel; ++j) {
                        if (p + 1 + j < spec.kernel) continue;  // before the beginning
                        const double product = double{kernel[i * spec.kernel + j]} *
                                               mixer.x[(first + p + 1 + j - spec.kernel) * spec.mixed() + i];
                        sum += product;
                        size += std::abs(product);
                    }
                    const double expected = sum / (1.0 + std::exp(-sum));
                    convolved.add(got.mixed[(first + p) * spec.mixed() + i], expected,
                                  1e-6 * (size + std::abs(expected)) + 1e-30);
                }
            }
            const std::vector<float> state = runner.state_of(s);
            for (std::size_t j = 0; j + 1 < spec.kernel; ++j) {  // the rows before the next one, exactly
                for (std::size_t i = 0; i < spec.mixed(); ++i) {
                    const bool before = length + j + 1 < spec.kernel;
                    const double expected =
                        before ? 0.0 : mixer.x[(first + length + j + 1 - spec.kernel) * spec.mixed() + i];
                    left.add(state[j * spec.mixed() + i], expected, 0.0);
                }
            }
            for (std::size_t h = 0; h < spec.heads; ++h) {
                const std::size_t group = h / (spec.heads / spec.groups);
                for (std::size_t c = 0; c < spec.head_dim; ++c) {
                    std::vector<double> numbers(spec.size), sizes(spec.size);
                    for (std::size_t p = 0; p < length; ++p) {
                        const float* mixed = &got.mixed[(first + p) * spec.mixed()];
                        const double raw = mixer.steps[(first + p) * spec.heads + h];
                        const double step =
                            std::clamp(std::log1p(std::exp(raw)), double{spec.step_min}, double{spec.step_max});
                        const double decay = std::exp(step * mixer.a[h]);
                        const double x = mixed[h * spec.head_dim + c];
                        const float* b = mixed + spec.channels() + group * spec.size;
                        double sum = skip[h] * x, size = std::abs(sum);
                        for (std::size_t n = 0; n < spec.size; ++n) {
                            numbers[n] = decay * numbers[n] + step * x * b[n];
                            sizes[n] = decay * sizes[n] + std::abs(step * x * b[n]);
                            const double weight = b[spec.groups * spec.size + n];
                            sum += numbers[n] * weight;
                            size += sizes[n] * std::abs(weight);
                        }
                        scanned.add(got.y[(first + p) * spec.channels() + h * spec.head_dim + c], sum,
                                    1e-5 * size + 1e-30);
                    }
                    for (std::size_t n = 0; n < spec.size; ++n)
                        left.add(state[spec.history() + (h * spec.head_dim + c) * spec.size + n], numbers[n],
                                 1e-5 * sizes[n] + 1e-30);
                }
            }
        }
        CAPTURE(round, spec.heads, spec.head_dim, spec.groups, spec.size, spec.kernel, spec.step_max);
        CHECK(convolved.units() <= 1.0);
        CHECK(scanned.units() <= 1.0);
        CHECK(left.units() <= 1.0);
    }
}

TEMPLATE_TEST_CASE("states: neither cuts, mates, threads nor interruptions change a bit", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(52);
    for (int round = 0; round < 6; ++round) {
        const Mixer mixer =
            random_mixer(random, {random.between(20, 50), random.between(1, 4), 17, random.between(5, 30)});
        const Answers expected = answer_whole<TestType>(random, mixer);
        for (const float value : expected.y) REQUIRE(std::isfinite(value));
        const auto check = [&](const AnyExecutor& executor, std::uint64_t tiles) {
            Runner<TestType> runner(mixer, 13, 4);
            in_parts(random, mixer, 13, [&](const auto& parts) {
                runner.pass(random, parts, [&](auto& pass) {
                    while (pass.run(executor, {nullptr, tiles}) == RunState::stopped) {
                    }
                });
            });
            CAPTURE(round, tiles);
            CHECK(same_bits(runner.answers(), expected));
        };
        constexpr std::uint64_t all = (std::numeric_limits<std::uint64_t>::max)();
        check(AnyExecutor{}, all);
        check(AnyExecutor{}, 1);
        check(AnyExecutor(decant::ThreadPool(3, 3)), all);
        check(AnyExecutor(decant::ThreadPool(4, 4)), 5);
        check(AnyExecutor(decant_test::ReversedExecutor{}), all);
        check(AnyExecutor(decant_test::ShuffledExecutor{}), 7);
    }
}

TEMPLATE_TEST_CASE("states: what others keep stays as it is, and two may go on from one state", "",
                   DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(53);
    for (int round = 0; round < 10; ++round) {
        const Mixer mixer = random_mixer(random, {12, 7});
        Runner<TestType> runner(mixer, 14);
        runner.pass(random, {{1, 0, 3}, {0, 0, 5}});
        CHECK(runner.padding_untouched());
        CHECK(runner.others_untouched(2));
        const std::vector<float> before = runner.state_of(1);
        runner.pass(random, {{0, 5, 2}});
        CHECK(decant_test::same_bits(runner.state_of(1), before));
        CHECK(runner.others_untouched(3));
        CHECK(runner.twins_agree({0, 7, 5}));
        CHECK(runner.twins_agree({1, 3, 1}));
        CHECK(decant_test::same_bits(runner.state_of(1), before));
    }
}

TEMPLATE_TEST_CASE("states: what is not finite stays visible, in its sequence alone", "", DECANT_TEST_BACKENDS) {
    if (!Machine<TestType>::runs()) return;
    Random random(54);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity}) {
        Mixer mixer(random, {4, 3, 2, 9, 4, 0.0f, infinity}, {9, 9});
        const Answers good = answer_whole<TestType>(random, mixer);
        const std::size_t at = mixer.first[1] + 4;
        Mixer broken = mixer;
        broken.x[at * mixer.spec.mixed() + 2] = bad;    // of head 0
        broken.steps[at * mixer.spec.heads + 1] = bad;  // of head 1
        const Answers got = answer_whole<TestType>(random, broken);
        std::size_t hidden = 0, spread = 0;
        for (std::size_t row = 0; row < mixer.rows; ++row) {
            for (std::size_t c = 0; c < mixer.spec.channels(); ++c) {
                const std::size_t i = row * mixer.spec.channels() + c;
                // The bad input of head 0 is one channel's; a step counts for all of its head, an infinite one until
                // it is forgotten.
                const bool affected = row >= at && (c == 2 || (c >= 3 && c < 6));
                const bool must = affected && (c == 2 || std::isnan(bad) || row == at);
                hidden += must && std::isfinite(got.y[i]);
                spread += !affected && got.y[i] != good.y[i];
            }
        }
        CAPTURE(bad);
        CHECK(hidden == 0);
        CHECK(spread == 0);
    }
}

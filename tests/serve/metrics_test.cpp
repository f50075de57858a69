// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/serve/metrics.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

using decant::EngineMetrics;
using decant::Latencies;

TEST_CASE("metrics: quantiles are those of the sorted times, at most an eighth too high", "[serve][metrics]") {
    decant_test::Random random{4};
    for (const double scale : {1e-5, 1e-3, 0.1, 50.0}) {
        Latencies latencies;
        std::vector<double> times;
        for (int i = 0; i < 2000; ++i) {
            const auto nanos =
                static_cast<std::int64_t>(scale * 1e9 * std::exp(2.0 * static_cast<double>(random.number())));
            latencies.add(std::chrono::nanoseconds(nanos));
            times.push_back(static_cast<double>(nanos) * 1e-9);
        }
        std::sort(times.begin(), times.end());
        for (const double q : {0.01, 0.5, 0.95, 0.99, 1.0}) {
            const double exact = times[static_cast<std::size_t>(std::ceil(q * 2000.0)) - 1];
            CAPTURE(scale, q);
            CHECK(latencies.quantile(q) >= exact);
            CHECK(latencies.quantile(q) <= exact * 1.125 + 1e-6);
        }
        double sum = 0.0;
        for (const double time : times) sum += time;
        CHECK(std::abs(latencies.sum() - sum) < 1e-6 * sum);
        CHECK(latencies.count() == 2000);
    }
    CHECK(Latencies().quantile(0.5) == 0.0);
    Latencies extremes;
    extremes.add(std::chrono::seconds(-1));
    extremes.add(std::chrono::hours(24 * 365));
    CHECK(extremes.quantile(1.0) > 86400.0);
    CHECK(extremes.quantile(0.5) <= 1e-6);
}

TEST_CASE("metrics: JSON and Prometheus tell the same numbers", "[serve][metrics]") {
    EngineMetrics metrics;
    metrics.counts.answer_tokens = 12345;
    metrics.counts.waiting = 3;
    metrics.pass_seconds = 1.25;
    metrics.steps = 10;
    metrics.rows = 64;
    metrics.bytes = 3e9;
    metrics.limits = {.rows = 16, .sequences = 4, .bytes_per_second = 4.8e9};
    metrics.own_seconds = 0.25;
    metrics.last_step.steps = 1;
    metrics.last_step.rows = 12;
    for (int i = 1; i <= 100; ++i) metrics.first_token.add(std::chrono::milliseconds(i));
    const nlohmann::json json = nlohmann::json::parse(decant::to_json(metrics));
    CHECK(json.at("steps") == 10);
    CHECK(json.at("answer_tokens") == 12345);
    CHECK(json.at("waiting") == 3);
    CHECK(json.at("pass_seconds") == 1.25);
    CHECK(json.at("row_share") == 0.4);
    CHECK(json.at("last_step_row_share") == 0.75);
    CHECK(json.at("bandwidth_share") == 0.5);
    CHECK(json.at("arithmetic_share") == 0.0);  // unknown
    CHECK(json.at("own_share").get<double>() == Approx(0.25 / 1.5));
    CHECK(json.at("tokens_per_second") == 12345 / 1.5);
    CHECK(json.at("first_token_seconds").at("count") == 100);
    const double p99 = json.at("first_token_seconds").at("p99");
    CHECK(p99 >= 0.099);
    CHECK(p99 <= 0.115);

    // Every line is a comment, or a name with a number.
    std::istringstream lines(decant::to_prometheus(metrics));
    std::size_t samples = 0;
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("# TYPE decant_")) continue;
        CAPTURE(line);
        REQUIRE(line.starts_with("decant_"));
        const std::string name = line.substr(7, line.find_first_of(" {") - 7), value = line.substr(line.rfind(' ') + 1);
        ++samples;
        if (line.find('{') != std::string::npos || name.ends_with("_sum") || name.ends_with("_count")) continue;
        CHECK(json.at(name).dump() == nlohmann::json::parse(value).dump());
    }
    CHECK(samples == json.size() - 5 + 5 * 5);
}

TEST_CASE("metrics: the diagnosis names what is slow", "[serve][metrics]") {
    EngineMetrics metrics;
    CHECK(metrics.diagnose().find("Nothing has been answered") != std::string::npos);
    metrics.counts.answer_tokens = 100;
    metrics.counts.finished = 10;
    metrics.steps = 100;
    const auto add = [](Latencies& to, int ms) {
        for (int i = 0; i < 10; ++i) to.add(std::chrono::milliseconds(ms));
    };
    EngineMetrics fine = metrics;
    add(fine.queue, 1), add(fine.first_token, 50), add(fine.between_tokens, 10);
    CHECK(fine.diagnose().find("Nothing is ill") != std::string::npos);
    EngineMetrics cache = fine;
    cache.counts.preemptions = 10;
    CHECK(cache.diagnose().find("cache is too small") != std::string::npos);
    cache.counts.full = 1;
    CHECK(cache.diagnose().find("Out of memory") != std::string::npos);
    EngineMetrics listeners = fine;
    listeners.pass_seconds = 3.0;
    listeners.listener_seconds = 1.0;
    CHECK(listeners.diagnose().find("listeners: they take 25 %") != std::string::npos);
    EngineMetrics queue = metrics;
    queue.counts.waiting = 5;
    add(queue.queue, 900), add(queue.first_token, 1000), add(queue.between_tokens, 10);
    CHECK(queue.diagnose().find("wait") != std::string::npos);
    EngineMetrics prompts = metrics;
    add(prompts.queue, 10), add(prompts.first_token, 1000), add(prompts.between_tokens, 10);
    CHECK(prompts.diagnose().find("prompts take") != std::string::npos);
    EngineMetrics decode = metrics;
    add(decode.queue, 10), add(decode.first_token, 500), add(decode.between_tokens, 200);
    CHECK(decode.diagnose().find("from token to token") != std::string::npos);
    decode.pass_seconds = 20.0;
    decode.bytes = 16e9;
    decode.operations = 18e9;
    decode.limits.bytes_per_second = 1e9;
    CHECK(decode.diagnose().find("It is the memory, which moves 80 %") != std::string::npos);
    decode.limits.operations_per_second = 1e9;
    CHECK(decode.diagnose().find("It is the arithmetic, at 90 %") != std::string::npos);
}

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "report.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace experiment {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Work& work) {
    return {{"weight_bytes", work.weight_bytes},
            {"cache_bytes", work.cache_bytes},
            {"integer_operations", work.integer_operations},
            {"float_operations", work.float_operations},
            {"operations_per_byte", work.intensity()}};
}

Json json_of(const Limits& limits) {
    return {{"instruction_set", limits.instruction_set},
            {"integer_operations_per_second", limits.integer_operations_per_second},
            {"float_operations_per_second", limits.float_operations_per_second},
            {"read_bytes_per_second", limits.bytes_per_second},
            {"read_buffer_bytes", limits.buffer_bytes},
            {"largest_cache_bytes", limits.last_cache_bytes}};
}

Json json_of(const Build& build, const Limits& limits) {
    Json json{{"label", build.label},
              {"origin", build.origin},
              {"full_precision", build.full},
              {"weight_bytes", build.weight_bytes},
              {"bits_per_weight", build.bits_per_weight},
              {"ready_seconds", build.ready_seconds}};
    if (build.resident) {
        json["resident_own_bytes"] = build.resident->own_bytes;
        json["resident_file_bytes"] = build.resident->file_bytes;
    }
    json["answer"] = build.answer;
    json["answer_tokens"] = build.answer_tokens;
    json["answer_cut"] = build.answer_cut;
    json["prefill"] = {{"tokens", build.prefill_tokens},
                       {"seconds", build.prefill_seconds},
                       {"tokens_per_second", build.prefill_speed()},
                       {"work_per_pass", json_of(build.prefill_work)},
                       {"arithmetic_share", arithmetic_share(limits, build.prefill_work, build.prefill_seconds)}};
    json["decode"] = {
        {"tokens", build.decode_tokens},
        {"median_seconds", build.decode_seconds},
        {"tokens_per_second", build.decode_speed()},
        {"work_per_token", json_of(build.decode_work)},
        {"bytes_per_second", build.decode_work.bytes() / build.decode_seconds},
        {"bandwidth_share", build.decode_work.bytes() / build.decode_seconds / read_limit(limits, build)}};
    json["read_limit_bytes_per_second"] = read_limit(limits, build);
    return json;
}

Json json_of(const Builds& found, const Limits& limits) {
    Json json{{"prompt", found.prompt}, {"builds", Json::array()}};
    for (const Build& build : found.builds) json["builds"].push_back(json_of(build, limits));
    if (found.scored > 0) {
        json["next_token_choices"] = {{"positions", found.scored},
                                      {"equal", found.agreed},
                                      {"agreement_share", found.agreement()},
                                      {"answers_begin_with_the_same_tokens", found.common_tokens}};
    } else {
        json["no_second_build_because"] = found.missing;
    }
    return json;
}

Json json_of(const PauseAndDrip& found) {
    Json chunks = Json::array();
    for (const auto& chunk : found.chunks)
        chunks.push_back({{"tokens", chunk.tokens}, {"seconds", chunk.seconds}, {"cache_bytes", chunk.cache_bytes}});
    return {{"prompt_words", found.prompt_words},
            {"prompt_tokens", found.prompt_tokens},
            {"first_token_seconds", found.first_token_seconds},
            {"prefill_tokens_per_second", static_cast<double>(found.prompt_tokens) / found.first_token_seconds},
            {"prefill_arithmetic_share", found.prefill_share},
            {"prefill_work", json_of(found.prefill_work)},
            {"token_median_seconds", found.median_seconds},
            {"decode_tokens_per_second", 1.0 / found.median_seconds},
            {"decode_bandwidth_share", found.decode_share},
            {"decode_work_per_token", json_of(found.decode_work)},
            {"chunks", chunks},
            {"token_seconds", found.token_seconds}};
}

Json json_of(const CacheEffect& found) {
    Json points = Json::array();
    for (const auto& point : found.points) {
        points.push_back({{"context_tokens", point.context},
                          {"next_token_with_cache_seconds", point.with_seconds},
                          {"next_token_without_cache_seconds", point.without_seconds},
                          {"logits_bitwise_equal", point.bitwise_equal},
                          {"cache_bytes", point.cache_bytes}});
    }
    return {{"entries", found.entries}, {"bytes_per_token", found.bytes_per_token}, {"points", points}};
}

Json json_of(const Elevator& found, const Builds& builds) {
    Json rides = Json::array();
    for (const auto& ride : found.rides) {
        rides.push_back({{"sequences", ride.sequences},
                         {"pass_median_seconds", ride.seconds},
                         {"total_tokens_per_second", ride.total_speed()},
                         {"single_tokens_per_second", ride.single_speed()},
                         {"bytes_per_token", ride.bytes_per_token()},
                         {"work_per_pass", json_of(ride.work)}});
    }
    return {{"build", builds.builds[found.build].label}, {"rides", rides}};
}

Json json_of(const Attention& found) {
    const auto traffic = [](const Attention::Traffic& t) -> Json {
        return {
            {"read_bytes", t.read_bytes}, {"written_bytes", t.written_bytes}, {"extra_memory_bytes", t.extra_bytes}};
    };
    Json points = Json::array();
    for (const auto& point : found.points) {
        points.push_back({{"tokens", point.tokens},
                          {"naive", traffic(point.naive)},
                          {"tiled", traffic(point.tiled)},
                          {"largest_difference", point.difference}});
    }
    return {{"head_dim", found.head_dim},
            {"query_tile_tokens", found.query_tile},
            {"key_tile_tokens", found.key_tile},
            {"one_head_of_one_layer", points}};
}

Json json_of(const Paging& found) {
    const auto side = [](const Paging::Side& s) -> Json {
        return {{"mean_conversations_at_once", s.mean_at_once},   {"memory_with_tokens_share", s.used_share},
                {"memory_taken_but_empty_share", s.wasted_share}, {"steps_to_serve_all", s.at_once.size()},
                {"conversations_finished", s.finished},           {"conversations_sent_back", s.evicted}};
    };
    return {{"conversations", found.conversations}, {"cache_tokens", found.cache_tokens},
            {"slot_tokens", found.slot_tokens},     {"block_tokens", found.block_tokens},
            {"contiguous", side(found.contiguous)}, {"paged", side(found.paged)}};
}

Json json_of(const Speculation& found, const Builds& builds) {
    Json tasks = Json::array();
    for (const auto& task : found.tasks) {
        Json ways = Json::array();
        for (const auto& way : task.ways) {
            ways.push_back({{"drafts", drafts_text(way.drafts, builds.small().label)},
                            {"tokens", way.tokens},
                            {"seconds", way.seconds},
                            {"tokens_per_second", way.speed()},
                            {"passes", way.passes},
                            {"tokens_per_pass", way.tokens_per_pass()},
                            {"drafted_tokens", way.drafted},
                            {"accepted_tokens", way.accepted},
                            {"weight_bytes_per_token", way.weight_bytes_per_token()}});
        }
        tasks.push_back({{"task", task.name}, {"ways", ways}, {"same_tokens", task.same}});
    }
    return {{"build", builds.builds[found.build].label}, {"tasks", tasks}};
}

Json json_of(const PrefixReuse& found) {
    const auto side = [](const PrefixReuse::Side& s) -> Json {
        return {{"tokens_computed", s.computed},
                {"first_token_seconds", s.first_seconds},
                {"bytes_moved", s.bytes},
                {"operations", s.operations}};
    };
    Json calls = Json::array();
    for (const auto& call : found.calls)
        calls.push_back({{"context_tokens", call.context}, {"with", side(call.with)}, {"without", side(call.without)}});
    return {{"answer_tokens", found.answer_tokens},
            {"tokens_to_compute_at_most", found.most},
            {"same_tokens", found.same},
            {"calls", calls}};
}

}  // namespace

std::string to_json(const Results& results) {
    Json json{{"model",
               {{"name", results.model},
                {"family", results.family},
                {"parameters", results.parameters},
                {"layers", results.layers},
                {"context_length_tokens", results.context_length}}},
              {"machine",
               {{"processor", results.machine.processor},
                {"threads", results.machine.threads},
                {"limits", json_of(results.machine.limits)}}},
              {"two_builds", json_of(results.builds, results.machine.limits)},
              {"pause_and_drip", json_of(results.pause)},
              {"cache", json_of(results.cache)},
              {"elevator", Json::array()},
              {"attention", json_of(results.attention)},
              {"paging", json_of(results.paging)},
              {"speculation", json_of(results.speculation, results.builds)},
              {"prefix_reuse", json_of(results.reuse)},
              {"total_seconds", results.total_seconds}};
    for (const Elevator& found : results.elevators) json["elevator"].push_back(json_of(found, results.builds));
    // Names in files need not be UTF-8.
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace experiment

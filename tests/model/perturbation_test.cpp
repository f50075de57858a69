// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Nothing in a config.json is silently ignored (inert_keys.hpp, families/*.hpp): every key of the tiny models is
// changed in every plausible way, and then binding fails with an error that names the key, or the logits change, or
// the key is a known inert one, or an excuse below says why it may stay the same.
#include <decant/model/inert_keys.hpp>

#include <decant/backend/simd/simd.hpp>

#include "core/sanitizers.hpp"
#include "model/config_folder.hpp"
#include "model/support.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using decant::Model;
using decant::Simd;
using decant::Want;
using decant_test::ConfigFolder;
using decant_test::Floats;
using decant_test::Tokens;
using nlohmann::json;

namespace {

/// Where a row below need not look: any model, any value.
constexpr std::string_view any = "*";
constexpr std::string_view removed = "(removed)";

/// What holds where a key is absent, by the classes of transformers: taking a key away that says just this must change
/// nothing. The first row that fits counts.
struct Default {
    std::string_view model;
    std::string_view key;  // its last component
    std::string_view value;
};
constexpr Default defaults[]{
    {"gpt_neox", "attention_bias", "true"},
    {"gpt_oss_trunc", "attention_bias", "true"},
    {any, "attention_bias", "false"},
    {any, "beta_fast", "32.0"},
    {any, "beta_slow", "1.0"},
    {any, "conv_kernel", "4"},
    {any, "decoder_sparse_step", "1"},
    {any, "expand", "2"},
    {"llama3", "head_dim", "16"},
    {"deepseek_v3", "head_dim", "8"},
    {"gpt_neox", "hidden_act", "\"gelu\""},
    {any, "hidden_act", "\"silu\""},
    {any, "hidden_activation", "\"gelu_pytorch_tanh\""},
    {any, "layer_norm_eps", "1e-05"},
    {any, "layer_norm_epsilon", "1e-05"},
    {"gemma2", "layer_types", R"(["sliding_attention","full_attention"])"},
    {"gpt_oss_trunc", "layer_types", R"(["sliding_attention","full_attention"])"},
    {"qwen2", "layer_types", R"(["full_attention","full_attention"])"},
    {"qwen3", "layer_types", R"(["full_attention","full_attention"])"},
    {any, "max_window_layers", "28"},
    {any, "mlp_bias", "false"},
    {any, "mlp_only_layers", "[]"},
    {"deepseek_v3", "n_shared_experts", "1"},
    {"deepseek_v3", "norm_topk_prob", "true"},
    {"deepseek_v3", "num_key_value_heads", "4"},
    {"phi3", "partial_rotary_factor", "1.0"},
    {any, "partial_rotary_factor", "0.25"},
    {any, "qk_head_dim", "24"},
    {any, "qk_layernorm", "false"},
    {"ernie4_5", "rms_norm_eps", "1e-05"},
    {"gpt_oss_trunc", "rms_norm_eps", "1e-05"},
    {"mixtral", "rms_norm_eps", "1e-05"},
    {"phi3", "rms_norm_eps", "1e-05"},
    {any, "rms_norm_eps", "1e-06"},
    {any, "rope_interleave", "true"},
    {any, "rope_local_base_freq", "10000.0"},
    {"gpt_neox", "rope_parameters", R"({"partial_rotary_factor":0.25,"rope_theta":10000.0,"rope_type":"default"})"},
    {"mixtral", "rope_parameters", R"({"rope_theta":1000000.0,"rope_type":"default"})"},
    {"phi3", "rope_parameters", R"({"partial_rotary_factor":1.0,"rope_theta":10000.0,"rope_type":"default"})"},
    {"stablelm", "rope_parameters", R"({"partial_rotary_factor":0.25,"rope_theta":10000.0,"rope_type":"default"})"},
    {"ernie4_5", "rope_parameters", R"({"rope_theta":500000.0,"rope_type":"default"})"},
    {any, "rope_parameters", R"({"rope_theta":10000.0,"rope_type":"default"})"},
    {any, "sliding_attention", R"({"rope_theta":10000.0,"rope_type":"default"})"},
    {"ernie4_5", "rope_theta", "500000.0"},
    {"gpt_oss_trunc", "rope_theta", "150000.0"},
    {"mixtral", "rope_theta", "1000000.0"},
    {any, "rope_theta", "10000.0"},
    {any, "rope_type", "\"default\""},
    {any, "rotary_emb_base", "10000.0"},
    {any, "rotary_pct", "0.25"},
    {any, "scoring_func", "\"sigmoid\""},
    {any, "swiglu_alpha", "1.702"},
    {any, "swiglu_limit", "7.0"},
    {"ernie4_5", "tie_word_embeddings", "true"},
    {"gemma2", "tie_word_embeddings", "true"},
    {"gemma3_text", "tie_word_embeddings", "true"},
    {any, "tie_word_embeddings", "false"},
    {any, "time_step_limit", R"([0.0,{"__float__":"Infinity"}])"},
    {any, "topk_method", "\"noaux_tc\""},
    {any, "truncate", "true"},
    {any, "use_bias", "false"},
    {any, "use_bidirectional_attention", "false"},
    {any, "use_conv_bias", "true"},
    {"gpt_neox", "use_parallel_residual", "true"},
    {any, "use_parallel_residual", "false"},
    {any, "use_sliding_window", "false"},
};

/// Values that rightly change nothing, or that are refused by the name of another key.
enum class Excuse { same, other };
struct Excused {
    std::string_view model;
    std::string_view key;
    std::string_view value;
    Excuse excuse;
    std::string_view reason;
};
constexpr std::string_view rounded = "YaRN rounds the borders between slow and fast to whole elements";
constexpr std::string_view alike = "a family whose attention_bias, which is named, means other tensors";
constexpr std::string_view left_over = "numbers of the rule that was there before are left over, and named";
constexpr Excused excuses[]{
    {any, "max_position_embeddings", any, Excuse::same, "a limit that no position here reaches"},
    {"deepseek_v3", "beta_fast", any, Excuse::same, rounded},
    {"deepseek_v3", "beta_slow", any, Excuse::same, rounded},
    {"deepseek_v3", "original_max_position_embeddings", any, Excuse::same, rounded},
    {"gpt_oss_trunc", "beta_fast", any, Excuse::same, rounded},
    {"gpt_oss_trunc", "beta_slow", any, Excuse::same, rounded},
    {"gpt_oss_trunc", "original_max_position_embeddings", any, Excuse::same, rounded},
    {"deepseek_v3", "num_nextn_predict_layers", any, Excuse::same, "how many layers to pass over; the file has none"},
    {"gemma2", "use_bidirectional_attention", "false", Excuse::same, "null means the same"},
    {"gemma3_text", "_sliding_window_pattern", any, Excuse::same, "layer_types says which"},
    {"qwen2", "max_window_layers", any, Excuse::same, "layer_types says which"},
    {"qwen3", "max_window_layers", any, Excuse::same, "layer_types says which"},
    {"qwen2", "sliding_window", any, Excuse::same, "use_sliding_window is off"},
    {"qwen3", "sliding_window", any, Excuse::same, "use_sliding_window is off"},
    {"qwen3_moe", "sliding_window", any, Excuse::same, "use_sliding_window is off"},
    {"qwen3_moe", "intermediate_size", any, Excuse::same, "of the layers without experts, of which there are none"},
    {"qwen2", "use_sliding_window", "true", Excuse::same, "layer_types says that no layer has a window"},
    {"qwen3", "use_sliding_window", "true", Excuse::same, "layer_types says that no layer has a window"},
    {"gpt_neox", "num_key_value_heads", any, Excuse::same, "is written, but the class has one for each head"},
    {"phi3", "original_max_position_embeddings", any, Excuse::same, "for LongRoPE, which is refused"},
    {"mixtral", "head_dim", "16", Excuse::same, "hidden_size / num_attention_heads, as without"},
    {"mamba2", "time_step_limit", R"([-1.0,{"__float__":"Infinity"}])", Excuse::same, "steps are above 0 anyway"},
    {"gpt_neox", "model_type", any, Excuse::other, alike},
    {"qwen2", "model_type", any, Excuse::other, alike},
    {"stablelm", "model_type", any, Excuse::other, alike},
    {"deepseek_v3", "rope_type", any, Excuse::other, left_over},
    {"gemma3_text", "rope_type", any, Excuse::other, left_over},
    {"gpt_oss_trunc", "rope_type", any, Excuse::other, left_over},
    {"llama3", "rope_type", any, Excuse::other, left_over},
};

/// Logits at every position.
Floats logits_of(decant::Context<Simd>& context, const Tokens& text) {
    const decant::KvCache<Simd> cache(context, {.tokens = 64, .dtype = decant::DType::f32, .sequences = 1});
    auto sequence = decant_test::taken(cache.sequence());
    const auto logits = decant_test::taken(context.pass({{&sequence, text, Want::all}}));
    Floats all;
    for (std::size_t r = 0; r < logits.rows(); ++r) {
        const auto row = logits.row(r);
        all.insert(all.end(), row.begin(), row.end());
    }
    return all;
}

/// What becomes of a config.
struct Outcome {
    std::string error;           // empty = bound
    std::vector<Floats> logits;  // of each text, up to the first that differs from `usual`
};

Outcome outcome(const ConfigFolder& folder, const json& config, const std::vector<Tokens>& texts,
                const Outcome& usual = {}) {
    const auto weights = folder.open(config.dump());
    if (!weights) return {weights.error().message(), {}};
    const auto model = Model<Simd>::bind(*weights);
    if (!model) return {model.error().message(), {}};
    decant::Context<Simd> context(*model, {.rows = 48, .sequences = 1, .logits = 48});
    Outcome made;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        made.logits.push_back(logits_of(context, texts[i]));
        // What was in memory before must not matter: a difference would be by accident.
        if (i == 0 && !decant_test::same_bits(made.logits[0], logits_of(context, texts[0])))
            FAIL("other bits the second time");
        if (!usual.logits.empty() && !decant_test::same_bits(made.logits[i], usual.logits[i])) break;
    }
    return made;
}

bool is_inert(std::string_view path) {
    return std::ranges::any_of(decant::inert_config_keys, [&](std::string_view known) {
        return known.ends_with('.') || known.ends_with('_') ? path.starts_with(known) : path == known;
    });
}

/// `key` as a word of its own.
bool names(std::string_view message, std::string_view key) {
    const auto letter = [&](std::size_t i) {
        return i < message.size() && (std::isalnum(static_cast<unsigned char>(message[i])) != 0 || message[i] == '_');
    };
    for (std::size_t at = message.find(key); at != std::string_view::npos; at = message.find(key, at + 1))
        if ((at == 0 || !letter(at - 1)) && !letter(at + key.size())) return true;
    return false;
}

const json infinity = {{"__float__", "Infinity"}};

/// Other values that somebody might write.
std::vector<json> others(const std::string& key, const json& value) {
    static const std::map<std::string_view, std::vector<json>> words{
        {"hidden_act", {"silu", "gelu", "gelu_pytorch_tanh", "relu"}},
        {"hidden_activation", {"silu", "gelu", "gelu_pytorch_tanh", "relu"}},
        {"rope_type", {"default", "linear", "llama3", "yarn", "dynamic", "longrope"}},
        {"model_type", {"llama", "qwen2", "gemma2", "mamba2"}},
        {"scoring_func", {"softmax"}},
        {"topk_method", {"greedy", "group_limited_greedy"}},
        {"layer_types", {"sliding_attention", "full_attention", "chunked_attention", "mamba"}},
    };
    std::vector<json> made;
    if (value.is_boolean()) {
        made = {!value.get<bool>(), nullptr, "no"};
    } else if (value.is_number_integer()) {
        const auto n = value.get<long>();
        made = {n + 1, 2 * n, n / 2, 0, 1, -1, nullptr, "many", static_cast<double>(n) + 0.5, true};
    } else if (value.is_number_float()) {
        const auto x = value.get<double>();
        made = {x * 1.5, x + 1.0, 2.0 * x, x / 2.0, 0.0, -1.0, infinity, nullptr, "much", true};
    } else if (value.is_string()) {
        if (const auto known = words.find(key); known != words.end()) made = known->second;
        made.insert(made.end(), {"no_such_value", "", 3, nullptr});
    } else if (value.is_null()) {
        made = {1, 16, 0.5, true, false, "no_such_value", json::array({1.0, 2.0}), {{"no_such_key", 1}}};
        if (key == "rope_scaling") {
            made.push_back({{"type", "linear"}, {"factor", 2.0}});
            made.push_back({{"rope_type", "dynamic"}, {"factor", 2.0}});
            made.push_back({{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 16}});
        }
    } else if (value.is_array()) {
        for (std::size_t i = 0; i < value.size(); ++i) {
            for (const json& other : others(key, value[i])) {
                made.push_back(value);
                made.back()[i] = other;
            }
        }
        if (!value.empty()) {
            made.push_back(value);
            made.back().push_back(value.back());
            made.push_back(value);
            made.back().erase(made.back().size() - 1);
        }
        if (key == "mlp_only_layers") made.insert(made.end(), {{0}, {1}, {-1}, {99}, {0.5}, {"one"}});
        made.insert(made.end(), {json::array(), "no_such_value", 1, nullptr});
        if (key == "time_step_limit") {
            made.push_back({0.0, 0.01});
            made.push_back({0.02, 0.01});
            made.push_back({0.0, {{"__float__", "-Infinity"}}});
            made.push_back({0.0, {{"__float__", "NaN"}}});
            made.push_back({{{"__float__", "-Infinity"}}, infinity});
            made.push_back({0.0, 0.01, infinity});
            made.push_back({0.0, {{"__word__", "Infinity"}}});
        }
    } else {
        made = {nullptr, json::object(), "no_such_value", 1};
    }
    std::erase(made, value);
    std::sort(made.begin(), made.end());
    made.erase(std::unique(made.begin(), made.end(),
                           [](const json& a, const json& b) { return a.type() == b.type() && a == b; }),
               made.end());
    return made;
}

/// Sanitizers make it ten times slower: there a part of the changes must do.
constexpr std::size_t stride = DECANT_TEST_SANITIZED ? 7 : 1;

struct Change {
    std::string path;
    std::string key;
    std::string before, value;
    json config;
};

/// All changes of `config`, and of the objects in it.
void collect(const json& config, const json::json_pointer& at, const std::string& prefix, std::vector<Change>& out) {
    const json& object = config.at(at);
    for (const auto& [key, value] : object.items()) {
        const auto place = at / key;
        for (const json& other : others(key, value)) {
            out.push_back({prefix + key, key, value.dump(), other.dump(), config});
            out.back().config[place] = other;
        }
        if (value.is_null()) continue;  // which is as good as absent
        out.push_back({prefix + key, key, value.dump(), std::string(removed), config});
        out.back().config[at].erase(key);
        if (value.is_object() && !value.contains("__float__")) collect(config, place, prefix + key + ".", out);
    }
    for (const json& value : {json(1), json("word"), json({{"no_such_part", 2.5}})}) {
        out.push_back({prefix + "no_such_key", "no_such_key", "", value.dump(), config});
        out.back().config[at / "no_such_key"] = value;
    }
}

constexpr const char* models[]{"llama3",  "qwen2",     "qwen3",    "gemma2",      "gemma3_text",
                               "mixtral", "qwen3_moe", "ernie4_5", "deepseek_v3", "gpt_oss_trunc",
                               "phi3",    "stablelm",  "gpt_neox", "mamba2"};

/// What hub files and transformers 5 call otherwise, by one name.
std::string meaning(const std::string& path) {
    static const std::map<std::string, std::string> same{
        {"rope_theta", "rope.rope_theta"},
        {"rotary_emb_base", "rope.rope_theta"},
        {"partial_rotary_factor", "rope.partial_rotary_factor"},
        {"rotary_pct", "rope.partial_rotary_factor"},
        {"rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq"},
    };
    if (const auto found = same.find(path); found != same.end()) return found->second;
    for (const std::string_view begin : {"rope_parameters.full_attention.", "rope_parameters.", "rope_scaling."})
        if (path.starts_with(begin)) return "rope." + path.substr(begin.size());
    return path;
}

/// What the changes did, so that none of it can silently fall away.
struct Tally {
    std::size_t named = 0, changed = 0, inert = 0, excused = 0, alike = 0;
};

}  // namespace

TEST_CASE("no key of a config.json is silently ignored", "[model][config]") {
    std::vector<bool> excuse_needed(std::size(excuses), false), default_needed(std::size(defaults), false);
    Tally tally;
    std::string faults;
    for (const char* name : models) {
        const auto source = decant_test::data("tiny/" + std::string(name));
        const ConfigFolder folder(source);
        const json reference = decant_test::read_json(source / "reference.json");
        std::vector<Tokens> texts;
        for (const json& sequence : reference["sequences"]) texts.push_back(decant_test::tokens_of(sequence["ids"]));
        REQUIRE(texts.size() == 2);
        std::map<std::string, Outcome> outcomes;  // of the changes in the first style
        for (const char* style : {"config.json", "config.v5.json"}) {
            const json config = decant_test::read_json(source / style);
            const Outcome usual = outcome(folder, config, texts);
            INFO(name << ", " << style << ": " << usual.error);
            REQUIRE(usual.error.empty());

            std::vector<Change> changes;
            collect(config, json::json_pointer(), "", changes);
            for (std::size_t c = 0; c < changes.size(); c += stride) {
                const Change& change = changes[c];
                if (is_inert(change.path) && change.key != "model_type") {  // see the next test
                    ++tally.inert;
                    continue;
                }
                const auto fits = [](std::string_view wanted, std::string_view is) {
                    return wanted == any || wanted == is;
                };
                const Outcome found = outcome(folder, change.config, texts, usual);
                const bool bound = found.error.empty();
                const bool same = bound && std::ranges::equal(found.logits, usual.logits, decant_test::same_bits);
                const bool numbers = std::ranges::all_of(found.logits, [](const Floats& all) {
                    return std::ranges::all_of(all, [](float x) { return std::isfinite(x); });
                });
                const auto fault = [&](const std::string& what) {
                    faults += std::string(name) + ", " + style + ", " + change.path + " = " + change.value + ": " +
                              what + "\n";
                };

                // The same change in the other style does the same.
                const auto [twin, first] = outcomes.emplace(meaning(change.path) + " = " + change.value, found);
                if (!first) {
                    ++tally.alike;
                    if (twin->second.error.empty() != bound ||
                        !std::ranges::equal(twin->second.logits, found.logits, decant_test::same_bits))
                        fault("another outcome than in the other style");
                }

                if (change.value == removed || change.value == "null" || change.value == "{}") {
                    const auto usually = std::ranges::find_if(
                        defaults, [&](const Default& d) { return fits(d.model, name) && d.key == change.key; });
                    if (usually != std::end(defaults) && usually->value == change.before) {
                        default_needed[static_cast<std::size_t>(usually - defaults)] = true;
                        ++tally.excused;
                        if (!same) fault(bound ? "something changes" : found.error);
                        continue;
                    }
                }
                if (bound && !same && numbers) {
                    ++tally.changed;
                    continue;
                }
                if (!bound && names(found.error, change.key)) {
                    ++tally.named;
                    continue;
                }
                const auto excuse = std::ranges::find_if(excuses, [&](const Excused& e) {
                    return fits(e.model, name) && e.key == change.key && fits(e.value, change.value) &&
                           (e.excuse == Excuse::same ? same : !bound);
                });
                if (excuse != std::end(excuses)) {
                    excuse_needed[static_cast<std::size_t>(excuse - excuses)] = true;
                    ++tally.excused;
                    continue;
                }
                fault(same ? "nothing changes" : bound ? "logits that are not numbers" : found.error);
            }
        }
    }
    INFO(faults);
    CHECK(faults.empty());
    if (stride > 1) return;
    for (std::size_t i = 0; i < excuse_needed.size(); ++i) {
        INFO("an excuse that nothing needs: " << excuses[i].key << " = " << excuses[i].value << " of "
                                              << excuses[i].model);
        CHECK(excuse_needed[i]);
    }
    for (std::size_t i = 0; i < default_needed.size(); ++i) {
        INFO("a default that nothing needs: " << defaults[i].key << " of " << defaults[i].model);
        CHECK(default_needed[i]);
    }
    INFO(tally.named << " named, " << tally.changed << " changed, " << tally.inert << " inert, " << tally.excused
                     << " excused");
    CHECK(tally.named > 2'000);
    CHECK(tally.changed > 500);
    CHECK(tally.inert > 1'000);
    CHECK(tally.alike > 2'000);
}

TEST_CASE("inert keys change no bit, whatever they say", "[model][config]") {
    for (const char* name : models) {
        const auto source = decant_test::data("tiny/" + std::string(name));
        const ConfigFolder folder(source);
        const json reference = decant_test::read_json(source / "reference.json");
        const std::vector<Tokens> texts{decant_test::tokens_of(reference["sequences"][0]["ids"])};
        const json config = decant_test::read_json(source / "config.json");
        const Outcome usual = outcome(folder, config, texts);
        for (const json& value : {json(7), json("word"), json(true), json(nullptr), json::array({1, "two"})}) {
            json all = config;
            for (const std::string_view known : decant::inert_config_keys) {
                if (known == "model_type") continue;  // it chooses the family
                std::string key(known);
                if (key.ends_with('.')) {
                    key.pop_back();
                    all[key] = {{"part", value}};
                } else {
                    all[key.ends_with('_') ? key + "part" : key] = value;
                }
            }
            const Outcome found = outcome(folder, all, texts);
            INFO(name << ", all of them " << value.dump() << ": " << found.error);
            CHECK(found.error.empty());
            CHECK(std::ranges::equal(found.logits, usual.logits, decant_test::same_bits));
        }
    }
}

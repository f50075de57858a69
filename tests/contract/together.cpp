// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// Several users of the library in one process: two contexts on one model from two threads at once, two models of
// different kinds, one of which goes while the other works, and a plug-in with its own copy that comes and goes. Meant
// for the thread sanitizer too. Case EH-08 of ../shared/cases; loading again and again is in serve/soak_test.cpp.
//
//     together MODEL OTHER_MODEL PLUGIN [LOADS]
#include "contract/program.hpp"
#include "core/sanitizers.hpp"

#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>

namespace {

using decant_test::check;
using decant_test::Host;
using decant_test::need;
using decant_test::question;
using Answer = int (*)(const char*, int, char*, std::size_t);

constexpr int words = 6;

std::unique_ptr<Host<decant::Simd>> kept;  // dies after main, as a host's own global may

/// The last logits after some tokens, on a context of its own.
template <class B>
std::vector<float> logits_of(const decant::Model<B>& model, std::span<const decant::Token> tokens) {
    decant::Context context(model, decant::ThreadPool{2}, {.rows = 16});
    const decant::KvCache cache(context, {.tokens = 64});
    auto sequence = need(cache.sequence(), "a sequence");
    const auto logits = need(context.prefill(sequence, tokens), "prefill");
    const std::span<const float> row = logits;
    return {row.begin(), row.end()};
}

template <class F>
void at_once(int count, F body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back([i, &body] { body(i); });
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 4) return 2;
    const char* const model = arguments[1];
    const char* const tiny = arguments[2];
    int loads = 50;
    if (count > 4) std::from_chars(arguments[4], arguments[4] + std::strlen(arguments[4]), loads);

    std::string expected;
    {
        Host<decant::Simd> host(model);
        expected = host.answer(question, words);
        const std::vector<decant::Token> tokens = host.tokenizer.encode(question);
        const std::vector<float> alone = logits_of(host.model, tokens);
        std::vector<std::vector<float>> found(2);
        at_once(2, [&](int i) { found[static_cast<std::size_t>(i)] = logits_of(host.model, tokens); });
        for (const auto& logits : found) check(logits == alone, "two contexts on one model disturb each other");
    }

    std::vector<decant::Token> few;
    for (int i = 0; i < 20; ++i) few.push_back(decant::Token{(i * 37) % 150});
    const auto small = need(decant::Weights::open(tiny), "the other model");
    const auto simd_alone = logits_of(need(decant::Model<decant::Simd>::bind(small), "binding"), few);
    const auto eigen_alone = logits_of(need(decant::Model<decant::Eigen>::bind(small), "binding"), few);
    at_once(3, [&](int i) {
        if (i == 0) {
            Host<decant::Simd> host(model);
            check(host.answer(question, words) == expected, "an answer beside other models differs");
        } else {
            for (int round = 0; round < 5; ++round) {  // made and destroyed while the first works
                const auto own = need(decant::Weights::open(tiny), "the other model");
                if (i == 1)
                    check(logits_of(need(decant::Model<decant::Simd>::bind(own), "binding"), few) == simd_alone,
                          "simd");
                else
                    check(logits_of(need(decant::Model<decant::Eigen>::bind(own), "binding"), few) == eigen_alone,
                          "eigen");
            }
        }
    });

    const auto load_and_ask = [&](int i) {
        void* plugin = dlopen(arguments[3], RTLD_NOW | RTLD_LOCAL);
        if (plugin == nullptr) return check(false, dlerror());
        const auto answer = reinterpret_cast<Answer>(dlsym(plugin, "plugin_answer"));
        char text[256] = "";
        check(answer != nullptr && answer(model, i == 0 ? words : 1, text, sizeof text) == 0, "the plug-in failed");
        check(expected.starts_with(text) && text[0] != '\0', "the plug-in's answer differs");
        dlclose(plugin);
    };
    const auto mapped = [&] {
        std::ifstream maps("/proc/self/maps");
        const std::string name = std::filesystem::path(arguments[3]).filename().string();
        for (std::string line; std::getline(maps, line);)
            if (line.ends_with(name)) return true;
        return false;
    };
    at_once(2, [&](int i) {
        if (i == 0) {
            Host<decant::Simd> host(model);
            check(host.answer(question, words) == expected, "an answer beside a plug-in differs");
        } else {
            load_and_ask(0);
        }
    });
    for (int i = 1; i <= loads; ++i) load_and_ask(i);
    if (!DECANT_TEST_SANITIZED) check(!mapped(), "the plug-in was not unloaded");

    kept = std::make_unique<Host<decant::Simd>>(model);
    check(kept->answer(question, words) == expected, "an answer after all differs");
    return decant_test::failures == 0 ? 0 : 1;
}

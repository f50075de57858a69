// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
/// \file
/// A plug-in with a copy of the library of its own, which a host loads at run time.

#include "contract/program.hpp"

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

extern "C" __attribute__((visibility("default"))) int plugin_answer(const char* model, int words, char* text,
                                                                    std::size_t size);

namespace {

std::unique_ptr<decant_test::Host<decant::Simd>> kept;  // with its threads, until the plug-in is unloaded

}  // namespace

extern "C" int plugin_answer(const char* model, int words, char* text, std::size_t size) {
    kept = std::make_unique<decant_test::Host<decant::Simd>>(model);
    const std::string answer = kept->answer(decant_test::question, words);
    if (answer.size() >= size) return 1;
    std::memcpy(text, answer.c_str(), answer.size() + 1);
    return decant_test::failures;
}

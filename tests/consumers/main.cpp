// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
/// \file
/// A program outside Decant's build: calls one unit, or (DECANT_CONSUMER_UNITS) the same unit built with different
/// flags (case EH-02 of ../shared/cases). usage: consumer [MODEL]   without a model it checks that a missing file is
/// reported as a value

#include <cstdio>
#include <cstring>

#if defined(DECANT_CONSUMER_UNITS)
#define DECANT_CONSUMER_UNIT(name) int name(const char* model, char* text, int size);
DECANT_CONSUMER_UNITS
#undef DECANT_CONSUMER_UNIT
#else
int answer(const char* model, char* text, int size);
#endif

static int run(const char* name, int (*unit)(const char*, char*, int), const char* model) {
    char text[512] = "";
    const int code = unit(model, text, static_cast<int>(sizeof text));
    std::printf("%s: %s\n", name, text);
    const bool expected =
        model != nullptr ? code == 0 && text[0] != '\0' : std::strstr(text, "no-such-file.gguf") != nullptr;
    if (!expected) std::printf("%s: unexpected outcome, code %d\n", name, code);
    return expected ? 0 : 1;
}

int main(int argc, char** argv) {
    const char* model = argc > 1 ? argv[1] : nullptr;
    int failed = 0;
#if defined(DECANT_CONSUMER_UNITS)
#define DECANT_CONSUMER_UNIT(name) failed |= run(#name, name, model);
    DECANT_CONSUMER_UNITS
#else
    failed = run("answer", answer, model);
#endif
    return failed;
}

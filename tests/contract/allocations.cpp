// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// After warm-up, decoding allocates nothing, on any thread; and unloading gives everything back.
//
//     allocations MODEL
#include "contract/program.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>

#include "support/process_memory.hpp"

namespace {

std::atomic<std::size_t> allocations{0};

}  // namespace

// The system's allocator under its other names; operator new ends here too.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* data, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    return __libc_calloc(count, size);
}
void* realloc(void* data, std::size_t size) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    return __libc_realloc(data, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
    *out = memalign(alignment, size);
    return *out == nullptr ? ENOMEM : 0;
}
}

namespace {

using decant_test::check;
using decant_test::Host;
using decant_test::need;
using decant_test::question;

std::size_t files() {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{}));
}
std::size_t threads() {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator{}));
}

void decode_without_allocating(const char* path) {
    constexpr int warm_up = 100, steps = 1000;
    Host<decant::Simd> host(path, 2, 1280);
    decant::Sampler sampler = need(decant::Sampler::chain({decant::Penalties{.repetition = 1.1f}, decant::TopK{40},
                                                           decant::TopP{0.95f}, decant::Temperature{0.8f}},
                                                          7),
                                   "the sampler");
    decant::TextStream stream(host.tokenizer);
    std::size_t characters = 0;
    auto logits = need(host.context.prefill(host.sequence, host.tokenizer.encode(question)), "prefill");
    const auto step = [&] {
        const decant::Token token = need(sampler.pick(logits, host.sequence.tokens()), "pick");
        characters += stream.push(token).size();
        logits = need(host.context.decode(host.sequence, token), "decode");
    };
    for (int i = 0; i < warm_up; ++i) step();
    const std::size_t before = allocations;
    for (int i = 0; i < steps; ++i) step();
    const std::size_t made = allocations - before;
    std::printf("%d steps after warm-up: %zu allocations, %zu bytes of text, %zu blocks of the cache\n", steps, made,
                characters, host.sequence.table().size());
    check(made == 0, "decoding allocated");
    check(characters > 1000, "no text came out");
}

/// An engine that may swap knows its model's fingerprint before a step needs it; computing it allocates.
void know_the_fingerprint(const char* path) {
    const auto weights = need(decant::Weights::open(path), "opening");
    const auto tokenizer = need(decant::Tokenizer::from(weights), "the tokenizer");
    for (const std::size_t swap_bytes : {std::size_t{0}, std::size_t{1}}) {
        const auto model = need(decant::Model<decant::Simd>::bind(weights), "binding");
        const auto engine = need(decant::Engine<decant::Simd>::create(model, tokenizer, decant::SerialExecutor{},
                                                                      {.swap_bytes = swap_bytes}),
                                 "an engine");
        const std::size_t before = allocations;
        static_cast<void>(model.fingerprint());
        check((allocations == before) == (swap_bytes > 0), "the fingerprint was computed at another time");
    }
}

void load_and_unload(const char* path) {
    constexpr int cycles = 100, settled = 10;
    struct Figures {
        std::uint64_t resident = decant_test::measure().resident;
        std::size_t open_files = files();
        std::size_t running = threads();
    };
    std::optional<Figures> early, late;
    for (int cycle = 1; cycle <= cycles; ++cycle) {
        {
            Host<decant::Simd> host(path);
            check(!host.answer(question, 2).empty(), "no answer");
        }
        if (cycle == settled || cycle == cycles) (cycle == settled ? early : late).emplace();
    }
    std::printf("resident after %d loads %llu bytes, after %d %llu bytes; %zu open files, %zu threads\n", settled,
                static_cast<unsigned long long>(early->resident), cycles,
                static_cast<unsigned long long>(late->resident), late->open_files, late->running);
    check(late->resident < early->resident + (512 << 10), "memory grew");
    check(late->open_files == early->open_files, "files stayed open");
    check(late->running == 1, "threads stayed behind");
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) return 2;
    decode_without_allocating(arguments[1]);
    know_the_fingerprint(arguments[1]);
    load_and_unload(arguments[1]);
    return decant_test::failures == 0 ? 0 : 1;
}

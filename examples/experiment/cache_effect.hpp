// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Chapter 3: the next token with the cache and without it.

#include "format.hpp"
#include "lab.hpp"
#include "terminal.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace experiment {

inline void cache_effect(Lab& lab) {
    CacheEffect& found = lab.results.cache;
    Engine& engine = lab.small_engine();
    const Tokens& text = lab.long_text;
    const std::size_t longest = (std::min)(
        {text.size() - 1, lab.context_length() - 1, static_cast<std::size_t>(lab.small().prefill_speed() * 4.0) + 32});

    const decant::CacheShape shape{engine.spec().cache_layers()};
    found.entries = decant::name(shape.dtype);
    found.bytes_per_token = shape.block_bytes() / shape.block_tokens;

    const examples::Stopwatch watch;
    for (std::size_t context = 16; context <= (lab.settings.quick ? 256u : 2048u); context *= 2) {
        if (context > longest || watch.seconds() > 8.0) break;
        const std::span<const decant::Token> past(text.data(), context);
        const decant::Token next = text[context];
        const Cache cache = engine.cache(2 * context + 64);

        CacheEffect::Point point;
        point.context = context;
        Sequence kept = cache.sequence().value();
        engine.prefill(kept, past, "filling the cache");
        point.cache_bytes = bytes_in_use(cache);
        std::vector<double> seconds;
        std::vector<float> with;
        for (int round = 0; round < 5; ++round) {
            kept.truncate(context);
            seconds.push_back(examples::seconds_of([&] {
                const std::span<const float> logits = engine.decode(kept, next);
                with.assign(logits.begin(), logits.end());
            }));
        }
        point.with_seconds = examples::median(seconds);

        Sequence fresh = cache.sequence().value();
        const std::span<const decant::Token> all(text.data(), context + 1);
        std::vector<float> without;
        point.without_seconds = examples::seconds_of([&] {
            const std::span<const float> logits = engine.prefill(fresh, all, "reading it all again");
            without.assign(logits.begin(), logits.end());
        });
        point.bitwise_equal =
            with.size() == without.size() && std::memcmp(with.data(), without.data(), with.size() * sizeof(float)) == 0;
        found.points.push_back(point);
        print_fact("after " + count(context) + " tokens", duration(point.with_seconds) + " with the cache",
                   duration(point.without_seconds) + " without; logits " +
                       (point.bitwise_equal ? "equal, bit by bit" : "DIFFER"));
    }
    print_fact("the cache's price", bytes_text(static_cast<double>(found.bytes_per_token)) + " per token",
               megabytes(lab.results.pause.chunks.back().cache_bytes) + " after " +
                   count(lab.results.pause.chunks.back().tokens) + " tokens; the weights are " +
                   megabytes(lab.small().weight_bytes));
}

}  // namespace experiment

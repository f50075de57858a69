// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Chapter 7: a context that grows, computed anew in every call, or only what is new of it.

#include "format.hpp"
#include "lab.hpp"
#include "terminal.hpp"

#include "../support/greenhouse.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

namespace experiment {

/// As many calls as the model's context and the reader's patience allow.
[[nodiscard]] inline examples::Greenhouse agent_of(const Lab& lab, std::size_t answer) {
    const double patience = lab.settings.quick ? 1.5 : 6.0;  // seconds of reading, without the cache
    const double most = lab.small().prefill_speed() * patience;
    for (std::size_t calls = lab.settings.quick ? 8 : 16;; --calls) {
        examples::Greenhouse made(lab.tokenizer, calls, answer);
        // Each call reads half of the last context, in the mean.
        const double read = static_cast<double>(calls * made.tokens()) / 2.0;
        if (calls <= 2 || (read <= most && made.tokens() < lab.context_length())) return made;
    }
}

inline void prefix_reuse(Lab& lab) {
    PrefixReuse& found = lab.results.reuse;
    found.answer_tokens = 8;
    const examples::Greenhouse agent = agent_of(lab, found.answer_tokens);
    const auto play = [&](bool cached) {
        const decant::EngineOptions options = agent.options(cached);
        auto engine =
            decant::Engine<Metered>::create(lab.small_engine().model(), lab.tokenizer, lab.pool, options).value();
        examples::Greenhouse::Run run = agent.play(engine, cached ? "an agent remembers" : "an agent reads again");
        found.most = run.most_with_cache(options.block_tokens);
        return run;
    };
    const examples::Greenhouse::Run without = play(false), with = play(true);
    for (std::size_t i = 0; i < with.calls.size(); ++i) {
        const auto side = [](const examples::Greenhouse::Call& call) {
            return PrefixReuse::Side{call.computed, call.first, call.bytes, 2 * call.operations};
        };
        found.calls.push_back({with.calls[i].context, side(with.calls[i]), side(without.calls[i])});
    }
    found.same = with.written == without.written;

    const PrefixReuse::Call& last = found.calls.back();
    const auto report = [&](const std::string& name, PrefixReuse::Side PrefixReuse::Call::*side) {
        const PrefixReuse::Side all = found.sum(side);
        print_fact(name, count(static_cast<std::size_t>(all.computed)) + " tokens read",
                   rounded(all.operations / 1e9) + " billion operations, " + megabytes(all.bytes) + " moved; call " +
                       count(found.calls.size()) + ", of " + count(last.context) + " tokens, answers after " +
                       duration((last.*side).first_seconds));
    };
    report("everything read again", &PrefixReuse::Call::without);
    report("only what is new", &PrefixReuse::Call::with);
    print_line(std::string("  Both wrote ") + (found.same ? "the same, token for token." : "DIFFERENT texts."));
}

}  // namespace experiment

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// What the experiment measures, as plain data: the chapters fill it, the reports read it. Bytes, seconds, operations
/// (a multiplication and an addition are two) and tokens, never anything scaled.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace experiment {

/// What passes over a model asked of the machine, counted tile by tile while they ran.
struct Work {
    std::uint64_t weight_bytes = 0;        ///< weights read, each once per pass
    std::uint64_t cache_bytes = 0;         ///< keys and values read, each once per pass
    std::uint64_t integer_operations = 0;  ///< on weights of block formats: 8-bit dot products
    std::uint64_t float_operations = 0;    ///< on float weights, and attention

    [[nodiscard]] double bytes() const { return static_cast<double>(weight_bytes + cache_bytes); }
    [[nodiscard]] double operations() const { return static_cast<double>(integer_operations + float_operations); }
    /// Operations per byte: where the work lies on a roofline.
    [[nodiscard]] double intensity() const { return operations() / bytes(); }
};

/// What the machine can do at best, measured on as many threads as the model gets.
struct Limits {
    std::string instruction_set;
    double integer_operations_per_second = 0;  ///< 8-bit dot products
    double float_operations_per_second = 0;    ///< F32 multiply-adds
    double bytes_per_second = 0;               ///< reading a buffer much larger than the caches
    std::uint64_t buffer_bytes = 0;            ///< the size of that buffer
    std::uint64_t last_cache_bytes = 0;        ///< the largest cache, 0 = unknown
};

struct Machine {
    std::string processor;
    std::size_t threads = 0;
    Limits limits;
};

/// Growth of this process's resident memory.
struct Resident {
    std::uint64_t own_bytes = 0;   ///< belongs to this process alone
    std::uint64_t file_bytes = 0;  ///< pages of mapped files, which processes share and the system may take back
};

/// One build of the model.
struct Build {
    bool full = false;   ///< floats, as opposed to blocks of a few bits
    bool given = false;  ///< lies in the file that was given; else made by the program
    std::string label;   ///< short: "F32", "Q4_1"
    std::string origin;  ///< a sentence
    std::uint64_t weight_bytes = 0;
    double bits_per_weight = 0;
    double ready_seconds = 0;  ///< to open or to make
    std::optional<Resident> resident;

    std::string answer;
    bool answer_cut = false;
    std::size_t answer_tokens = 0;

    std::size_t prefill_tokens = 0;
    double prefill_seconds = 0;  ///< best round
    Work prefill_work;
    std::size_t decode_tokens = 0;
    double decode_seconds = 0;    ///< of one token, median
    Work decode_work;             ///< of one token
    double bytes_per_second = 0;  ///< reading a buffer as large as the weights, again and again

    [[nodiscard]] double prefill_speed() const { return static_cast<double>(prefill_tokens) / prefill_seconds; }
    [[nodiscard]] double decode_speed() const { return 1.0 / decode_seconds; }
};

/// Chapter 1. Builds in the order of the report: full precision first. There may be only one.
struct Builds {
    std::string prompt;
    std::vector<Build> builds;
    std::string missing;  ///< why there is no second build; empty if there is

    // Both builds score the same text; the next token is the one they rate highest.
    std::size_t scored = 0;
    std::size_t agreed = 0;
    std::size_t common_tokens = 0;  ///< tokens that both answers begin with

    [[nodiscard]] double agreement() const { return static_cast<double>(agreed) / static_cast<double>(scored); }
    /// The smallest build, which the other chapters run.
    [[nodiscard]] const Build& small() const { return builds.back(); }
};

/// Chapter 2.
struct PauseAndDrip {
    std::size_t prompt_words = 0;
    std::size_t prompt_tokens = 0;
    struct Chunk {
        std::size_t tokens = 0;         ///< of the prompt so far
        double seconds = 0;             ///< since the prompt was sent
        std::uint64_t cache_bytes = 0;  ///< in use
    };
    std::vector<Chunk> chunks;
    double first_token_seconds = 0;
    std::vector<double> token_seconds;  ///< of each token after the first
    double median_seconds = 0;
    Work prefill_work;
    Work decode_work;  ///< of the token in the middle

    double prefill_share = 0;  ///< of the arithmetic peak
    double decode_share = 0;   ///< of the read bandwidth
};

/// Chapter 3.
struct CacheEffect {
    struct Point {
        std::size_t context = 0;  ///< tokens before the one that is timed
        double with_seconds = 0;
        double without_seconds = 0;
        bool bitwise_equal = false;
        std::uint64_t cache_bytes = 0;
    };
    std::vector<Point> points;
    std::uint64_t bytes_per_token = 0;
    std::string entries;  ///< dtype of the cache

    [[nodiscard]] bool all_equal() const {
        for (const Point& point : points)
            if (!point.bitwise_equal) return false;
        return !points.empty();
    }
};

/// Chapter 4, of one build.
struct Elevator {
    struct Ride {
        std::size_t sequences = 0;
        double seconds = 0;  ///< of a pass, median
        Work work;           ///< of a pass

        [[nodiscard]] double total_speed() const { return static_cast<double>(sequences) / seconds; }
        [[nodiscard]] double single_speed() const { return 1.0 / seconds; }
        [[nodiscard]] double bytes_per_token() const { return work.bytes() / static_cast<double>(sequences); }
    };
    std::size_t build = 0;  ///< index into Builds::builds
    std::vector<Ride> rides;
};

/// Chapter 5, first half: one query head of one layer.
struct Attention {
    std::size_t head_dim = 0;
    struct Traffic {
        std::uint64_t read_bytes = 0;
        std::uint64_t written_bytes = 0;
        std::uint64_t extra_bytes = 0;  ///< memory besides queries, keys, values and result
    };
    struct Point {
        std::size_t tokens = 0;
        Traffic naive;
        Traffic tiled;
        double difference = 0;  ///< largest, between the two results
    };
    std::vector<Point> points;
    std::size_t query_tile = 0;
    std::size_t key_tile = 0;
};

/// Chapter 5, second half: the same conversations in the same memory, kept in two ways.
struct Paging {
    std::size_t cache_tokens = 0;
    std::size_t slot_tokens = 0;   ///< what the contiguous cache reserves per conversation
    std::size_t block_tokens = 0;  ///< what the paged cache hands out at a time
    std::size_t conversations = 0;
    struct Side {
        std::vector<std::size_t> at_once;  ///< conversations in the cache, step by step
        double used_share = 0;             ///< of the memory, holding tokens; mean over the trace
        double wasted_share = 0;           ///< taken but empty
        double mean_at_once = 0;
        std::size_t finished = 0;
        std::size_t evicted = 0;  ///< conversations sent back to the queue to make room
    };
    Side contiguous;
    Side paged;
};

/// Chapter 6: the same tokens, written one by one and with drafts.
struct Speculation {
    enum class Drafts { none, lookup, small, contrary };
    struct Way {
        Drafts drafts = Drafts::none;
        std::size_t tokens = 0;  ///< of the answer, after the first
        double seconds = 0;      ///< that they took, best round
        std::uint64_t passes = 0;
        std::uint64_t drafted = 0;
        std::uint64_t accepted = 0;
        std::uint64_t weight_bytes = 0;  ///< of the model and of the draft model

        [[nodiscard]] double speed() const { return static_cast<double>(tokens) / seconds; }
        [[nodiscard]] double tokens_per_pass() const {
            return static_cast<double>(tokens) / static_cast<double>(passes);
        }
        [[nodiscard]] double weight_bytes_per_token() const {
            return static_cast<double>(weight_bytes) / static_cast<double>(tokens);
        }
        [[nodiscard]] double accepted_share() const {
            return drafted == 0 ? 0.0 : static_cast<double>(accepted) / static_cast<double>(drafted);
        }
    };
    struct Task {
        std::string name;       ///< one word
        std::vector<Way> ways;  ///< the first without drafts
        bool same = true;       ///< all wrote the same tokens

        [[nodiscard]] const Way* find(Drafts drafts) const {
            for (const Way& way : ways)
                if (way.drafts == drafts) return &way;
            return nullptr;
        }
    };
    std::vector<Task> tasks;
    std::size_t build = 0;  ///< that writes, index into Builds::builds; the last one drafts, if it is another
};

/// Who drafts, for people; `small` is the label of the smallest build.
[[nodiscard]] inline std::string drafts_text(Speculation::Drafts drafts, const std::string& small) {
    switch (drafts) {
        case Speculation::Drafts::lookup: return "prompt lookup";
        case Speculation::Drafts::small: return small + " drafts";
        case Speculation::Drafts::contrary: return "wrong drafts";
        default: return "one by one";
    }
}

/// Chapter 7: an agent's calls, whose context grows, with the cache of prefixes and without.
struct PrefixReuse {
    struct Side {
        std::uint64_t computed = 0;  ///< tokens of the prompt
        double first_seconds = 0;    ///< to the first token
        double bytes = 0;            ///< moved by the passes of the call
        double operations = 0;       ///< of them
    };
    struct Call {
        std::size_t context = 0;  ///< tokens of the prompt
        Side with;
        Side without;
    };
    std::vector<Call> calls;
    std::size_t answer_tokens = 0;  ///< of each call
    std::uint64_t most = 0;         ///< tokens that the calls may compute with the cache: the new ones and a block each
    bool same = false;              ///< both ways wrote the same

    [[nodiscard]] Side sum(Side Call::*side) const {
        Side all;
        for (const Call& call : calls) {
            all.computed += (call.*side).computed;
            all.first_seconds += (call.*side).first_seconds;
            all.bytes += (call.*side).bytes;
            all.operations += (call.*side).operations;
        }
        return all;
    }
};

struct Results {
    std::string model;
    std::string family;
    std::uint64_t parameters = 0;
    std::uint64_t context_length = 0;
    std::size_t layers = 0;
    Machine machine;
    Builds builds;
    PauseAndDrip pause;
    CacheEffect cache;
    std::vector<Elevator> elevators;
    Attention attention;
    Paging paging;
    Speculation speculation;
    PrefixReuse reuse;
    double total_seconds = 0;
};

/// The share of the machine's arithmetic peak that `work` used in `seconds`: the time that its operations take at the
/// peak of their kind, over the time that it took.
[[nodiscard]] inline double arithmetic_share(const Limits& limits, const Work& work, double seconds) {
    return (static_cast<double>(work.integer_operations) / limits.integer_operations_per_second +
            static_cast<double>(work.float_operations) / limits.float_operations_per_second) /
           seconds;
}

/// The speed at which this machine reads the weights of a build: from memory, or from a cache that holds them.
[[nodiscard]] inline double read_limit(const Limits& limits, const Build& build) {
    return build.bytes_per_second > limits.bytes_per_second ? build.bytes_per_second : limits.bytes_per_second;
}

}  // namespace experiment

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `SavedAnswer`: an answer of an engine as bytes. Part of `Engine::save` and `Engine::restore`.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/time.hpp>
#include <decant/core/token.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/sealed.hpp>
#include <decant/files/token_list.hpp>
#include <decant/files/writer.hpp>
#include <decant/sample/saved.hpp>
#include <decant/serve/ask.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// What was asked, and how far its answer is. Its listener is not part of the bytes; its deadline is kept as the time
/// that is left.
struct SavedAnswer {
    Ask ask;
    std::uint32_t answer = 0;
    bool split = false;  ///< it is one answer
    std::uint64_t written = 0;
    std::string held;                ///< text that may become a stop string
    std::vector<std::byte> request;  ///< as `Request::save` gives it; empty before the prompt's first step

    static constexpr Seal seal{"DCAN", 1, "saved answer", "save it again", hash64};
};

inline void put_ask(std::vector<std::byte>& out, const Ask& ask) {
    using Clock = std::chrono::steady_clock;
    put_tokens(out, ask.prompt);
    put_sampler(out, ask.sampler);
    put(out, std::uint64_t{ask.max_tokens});
    put(out, std::uint64_t{ask.stop.size()});
    for (const std::string& stop : ask.stop) put_string(out, stop);
    put_tokens(out, ask.stop_tokens);
    put(out, static_cast<std::uint8_t>((ask.ignore_end ? 1 : 0) | (ask.deadline ? 2 : 0)));
    put(out, ask.answers);
    put(out, ask.draft_tokens);
    put(out, ask.log_probabilities);
    put(out, std::int32_t{ask.priority});
    const Clock::time_point now = Clock::now();
    const auto left = ask.deadline && *ask.deadline > now ? *ask.deadline - now : Clock::duration::zero();
    put(out, std::int64_t{std::chrono::duration_cast<std::chrono::microseconds>(left).count()});
    put_string(out, ask.cache_salt);
}
[[nodiscard]] inline Result<Ask> read_ask(ByteReader& in) {
    Ask ask;
    DECANT_TRY(ask.prompt, read_tokens(in, "the number of tokens of the prompt"));
    DECANT_TRY(ask.sampler, read_sampler(in));
    DECANT_TRY(const auto most, in.number<std::uint64_t>("the most tokens"));
    ask.max_tokens = static_cast<std::size_t>(most);
    DECANT_TRY(const std::uint64_t stops, in.count(sizeof(std::uint64_t), "the number of stop strings"));
    for (std::uint64_t i = 0; i < stops; ++i) {
        DECANT_TRY(const std::string_view stop, in.string("a stop string"));
        ask.stop.emplace_back(stop);
    }
    DECANT_TRY(ask.stop_tokens, read_tokens(in, "the number of stop tokens"));
    DECANT_TRY(const auto flags, in.number<std::uint8_t>("the options"));
    ask.ignore_end = (flags & 1) != 0;
    DECANT_TRY(ask.answers, in.number<std::uint32_t>("the number of answers"));
    DECANT_TRY(ask.draft_tokens, in.number<std::uint32_t>("the number of drafted tokens"));
    DECANT_TRY(ask.log_probabilities, in.number<std::uint32_t>("the number of log-probabilities"));
    DECANT_TRY(ask.priority, in.number<std::int32_t>("the priority"));
    DECANT_TRY(const auto left, in.number<std::int64_t>("the time that is left"));
    if (flags > 3 || left < 0) return Error{ErrorCode::bad_format, "its options are none", {}, "save it again"};
    if ((flags & 2) != 0) ask.deadline = later(std::chrono::steady_clock::now(), std::chrono::microseconds(left));
    DECANT_TRY(const std::string_view salt, in.string("the salt of the cache"));
    ask.cache_salt = salt;
    return ask;
}

/// Format, little-endian: "DCAN", version, fingerprint of the model, the ask, the state of the answer, a checksum.
[[nodiscard]] inline std::vector<std::byte> save_answer(const Ask& ask, const SavedAnswer& state,
                                                        std::uint64_t fingerprint) {
    std::vector<std::byte> out;
    SavedAnswer::seal.begin(out);
    put(out, fingerprint);
    put_ask(out, ask);
    put(out, state.answer);
    put(out, static_cast<std::uint8_t>(state.split));
    put(out, state.written);
    put_string(out, state.held);
    put(out, std::uint64_t{state.request.size()});
    out.insert(out.end(), state.request.begin(), state.request.end());
    SavedAnswer::seal.finish(out);
    return out;
}

/// Errors: `bad_format` for bytes that are no saved answer or were damaged, `unsupported` for another version,
/// `mismatch` for another model.
[[nodiscard]] inline Result<SavedAnswer> read_answer(std::span<const std::byte> bytes, std::uint64_t fingerprint) {
    DECANT_TRY(ByteReader in, SavedAnswer::seal.open(bytes));
    DECANT_TRY(const auto model, in.number<std::uint64_t>("the model's fingerprint"));
    if (model != fingerprint)
        return Error{ErrorCode::mismatch, "it is another model's", {}, "use the same file at both ends"};

    SavedAnswer state;
    DECANT_TRY(state.ask, read_ask(in));
    DECANT_TRY(state.answer, in.number<std::uint32_t>("the answer's number"));
    DECANT_TRY(const auto split, in.number<std::uint8_t>("whether it is one answer"));
    DECANT_TRY(state.written, in.number<std::uint64_t>("the number of tokens"));
    DECANT_TRY(const std::string_view held, in.string("the text that is held"));
    DECANT_TRY(const auto request_bytes, in.count(1, "the size of the request"));
    DECANT_TRY(const auto request, in.take(request_bytes, "the request"));
    if (in.remaining() != 0 || split > 1) return SavedAnswer::seal.damaged("it has more or fewer bytes than it should");
    state.split = split == 1;
    state.held = held;
    state.request.assign(request.begin(), request.end());
    return state;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

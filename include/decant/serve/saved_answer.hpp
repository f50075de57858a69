// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `SavedAnswer`: an answer of an engine as bytes. Part of `Engine::save` and `Engine::restore`.

#include <decant/core/config.hpp>
#include <decant/core/hash.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/writer.hpp>
#include <decant/sample/saved.hpp>
#include <decant/serve/ask.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

    static constexpr std::string_view mark = "DCAN";
    static constexpr std::uint32_t version = 1;
};

inline void put_tokens(std::vector<std::byte>& out, std::span<const Token> tokens) {
    put(out, std::uint64_t{tokens.size()});
    for (const Token token : tokens) put(out, id(token));
}
[[nodiscard]] inline Result<std::vector<Token>> read_tokens(ByteReader& in, std::string_view what) {
    DECANT_TRY(const std::uint64_t count, in.count(sizeof(std::int32_t), what));
    std::vector<Token> tokens(static_cast<std::size_t>(count));
    for (Token& token : tokens) {
        DECANT_TRY(const auto value, in.number<std::int32_t>(what));
        token = Token{value};
    }
    return tokens;
}

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
    using Clock = std::chrono::steady_clock;
    Ask ask;
    DECANT_TRY(ask.prompt, read_tokens(in, "the prompt"));
    DECANT_TRY(ask.sampler, read_sampler(in));
    DECANT_TRY(const auto most, in.number<std::uint64_t>("the most tokens"));
    ask.max_tokens = static_cast<std::size_t>(most);
    DECANT_TRY(const std::uint64_t stops, in.count(sizeof(std::uint64_t), "the number of stop strings"));
    for (std::uint64_t i = 0; i < stops; ++i) {
        DECANT_TRY(const std::string_view stop, in.string("a stop string"));
        ask.stop.emplace_back(stop);
    }
    DECANT_TRY(ask.stop_tokens, read_tokens(in, "the stop tokens"));
    DECANT_TRY(const auto flags, in.number<std::uint8_t>("the options"));
    ask.ignore_end = (flags & 1) != 0;
    DECANT_TRY(ask.answers, in.number<std::uint32_t>("the number of answers"));
    DECANT_TRY(ask.draft_tokens, in.number<std::uint32_t>("the number of drafted tokens"));
    DECANT_TRY(ask.log_probabilities, in.number<std::uint32_t>("the number of log-probabilities"));
    DECANT_TRY(ask.priority, in.number<std::int32_t>("the priority"));
    DECANT_TRY(const auto left, in.number<std::int64_t>("the time that is left"));
    if (flags > 3 || left < 0) return Error{ErrorCode::bad_format, "its options are none", {}, "save it again"};
    if ((flags & 2) != 0) {
        const Clock::time_point now = Clock::now();
        const auto room = std::chrono::duration_cast<std::chrono::microseconds>((Clock::time_point::max)() - now);
        ask.deadline = now + (std::min)(std::chrono::microseconds(left), room);
    }
    DECANT_TRY(const std::string_view salt, in.string("the salt of the cache"));
    ask.cache_salt = salt;
    return ask;
}

[[nodiscard]] inline std::uint64_t answer_checksum(std::span<const std::byte> bytes) noexcept {
    Hash64 hash;
    hash.add(bytes);
    return hash.value();
}

/// Format, little-endian: "DCAN", version, fingerprint of the model, the ask, the state of the answer, a checksum.
[[nodiscard]] inline std::vector<std::byte> save_answer(const Ask& ask, const SavedAnswer& state,
                                                        std::uint64_t fingerprint) {
    std::vector<std::byte> out;
    for (const char c : SavedAnswer::mark) out.push_back(static_cast<std::byte>(c));
    put(out, SavedAnswer::version);
    put(out, fingerprint);
    put_ask(out, ask);
    put(out, state.answer);
    put(out, static_cast<std::uint8_t>(state.split));
    put(out, state.written);
    put_string(out, state.held);
    put(out, std::uint64_t{state.request.size()});
    out.insert(out.end(), state.request.begin(), state.request.end());
    put(out, answer_checksum(out));
    return out;
}

/// Errors: `bad_format` for bytes that are no saved answer or were damaged, `unsupported` for another version,
/// `mismatch` for another model.
[[nodiscard]] inline Result<SavedAnswer> read_answer(std::span<const std::byte> bytes, std::uint64_t fingerprint) {
    const auto damaged = [](std::string what) {
        return Error{ErrorCode::bad_format, std::move(what), {}, "save it again"};
    };
    ByteReader in(bytes);
    DECANT_TRY(const auto start, in.take(SavedAnswer::mark.size(), "the mark of a saved answer"));
    if (!std::equal(start.begin(), start.end(), SavedAnswer::mark.begin(),
                    [](std::byte a, char b) { return a == static_cast<std::byte>(b); }))
        return damaged("these bytes are no saved answer");
    constexpr std::size_t tail = sizeof(std::uint64_t);
    if (in.remaining() < sizeof SavedAnswer::version + tail) return damaged("it is cut off");
    if (load_little<std::uint64_t>(bytes.data() + bytes.size() - tail) !=
        answer_checksum(bytes.first(bytes.size() - tail)))
        return damaged("its checksum is wrong");
    DECANT_TRY(const auto version, in.number<std::uint32_t>("the version"));
    if (version != SavedAnswer::version) {
        return Error{ErrorCode::unsupported,
                     text("version ", version, " of a saved answer"),
                     {},
                     text("this library reads version ", SavedAnswer::version)};
    }
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
    if (in.remaining() != tail || split > 1) return damaged("it has more or fewer bytes than it should");
    state.split = split == 1;
    state.held = held;
    state.request.assign(request.begin(), request.end());
    return state;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

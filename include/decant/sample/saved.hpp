// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// A sampler as bytes: its steps, its seed and its state. Part of what a request is saved as.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/writer.hpp>
#include <decant/sample/sampler.hpp>
#include <decant/sample/steps.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

template <class S, class... Kinds>
concept OneOf = (std::same_as<std::remove_const_t<S>, Kinds> || ...);

// The numbers of each kind of step, in the order in which they are saved; references to them.
template <OneOf<Penalties> S>
auto numbers(S& s) {
    return std::tie(s.repetition, s.frequency, s.presence, s.last_n);
}
template <OneOf<LogitBias> S>
auto numbers(S&) {
    return std::tie();
}
template <OneOf<Dry> S>
auto numbers(S& s) {
    return std::tie(s.multiplier, s.base, s.allowed_length, s.last_n);
}
template <OneOf<TopK> S>
auto numbers(S& s) {
    return std::tie(s.k);
}
template <OneOf<TopP, MinP, Typical> S>
auto numbers(S& s) {
    return std::tie(s.p);
}
template <OneOf<TopNSigma> S>
auto numbers(S& s) {
    return std::tie(s.n);
}
template <OneOf<Xtc> S>
auto numbers(S& s) {
    return std::tie(s.probability, s.threshold);
}
template <OneOf<Temperature> S>
auto numbers(S& s) {
    return std::tie(s.t);
}
template <OneOf<DynamicTemperature> S>
auto numbers(S& s) {
    return std::tie(s.min, s.max, s.exponent);
}
template <OneOf<Mirostat> S>
auto numbers(S& s) {
    return std::tie(s.tau, s.eta);
}

inline void put_step(std::vector<std::byte>& out, const SamplerStep& step) {
    put(out, static_cast<std::uint8_t>(step.index()));
    std::visit(
        [&]<class S>(const S& held) {
            std::apply([&](const auto&... values) { (put(out, values), ...); }, numbers(held));
            if constexpr (std::same_as<S, LogitBias>) {
                put(out, std::uint64_t{held.biases.size()});
                for (const auto& [token, bias] : held.biases) {
                    put(out, id(token));
                    put(out, bias);
                }
            } else if constexpr (std::same_as<S, Dry>) {
                put(out, std::uint64_t{held.breakers.size()});
                for (const Token token : held.breakers) put(out, id(token));
            }
        },
        step);
}

template <class S>
[[nodiscard]] Result<SamplerStep> read_step_as(ByteReader& in) {
    S step;
    Result<void> read;
    const auto next = [&]<class T>(T& value) {
        if (!read) return;
        auto number = in.number<T>("a number of a sampler's step");
        if (number) {
            value = *number;
        } else {
            read = std::move(number).error();
        }
    };
    std::apply([&](auto&... values) { (next(values), ...); }, numbers(step));
    DECANT_CHECK(std::move(read));
    if constexpr (std::same_as<S, LogitBias>) {
        DECANT_TRY(const std::uint64_t count, in.count(8, "the number of biases"));
        for (std::uint64_t i = 0; i < count; ++i) {
            DECANT_TRY(const auto token, in.number<std::int32_t>("a bias"));
            DECANT_TRY(const auto bias, in.number<float>("a bias"));
            step.biases.emplace_back(Token{token}, bias);
        }
    } else if constexpr (std::same_as<S, Dry>) {
        DECANT_TRY(const std::uint64_t count, in.count(4, "the number of breakers"));
        for (std::uint64_t i = 0; i < count; ++i) {
            DECANT_TRY(const auto token, in.number<std::int32_t>("a breaker"));
            step.breakers.push_back(Token{token});
        }
    }
    return SamplerStep(std::move(step));
}

template <std::size_t... number>
[[nodiscard]] Result<SamplerStep> read_step(ByteReader& in, std::index_sequence<number...>) {
    DECANT_TRY(const auto kind, in.number<std::uint8_t>("the kind of a sampler's step"));
    Result<SamplerStep> step = Error{ErrorCode::bad_format, text("a sampler's step of kind ", kind), "saved sampler",
                                     "it was saved by a newer version, or is damaged"};
    static_cast<void>(
        ((kind == number && (step = read_step_as<std::variant_alternative_t<number, SamplerStep>>(in), true)) || ...));
    return step;
}

inline void put_sampler(std::vector<std::byte>& out, const Sampler& sampler) {
    put(out, sampler.seed());
    put(out, sampler.state().mu);
    put(out, std::uint64_t{sampler.steps().size()});
    for (const SamplerStep& step : sampler.steps()) put_step(out, step);
}

/// Errors: `bad_format`, with what `Sampler::chain` says of steps that cannot be.
[[nodiscard]] inline Result<Sampler> read_sampler(ByteReader& in) {
    DECANT_TRY(const auto seed, in.number<std::uint64_t>("the seed"));
    DECANT_TRY(const auto mu, in.number<double>("the state of Mirostat"));
    DECANT_TRY(const std::uint64_t count, in.count(1, "the number of a sampler's steps"));
    if (!std::isfinite(mu)) {
        return Error{ErrorCode::bad_format, text("a state of Mirostat of ", mu), "saved sampler", "it is damaged"};
    }
    std::vector<SamplerStep> steps;
    for (std::uint64_t i = 0; i < count; ++i) {
        DECANT_TRY(SamplerStep step, read_step(in, std::make_index_sequence<std::variant_size_v<SamplerStep>>()));
        steps.push_back(std::move(step));
    }
    auto sampler = Sampler::chain(std::move(steps), seed);
    if (!sampler) {
        Error error = std::move(sampler).error();
        error.code = ErrorCode::bad_format;
        return error;
    }
    sampler->restore({mu});
    return sampler;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

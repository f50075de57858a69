// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Result<T>`: a value or an `Error`, in the manner of `std::expected`.

#include <decant/core/config.hpp>
#include <decant/core/error.hpp>

#include <concepts>
#include <type_traits>
#include <utility>
#include <variant>

#if DECANT_EXCEPTIONS
#include <exception>
#endif

namespace decant::inline DECANT_ABI {

#if DECANT_EXCEPTIONS
/// Thrown by `Result::value()` only. `what()` is the error's message.
class Exception : public std::exception {
 public:
    explicit Exception(Error error) : error_(std::move(error)), message_(error_.message()) {}
    [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }
    [[nodiscard]] const Error& error() const noexcept { return error_; }

 private:
    Error error_;
    std::string message_;
};
#endif

/// A `T` or an `Error`. Test it (`if (result)`), then use `*result` or `result.error()`; or, where exceptions are on,
/// call `value()`. Reading the side that is not there is a programmer error (asserted).
template <class T>
class [[nodiscard]] Result {
    static_assert(!std::is_reference_v<T> && !std::same_as<T, Error>);

 public:
    using value_type = T;

    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    [[nodiscard]] T& operator*() & noexcept { return held(); }
    [[nodiscard]] const T& operator*() const& noexcept { return held(); }
    [[nodiscard]] T&& operator*() && noexcept { return std::move(held()); }
    [[nodiscard]] T* operator->() noexcept { return &held(); }
    [[nodiscard]] const T* operator->() const noexcept { return &held(); }

    [[nodiscard]] Error& error() & noexcept { return failure(); }
    [[nodiscard]] const Error& error() const& noexcept { return failure(); }
    [[nodiscard]] Error error() && noexcept { return std::move(failure()); }  // by value: of a temporary

#if DECANT_EXCEPTIONS
    /// The value; throws `Exception` if there is none.
    [[nodiscard]] T& value() & {
        throw_if_error();
        return held();
    }
    [[nodiscard]] const T& value() const& {
        throw_if_error();
        return held();
    }
    [[nodiscard]] T value() && {
        throw_if_error();
        return std::move(held());
    }
#endif

    template <class U>
    [[nodiscard]] T value_or(U&& fallback) && {
        return has_value() ? std::move(held()) : static_cast<T>(std::forward<U>(fallback));
    }

 private:
    T& held() noexcept {
        DECANT_ASSERT(has_value());
        return *std::get_if<0>(&state_);
    }
    const T& held() const noexcept {
        DECANT_ASSERT(has_value());
        return *std::get_if<0>(&state_);
    }
    Error& failure() noexcept {
        DECANT_ASSERT(!has_value());
        return *std::get_if<1>(&state_);
    }
    const Error& failure() const noexcept {
        DECANT_ASSERT(!has_value());
        return *std::get_if<1>(&state_);
    }
#if DECANT_EXCEPTIONS
    void throw_if_error() const {
        if (!has_value()) throw Exception(failure());
    }
#endif

    std::variant<T, Error> state_;
};

/// Success without a value, or an `Error`.
template <>
class [[nodiscard]] Result<void> {
 public:
    using value_type = void;

    Result() = default;
    Result(Error error) : state_(std::move(error)) {}

    [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }
    [[nodiscard]] const Error& error() const& noexcept {
        DECANT_ASSERT(!has_value());
        return *std::get_if<Error>(&state_);
    }
    [[nodiscard]] Error error() && noexcept {
        DECANT_ASSERT(!has_value());
        return std::move(*std::get_if<Error>(&state_));
    }
#if DECANT_EXCEPTIONS
    void value() const {
        if (!has_value()) throw Exception(error());
    }
#endif

 private:
    std::variant<std::monostate, Error> state_;
};

}  // namespace decant::inline DECANT_ABI

#define DECANT_DETAIL_TRY_NAME_(line) decant_try_##line
#define DECANT_DETAIL_TRY_NAME(line) DECANT_DETAIL_TRY_NAME_(line)

/// `DECANT_TRY(auto x, expression)`: unwraps a `Result` or returns its error from the enclosing function.
#define DECANT_TRY(declaration, ...)                                                                   \
    auto DECANT_DETAIL_TRY_NAME(__LINE__) = (__VA_ARGS__);                                             \
    if (!DECANT_DETAIL_TRY_NAME(__LINE__)) return std::move(DECANT_DETAIL_TRY_NAME(__LINE__)).error(); \
    declaration = *std::move(DECANT_DETAIL_TRY_NAME(__LINE__))

/// `DECANT_CHECK(expression)`: returns the error of a `Result<void>` from the enclosing function.
#define DECANT_CHECK(...)                                                   \
    do {                                                                    \
        if (auto decant_check_result = (__VA_ARGS__); !decant_check_result) \
            return std::move(decant_check_result).error();                  \
    } while (false)

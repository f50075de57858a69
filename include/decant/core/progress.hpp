// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ProgressRef`: how a long call tells its host how far it is; `CallOptions`: what a host may hand to such a call.

#include <decant/core/config.hpp>
#include <decant/core/error.hpp>
#include <decant/core/stop.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace decant::inline DECANT_ABI {

/// `done` of `total` units of work, whose kind is the call's own; `done` never falls and reaches `total` at success.
struct Progress {
    std::uint64_t done = 0;
    std::uint64_t total = 0;
};

/// A reference to the host's callable `void(Progress)` or `bool(Progress)`, where false asks to stop. It must outlive
/// the call that it is given to; a lambda written as the argument does. It runs on the thread that made the call, and
/// may throw where exceptions are on: the call then ends like a cancelled one, and the exception comes through. It must
/// not use the objects of the call that it watches.
class ProgressRef {
 public:
    constexpr ProgressRef() noexcept = default;

    template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, ProgressRef> && std::invocable<F&, Progress>)  //
        ProgressRef(F&& callable)
    noexcept
        : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
          call_([](void* object, Progress progress) -> bool {
              auto& target = *static_cast<std::remove_reference_t<F>*>(object);
              if constexpr (std::same_as<std::invoke_result_t<F&, Progress>, void>) {
                  std::invoke(target, progress);
                  return true;
              } else {
                  return std::invoke(target, progress);
              }
          }) {}

    /// Whether to go on.
    [[nodiscard]] bool operator()(Progress progress) const { return call_ == nullptr || call_(object_, progress); }
    [[nodiscard]] explicit operator bool() const noexcept { return call_ != nullptr; }

 private:
    void* object_ = nullptr;
    bool (*call_)(void*, Progress) = nullptr;
};

/// `stop` is looked at all along the call, `progress` is called between its steps.
struct CallOptions {
    const StopFlag* stop = nullptr;
    ProgressRef progress = {};

    [[nodiscard]] bool stopped() const noexcept { return stop != nullptr && stop->requested(); }
    /// Tells progress and looks at both: false if the host wants the call to end.
    [[nodiscard]] bool go_on(Progress now) const { return !stopped() && progress(now) && !stopped(); }
};

namespace detail {

[[nodiscard]] inline Error cancelled(std::string where) {
    return {ErrorCode::cancelled, "the host asked to stop", std::move(where), {}};
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

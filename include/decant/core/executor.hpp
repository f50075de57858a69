// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The executor concept: how a host lends its threads. A job system needs two members to qualify.

#include <decant/core/config.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace decant::inline DECANT_ABI {

/// A piece of parallel work, called with its index. Trivially copyable; valid during the `parallel_for` that received
/// it.
struct TaskRef {
    void* object = nullptr;
    void (*call)(void* object, std::size_t index) = nullptr;
    void operator()(std::size_t index) const { call(object, index); }
};

/// `parallel_for(n, task)` calls `task(i)` exactly once for every i in [0, n), on any threads and in any order, and
/// returns when all calls have returned. `concurrency()` says how many calls may run at once: a hint, at least 1. A
/// context reserves workspace by it before its first pass and never makes more calls at once than that.
///
/// **No concurrency is promised.** No call ever waits for another one, least of all for one that has not started, so
/// running them one after another on the caller's thread is right, and so is starting some of them late. Results never
/// depend on the order or on the threads. Calls of one `parallel_for` may overlap in time; a context makes one
/// `parallel_for` at a time, from the thread that called it. What a call writes must be visible to the caller when
/// `parallel_for` returns, as any join gives it. The library's own tasks do not throw, allocate or block.
///
/// The adapter of a host's job system; `wait` may run other jobs meanwhile, but none that uses the same context:
///
///     struct OnJobs {
///         Jobs& jobs;
///         std::size_t concurrency() const { return jobs.threads() + 1; }
///         void parallel_for(std::size_t n, decant::TaskRef task) {
///             Jobs::Group group(jobs);
///             for (std::size_t i = 1; i < n; ++i) group.submit([task, i] { task(i); });
///             if (n > 0) task(0);
///             group.wait();
///         }
///     };
template <class E>
concept Executor = requires(E& executor, std::size_t n, TaskRef task) {
    executor.parallel_for(n, task);
    { executor.concurrency() } -> std::convertible_to<std::size_t>;
};

/// Everything on the calling thread.
struct SerialExecutor {
    [[nodiscard]] std::size_t concurrency() const noexcept { return 1; }
    void parallel_for(std::size_t n, TaskRef task) const {
        for (std::size_t i = 0; i < n; ++i) task(i);
    }
};

/// Holds any executor: a temporary is moved in and owned, an lvalue is referred to and must outlive this object. Copies
/// share the executor, and a moved-from object still has it.
class AnyExecutor {
 public:
    AnyExecutor() : AnyExecutor(SerialExecutor{}) {}
    AnyExecutor(const AnyExecutor&) = default;
    AnyExecutor& operator=(const AnyExecutor&) = default;

    template <class E>
    requires(!std::same_as<std::remove_cvref_t<E>, AnyExecutor> && Executor<std::remove_reference_t<E>> &&
             (std::is_lvalue_reference_v<E> ||
              std::constructible_from<std::remove_cvref_t<E>, E>)) explicit AnyExecutor(E&& executor) {
        using T = std::conditional_t<std::is_lvalue_reference_v<E>, std::remove_reference_t<E>, std::remove_cvref_t<E>>;
        if constexpr (std::is_lvalue_reference_v<E>) {
            const auto* object = std::addressof(executor);
            object_ = std::shared_ptr<void>(std::shared_ptr<void>{}, const_cast<std::remove_const_t<T>*>(object));
        } else {
            object_ = std::make_shared<T>(std::forward<E>(executor));
        }
        run_ = [](void* object, std::size_t n, TaskRef task) { static_cast<T*>(object)->parallel_for(n, task); };
        concurrency_ = [](void* object) {
            const auto count = static_cast<std::size_t>(static_cast<T*>(object)->concurrency());
            return count == 0 ? std::size_t{1} : count;
        };
    }

    [[nodiscard]] std::size_t concurrency() const { return concurrency_(object_.get()); }
    void parallel_for(std::size_t n, TaskRef task) const { run_(object_.get(), n, task); }

 private:
    std::shared_ptr<void> object_;
    void (*run_)(void*, std::size_t, TaskRef) = nullptr;
    std::size_t (*concurrency_)(void*) = nullptr;
};

}  // namespace decant::inline DECANT_ABI

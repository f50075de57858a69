// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `StopStrings`: the end of an answer where a given text appears, which is itself held back.

#include <decant/core/config.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Takes text as it is generated and gives it on as soon as no stop string can begin in it. Where one appears, the text
/// before the first of them (of several that begin there, the one that is complete first) is all that comes. Empty
/// strings never stop. A copy goes on independently.
class StopStrings {
 public:
    explicit StopStrings(std::vector<std::string> strings = {}) : strings_(std::move(strings)) {
        std::erase_if(strings_, [](const std::string& one) { return one.empty(); });
    }

    /// The text that is certain now. Valid until the next call or the end of this object.
    [[nodiscard]] std::string_view push(std::string_view text) & {
        given_.clear();
        if (found_) return given_;
        held_ += text;
        std::size_t first = held_.size(), complete = held_.size() + 1;
        for (const std::string& one : strings_) {
            const std::size_t at = held_.find(one);
            if (at == std::string::npos) continue;
            if (at + one.size() < complete || (at + one.size() == complete && at < first)) {
                first = at;
                complete = at + one.size();
                found_ = true;
            }
        }
        const std::size_t certain = found_ ? first : held_.size() - longest_beginning();
        given_.assign(held_, 0, certain);
        held_.erase(0, certain);
        if (found_) held_.clear();
        return given_;
    }
    /// The end of the answer: what was held. Valid as for `push`.
    [[nodiscard]] std::string_view finish() & {
        given_ = std::exchange(held_, {});
        return given_;
    }

    /// Whether a stop string has appeared.
    [[nodiscard]] bool found() const noexcept { return found_; }
    /// Text that may become one.
    [[nodiscard]] std::string_view held() const& noexcept { return held_; }
    std::string_view held() const&& = delete;

 private:
    /// Bytes at the end of what is held that a stop string begins with.
    [[nodiscard]] std::size_t longest_beginning() const noexcept {
        std::size_t longest = 0;
        for (const std::string& one : strings_) {
            for (std::size_t n = (std::min)(one.size() - 1, held_.size()); n > longest; --n)
                if (std::string_view(held_).ends_with(std::string_view(one).substr(0, n))) longest = n;
        }
        return longest;
    }

    std::vector<std::string> strings_;
    std::string held_;
    std::string given_;
    bool found_ = false;
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Text that remembers who wrote it. Only what a template wrote may become control tokens; what a user wrote never
/// does.

#include <decant/core/config.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {

/// A rendered prompt in parts that alternate between template and content. The parts lie end to end over `text`.
class TaggedText {
 public:
    struct Part {
        std::size_t end;     ///< byte offset in `text()` behind the part
        bool from_template;  ///< written by the template: special tokens in it count
    };

    /// Appends what the template says.
    void append_template(std::string_view bytes) { append(bytes, true); }
    /// Appends what comes from the host or its user.
    void append_content(std::string_view bytes) { append(bytes, false); }

    /// The plain text.
    [[nodiscard]] const std::string& text() const& noexcept { return text_; }
    const std::string& text() const&& = delete;
    [[nodiscard]] const std::vector<Part>& parts() const& noexcept { return parts_; }
    const std::vector<Part>& parts() const&& = delete;

 private:
    void append(std::string_view bytes, bool from_template) {
        if (bytes.empty()) return;
        text_ += bytes;
        if (parts_.empty() || parts_.back().from_template != from_template) parts_.push_back({0, from_template});
        parts_.back().end = text_.size();
    }

    std::string text_;
    std::vector<Part> parts_;
};

}  // namespace decant::inline DECANT_ABI

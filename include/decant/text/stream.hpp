// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `TextStream`: the text of tokens as they are generated, in whole characters.

#include <decant/core/token.hpp>
#include <decant/text/tokenizer.hpp>
#include <decant/text/utf8.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace decant::inline DECANT_ABI {

/// Never emits half a character: bytes that may still become one are held (at most 3), bytes that cannot are U+FFFD at
/// once. All text together is `Tokenizer::decode` of all tokens. A copy goes on independently.
class TextStream {
 public:
    explicit TextStream(Tokenizer tokenizer, DecodeOptions options = {})
        : tokenizer_(std::move(tokenizer)), options_(options), characters_(tokenizer_.begin_text(options)) {}

    /// The text that the token completes, often empty. Valid until the next call or the end of this object.
    [[nodiscard]] std::string_view push(Token token) & {
        text_.clear();
        tokenizer_.append_text(token, options_, characters_, text_);
        return text_;
    }
    /// `push` and `finish` for the last token.
    [[nodiscard]] std::string_view push_last(Token token) & {
        static_cast<void>(push(token));
        characters_.finish(text_);
        characters_ = tokenizer_.begin_text(options_);
        return text_;
    }
    /// The end of generation: a held tail becomes U+FFFD. Valid as for `push`; the stream is then as new.
    [[nodiscard]] std::string_view finish() & {
        text_.clear();
        characters_.finish(text_);
        characters_ = tokenizer_.begin_text(options_);
        return text_;
    }

    [[nodiscard]] const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
    [[nodiscard]] const DecodeOptions& options() const noexcept { return options_; }

    /// What the stream remembers from token to token; copy it to save or roll back.
    [[nodiscard]] const Utf8Stream& state() const noexcept { return characters_; }
    void restore(const Utf8Stream& state) noexcept { characters_ = state; }

 private:
    Tokenizer tokenizer_;
    DecodeOptions options_;
    Utf8Stream characters_;
    std::string text_;
};

}  // namespace decant::inline DECANT_ABI

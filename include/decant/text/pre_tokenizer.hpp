// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Splitting text into words before byte-pair merging. The published tokenizers describe this by regular expressions;
/// here the expressions are data (`SplitPattern`) for one small scanner that never recurses and never looks at a byte
/// more than a constant number of times.

#include <decant/core/result.hpp>
#include <decant/text/unicode.hpp>
#include <decant/text/utf8.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {

/// A splitting rule. At each position the first alternative that matches makes the word:
///
///  1. a contraction: 's 't 're 've 'm 'll 'd;
///  2. letters, with at most one character before them (`letters_after`);
///  3. up to `digit_run` numbers;
///  4. other characters (an optional space before them), then line breaks if `line_breaks`;
///  5. white space up to its last line break, if `line_breaks`;
///  6. white space, without its last character if something else follows.
struct SplitPattern {
    enum class Before : std::uint8_t {
        space,  ///< ` ?`
        any,    ///< `[^\r\n\p{L}\p{N}]?`
    };
    std::string_view name;   ///< as in the GGUF key `tokenizer.ggml.pre`
    bool fold_case = false;  ///< contractions in any case
    Before letters_after = Before::space;
    std::size_t digit_run = 0;    ///< longest run of numbers in a word; 0: no limit, and a space may precede
    bool isolate_digits = false;  ///< every number is cut out first, the rest is split as if it were the whole text
    bool line_breaks = false;     ///< line breaks stick to what precedes them
    bool whole_words = false;     ///< a word that is in the vocabulary is one token, whatever the merges say
    bool nfc = false;             ///< the text is brought to normalization form C before it is split
};

/// The known values of `tokenizer.ggml.pre`.
inline constexpr SplitPattern split_patterns[] = {
    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    {.name = "gpt-2"},
    {.name = "mpt"},
    // \p{N}, then the pattern of gpt-2 on what lies between
    {.name = "smollm", .isolate_digits = true},
    {.name = "starcoder", .isolate_digits = true},
    // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
    // ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    {.name = "llama-bpe",
     .fold_case = true,
     .letters_after = SplitPattern::Before::any,
     .digit_run = 3,
     .line_breaks = true,
     .whole_words = true},
    // as llama-bpe, with \p{N} in place of \p{N}{1,3}
    {.name = "qwen2",
     .fold_case = true,
     .letters_after = SplitPattern::Before::any,
     .digit_run = 1,
     .line_breaks = true,
     .nfc = true},
};

/// The pattern of that name; `ErrorCode::unsupported` (the message lists the known ones) if there is none, because a
/// guessed pattern gives plausible but wrong tokens.
[[nodiscard]] inline Result<SplitPattern> find_split_pattern(std::string_view name) {
    std::string known;
    for (const SplitPattern& pattern : split_patterns) {
        if (pattern.name == name) return pattern;
        known += detail::text(known.empty() ? "" : ", ", pattern.name);
    }
    return Error{ErrorCode::unsupported, detail::text("unknown pre-tokenizer ", detail::quoted(name)),
                 "tokenizer.ggml.pre", detail::text("known: ", known)};
}

/// Walks over the words of a text: every byte is in exactly one word, in order. Bytes that are not UTF-8 count as
/// characters that are neither letter, number nor space.
class WordScanner {
 public:
    /// `text` must outlive the scanner.
    WordScanner(const SplitPattern& pattern, std::string_view text) noexcept : pattern_(&pattern), text_(text) {}

    /// The next word; empty at the end of the text.
    [[nodiscard]] std::string_view next() noexcept {
        const std::size_t begin = position_;
        position_ = end_of_word(begin);
        return text_.substr(begin, position_ - begin);
    }

 private:
    struct Char {
        char32_t code = 0;
        std::size_t bytes = 0;  // 0: the text ends here (or is cut here, before an isolated number)
        CharKind kind = CharKind::other;
        [[nodiscard]] bool is(CharKind wanted) const noexcept { return bytes != 0 && kind == wanted; }
        [[nodiscard]] bool line_break() const noexcept { return code == '\r' || code == '\n'; }
    };

    [[nodiscard]] Char raw(std::size_t at) const noexcept {
        const Utf8Char c = decode_utf8(text_.substr(at));
        return {c.code, c.bytes, c.status == Utf8Status::valid ? char_kind(c.code) : CharKind::other};
    }
    [[nodiscard]] Char look(std::size_t at) const noexcept {
        const Char c = raw(at);
        return pattern_->isolate_digits && c.kind == CharKind::number ? Char{} : c;
    }
    [[nodiscard]] std::size_t skip(std::size_t at, CharKind kind, std::size_t limit = 0) const noexcept {
        std::size_t count = 0;
        for (Char c = look(at); c.is(kind) && (limit == 0 || count < limit); c = look(at)) {
            at += c.bytes;
            ++count;
        }
        return at;
    }

    /// End of a contraction that starts at `at` with an apostrophe, or `at` if there is none.
    [[nodiscard]] std::size_t contraction(std::size_t at) const noexcept {
        const auto letter = [&](std::size_t offset) -> char {
            if (at + offset >= text_.size()) return 0;
            const char c = text_[at + offset];
            return pattern_->fold_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
        };
        const char first = letter(1);
        if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
        const char second = letter(2);
        if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
            return at + 3;
        // U+017F is the one other character that folds to a letter of the list.
        if (pattern_->fold_case && text_.substr(at + 1).substr(0, 2) == "\xC5\xBF") return at + 3;
        return at;
    }

    [[nodiscard]] std::size_t end_of_word(std::size_t at) const noexcept {
        const Char first = raw(at);
        if (first.bytes == 0) return at;
        const std::size_t after = at + first.bytes;
        if (pattern_->isolate_digits && first.kind == CharKind::number) return after;

        if (first.code == '\'' && first.bytes == 1) {
            const std::size_t end = contraction(at);
            if (end != at) return end;
        }

        const Char second = look(after);
        const bool space = first.code == ' ';
        const bool any = pattern_->letters_after == SplitPattern::Before::any && !first.line_break() &&
                         first.kind != CharKind::number;
        if (first.kind == CharKind::letter) return skip(after, CharKind::letter);
        if ((space || any) && second.is(CharKind::letter)) return skip(after, CharKind::letter);

        if (first.kind == CharKind::number) return skip(at, CharKind::number, pattern_->digit_run);
        if (space && pattern_->digit_run == 0 && second.is(CharKind::number)) return skip(after, CharKind::number);

        if (first.kind == CharKind::other || (space && second.is(CharKind::other))) {
            std::size_t end = skip(after, CharKind::other);
            if (pattern_->line_breaks)
                while (end < text_.size() && (text_[end] == '\r' || text_[end] == '\n')) ++end;
            return end;
        }
        return white_space(at);
    }

    [[nodiscard]] std::size_t white_space(std::size_t at) const noexcept {
        std::size_t end = at;
        std::size_t last = at;         // where the last character of the run begins
        std::size_t after_break = at;  // end of the last line break in the run
        Char c = look(end);
        for (; c.is(CharKind::space); c = look(end)) {
            last = end;
            end += c.bytes;
            if (c.line_break()) after_break = end;
        }
        if (pattern_->line_breaks && after_break != at) return after_break;
        return c.bytes != 0 && last != at ? last : end;
    }

    const SplitPattern* pattern_;
    std::string_view text_;
    std::size_t position_ = 0;
};

}  // namespace decant::inline DECANT_ABI

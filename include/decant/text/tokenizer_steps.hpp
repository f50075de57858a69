// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `TokenizerSteps`: what the normalizer, pre_tokenizer and post_processor of a tokenizer.json do, as settings of our
/// own parts. They are lists of steps of many types; the combinations that language models use are known here, any
/// other is an error that names the step, because a step left out gives plausible but wrong tokens. The decoder is not
/// read: what it does follows from these.

#include <decant/core/result.hpp>
#include <decant/files/json_tree.hpp>
#include <decant/text/char_bpe.hpp>
#include <decant/text/pre_tokenizer.hpp>
#include <decant/text/word_mark.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace decant::inline DECANT_ABI {
namespace detail {

struct TokenizerSteps {
    bool byte_level = false;  ///< or pieces in which U+2581 is a space
    SplitPattern pattern;     ///< of byte-level vocabularies
    SpacePrefix prefix = SpacePrefix::never;
    bool late = false;                 ///< spaces are marked before normalized added tokens are looked for
    bool split_spaces = false;         ///< nothing is merged over the beginning of a space
    std::optional<std::uint64_t> bos;  ///< the id that goes before the text
};

/// The regular expressions of `Split` steps that are known, and the patterns that do the same.
struct KnownSplit {
    std::string_view regex;
    std::string_view pattern;
};
inline constexpr std::array<KnownSplit, 3> known_splits{{
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "gpt-2"},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "llama-bpe"},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
     R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "qwen2"},
}};

/// Settings of the pattern of that name, but for those that a tokenizer.json says elsewhere.
[[nodiscard]] inline SplitPattern bare_pattern(std::string_view name) {
    for (SplitPattern pattern : split_patterns) {
        if (pattern.name != name) continue;
        pattern.isolate_digits = pattern.whole_words = pattern.nfc = false;
        return pattern;
    }
    return {};
}

class TokenizerStepReader {
 public:
    explicit TokenizerStepReader(JsonTree::Value root) : root_(root) {}

    [[nodiscard]] Result<TokenizerSteps> read() {
        DECANT_CHECK(each("normalizer", "normalizers", &TokenizerStepReader::normalize));
        DECANT_CHECK(each("pre_tokenizer", "pretokenizers", &TokenizerStepReader::split));
        DECANT_CHECK(each("post_processor", "processors", &TokenizerStepReader::process));
        if (out_.byte_level == marks_)
            return Error{ErrorCode::unsupported,
                         marks_ ? "it is byte-level, but marks spaces" : "it neither is byte-level nor marks spaces",
                         "pre_tokenizer", "known: byte-level BPE, and BPE with U+2581 for a space"};
        if (marks_ && (out_.pattern.nfc || digits_ || split_))
            return Error{ErrorCode::unsupported, "it marks spaces and has steps of byte-level ones, too",
                         "pre_tokenizer", ""};
        if (out_.byte_level && out_.prefix != SpacePrefix::never)
            return Error{ErrorCode::unsupported, "a byte-level vocabulary that puts a space before the text",
                         "normalizer", ""};
        if (out_.byte_level && !split_) return unsupported("pre_tokenizer", "words that are not split");
        return out_;
    }

 private:
    using Value = JsonTree::Value;
    using Step = Result<void> (TokenizerStepReader::*)(Value);

    /// The steps of a field: one, or those of a Sequence.
    [[nodiscard]] Result<void> each(std::string_view field, std::string_view list, Step step) {
        const Value value = root_[field];
        if (value.is_null()) return {};
        if (value["type"].string() != "Sequence") return (this->*step)(value);
        for (Value at = value[list].first(); at; at = at.next()) DECANT_CHECK((this->*step)(at));
        return {};
    }

    [[nodiscard]] static Error unsupported(std::string_view field, std::string_view what) {
        return {ErrorCode::unsupported, text("it has a step that is not known: ", what), std::string(field), ""};
    }
    [[nodiscard]] static Error unsupported_type(std::string_view field, Value step) {
        return unsupported(field, detail::quoted(step["type"].string()));
    }

    Result<void> normalize(Value step) {
        constexpr std::string_view field = "normalizer";
        const std::string_view type = step["type"].string();
        if (type == "NFC") {
            if (marks_ || out_.late) return unsupported(field, "NFC after others");
            out_.pattern.nfc = true;
        } else if (type == "Prepend" && step["prepend"].string() == word_mark && !out_.late) {
            out_.prefix = SpacePrefix::each;
            out_.late = true;
        } else if (type == "Replace" && step["pattern"]["String"].string() == " " &&
                   step["content"].string() == word_mark) {
            marks_ = out_.late = true;
        } else {
            return unsupported_type(field, step);
        }
        return {};
    }

    Result<void> split(Value step) {
        constexpr std::string_view field = "pre_tokenizer";
        const std::string_view type = step["type"].string();
        if (out_.byte_level) return unsupported(field, text(detail::quoted(type), " after ByteLevel"));
        if (type == "ByteLevel") {
            out_.byte_level = true;
            if (step["add_prefix_space"].boolean()) return unsupported(field, "ByteLevel with add_prefix_space");
            const bool regex = step["use_regex"].is_null() || step["use_regex"].boolean();
            return regex ? set_pattern("gpt-2") : Result<void>{};
        }
        if (type == "Digits" && step["individual_digits"].boolean() && !split_ && !marks_) {
            out_.pattern.isolate_digits = digits_ = true;
            return {};
        }
        if (type == "Split") return split_by(step);
        if (type == "Metaspace" && step["replacement"].string() == word_mark && !marks_) {
            marks_ = true;
            const std::string_view scheme = step["prepend_scheme"].string();
            const Value add = step["add_prefix_space"];
            const bool never = scheme == "never" || (scheme.empty() && !add.is_null() && !add.boolean());
            out_.prefix = never               ? SpacePrefix::never
                          : scheme == "first" ? SpacePrefix::first
                                              : SpacePrefix::each_unless_one;
            out_.split_spaces = step["split"].is_null() || step["split"].boolean();
            return {};
        }
        return unsupported_type(field, step);
    }

    Result<void> split_by(Value step) {
        constexpr std::string_view field = "pre_tokenizer";
        const std::string_view behavior = step["behavior"].string();
        const bool inverted = step["invert"].boolean();
        // After spaces are marked there are none left to split at.
        if (marks_ && step["pattern"]["String"].string() == " ") return {};
        std::string regex;
        for (const char c : step["pattern"]["Regex"].string()) {
            if (c == '\r' || c == '\n')
                regex += c == '\r' ? "\\r" : "\\n";
            else
                regex.push_back(c);
        }
        // The known expressions leave nothing between two matches, so that the two ways to say it are one.
        if ((behavior == "Isolated" && !inverted) || (behavior == "Removed" && inverted))
            for (const KnownSplit& known : known_splits)
                if (known.regex == regex) return set_pattern(known.pattern);
        return unsupported(field, text("Split (", behavior, inverted ? ", inverted" : "", ") at ",
                                       regex.empty() ? "a text" : detail::quoted(regex)));
    }

    Result<void> set_pattern(std::string_view name) {
        if (split_) return unsupported("pre_tokenizer", "a second way to split");
        split_ = true;
        const SplitPattern before = out_.pattern;
        out_.pattern = bare_pattern(name);
        out_.pattern.nfc = before.nfc;
        out_.pattern.isolate_digits = before.isolate_digits;
        return {};
    }

    Result<void> process(Value step) {
        constexpr std::string_view field = "post_processor";
        const std::string_view type = step["type"].string();
        if (type == "ByteLevel") return {};  // it changes offsets only
        if (type != "TemplateProcessing") return unsupported_type(field, step);
        for (Value at = step["single"].first(); at && at["Sequence"].is_null(); at = at.next()) {
            const std::string_view name = at["SpecialToken"]["id"].string();
            const Value ids = step["special_tokens"][name]["ids"];
            const std::uint64_t none = static_cast<std::uint64_t>(-1);
            if (out_.bos || !ids.first() || ids.first().next() || ids.first().uint(none) == none)
                return unsupported(field, text("other than one token before the text, ", detail::quoted(name)));
            out_.bos = ids.first().uint(none);
        }
        return {};
    }

    Value root_;
    TokenizerSteps out_;
    bool marks_ = false;  // spaces become U+2581
    bool digits_ = false;
    bool split_ = false;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

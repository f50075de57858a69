// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Tokenizer`: text to tokens and back, as the model's file describes it.

#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/weights.hpp>
#include <decant/text/byte_bpe.hpp>
#include <decant/text/pre_tokenizer.hpp>
#include <decant/text/sentence_piece.hpp>
#include <decant/text/special_tokens.hpp>
#include <decant/text/tagged_text.hpp>
#include <decant/text/utf8.hpp>
#include <decant/text/vocabulary.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

struct EncodeOptions {
    /// Begin as the model's metadata says: with the beginning-of-sequence token if there is one and
    /// `tokenizer.ggml.add_bos_token` is true (absent: true for SentencePiece). Text that already begins with it
    /// (`special` on) gets no second one.
    bool bos = false;
    /// Control tokens written out in the text become control tokens. For text that the host wrote, never for a user's.
    bool special = false;
};

struct DecodeOptions {
    bool control = false;  ///< show control tokens as they are spelled instead of leaving them out
    /// The tokens go on a text: a space that they begin with is part of it. Off, a tokenizer that puts a space before
    /// text (Llama 2, not Gemma) takes the first one for that. Set it to stream what completes a prompt.
    bool continues = false;
};

/// A cheap shared handle on const data: copy it, use it from any thread. Keeps nothing of the file.
///
/// Now, by `tokenizer.ggml.model` of GGUF metadata:
/// - "gpt2", byte-level BPE. For valid UTF-8 the ids are those of the Hugging Face tokenizer of the same vocabulary. A
///   byte for which the vocabulary has no token (SmolLM2 lacks a few control characters and bytes that UTF-8 never
///   uses) is left out, as there.
/// - "llama", BPE of SentencePiece without normalization, as in Llama 2 and Gemma. Ids are those of SentencePiece, with
///   control tokens found on demand; bytes that are not UTF-8 are kept as byte tokens. U+2581 comes back as a space.
///   With `tokenizer.ggml.add_space_prefix` (absent: true) a space goes before every stretch of text between special
///   tokens, and `decode` leaves it out.
class Tokenizer {
 public:
    /// Everything in the metadata is checked: kinds and lengths of the arrays, ids, merges. Errors name file and key.
    [[nodiscard]] static Result<Tokenizer> from(const Weights& weights) {
        return from(weights.metadata(), weights.name());
    }
    /// The same for metadata alone; `file` is for messages.
    [[nodiscard]] static Result<Tokenizer> from(const Metadata& metadata, std::string_view file);

    /// The tokens of `text`, which may be any bytes. No end-of-sequence token is ever added. User-defined tokens are
    /// found in any text, control tokens only with `special`. O(n log n) in the length of the longest word, else
    /// linear.
    [[nodiscard]] std::vector<Token> encode(std::string_view text, EncodeOptions options = {}) const {
        std::vector<Token> out;
        encode(text, options, out);
        return out;
    }
    /// Appends to `out`.
    void encode(std::string_view text, EncodeOptions options, std::vector<Token>& out) const {
        const TaggedText::Part whole{text.size(), options.special};
        encode_parts(text, {&whole, 1}, options.bos, out);
    }
    /// The tokens of a prompt of several authors: control tokens are found within template parts only, never across a
    /// seam; apart from that the text is encoded as one. With `bos` as in `EncodeOptions`; off, because a chat template
    /// writes what the model wants.
    [[nodiscard]] std::vector<Token> encode(const TaggedText& text, bool bos = false) const {
        std::vector<Token> out;
        encode_parts(text.text(), text.parts(), bos, out);
        return out;
    }

    /// The token's bytes, which need not be whole characters; for a control token its spelling. Empty for a token
    /// outside the vocabulary. Valid while this tokenizer or a copy lives.
    [[nodiscard]] std::string_view piece(Token token) const noexcept { return data().vocabulary.piece(token); }
    void append_bytes(Token token, std::string& out) const { out += piece(token); }
    /// Whether the token steers the model and is not text.
    [[nodiscard]] bool control(Token token) const noexcept {
        return data().vocabulary.kind(token) == TokenKind::control;
    }

    /// The text of `tokens`, always valid UTF-8: what cannot be a character is U+FFFD, as in `TextStream`.
    [[nodiscard]] std::string decode(std::span<const Token> tokens, DecodeOptions options = {}) const {
        std::string out;
        Utf8Stream characters = begin_text(options);
        for (const Token token : tokens) append_text(token, options, characters, out);
        characters.finish(out);
        return out;
    }
    /// `decode` token by token, on a state of the caller's; `TextStream` wraps it.
    [[nodiscard]] Utf8Stream begin_text(DecodeOptions options) const noexcept {
        Utf8Stream characters;
        if (space_prefix() && !options.continues) characters.skip_space();
        return characters;
    }
    void append_text(Token token, DecodeOptions options, Utf8Stream& characters, std::string& out) const {
        const TokenKind kind = data().vocabulary.kind(token);
        if (options.control || kind != TokenKind::control) characters.push(piece(token), out);
        if (space_prefix() && is_special(kind)) characters.skip_space();
    }

    /// Whether generation ends with this token: end of sequence, of turn or of message, by the metadata's ids or, among
    /// control tokens, by a well-known name.
    [[nodiscard]] bool ends(Token token) const noexcept {
        return std::find(data().ends.begin(), data().ends.end(), token) != data().ends.end();
    }
    [[nodiscard]] std::optional<Token> bos() const noexcept { return data().bos; }
    [[nodiscard]] std::optional<Token> eos() const noexcept { return data().eos; }
    /// Whether the metadata asks for a beginning-of-sequence token.
    [[nodiscard]] bool adds_bos() const noexcept { return data().add_bos; }
    /// The token whose `piece` is exactly this.
    [[nodiscard]] std::optional<Token> find(std::string_view piece) const { return data().vocabulary.find(piece); }
    [[nodiscard]] std::size_t size() const noexcept { return data().vocabulary.size(); }

 private:
    struct Data {
        Vocabulary vocabulary;
        SplitPattern pattern;
        ByteBpe bpe;
        std::optional<SentencePieceBpe> sentence_piece;  // in place of the two before
        detail::SpecialTokens specials;                  // views into the vocabulary
        std::optional<Token> bos;
        std::optional<Token> eos;
        std::vector<Token> ends;
        bool add_bos = false;
    };

    struct Scratch {
        ByteBpe::Scratch bytes;
        SentencePieceBpe::Scratch pieces;
    };

    explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

    /// Whether such tokens are found in text as they are spelled, before the rest is encoded.
    [[nodiscard]] static bool is_special(TokenKind kind) noexcept {
        return kind == TokenKind::control || kind == TokenKind::user_defined;
    }
    [[nodiscard]] bool space_prefix() const noexcept {
        return data().sentence_piece && data().sentence_piece->space_prefix();
    }

    [[nodiscard]] static Result<void> read_byte_level(const Metadata& metadata, std::string_view file, Data& data);
    [[nodiscard]] static Result<void> read_sentence_piece(const Metadata& metadata, std::string_view file, Data& data);
    [[nodiscard]] static Result<ByteBpe> read_merges(const Metadata& metadata, const Vocabulary& vocabulary,
                                                     std::string_view file);
    [[nodiscard]] static Result<void> read_ends(const Metadata& metadata, std::string_view file, Data& data);
    [[nodiscard]] static detail::SpecialTokens collect_specials(const Vocabulary& vocabulary);

    void encode_parts(std::string_view text, std::span<const TaggedText::Part> parts, bool bos,
                      std::vector<Token>& out) const;
    void encode_ordinary(std::string_view text, Scratch& scratch, std::vector<Token>& out) const;

    [[nodiscard]] const Data& data() const noexcept {
        DECANT_ASSERT(data_ != nullptr);  // not after a move
        return *data_;
    }

    std::shared_ptr<const Data> data_;
};

inline void Tokenizer::encode_parts(std::string_view text, std::span<const TaggedText::Part> parts, bool bos,
                                    std::vector<Token>& out) const {
    const bool add_bos = bos && data().add_bos && data().bos;
    if (add_bos) out.push_back(*data().bos);
    Scratch scratch;
    std::size_t ordinary = 0;  // text[ordinary, at) holds no special token and is not yet encoded
    std::size_t at = 0;
    for (const TaggedText::Part& part : parts) {
        while (at < part.end) {
            const auto* special = data().specials.match(text.substr(at), part.from_template ? part.end - at : 0);
            if (special == nullptr) {
                ++at;
                continue;
            }
            encode_ordinary(text.substr(ordinary, at - ordinary), scratch, out);
            if (!(add_bos && at == 0 && special->token == *data().bos)) out.push_back(special->token);
            at += special->piece.size();
            ordinary = at;
        }
    }
    encode_ordinary(text.substr(ordinary), scratch, out);
}

inline void Tokenizer::encode_ordinary(std::string_view text, Scratch& scratch, std::vector<Token>& out) const {
    if (data().sentence_piece) return data().sentence_piece->encode(text, data().vocabulary, scratch.pieces, out);
    WordScanner words(data().pattern, text);
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
        if (data().pattern.whole_words) {
            if (const auto token = data().vocabulary.find_text(word)) {
                out.push_back(*token);
                continue;
            }
        }
        data().bpe.encode(word, scratch.bytes, out);
    }
}

inline Result<Tokenizer> Tokenizer::from(const Metadata& metadata, std::string_view file) {
    constexpr std::string_view model_key = "tokenizer.ggml.model";
    constexpr std::string_view add_bos_key = "tokenizer.ggml.add_bos_token";
    const auto data = std::make_shared<Data>();
    DECANT_TRY(const std::string_view model, metadata.string(model_key));
    if (model == "gpt2")
        DECANT_CHECK(read_byte_level(metadata, file, *data));
    else if (model == "llama")
        DECANT_CHECK(read_sentence_piece(metadata, file, *data));
    else
        return Error{ErrorCode::unsupported, detail::text("tokenizer model ", detail::quoted(model)),
                     Vocabulary::place(model_key, file), "known: gpt2 (byte-level BPE), llama (BPE of SentencePiece)"};
    if (metadata.contains(add_bos_key)) {
        DECANT_TRY(data->add_bos, metadata.boolean(add_bos_key));
    }
    DECANT_CHECK(read_ends(metadata, file, *data));
    data->specials = collect_specials(data->vocabulary);
    return Tokenizer(data);
}

inline Result<void> Tokenizer::read_byte_level(const Metadata& metadata, std::string_view file, Data& data) {
    constexpr std::string_view pre_key = "tokenizer.ggml.pre";
    constexpr std::string_view prefix_key = "tokenizer.ggml.add_space_prefix";
    DECANT_TRY(data.vocabulary, Vocabulary::read(metadata, file));
    DECANT_TRY(const std::string_view pre, metadata.string(pre_key));
    auto pattern = find_split_pattern(pre);
    if (!pattern) return std::move(pattern).error().in(file);
    data.pattern = *pattern;
    if (metadata.contains(prefix_key)) {
        DECANT_TRY(const bool prefix, metadata.boolean(prefix_key));
        if (prefix)
            return Error{ErrorCode::unsupported, "a byte-level vocabulary that puts a space before the text",
                         Vocabulary::place(prefix_key, file), ""};
    }
    DECANT_TRY(data.bpe, read_merges(metadata, data.vocabulary, file));
    return {};
}

inline Result<void> Tokenizer::read_sentence_piece(const Metadata& metadata, std::string_view file, Data& data) {
    constexpr std::string_view types_key = "tokenizer.ggml.token_type";
    DECANT_TRY(data.vocabulary, Vocabulary::read(metadata, file, PieceSpelling::sentence_piece));
    if (!metadata.contains(types_key))
        return Error{ErrorCode::missing, "no token types, which tell control tokens and bytes from text",
                     Vocabulary::place(types_key, file), "convert the model again"};
    DECANT_TRY(data.sentence_piece, SentencePieceBpe::read(metadata, data.vocabulary, file));
    data.add_bos = true;
    return {};
}

inline Result<ByteBpe> Tokenizer::read_merges(const Metadata& metadata, const Vocabulary& vocabulary,
                                              std::string_view file) {
    constexpr std::string_view key = "tokenizer.ggml.merges";
    std::array<Token, 256> bytes;
    for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
        const char c = static_cast<char>(static_cast<std::uint8_t>(byte));
        bytes[byte] = vocabulary.find_text({&c, 1}).value_or(ByteBpe::no_token);
    }
    DECANT_TRY(const auto lines, metadata.strings(key));
    std::vector<MergeRule> rules;
    rules.reserve(lines.size());
    std::string spelled;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const std::string_view line = lines[i];
        const auto wrong = [&](ErrorCode code, std::string_view why) {
            return Error{code, detail::text("merge ", i, " ", detail::quoted(line), " ", why),
                         Vocabulary::place(key, file), ""};
        };
        const std::size_t space = line.find(' ');
        spelled.clear();
        if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
            !detail::append_byte_level(line.substr(0, space), spelled))
            return wrong(ErrorCode::bad_format, "is not two pieces with a space between");
        const std::size_t left_bytes = spelled.size();
        if (!detail::append_byte_level(line.substr(space + 1), spelled))
            return wrong(ErrorCode::bad_format, "is not two pieces with a space between");
        const std::string_view whole = spelled;
        const auto left = vocabulary.find_text(whole.substr(0, left_bytes));
        const auto right = vocabulary.find_text(whole.substr(left_bytes));
        const auto merged = vocabulary.find_text(whole);
        if (!left || !right || !merged)
            return wrong(ErrorCode::mismatch, "joins or makes a piece that is not a text token of the vocabulary");
        rules.push_back({*left, *right, *merged});
    }
    return ByteBpe(bytes, rules);
}

inline Result<void> Tokenizer::read_ends(const Metadata& metadata, std::string_view file, Data& data) {
    const auto add = [&](std::optional<Token> token) {
        if (token && std::find(data.ends.begin(), data.ends.end(), *token) == data.ends.end())
            data.ends.push_back(*token);
    };
    DECANT_TRY(data.bos, data.vocabulary.token_at(metadata, "tokenizer.ggml.bos_token_id", file));
    DECANT_TRY(data.eos, data.vocabulary.token_at(metadata, "tokenizer.ggml.eos_token_id", file));
    add(data.eos);
    for (const std::string_view key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
        DECANT_TRY(const auto token, data.vocabulary.token_at(metadata, key, file));
        add(token);
    }
    // Files name one end of sequence; models also end with these.
    for (const std::string_view spelling :
         {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>"}) {
        const auto token = data.vocabulary.find(spelling);
        if (token && data.vocabulary.kind(*token) == TokenKind::control) add(token);
    }
    return {};
}

inline detail::SpecialTokens Tokenizer::collect_specials(const Vocabulary& vocabulary) {
    std::vector<detail::SpecialTokens::Entry> entries;
    for (std::size_t i = 0; i < vocabulary.size(); ++i) {
        const Token token{static_cast<std::int32_t>(i)};
        const TokenKind kind = vocabulary.kind(token);
        if (is_special(kind)) entries.push_back({vocabulary.piece(token), token, kind == TokenKind::control});
    }
    return detail::SpecialTokens(std::move(entries));
}

}  // namespace decant::inline DECANT_ABI

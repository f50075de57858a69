// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Tokenizer`: text to tokens and back, as the model's file describes it.

#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/weights.hpp>
#include <decant/text/byte_bpe.hpp>
#include <decant/text/char_bpe.hpp>
#include <decant/text/folder_tokenizer.hpp>
#include <decant/text/gguf_tokenizer.hpp>
#include <decant/text/normalization.hpp>
#include <decant/text/pre_tokenizer.hpp>
#include <decant/text/sentence_piece.hpp>
#include <decant/text/special_tokens.hpp>
#include <decant/text/tagged_text.hpp>
#include <decant/text/tokenizer_data.hpp>
#include <decant/text/trim.hpp>
#include <decant/text/utf8.hpp>
#include <decant/text/vocabulary.hpp>
#include <decant/text/word_mark.hpp>

#include <algorithm>
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
    /// Begin as the model's files say: with the beginning-of-sequence token if there is one and
    /// `tokenizer.ggml.add_bos_token` is true (absent: true for SentencePiece); in a folder, if the post_processor of
    /// tokenizer.json puts one there, or `add_bos_token` in tokenizer_config.json, which decides where it is given.
    /// Text that already begins with it (`special` on) gets no second one.
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
///
/// Of a folder, the tokenizer.json of a BPE model: byte-level with the splits of GPT-2, SmolLM2, Llama 3 and Qwen 2, or
/// with U+2581 for a space (Llama 2, Phi-3, Gemma). Ids are those of Hugging Face tokenizers, with control tokens found
/// on demand; spaces that were put before text are left out by `decode` as above. What a template puts behind the text
/// is not added.
class Tokenizer {
 public:
    /// From GGUF metadata or, of a folder, from tokenizer.json and the files beside it. Everything in them is checked:
    /// kinds and lengths of the arrays, ids, merges. Errors name file and key; a kind of tokenizer, or a step of one,
    /// that is not known is `unsupported` and named.
    [[nodiscard]] static Result<Tokenizer> from(const Weights& weights) {
        if (weights.format() != WeightsFormat::folder) return from(weights.metadata(), weights.name());
        const auto data = std::make_shared<Data>();
        DECANT_CHECK(detail::read_folder_tokenizer(weights, *data));
        return Tokenizer(data);
    }
    /// From GGUF metadata alone; `file` is for messages.
    [[nodiscard]] static Result<Tokenizer> from(const Metadata& metadata, std::string_view file) {
        const auto data = std::make_shared<Data>();
        DECANT_CHECK(detail::read_gguf_tokenizer(metadata, file, *data));
        return Tokenizer(data);
    }

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
        if (data().prefix != SpacePrefix::never && !options.continues) characters.skip_space();
        return characters;
    }
    void append_text(Token token, DecodeOptions options, Utf8Stream& characters, std::string& out) const {
        const TokenKind kind = data().vocabulary.kind(token);
        if (options.control || kind != TokenKind::control) characters.push(piece(token), out);
        if (prefixes_each() && is_special(kind)) characters.skip_space();
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
    using Data = detail::TokenizerData;

    struct Scratch {
        ByteBpe::Scratch bytes;
        SentencePieceBpe::Scratch pieces;
        CharBpe::Scratch characters;
        std::string normalized;
        std::string marked;
        std::vector<TaggedText::Part> parts;  // of `marked`
        bool began = false;                   // a token for the beginning was put before the text
    };

    explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

    /// Whether such tokens are found in text as they are spelled, before the rest is encoded.
    [[nodiscard]] static bool is_special(TokenKind kind) noexcept {
        return kind == TokenKind::control || kind == TokenKind::user_defined;
    }
    /// Whether a space is put before each stretch of text between special tokens.
    [[nodiscard]] bool prefixes_each() const noexcept {
        return data().prefix == SpacePrefix::each || data().prefix == SpacePrefix::each_unless_one;
    }

    void encode_parts(std::string_view text, std::span<const TaggedText::Part> parts, bool bos,
                      std::vector<Token>& out) const;
    /// text[begin, end), in which no special token is, but perhaps late ones.
    void encode_between(std::string_view text, std::size_t begin, std::size_t end,
                        std::span<const TaggedText::Part> parts, Scratch& scratch, std::vector<Token>& out) const;
    void encode_ordinary(std::string_view text, Scratch& scratch, std::vector<Token>& out) const;
    void encode_words(std::string_view text, Scratch& scratch, std::vector<Token>& out) const;

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
    scratch.began = add_bos;
    std::size_t ordinary = 0;  // text[ordinary, at) holds no special token and is not yet encoded
    std::size_t at = 0;
    for (const TaggedText::Part& part : parts) {
        while (at < part.end) {
            const auto* special = data().specials.match(text.substr(at), part.from_template ? part.end - at : 0);
            if (special == nullptr) {
                ++at;
                continue;
            }
            std::size_t end = at;
            if (special->takes_left) end = ordinary + detail::trim_right(text.substr(ordinary, at - ordinary)).size();
            encode_between(text, ordinary, end, parts, scratch, out);
            if (!(add_bos && at == 0 && special->token == *data().bos)) out.push_back(special->token);
            at += special->piece.size();
            if (special->takes_right) at = text.size() - detail::trim_left(text.substr(at)).size();
            ordinary = at;
        }
    }
    encode_between(text, ordinary, text.size(), parts, scratch, out);
}

inline void Tokenizer::encode_between(std::string_view text, std::size_t begin, std::size_t end,
                                      std::span<const TaggedText::Part> parts, Scratch& scratch,
                                      std::vector<Token>& out) const {
    if (begin == end) return;
    std::string_view whole = text.substr(begin, end - begin);
    const bool began = scratch.began && begin == 0;
    if (!data().characters && data().late_specials.empty()) return encode_ordinary(whole, scratch, out);

    // With spaces for marks and perhaps one before it; and where the parts of the text are in that.
    const SpacePrefix prefix = data().prefix;
    std::string& marked = scratch.marked;
    marked.clear();
    scratch.parts.clear();
    const bool has_one = whole.front() == ' ' || whole.starts_with(detail::word_mark);
    const bool may_have_one = prefix == SpacePrefix::each_unless_one || (prefix == SpacePrefix::first && begin == 0);
    if (prefix == SpacePrefix::each || (may_have_one && !has_one)) marked.push_back(' ');
    for (const TaggedText::Part& part : parts) {
        if (part.end <= begin) continue;
        const std::size_t part_end = (std::min)(part.end, end);
        const std::string_view piece = text.substr(begin, part_end - begin);
        if (data().characters)
            detail::append_unmarked(piece, marked);
        else
            marked.append(piece);
        scratch.parts.push_back({marked.size(), part.from_template});
        begin = part_end;
        if (begin == end) break;
    }

    whole = marked;
    const std::size_t space = prefix == SpacePrefix::each ? 1 : 0;  // is part of a late special
    std::size_t ordinary = 0;
    std::size_t at = data().late_specials.empty() ? whole.size() : 0;
    for (const TaggedText::Part& part : scratch.parts) {
        while (at < part.end) {
            const bool may_start = space == 0 || (at > ordinary && whole[at - 1] == ' ');
            const auto* special =
                may_start ? data().late_specials.match(whole.substr(at), part.from_template ? part.end - at : 0)
                          : nullptr;
            if (special == nullptr) {
                ++at;
                continue;
            }
            std::string_view before = whole.substr(ordinary, at - space - ordinary);
            if (special->takes_left) before = detail::trim_right(before);
            encode_ordinary(before, scratch, out);
            if (!(began && ordinary == 0 && before.empty() && special->token == *data().bos))
                out.push_back(special->token);
            at += special->piece.size();
            if (special->takes_right) at = whole.size() - detail::trim_left(whole.substr(at)).size();
            ordinary = at;
        }
    }
    encode_ordinary(whole.substr(ordinary), scratch, out);
}

inline void Tokenizer::encode_ordinary(std::string_view text, Scratch& scratch, std::vector<Token>& out) const {
    if (data().sentence_piece)
        data().sentence_piece->encode(text, data().vocabulary, scratch.pieces, out);
    else if (data().characters)
        data().characters->encode(text, data().vocabulary, scratch.characters, out);
    else
        encode_words(data().pattern.nfc ? normalize_nfc(text, scratch.normalized) : text, scratch, out);
}

inline void Tokenizer::encode_words(std::string_view text, Scratch& scratch, std::vector<Token>& out) const {
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

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Vocabulary`: the pieces of a tokenizer, their kinds, and lookup by bytes. Owns its bytes; const after reading.
/// Source: the GGUF specification (docs/gguf.md of ggml), "Tokenizer".

#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/metadata.hpp>
#include <decant/text/byte_level.hpp>
#include <decant/text/hash_index.hpp>
#include <decant/text/word_mark.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// What a token is for.
enum class TokenKind : std::uint8_t {
    text,          ///< bytes of text
    control,       ///< steers the model; never part of a user's text
    user_defined,  ///< added to the vocabulary; found in text before splitting
    unused,        ///< fills the vocabulary; no text encodes to it
    byte,          ///< one byte of a character that has no piece (SentencePiece)
};

/// How a file spells the pieces of text.
enum class PieceSpelling : std::uint8_t {
    byte_level,      ///< in the alphabet of GPT-2
    sentence_piece,  ///< as they are, U+2581 for a space; single bytes as <0x00> to <0xFF>
};

class Vocabulary {
 public:
    /// Reads `tokenizer.ggml.tokens` and `token_type` (absent: all are text), and checks that `scores`, if present,
    /// agree in kind and length. The pieces become the bytes that they stand for; control tokens stay as spelled, and
    /// so do pieces of kind `text` that are not in the byte-level alphabet. Errors: an empty vocabulary, arrays of
    /// other lengths or types, unknown token types, byte pieces that name no byte. `file` is for messages.
    [[nodiscard]] static Result<Vocabulary> read(const Metadata& metadata, std::string_view file,
                                                 PieceSpelling spelling = PieceSpelling::byte_level);

    /// From pieces as a file spells them, by id, and their kinds. Errors as in `read`, without a place.
    [[nodiscard]] static Result<Vocabulary> build(std::span<const std::string_view> pieces,
                                                  std::vector<TokenKind> kinds, PieceSpelling spelling);

    [[nodiscard]] std::size_t size() const noexcept { return kinds_.size(); }
    [[nodiscard]] bool contains(Token token) const noexcept {
        return id(token) >= 0 && static_cast<std::size_t>(id(token)) < size();
    }
    /// The token's bytes; empty for a token outside the vocabulary. Valid as long as the vocabulary.
    [[nodiscard]] std::string_view piece(Token token) const noexcept {
        if (!contains(token)) return {};
        const auto i = static_cast<std::size_t>(id(token));
        return std::string_view(bytes_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
    }
    /// `unused` for a token outside the vocabulary.
    [[nodiscard]] TokenKind kind(Token token) const noexcept {
        return contains(token) ? kinds_[static_cast<std::size_t>(id(token))] : TokenKind::unused;
    }

    /// The token of these bytes. Where several have them, one of kind `text` comes first and one of kind `byte` last,
    /// then the lowest id.
    [[nodiscard]] std::optional<Token> find(std::string_view bytes) const {
        const auto* found = index_.find(detail::hash_bytes(bytes), [&](const detail::HashIndex::Entry& entry) {
            return piece(Token{static_cast<std::int32_t>(entry.first)}).compare(bytes);
        });
        if (found == nullptr) return std::nullopt;
        return Token{static_cast<std::int32_t>(found->first)};
    }
    /// The token of kind `text` of these bytes.
    [[nodiscard]] std::optional<Token> find_text(std::string_view bytes) const {
        const auto token = find(bytes);
        return token && kind(*token) == TokenKind::text ? token : std::nullopt;
    }

    /// The token of these bytes that merges may join or make: of kind `text`, or `user_defined`, which a vocabulary may
    /// also hold as an ordinary piece (Gemma's runs of spaces).
    [[nodiscard]] std::optional<Token> find_joinable(std::string_view bytes) const {
        const auto token = find(bytes);
        if (!token || (kind(*token) != TokenKind::text && kind(*token) != TokenKind::user_defined)) return std::nullopt;
        return token;
    }

    /// The token that an integer key names, if the key is there; `mismatch` if it is no id of this vocabulary.
    [[nodiscard]] Result<std::optional<Token>> token_at(const Metadata& metadata, std::string_view key,
                                                        std::string_view file) const {
        if (!metadata.contains(key)) return std::optional<Token>{};
        DECANT_TRY(const std::uint64_t value, metadata.uint(key));
        if (value >= size())
            return Error{ErrorCode::mismatch,
                         detail::text("token id ", value, " is outside the vocabulary of ", size(), " tokens"),
                         place(key, file), ""};
        return std::optional<Token>(Token{static_cast<std::int32_t>(value)});
    }

    /// "file, key "..."": where a message says an error lies.
    [[nodiscard]] static std::string place(std::string_view key, std::string_view file) {
        return detail::text(file, file.empty() ? "key " : ", key ", detail::quoted(key));
    }

 private:
    [[nodiscard]] static Result<TokenKind> kind_of(std::int64_t type, std::size_t token, PieceSpelling spelling,
                                                   std::string_view file) {
        switch (type) {
            case 1: return TokenKind::text;
            case 2:  // the unknown token: nothing that a user writes
            case 3: return TokenKind::control;
            case 4: return TokenKind::user_defined;
            case 5: return TokenKind::unused;
            case 6:  // a byte by number, which byte-level vocabularies do not need
                return spelling == PieceSpelling::sentence_piece ? TokenKind::byte : TokenKind::unused;
            default: break;
        }
        return Error{ErrorCode::bad_format,
                     detail::text("element ", token, " is ", type, ", not a token type (1 to 6)"),
                     place("tokenizer.ggml.token_type", file), ""};
    }
    /// Appends the bytes that a piece stands for. False if it stands for none.
    [[nodiscard]] static bool append_piece(std::string_view piece, TokenKind kind, PieceSpelling spelling,
                                           std::string& out);
    void build_index();

    std::string bytes_;                   // all pieces, end to end
    std::vector<std::uint32_t> offsets_;  // [size() + 1], into bytes_
    std::vector<TokenKind> kinds_;        // [size()]
    detail::HashIndex index_;             // by piece; the entry's values are id and rank among equals
};

inline bool Vocabulary::append_piece(std::string_view piece, TokenKind kind, PieceSpelling spelling, std::string& out) {
    if (kind == TokenKind::byte) return detail::append_numbered_byte(piece, out);
    if (spelling == PieceSpelling::sentence_piece && kind != TokenKind::control)
        detail::append_unmarked(piece, out);
    else if (kind != TokenKind::text || !detail::append_byte_level(piece, out))
        out.append(piece);
    return true;
}

inline Result<Vocabulary> Vocabulary::read(const Metadata& metadata, std::string_view file, PieceSpelling spelling) {
    constexpr std::string_view tokens_key = "tokenizer.ggml.tokens";
    constexpr std::string_view types_key = "tokenizer.ggml.token_type";
    constexpr std::string_view scores_key = "tokenizer.ggml.scores";
    DECANT_TRY(const auto pieces, metadata.strings(tokens_key));
    if (pieces.empty()) return Error{ErrorCode::bad_format, "the vocabulary is empty", place(tokens_key, file), ""};
    const auto agree = [&](std::string_view key, std::size_t length) -> Result<void> {
        if (length == pieces.size()) return {};
        return Error{ErrorCode::mismatch,
                     detail::text("the array has ", length, " entries, but ", tokens_key, " has ", pieces.size()),
                     place(key, file), "the file is damaged or was written by a broken tool"};
    };
    std::vector<std::int64_t> types;
    if (metadata.contains(types_key)) {
        DECANT_TRY(types, metadata.ints(types_key));
        DECANT_CHECK(agree(types_key, types.size()));
    }
    if (metadata.contains(scores_key)) {
        DECANT_TRY(const auto scores, metadata.floats(scores_key));
        DECANT_CHECK(agree(scores_key, scores.size()));
    }

    std::vector<TokenKind> kinds(pieces.size(), TokenKind::text);
    for (std::size_t i = 0; i < types.size(); ++i) {
        DECANT_TRY(kinds[i], kind_of(types[i], i, spelling, file));
    }
    auto vocabulary = build(pieces, std::move(kinds), spelling);
    if (!vocabulary) return std::move(vocabulary).error().in(place(tokens_key, file));
    return vocabulary;
}

inline Result<Vocabulary> Vocabulary::build(std::span<const std::string_view> pieces, std::vector<TokenKind> kinds,
                                            PieceSpelling spelling) {
    DECANT_ASSERT(pieces.size() == kinds.size());
    if (pieces.empty()) return Error{ErrorCode::bad_format, "the vocabulary is empty", "", ""};
    if (pieces.size() > static_cast<std::size_t>((std::numeric_limits<std::int32_t>::max)()))
        return Error{ErrorCode::unsupported, detail::text("a vocabulary of ", pieces.size(), " tokens"), "", ""};
    std::uint64_t total = 0;
    for (const std::string_view piece : pieces) total += piece.size();
    if (total > (std::numeric_limits<std::uint32_t>::max)())
        return Error{ErrorCode::unsupported, detail::text("a vocabulary of ", total, " bytes"), "", ""};
    Vocabulary vocabulary;
    vocabulary.kinds_ = std::move(kinds);
    vocabulary.bytes_.reserve(static_cast<std::size_t>(total));
    vocabulary.offsets_.reserve(pieces.size() + 1);
    vocabulary.offsets_.push_back(0);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (!append_piece(pieces[i], vocabulary.kinds_[i], spelling, vocabulary.bytes_))
            return Error{
                ErrorCode::bad_format,
                detail::text("token ", i, " ", detail::quoted(pieces[i]), " is of the type byte, but not <0xNN>"), "",
                ""};
        vocabulary.offsets_.push_back(static_cast<std::uint32_t>(vocabulary.bytes_.size()));
    }
    vocabulary.build_index();
    return vocabulary;
}

inline void Vocabulary::build_index() {
    std::vector<detail::HashIndex::Entry> entries;
    entries.reserve(size());
    for (std::size_t i = 0; i < size(); ++i) {
        const Token token{static_cast<std::int32_t>(i)};
        const TokenKind its = kind(token);
        entries.push_back({detail::hash_bytes(piece(token)), static_cast<std::uint32_t>(i),
                           its == TokenKind::text   ? 0u
                           : its == TokenKind::byte ? 2u
                                                    : 1u});
    }
    index_ = detail::HashIndex(entries, [&](const detail::HashIndex::Entry& a, const detail::HashIndex::Entry& b) {
        const int order =
            piece(Token{static_cast<std::int32_t>(a.first)}).compare(piece(Token{static_cast<std::int32_t>(b.first)}));
        return order != 0 ? order < 0 : a.second < b.second;
    });
}

}  // namespace decant::inline DECANT_ABI

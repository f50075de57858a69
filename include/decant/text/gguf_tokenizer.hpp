// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Reading a tokenizer from GGUF metadata. Source: the GGUF specification (docs/gguf.md of ggml), "Tokenizer".

#include <decant/core/result.hpp>
#include <decant/files/metadata.hpp>
#include <decant/text/tokenizer_data.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

[[nodiscard]] inline Result<void> read_gguf_byte_level(const Metadata& metadata, std::string_view file,
                                                       TokenizerData& data) {
    constexpr std::string_view pre_key = "tokenizer.ggml.pre";
    constexpr std::string_view prefix_key = "tokenizer.ggml.add_space_prefix";
    constexpr std::string_view merges_key = "tokenizer.ggml.merges";
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
    DECANT_TRY(const auto lines, metadata.strings(merges_key));
    MergeList merges(data.vocabulary, PieceSpelling::byte_level);
    merges.rules.reserve(lines.size());
    for (const std::string_view line : lines)
        if (auto added = merges.add(line); !added)
            return std::move(added).error().in(Vocabulary::place(merges_key, file));
    data.bpe = ByteBpe(find_byte_tokens(data.vocabulary), merges.rules);
    return {};
}

[[nodiscard]] inline Result<void> read_gguf_sentence_piece(const Metadata& metadata, std::string_view file,
                                                           TokenizerData& data) {
    constexpr std::string_view types_key = "tokenizer.ggml.token_type";
    DECANT_TRY(data.vocabulary, Vocabulary::read(metadata, file, PieceSpelling::sentence_piece));
    if (!metadata.contains(types_key))
        return Error{ErrorCode::missing, "no token types, which tell control tokens and bytes from text",
                     Vocabulary::place(types_key, file), "convert the model again"};
    DECANT_TRY(data.sentence_piece, SentencePieceBpe::read(metadata, data.vocabulary, file));
    data.prefix = data.sentence_piece->space_prefix() ? SpacePrefix::each : SpacePrefix::never;
    data.add_bos = true;
    return {};
}

[[nodiscard]] inline Result<void> read_gguf_ends(const Metadata& metadata, std::string_view file, TokenizerData& data) {
    DECANT_TRY(data.bos, data.vocabulary.token_at(metadata, "tokenizer.ggml.bos_token_id", file));
    DECANT_TRY(data.eos, data.vocabulary.token_at(metadata, "tokenizer.ggml.eos_token_id", file));
    add_end(data.eos, data);
    for (const std::string_view key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
        DECANT_TRY(const auto token, data.vocabulary.token_at(metadata, key, file));
        add_end(token, data);
    }
    add_known_ends(data);
    return {};
}

/// Everything in the metadata is checked. `file` is for messages.
[[nodiscard]] inline Result<void> read_gguf_tokenizer(const Metadata& metadata, std::string_view file,
                                                      TokenizerData& data) {
    constexpr std::string_view model_key = "tokenizer.ggml.model";
    constexpr std::string_view add_bos_key = "tokenizer.ggml.add_bos_token";
    DECANT_TRY(const std::string_view model, metadata.string(model_key));
    if (model == "gpt2")
        DECANT_CHECK(read_gguf_byte_level(metadata, file, data));
    else if (model == "llama")
        DECANT_CHECK(read_gguf_sentence_piece(metadata, file, data));
    else
        return Error{ErrorCode::unsupported, text("tokenizer model ", detail::quoted(model)),
                     Vocabulary::place(model_key, file), "known: gpt2 (byte-level BPE), llama (BPE of SentencePiece)"};
    if (metadata.contains(add_bos_key)) {
        DECANT_TRY(data.add_bos, metadata.boolean(add_bos_key));
    }
    DECANT_CHECK(read_gguf_ends(metadata, file, data));

    std::vector<SpecialTokens::Entry> entries;
    for (std::size_t i = 0; i < data.vocabulary.size(); ++i) {
        const Token token{static_cast<std::int32_t>(i)};
        const TokenKind kind = data.vocabulary.kind(token);
        if (kind == TokenKind::control || kind == TokenKind::user_defined)
            entries.push_back({data.vocabulary.piece(token), token, kind == TokenKind::control});
    }
    data.specials = SpecialTokens(std::move(entries));
    return {};
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

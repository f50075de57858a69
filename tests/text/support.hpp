// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Tokenizers for tests: the real model's, and small ones from `tokenizer.json` files or written by hand, as GGUF in
/// memory.

#include "../support/catch.hpp"
#include "../support/data.hpp"

#include <decant/files/gguf_writer.hpp>
#include <decant/files/weights.hpp>
#include <decant/text/tokenizer.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant_test {

/// The metadata of a tokenizer. Change a member, then `open`.
struct TokenizerFile {
    std::string model = "gpt2";
    std::string pre = "gpt-2";
    std::vector<std::string> tokens;
    std::vector<std::int32_t> types;  ///< empty: no token_type
    std::vector<std::string> merges;
    std::vector<float> scores;  ///< empty: none
    std::optional<std::uint32_t> bos, eos, unknown;
    std::optional<bool> add_bos, space_prefix;
    std::string chat_template;

    [[nodiscard]] decant::Weights open() const {
        const auto views = [](const std::vector<std::string>& strings) {
            return std::vector<std::string_view>(strings.begin(), strings.end());
        };
        const auto tokens_view = views(tokens);
        const auto merges_view = views(merges);
        decant::GgufWriter file;
        file.add("general.architecture", "llama");
        file.add("tokenizer.ggml.model", model);
        if (!pre.empty()) file.add("tokenizer.ggml.pre", pre);
        file.add("tokenizer.ggml.tokens", std::span<const std::string_view>(tokens_view));
        if (!types.empty()) file.add("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
        if (model == "gpt2") file.add("tokenizer.ggml.merges", std::span<const std::string_view>(merges_view));
        if (!scores.empty()) file.add("tokenizer.ggml.scores", std::span<const float>(scores));
        if (bos) file.add("tokenizer.ggml.bos_token_id", *bos);
        if (eos) file.add("tokenizer.ggml.eos_token_id", *eos);
        if (unknown) file.add("tokenizer.ggml.unknown_token_id", *unknown);
        if (space_prefix) file.add("tokenizer.ggml.add_space_prefix", *space_prefix);
        if (add_bos) file.add("tokenizer.ggml.add_bos_token", *add_bos);
        if (!chat_template.empty()) file.add("tokenizer.chat_template", chat_template);
        const auto bytes = std::make_shared<const std::vector<std::byte>>(file.finish());
        auto weights = decant::Weights::from_memory(*bytes, bytes, "test.gguf");
        INFO((weights ? std::string() : weights.error().message()));
        REQUIRE(weights);
        return *weights;
    }
};

/// All 256 bytes as tokens in the byte-level alphabet (ids 0 to 255 in that alphabet's order), nothing else.
inline TokenizerFile byte_tokenizer() {
    TokenizerFile file;
    for (char32_t code = 0; code < 324; ++code) {
        if (decant::detail::byte_level_table[code] < 0) continue;
        file.tokens.emplace_back();
        decant::append_utf8(file.tokens.back(), code);
    }
    file.types.assign(file.tokens.size(), 1);
    return file;
}

/// A byte-level `tokenizer.json` of Hugging Face as GGUF metadata.
inline TokenizerFile from_tokenizer_json(const std::filesystem::path& path, std::string pre) {
    const auto json = read_json(path);
    TokenizerFile file;
    file.pre = std::move(pre);
    std::vector<std::pair<std::string, std::size_t>> entries;
    for (const auto& [piece, id] : json["model"]["vocab"].items()) entries.emplace_back(piece, id.get<std::size_t>());
    std::size_t count = entries.size();
    for (const auto& added : json["added_tokens"]) count = (std::max)(count, added["id"].get<std::size_t>() + 1);
    file.tokens.resize(count);
    file.types.assign(count, 1);
    for (const auto& [piece, id] : entries) file.tokens.at(id) = piece;
    for (const auto& added : json["added_tokens"]) {
        const auto id = added["id"].get<std::size_t>();
        file.tokens.at(id) = added["content"].get<std::string>();
        file.types.at(id) = added["special"].get<bool>() ? 3 : 4;
    }
    for (const auto& merge : json["model"]["merges"])
        file.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                                : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    return file;
}

/// A `tokenizer.json` of the Llama 2 kind as GGUF metadata: what was merged first has the highest score.
inline TokenizerFile sentence_piece_from_tokenizer_json(const std::filesystem::path& path) {
    TokenizerFile file = from_tokenizer_json(path, "default");
    file.model = "llama";
    std::map<std::string, float> scores;
    for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
        std::string piece = file.merges[rank];
        piece.erase(piece.find(' '), 1);
        scores.emplace(piece, -static_cast<float>(rank));
    }
    for (std::size_t i = 0; i < file.tokens.size(); ++i) {
        const std::string& piece = file.tokens[i];
        if (file.types[i] == 1 && piece.size() == 6 && piece.starts_with("<0x")) file.types[i] = 6;
        const auto found = scores.find(piece);
        file.scores.push_back(found == scores.end() ? -1e9f : found->second);
    }
    file.bos = 1;
    return file;
}

inline decant::Tokenizer tokenizer(const decant::Weights& weights) {
    auto result = decant::Tokenizer::from(weights);
    INFO((result ? std::string() : result.error().message()));
    REQUIRE(result);
    return *result;
}

/// The real model's tokenizer, read once.
inline const decant::Tokenizer& smollm2_tokenizer() {
    static const decant::Tokenizer shared = [] {
        const auto weights = decant::Weights::open(smollm2());
        INFO("the real model is missing or damaged: " << smollm2());
        REQUIRE(weights);
        return tokenizer(*weights);
    }();
    return shared;
}

/// Gemma 3's tokenizer, read once; none if its file is absent.
inline const std::optional<decant::Tokenizer>& gemma3_tokenizer() {
    static const auto shared = []() -> std::optional<decant::Tokenizer> {
        if (!std::filesystem::exists(gemma3())) return std::nullopt;
        const auto weights = decant::Weights::open(gemma3());
        REQUIRE(weights);
        return tokenizer(*weights);
    }();
    return shared;
}

inline std::vector<std::int32_t> ids(const std::vector<decant::Token>& tokens) {
    std::vector<std::int32_t> out;
    for (const auto token : tokens) out.push_back(decant::id(token));
    return out;
}

}  // namespace decant_test

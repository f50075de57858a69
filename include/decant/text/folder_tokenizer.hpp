// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Reading a tokenizer from a Hugging Face folder: tokenizer.json, and what tokenizer_config.json,
/// generation_config.json and config.json say of the beginning and the end.

#include <decant/core/result.hpp>
#include <decant/files/config_file.hpp>
#include <decant/files/json.hpp>
#include <decant/files/weights.hpp>
#include <decant/text/tokenizer_data.hpp>
#include <decant/text/tokenizer_json.hpp>
#include <decant/text/tokenizer_steps.hpp>

#include <algorithm>
#include <array>
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
namespace detail {

class FolderTokenizerReader {
 public:
    FolderTokenizerReader(const Weights& weights, TokenizerData& data) : weights_(weights), data_(data) {}

    [[nodiscard]] Result<void> read() {
        DECANT_TRY(config_, read_config("tokenizer_config.json"));
        DECANT_TRY(generation_, read_config("generation_config.json"));
        if (auto done = read_file(); !done) return std::move(done).error().in(path("tokenizer.json"));
        return read_beginning_and_ends();
    }

 private:
    struct Added {
        std::string_view content;
        std::uint64_t id;
        bool control, takes_left, takes_right, normalized;
    };

    [[nodiscard]] std::string path(std::string_view file) const { return text(weights_.name(), "/", file); }
    [[nodiscard]] Result<ConfigFile> read_config(std::string_view file) const {
        const auto json = weights_.companion(file);
        if (json.empty()) return ConfigFile();  // it is not there
        return ConfigFile::read(json, path(file));
    }
    /// The name of a token in tokenizer_config.json: a string, or an object with its content.
    [[nodiscard]] std::string_view named(std::string_view key) const {
        for (const std::string& at : {std::string(key), text(key, ".content")})
            if (const auto found = config_.metadata.string(at)) return *found;
        return {};
    }

    [[nodiscard]] Result<void> read_file() {
        const std::span<const std::byte> bytes = weights_.companion("tokenizer.json");
        if (bytes.empty())
            return Error{ErrorCode::missing, "the folder has no tokenizer.json", "",
                         "download it; tokenizer.model, if there is one, is not read"};
        DECANT_CHECK(parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, json_));
        DECANT_CHECK(check_model());
        DECANT_TRY(steps_, TokenizerStepReader(json_.tree.root()).read());
        spelling_ = steps_.byte_level ? PieceSpelling::byte_level : PieceSpelling::sentence_piece;
        DECANT_CHECK(read_added());
        DECANT_CHECK(read_vocabulary());
        DECANT_CHECK(read_merges());
        return collect_specials();
    }

    [[nodiscard]] Result<void> check_model() const {
        const auto model = json_.tree.root()["model"];
        const auto unsupported = [](std::string_view what) {
            return Error{ErrorCode::unsupported, std::string(what), "model", ""};
        };
        const auto type = model["type"];
        if (type.string() != "BPE" && !(type.is_null() && !json_.merges.empty()))
            return Error{ErrorCode::unsupported, text("a tokenizer of the type ", detail::quoted(type.string())),
                         "model", "known: BPE"};
        if (!model["dropout"].is_null() && model["dropout"].uint(1) != 0) return unsupported("it has dropout");
        for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (!model[key].string().empty()) return unsupported(text("it has a ", key));
        if (json_.vocabulary.empty()) return Error{ErrorCode::bad_format, "the vocabulary is empty", "model.vocab", ""};
        return {};
    }

    [[nodiscard]] Result<void> read_added() {
        // Named as the beginning or the end, a token steers the model, whatever else the file says of it.
        std::array<std::string_view, 4> roles{named("bos_token"), named("eos_token"), named("unk_token"),
                                              named("pad_token")};
        const auto list = json_.tree.root()["added_tokens"];
        for (auto at = list.first(); at; at = at.next()) {
            constexpr std::uint64_t none = static_cast<std::uint64_t>(-1);
            Added added{at["content"].string(), at["id"].uint(none),    at["special"].boolean(),
                        at["lstrip"].boolean(), at["rstrip"].boolean(), at["normalized"].boolean()};
            const std::string place = text("added_tokens, element ", added_.size(), " ", detail::quoted(added.content));
            if (added.content.empty() || added.id == none)
                return Error{ErrorCode::bad_format, "an added token without content or id", place, ""};
            if (at["single_word"].boolean())
                return Error{ErrorCode::unsupported, "an added token that is single_word", place, ""};
            added.control = added.control || std::find(roles.begin(), roles.end(), added.content) != roles.end();
            if (steps_.late && added.normalized && (added.takes_left || added.takes_right))
                return Error{ErrorCode::unsupported, "an added token that is normalized and strips", place, ""};
            added_.push_back(added);
            by_content_.emplace_back(added.content, added.id);
        }
        std::sort(by_content_.begin(), by_content_.end());
        return {};
    }
    /// The id of the added token of that content.
    [[nodiscard]] std::optional<std::uint64_t> added_as(std::string_view content) const {
        const auto at = std::lower_bound(by_content_.begin(), by_content_.end(), std::pair{content, std::uint64_t{0}});
        if (at == by_content_.end() || at->first != content) return std::nullopt;
        return at->second;
    }
    /// Whether it is looked for only after the text was normalized, in what other added tokens leave.
    [[nodiscard]] bool late(const Added& added) const { return added.normalized && (steps_.late || steps_.byte_level); }

    [[nodiscard]] Result<void> read_vocabulary() {
        const auto& vocabulary = json_.vocabulary;
        std::uint64_t size = 0;
        for (const auto& entry : vocabulary) size = (std::max)(size, entry.id);
        for (const Added& added : added_) size = (std::max)(size, added.id);
        // Ids may leave gaps, but the table of them is no larger than the file warrants.
        const std::uint64_t most = (vocabulary.size() + added_.size()) * 2 + 1024;
        if (size >= most)
            return Error{
                ErrorCode::bad_format,
                text("the largest id is ", size, ", but there are only ", vocabulary.size() + added_.size(), " tokens"),
                "model.vocab", ""};
        ++size;
        std::vector<std::string_view> pieces(static_cast<std::size_t>(size));
        std::vector<TokenKind> kinds(pieces.size(), TokenKind::unused);
        const bool byte_fallback = json_.tree.root()["model"]["byte_fallback"].boolean();
        std::string ignored;
        std::vector<std::size_t> spaced;
        for (const auto& entry : vocabulary) {
            const auto id = static_cast<std::size_t>(entry.id);
            const std::string_view piece = json_.text(entry.piece);
            if (piece.empty() || kinds[id] != TokenKind::unused)
                return Error{ErrorCode::bad_format,
                             piece.empty() ? text("the piece of id ", id, " is empty")
                                           : text("the pieces ", detail::quoted(pieces[id]), " and ",
                                                  detail::quoted(piece), " have the same id ", id),
                             "model.vocab", ""};
            if (const auto other = added_as(piece); other && *other != entry.id)
                return Error{ErrorCode::mismatch,
                             text(detail::quoted(piece), " has the id ", id, " here and ", *other, " in added_tokens"),
                             "model.vocab", ""};
            pieces[id] = piece;
            kinds[id] = TokenKind::text;
            if (steps_.byte_level) continue;
            if (byte_fallback && append_numbered_byte(piece, ignored)) kinds[id] = TokenKind::byte;
            // Text has no spaces when it is looked up; here, marks become spaces.
            if (piece.find(' ') != std::string_view::npos) spaced.push_back(id);
        }
        for (const std::size_t id : spaced) kinds[id] = TokenKind::unused;
        for (const Added& added : added_) {
            const auto id = static_cast<std::size_t>(added.id);
            pieces[id] = added.content;
            kinds[id] = added.control ? TokenKind::control : TokenKind::user_defined;
        }
        auto built = Vocabulary::build(pieces, std::move(kinds), spelling_);
        if (!built) return std::move(built).error().in("model.vocab");
        data_.vocabulary = *std::move(built);
        return {};
    }

    [[nodiscard]] Result<void> read_merges() {
        const auto model = json_.tree.root()["model"];
        MergeList merges(data_.vocabulary, spelling_);
        merges.rules.reserve(json_.merges.size());
        for (const auto& merge : json_.merges) {
            const std::string_view left = json_.text(merge.left), right = json_.text(merge.right);
            if (auto added = right.empty() ? merges.add(left) : merges.add(left, right); !added)
                return std::move(added).error().in("model.merges");
        }
        std::optional<Token> unknown;
        if (model["unk_token"].is_string()) {
            unknown = data_.vocabulary.find(model["unk_token"].string());
            if (!unknown)
                return Error{ErrorCode::mismatch,
                             text("unk_token ", detail::quoted(model["unk_token"].string()), " is no token"), "model",
                             ""};
        }
        const bool whole_words = model["ignore_merges"].boolean(), fuse = model["fuse_unk"].boolean();
        if (steps_.byte_level) {
            data_.pattern = steps_.pattern;
            data_.pattern.whole_words = whole_words;
            auto bytes = find_byte_tokens(data_.vocabulary);
            if (unknown && std::find(bytes.begin(), bytes.end(), ByteBpe::no_token) != bytes.end()) {
                if (fuse) return Error{ErrorCode::unsupported, "fuse_unk in a byte-level vocabulary", "model", ""};
                std::replace(bytes.begin(), bytes.end(), ByteBpe::no_token, *unknown);
            }
            data_.bpe = ByteBpe(bytes, merges.rules);
            return {};
        }
        if (whole_words) return Error{ErrorCode::unsupported, "ignore_merges with U+2581 for a space", "model", ""};
        CharBpe::Rules rules;
        rules.merges = std::move(merges.rules);
        rules.unknown = unknown;
        rules.fuse_unknown = fuse;
        rules.split_spaces = steps_.split_spaces;
        rules.bytes = find_numbered_bytes();
        data_.characters.emplace(rules);
        data_.prefix = steps_.prefix;
        return {};
    }

    [[nodiscard]] std::array<Token, 256> find_numbered_bytes() const {
        std::array<Token, 256> bytes;
        bytes.fill(ByteBpe::no_token);
        for (std::size_t i = 0; i < data_.vocabulary.size(); ++i) {
            const Token token{static_cast<std::int32_t>(i)};
            if (data_.vocabulary.kind(token) == TokenKind::byte)
                bytes[static_cast<std::uint8_t>(data_.vocabulary.piece(token).front())] = token;
        }
        return bytes;
    }

    [[nodiscard]] Result<void> collect_specials() {
        std::vector<SpecialTokens::Entry> early, behind;
        for (const Added& added : added_) {
            std::string& spelled = data_.spellings.emplace_back();
            if (late(added) && !steps_.byte_level)
                append_unmarked(added.content, spelled);
            else
                spelled = added.content;
            (late(added) ? behind : early)
                .push_back({spelled, Token{static_cast<std::int32_t>(added.id)}, added.control, added.takes_left,
                            added.takes_right});
        }
        data_.specials = SpecialTokens(std::move(early));
        data_.late_specials = SpecialTokens(std::move(behind));
        return {};
    }

    /// The ids of a key: a number or a list of them. None if the key is not there.
    [[nodiscard]] Result<std::vector<Token>> tokens_at(const Metadata& metadata, std::string_view key,
                                                       std::string_view file) const {
        std::vector<Token> out;
        if (!metadata.contains(key)) return out;
        std::vector<std::int64_t> ids;
        if (auto list = metadata.ints(key)) {
            ids = *std::move(list);
        } else {
            DECANT_TRY(const std::uint64_t one, metadata.uint(key));
            ids.push_back(one <= (std::numeric_limits<std::int32_t>::max)() ? static_cast<std::int64_t>(one) : -1);
        }
        for (const std::int64_t id : ids) {
            if (id < 0 || static_cast<std::uint64_t>(id) >= data_.vocabulary.size())
                return Error{
                    ErrorCode::mismatch,
                    text("token id ", id, " is outside the vocabulary of ", data_.vocabulary.size(), " tokens"),
                    text(path(file), ", key ", detail::quoted(key)), ""};
            out.push_back(Token{static_cast<std::int32_t>(id)});
        }
        return out;
    }

    [[nodiscard]] Result<void> read_beginning_and_ends() {
        constexpr std::string_view bos_key = "bos_token_id", eos_key = "eos_token_id", add_key = "add_bos_token";
        DECANT_TRY(const auto generation_bos, tokens_at(generation_.metadata, bos_key, "generation_config.json"));
        DECANT_TRY(const auto generation_eos, tokens_at(generation_.metadata, eos_key, "generation_config.json"));
        DECANT_TRY(const auto config_bos, tokens_at(weights_.metadata(), bos_key, "config.json"));
        DECANT_TRY(const auto config_eos, tokens_at(weights_.metadata(), eos_key, "config.json"));
        const auto find_named = [&](std::string_view key) -> std::optional<Token> {
            const std::string_view name = named(key);
            return name.empty() ? std::nullopt : data_.vocabulary.find(name);
        };
        const auto first = [](std::optional<Token>& token, const std::vector<Token>& list) {
            if (!token && !list.empty()) token = list.front();
        };
        if (steps_.bos) {
            if (*steps_.bos >= data_.vocabulary.size())
                return Error{ErrorCode::mismatch,
                             text("the template puts token ", *steps_.bos, " before the text, which is none"),
                             text(path("tokenizer.json"), ", post_processor"), ""};
            data_.bos = Token{static_cast<std::int32_t>(*steps_.bos)};
            data_.add_bos = true;
        } else {
            data_.bos = find_named("bos_token");
        }
        first(data_.bos, generation_bos);
        first(data_.bos, config_bos);
        data_.eos = find_named("eos_token");
        first(data_.eos, generation_eos);
        first(data_.eos, config_eos);
        if (config_.metadata.contains(add_key)) {
            DECANT_TRY(data_.add_bos, config_.metadata.boolean(add_key));
            if (data_.add_bos && !data_.bos)
                return Error{ErrorCode::mismatch, "it is true, but no token for the beginning is named",
                             text(path("tokenizer_config.json"), ", key ", detail::quoted(add_key)), ""};
        }
        add_end(data_.eos, data_);
        for (const auto* list : {&generation_eos, &config_eos})
            for (const Token token : *list) add_end(token, data_);
        add_known_ends(data_);
        return {};
    }

    const Weights& weights_;
    TokenizerData& data_;
    ConfigFile config_;
    ConfigFile generation_;
    TokenizerJson json_;
    TokenizerSteps steps_;
    PieceSpelling spelling_ = PieceSpelling::byte_level;
    std::vector<Added> added_;
    std::vector<std::pair<std::string_view, std::uint64_t>> by_content_;  // the same, sorted
};

/// Everything in the files is checked; errors name file and place. Memory in proportion to the files.
[[nodiscard]] inline Result<void> read_folder_tokenizer(const Weights& weights, TokenizerData& data) {
    return FolderTokenizerReader(weights, data).read();
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

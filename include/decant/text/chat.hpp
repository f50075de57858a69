// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ChatTemplate`: a conversation as the prompt that the model was trained on.

#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/json.hpp>
#include <decant/files/json_tree.hpp>
#include <decant/files/weights.hpp>
#include <decant/text/chat_format.hpp>
#include <decant/text/tagged_text.hpp>
#include <decant/text/tokenizer.hpp>
#include <decant/text/trim.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// Views: the text must live until the call returns.
struct Message {
    std::string_view role;  ///< "system", "user", "assistant", or what else the model knows
    std::string_view content;
};

struct ChatOptions {
    bool add_generation_prompt = true;  ///< end with the beginning of the assistant's answer
};

/// Const after construction; threads may share it. Independent of the file and the tokenizer that it came with.
///
/// Now: formats that frame every message alike (`ChatFormat`), recognized in the file's template. Tools are not
/// written.
class ChatTemplate {
 public:
    explicit ChatTemplate(ChatFormat format) : format_(std::move(format)) {}

    /// From the GGUF key `tokenizer.chat_template`; of a folder, from chat_template.jinja or, without one, from
    /// `chat_template` in tokenizer_config.json (of several, the one named "default"). `missing` if there is none,
    /// `unsupported` if it is of another form.
    [[nodiscard]] static Result<ChatTemplate> from(const Weights& weights) {
        if (weights.format() == WeightsFormat::folder) return from_folder(weights);
        constexpr std::string_view key = "tokenizer.chat_template";
        if (!weights.metadata().contains(key)) return missing(Vocabulary::place(key, weights.name()));
        DECANT_TRY(const std::string_view source, weights.metadata().string(key));
        return recognize(source, Vocabulary::place(key, weights.name()));
    }

    /// The prompt with its authors: roles and contents are the host's, the rest is the template's. `invalid_argument`
    /// for roles in an order that the format does not have.
    [[nodiscard]] Result<TaggedText> apply(std::span<const Message> messages, ChatOptions options = {}) const {
        using Kind = ChatFormat::Segment::Kind;
        TaggedText out;
        out.append_template(format_.beginning);
        const bool with_system = !messages.empty() && messages.front().role == "system";
        const bool joins_system = with_system && format_.system_joint;
        if (!messages.empty() && !with_system) out.append_template(format_.default_system);
        const std::span<const Message> turns = messages.subspan(joins_system ? 1 : 0);
        for (std::size_t i = 0; i < turns.size(); ++i) {
            if (format_.alternates && (turns[i].role == "user") != (i % 2 == 0))
                return Error{ErrorCode::invalid_argument,
                             detail::text("message ", i + (joins_system ? 1 : 0), " is of the role ",
                                          detail::quoted(turns[i].role)),
                             "chat", "this model wants user and assistant in turn, the user first"};
            for (const ChatFormat::Segment& segment : format_.turn) {
                switch (segment.kind) {
                    case Kind::literal: out.append_template(segment.text); break;
                    case Kind::role: append_role(turns[i].role, out); break;
                    case Kind::content:
                        if (joins_system && i == 0) {
                            out.append_content(messages.front().content);
                            out.append_template(*format_.system_joint);
                        }
                        out.append_content(format_.trimmed ? detail::trim(turns[i].content) : turns[i].content);
                        break;
                }
            }
        }
        if (options.add_generation_prompt) out.append_template(format_.generation_prompt);
        return out;
    }

    /// The prompt as plain text, to look at. Encoding it as one string would let content forge control tokens.
    [[nodiscard]] Result<std::string> render(std::span<const Message> messages, ChatOptions options = {}) const {
        DECANT_TRY(const TaggedText tagged, apply(messages, options));
        return tagged.text();
    }

    /// The prompt's tokens: exactly what the template writes (no beginning-of-sequence token of the tokenizer's own);
    /// control tokens come from template text only.
    [[nodiscard]] Result<std::vector<Token>> encode(const Tokenizer& tokenizer, std::span<const Message> messages,
                                                    ChatOptions options = {}) const {
        DECANT_TRY(const TaggedText tagged, apply(messages, options));
        return tokenizer.encode(tagged);
    }

    [[nodiscard]] const ChatFormat& format() const noexcept { return format_; }

 private:
    [[nodiscard]] static Error missing(std::string where) {
        return {ErrorCode::missing, "there is no chat template", std::move(where),
                "give a ChatFormat, such as gemma3_chat_format()"};
    }
    [[nodiscard]] static Result<ChatTemplate> recognize(std::string_view source, std::string_view where) {
        auto format = recognize_chat_format(source);
        if (!format) return std::move(format).error().in(where);
        return ChatTemplate(*std::move(format));
    }
    [[nodiscard]] static Result<ChatTemplate> from_folder(const Weights& weights) {
        const auto text_of = [&](std::string_view file) -> std::string_view {
            const auto bytes = weights.companion(file);
            return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
        };
        constexpr std::string_view alone = "chat_template.jinja", config = "tokenizer_config.json";
        if (const std::string_view source = text_of(alone); !source.empty())
            return recognize(source, detail::text(weights.name(), "/", alone));
        const std::string where = detail::text(weights.name(), "/", config);
        if (text_of(config).empty()) return missing(where);
        detail::JsonTree tree;
        if (auto read = parse_json(text_of(config), tree); !read) return std::move(read).error().in(where);
        const auto found = tree.root()["chat_template"];
        if (found.is_string()) return recognize(found.string(), where);
        for (auto at = found.first(); at; at = at.next())
            if (at["name"].string() == "default") return recognize(at["template"].string(), where);
        return missing(where);
    }

    void append_role(std::string_view role, TaggedText& out) const {
        for (const ChatFormat::RoleName& renamed : format_.renamed)
            if (renamed.role == role) return out.append_template(renamed.name);
        out.append_content(role);
    }

    ChatFormat format_;
};

}  // namespace decant::inline DECANT_ABI

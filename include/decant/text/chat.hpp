// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ChatTemplate`: a conversation as the prompt that the model was trained on.

#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/weights.hpp>
#include <decant/text/chat_format.hpp>
#include <decant/text/tagged_text.hpp>
#include <decant/text/tokenizer.hpp>
#include <decant/text/unicode.hpp>
#include <decant/text/utf8.hpp>

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

namespace detail {

/// Without white space at both ends, as the filter `trim` of Jinja does it (`str.strip` of Python).
[[nodiscard]] inline std::string_view trim(std::string_view content) noexcept {
    std::size_t begin = content.size();
    std::size_t end = 0;
    for (std::size_t at = 0; at < content.size();) {
        const Utf8Char c = decode_utf8(content.substr(at));
        const bool space = char_kind(c.code) == CharKind::space || (c.code >= 0x1C && c.code <= 0x1F);
        if (!space) begin = (std::min)(begin, at);
        at += c.bytes;
        if (!space) end = at;
    }
    return begin < end ? content.substr(begin, end - begin) : std::string_view();
}

}  // namespace detail

/// Const after construction; threads may share it. Independent of the file and the tokenizer that it came with.
///
/// Now: formats that frame every message alike (`ChatFormat`), recognized in the file's template. Tools are not
/// written.
class ChatTemplate {
 public:
    explicit ChatTemplate(ChatFormat format) : format_(std::move(format)) {}

    /// From the GGUF key `tokenizer.chat_template`. `missing` if there is none, `unsupported` if it is of another form.
    [[nodiscard]] static Result<ChatTemplate> from(const Weights& weights) {
        constexpr std::string_view key = "tokenizer.chat_template";
        if (!weights.metadata().contains(key))
            return Error{ErrorCode::missing, "the file has no chat template", Vocabulary::place(key, weights.name()),
                         "give a ChatFormat, such as gemma3_chat_format()"};
        DECANT_TRY(const std::string_view source, weights.metadata().string(key));
        auto format = recognize_chat_format(source);
        if (!format) return std::move(format).error().in(Vocabulary::place(key, weights.name()));
        return ChatTemplate(*std::move(format));
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
    void append_role(std::string_view role, TaggedText& out) const {
        for (const ChatFormat::RoleName& renamed : format_.renamed)
            if (renamed.role == role) return out.append_template(renamed.name);
        out.append_content(role);
    }

    ChatFormat format_;
};

}  // namespace decant::inline DECANT_ABI

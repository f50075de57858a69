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

    /// From the GGUF key `tokenizer.chat_template`. `missing` if there is none, `unsupported` if it is of another form.
    [[nodiscard]] static Result<ChatTemplate> from(const Weights& weights) {
        DECANT_TRY(const std::string_view source, weights.metadata().string("tokenizer.chat_template"));
        auto format = recognize_chat_format(source);
        if (!format) return std::move(format).error().in(Vocabulary::place("tokenizer.chat_template", weights.name()));
        return ChatTemplate(*std::move(format));
    }

    /// The prompt with its authors: roles and contents are the host's, the rest is the template's.
    [[nodiscard]] Result<TaggedText> apply(std::span<const Message> messages, ChatOptions options = {}) const {
        using Kind = ChatFormat::Segment::Kind;
        TaggedText out;
        if (!messages.empty() && messages.front().role != "system") out.append_template(format_.default_system);
        for (const Message& message : messages) {
            for (const ChatFormat::Segment& segment : format_.turn) {
                switch (segment.kind) {
                    case Kind::literal: out.append_template(segment.text); break;
                    case Kind::role: out.append_content(message.role); break;
                    case Kind::content: out.append_content(message.content); break;
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
    ChatFormat format_;
};

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `ChatFormat`: a chat format as data, and recognizing it in the Jinja template that a model's file carries.

#include <decant/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {

/// One way to write a conversation: the same frame around every message, whatever its role. What most formats do not
/// have is empty or off.
struct ChatFormat {
    struct Segment {
        enum class Kind : std::uint8_t { literal, role, content };
        Kind kind = Kind::literal;
        std::string text;  ///< of a literal
    };
    std::vector<Segment> turn;      ///< what is written for each message, in order
    std::string default_system;     ///< written first if the first message is not of the role "system"
    std::string generation_prompt;  ///< begins the answer

    struct RoleName {
        std::string role;
        std::string name;
    };
    std::string beginning;          ///< written before everything
    std::vector<RoleName> renamed;  ///< roles that the model knows by another name
    /// The system message has no turn: it goes before the content of the next one, with this text between.
    std::optional<std::string> system_joint;
    bool trimmed = false;     ///< contents, except of the system message, lose the white space at their ends
    bool alternates = false;  ///< user messages are every other one, beginning with the first
};

/// The format of Gemma 3, whose GGUF files may carry no template:
///
///     <bos><start_of_turn>user\n...<end_of_turn>\n<start_of_turn>model\n...<end_of_turn>\n
[[nodiscard]] inline ChatFormat gemma3_chat_format() {
    using Kind = ChatFormat::Segment::Kind;
    ChatFormat format;
    format.beginning = "<bos>";
    format.turn = {{Kind::literal, "<start_of_turn>"},
                   {Kind::role, {}},
                   {Kind::literal, "\n"},
                   {Kind::content, {}},
                   {Kind::literal, "<end_of_turn>\n"}};
    format.generation_prompt = "<start_of_turn>model\n";
    format.renamed = {{"assistant", "model"}};
    format.system_joint = "\n\n";
    format.trimmed = true;
    format.alternates = true;
    return format;
}

namespace detail {

/// One piece of a Jinja template, white space control applied.
struct TemplateItem {
    enum class Kind : std::uint8_t { text, output, statement };
    Kind kind;
    std::string body;  // of a statement: without white space, quotes as ', ['name'] as .name
    std::size_t offset;
};

[[nodiscard]] inline bool is_blank(char c) noexcept { return c == ' ' || (c >= '\t' && c <= '\r'); }

[[nodiscard]] inline Error unknown_template(std::string_view what, std::size_t offset) {
    return {ErrorCode::unsupported, text("the chat template is not of a known form: ", what),
            text("template byte ", offset), "encode messages by hand, or give a ChatFormat"};
}

[[nodiscard]] inline bool opens_tag(std::string_view two) noexcept { return two == "{{" || two == "{%" || two == "{#"; }

/// Where the tag that begins at `at` closes; npos if it does not. Quoted text is stepped over.
[[nodiscard]] inline std::size_t closing(std::string_view source, std::size_t at, std::string_view mark) {
    char quote = 0;
    for (; at < source.size(); ++at) {
        const char c = source[at];
        if (quote != 0) {
            if (c == '\\') ++at;
            if (c == quote) quote = 0;
        } else if (c == '\'' || c == '"') {
            quote = c;
        } else if (source.substr(at, 2) == mark) {
            return at;
        }
    }
    return std::string_view::npos;
}

/// Without white space, with single quotes, and with `.name` for `['name']`: spellings that mean the same become equal.
[[nodiscard]] inline std::string canonical_statement(std::string_view body) {
    std::string out;
    char quote = 0;
    for (const char c : body) {
        if (quote == 0 && is_blank(c)) continue;
        const bool opens = quote == 0 && (c == '\'' || c == '"');
        const bool closes = quote != 0 && c == quote;
        out.push_back(opens || closes ? '\'' : c);
        if (opens) quote = c;
        if (closes) quote = 0;
        for (const std::string_view name : {"role", "content"}) {
            if (c != ']' || !std::string_view(out).ends_with(text("['", name, "']"))) continue;
            out.resize(out.size() - name.size() - 4);
            out += text(".", name);
        }
    }
    return out;
}

/// Cuts a template into items, with trim_blocks and lstrip_blocks on, as chat templates are rendered.
[[nodiscard]] inline Result<std::vector<TemplateItem>> cut_template(std::string_view source) {
    using Kind = TemplateItem::Kind;
    std::vector<TemplateItem> items;
    std::size_t at = 0;
    bool trim_all = false;   // the tag before ended with a minus sign
    bool trim_line = false;  // it was a statement
    while (true) {
        std::size_t open = at;
        while (open < source.size() && !opens_tag(source.substr(open, 2))) ++open;
        const bool last = open == source.size();

        std::size_t begin = at;  // source[begin, end) is the text between the tags that is kept
        std::size_t end = last && source.ends_with('\n') ? (std::max)(at, open - 1) : open;
        if (trim_all)
            while (begin < end && is_blank(source[begin])) ++begin;
        else if (trim_line && begin < end && source[begin] == '\n')
            ++begin;
        const char sign = open + 2 < source.size() ? source[open + 2] : '\0';
        if (!last && sign == '-') {
            while (end > begin && is_blank(source[end - 1])) --end;
        } else if (!last && sign != '+' && source[open + 1] == '%') {
            std::size_t line = end;
            while (line > begin && (source[line - 1] == ' ' || source[line - 1] == '\t')) --line;
            if (line == 0 || source[line - 1] == '\n') end = line;
        }
        if (begin != end) items.push_back({Kind::text, std::string(source.substr(begin, end - begin)), begin});
        if (last) return items;

        if (source[open + 1] == '#') return unknown_template("it has a comment", open);
        const bool statement = source[open + 1] == '%';
        const std::size_t close = closing(source, open + 2, statement ? "%}" : "}}");
        if (close == std::string_view::npos) return unknown_template("a tag does not close", open);
        std::string_view body = source.substr(open + 2, close - open - 2);
        trim_all = body.ends_with('-');
        trim_line = statement;
        if (trim_all) body.remove_suffix(1);
        if (body.starts_with('-') || body.starts_with('+')) body.remove_prefix(1);
        items.push_back({statement ? Kind::statement : Kind::output,
                         statement ? canonical_statement(body) : std::string(body), open});
        at = close + 2;
    }
}

/// Appends the terms of `'text' + message['role'] + ...`.
[[nodiscard]] inline Result<void> append_terms(const TemplateItem& item, std::vector<ChatFormat::Segment>& out) {
    using Kind = ChatFormat::Segment::Kind;
    const auto literal = [&](std::string_view more) {
        if (out.empty() || out.back().kind != Kind::literal) out.push_back({});
        out.back().text += more;
    };
    if (item.kind == TemplateItem::Kind::text) {
        literal(item.body);
        return {};
    }
    std::string_view rest = item.body;
    const auto skip_blank = [&] {
        while (!rest.empty() && is_blank(rest.front())) rest.remove_prefix(1);
    };
    for (skip_blank();; skip_blank()) {
        if (rest.empty()) return unknown_template("an output without a value", item.offset);
        const char quote = rest.front();
        if (quote == '\'' || quote == '"') {
            std::string value;
            std::size_t i = 1;
            for (; i < rest.size() && rest[i] != quote; ++i) {
                if (rest[i] != '\\') {
                    value.push_back(rest[i]);
                    continue;
                }
                const char escape = i + 1 < rest.size() ? rest[i + 1] : '\0';
                if (escape == 'n' || escape == 't' || escape == 'r')
                    value.push_back(escape == 'n' ? '\n' : escape == 't' ? '\t' : '\r');
                else if (escape == '\\' || escape == '\'' || escape == '"')
                    value.push_back(escape);
                else
                    return unknown_template("an escape in a string", item.offset);
                ++i;
            }
            if (i >= rest.size()) return unknown_template("a string does not close", item.offset);
            literal(value);
            rest.remove_prefix(i + 1);
        } else {
            const std::size_t end = (std::min)(rest.find('+'), rest.size());
            const std::string name = canonical_statement(rest.substr(0, end));
            if (name == "message.role")
                out.push_back({Kind::role, {}});
            else if (name == "message.content")
                out.push_back({Kind::content, {}});
            else
                return unknown_template(text("it writes ", detail::quoted(name)), item.offset);
            rest.remove_prefix(end);
        }
        skip_blank();
        if (rest.empty()) return {};
        if (rest.front() != '+') return unknown_template("an operator other than +", item.offset);
        rest.remove_prefix(1);
    }
}

}  // namespace detail

/// Recognizes a template of the form that ChatML and its relatives have:
///
///     for each message: [if it is the first and not of the role system: text], text + role + text + content + text
///     [if add_generation_prompt: text]
///
/// Anything else is `ErrorCode::unsupported`; no other format is used in its place.
[[nodiscard]] inline Result<ChatFormat> recognize_chat_format(std::string_view source) {
    using Item = detail::TemplateItem;
    DECANT_TRY(const auto items, detail::cut_template(source));
    ChatFormat format;
    std::size_t next = 0;
    const auto at_statement = [&](std::string_view body) {
        return next < items.size() && items[next].kind == Item::Kind::statement && items[next].body == body;
    };
    const auto accept = [&](std::string_view body) { return at_statement(body) && (++next, true); };
    const auto unexpected = [&]() -> Error {
        if (next == items.size()) return detail::unknown_template("it ends early", source.size());
        return detail::unknown_template(detail::text("unexpected ", detail::quoted(items[next].body)),
                                        items[next].offset);
    };
    /// Outputs and text up to the next statement.
    const auto segments = [&]() -> Result<std::vector<ChatFormat::Segment>> {
        std::vector<ChatFormat::Segment> out;
        for (; next < items.size() && items[next].kind != Item::Kind::statement; ++next)
            DECANT_CHECK(detail::append_terms(items[next], out));
        return out;
    };
    /// The same, of text only.
    const auto words = [&]() -> Result<std::string> {
        DECANT_TRY(const auto parts, segments());
        if (parts.size() != 1 || parts[0].kind != ChatFormat::Segment::Kind::literal) return unexpected();
        return parts[0].text;
    };

    if (!accept("formessageinmessages")) return unexpected();
    if (accept("ifloop.firstandmessages[0].role!='system'")) {
        DECANT_TRY(format.default_system, words());
        if (!accept("endif")) return unexpected();
    }
    DECANT_TRY(format.turn, segments());
    if (format.turn.empty() || !accept("endfor")) return unexpected();
    if (accept("ifadd_generation_prompt")) {
        DECANT_TRY(format.generation_prompt, words());
        if (!accept("endif")) return unexpected();
    }
    if (next != items.size()) return unexpected();
    return format;
}

}  // namespace decant::inline DECANT_ABI

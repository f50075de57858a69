// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `read_config_json`: the config.json of a Hugging Face folder as the key/value pairs that `Metadata` reads, so that
/// whoever asks for a key need not know which kind of file it came from.

#include <decant/core/result.hpp>
#include <decant/files/json.hpp>
#include <decant/files/metadata_type.hpp>
#include <decant/files/writer.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Pairs as they lie in a GGUF file.
struct ConfigPairs {
    std::vector<std::byte> bytes;
    std::uint64_t count = 0;
};

/// How Python writes numbers that JSON does not have.
struct NamedReal {
    std::string_view name;
    double value;
};
inline constexpr std::array<NamedReal, 3> named_reals{{{"-Infinity", -std::numeric_limits<double>::infinity()},
                                                       {"Infinity", std::numeric_limits<double>::infinity()},
                                                       {"NaN", std::numeric_limits<double>::quiet_NaN()}}};

[[nodiscard]] inline const NamedReal* find_named_real(std::string_view name) noexcept {
    const auto at = std::find_if(named_reals.begin(), named_reals.end(), [&](const auto& r) { return r.name == name; });
    return at == named_reals.end() ? nullptr : &*at;
}

/// Bare `Infinity`, `-Infinity` and `NaN`, which Python's writer emits, in the form {"__float__": "Infinity"} of newer
/// files. Text without them comes back as it is.
[[nodiscard]] inline std::string wrap_named_reals(std::string_view json) {
    std::string out;
    bool quoted = false;
    for (std::size_t at = 0; at < json.size();) {
        const NamedReal* found = nullptr;
        if (!quoted)
            for (const NamedReal& real : named_reals)
                if (found == nullptr && json.substr(at, real.name.size()) == real.name) found = &real;
        if (found != nullptr) {
            out += text("{\"__float__\":\"", found->name, "\"}");
            at += found->name.size();
            continue;
        }
        if (json[at] == '"') quoted = !quoted;
        const std::size_t step = quoted && json[at] == '\\' ? 2 : 1;
        out += json.substr(at, step);
        at += step;
    }
    return out;
}

/// Appends a string as JSON; other than what must be escaped, it stays as it is.
inline void append_json_string(std::string& out, std::string_view value) {
    constexpr char hex[] = "0123456789abcdef";
    out.push_back('"');
    for (const char c : value) {
        if (c == '"' || c == '\\') {
            out.append({'\\', c});
        } else if (static_cast<std::uint8_t>(c) < 0x20) {
            out.append("\\u00");
            out.append({hex[static_cast<std::uint8_t>(c) >> 4], hex[static_cast<std::uint8_t>(c) & 15]});
        } else {
            out.push_back(c);
        }
    }
    out.push_back('"');
}

/// An array as it is being read: as bytes of one element type for as long as the elements agree on one, and as text.
class ConfigArray {
 public:
    void begin() {
        json_.clear();
        integers_.clear();
        reals_.clear();
        strings_.clear();
        count_ = 0;
        kinds_ = 0;
        depth_ = 0;
        open("[");
    }
    [[nodiscard]] std::size_t depth() const noexcept { return depth_; }

    void null() { raw("null", other); }
    void boolean(bool value) {
        if (counts()) integers_.push_back(value ? 1 : 0);
        raw(value ? "true" : "false", booleans);
    }
    void integer(std::uint64_t bits, bool negative) {
        const auto value = static_cast<std::int64_t>(bits);
        const bool large = !negative && value < 0;
        constexpr std::int64_t exact = std::int64_t{1} << 53;  // up to here every integer is a double
        if (counts()) {
            integers_.push_back(bits);
            reals_.push_back(large ? 0.0 : static_cast<double>(value));
        }
        unsigned kind = integers;
        if (large) kind |= large_integers;
        if (negative) kind |= negative_integers;
        if (large || value > exact || value < -exact) kind |= inexact_integers;
        raw(negative ? text(value) : text(bits), kind);
    }
    void real(double value) {
        if (counts()) reals_.push_back(value);
        std::string digits = text(value);
        if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
        raw(digits, reals);
    }
    void string(std::string_view value) {
        separate();
        append_json_string(json_, value);
        if (depth_ == 2 && tag_ == Tag::name) {
            tagged_ = find_named_real(value);
            tag_ = tagged_ != nullptr ? Tag::value : Tag::none;
        }
        if (!counts()) return;
        kinds_ |= strings;
        ++count_;
        put_string(strings_, value);
    }
    void key(std::string_view value) {
        separate();
        append_json_string(json_, value);
        json_.push_back(':');
        after_key_ = true;
        if (depth_ == 2) tag_ = tag_ == Tag::open && value == "__float__" ? Tag::name : Tag::none;
    }
    void begin_array() {
        tag_ = Tag::none;
        if (counts()) kinds_ |= other;
        open("[");
    }
    void begin_object() {
        tag_ = counts() ? Tag::open : Tag::none;
        open("{");
    }
    void end_array() { close("]"); }
    void end_object() {
        close("}");
        if (!counts()) return;
        if (std::exchange(tag_, Tag::none) != Tag::value) {
            kinds_ |= other;
            return;
        }
        reals_.push_back(tagged_->value);
        kinds_ |= reals;
        ++count_;
    }

    /// Appends type and value.
    void write(std::vector<std::byte>& out) const {
        const auto header = [&](MetadataType element) {
            put(out, static_cast<std::uint32_t>(MetadataType::array));
            put(out, static_cast<std::uint32_t>(element));
            put(out, count_);
        };
        constexpr unsigned any_integers = integers | large_integers | negative_integers | inexact_integers;
        const auto only = [&](unsigned kinds) { return (kinds_ & ~kinds) == 0; };
        if (only(any_integers) && !((kinds_ & large_integers) != 0 && (kinds_ & negative_integers) != 0)) {
            header((kinds_ & large_integers) != 0 ? MetadataType::u64 : MetadataType::i64);
            for (const std::uint64_t value : integers_) put(out, value);
        } else if (only(reals | integers | negative_integers)) {
            header(MetadataType::f64);
            for (const double value : reals_) put(out, value);
        } else if (only(booleans)) {
            header(MetadataType::boolean);
            for (const std::uint64_t value : integers_) put(out, static_cast<std::uint8_t>(value));
        } else if (only(strings)) {
            header(MetadataType::string);
            out.insert(out.end(), strings_.begin(), strings_.end());
        } else {
            put(out, static_cast<std::uint32_t>(MetadataType::string));
            put_string(out, json_);
        }
    }

 private:
    enum Kinds : unsigned {
        integers = 1,
        large_integers = 2,     // above the largest int64
        negative_integers = 4,  // these two do not go together
        inexact_integers = 8,   // would change as a double
        reals = 16,
        booleans = 32,
        strings = 64,
        other = 128,
    };
    enum class Tag { none, open, name, value };  // how much of {"__float__": "..."} has been seen

    [[nodiscard]] bool counts() const noexcept { return depth_ == 1; }
    void separate() {
        if (!std::exchange(after_key_, false) && json_.back() != '[' && json_.back() != '{') json_.push_back(',');
    }
    void open(std::string_view bracket) {
        if (!json_.empty()) separate();
        json_ += bracket;
        ++depth_;
    }
    void close(std::string_view bracket) {
        json_ += bracket;
        --depth_;
    }
    void raw(std::string_view value, unsigned kind) {
        separate();
        json_ += value;
        tag_ = Tag::none;
        if (!counts()) return;
        kinds_ |= kind;
        ++count_;
    }

    std::string json_;
    std::vector<std::uint64_t> integers_;  // bools, too
    std::vector<double> reals_;            // and integers
    std::vector<std::byte> strings_;
    std::uint64_t count_ = 0;
    unsigned kinds_ = 0;
    std::size_t depth_ = 0;
    bool after_key_ = false;
    Tag tag_ = Tag::none;
    const NamedReal* tagged_ = nullptr;
};

class ConfigReader : public JsonEvents {
 public:
    explicit ConfigReader(std::size_t limit) : limit_(limit) {}

    Result<void> null() override {
        if (in_array()) return array_.null(), checked();
        return inside();
    }
    Result<void> boolean(bool value) override {
        if (in_array()) return array_.boolean(value), checked();
        DECANT_CHECK(begin_pair(MetadataType::boolean));
        put(pairs_.bytes, static_cast<std::uint8_t>(value ? 1 : 0));
        return checked();
    }
    Result<void> unsigned_integer(std::uint64_t value) override {
        if (in_array()) return array_.integer(value, false), checked();
        DECANT_CHECK(begin_pair(std::in_range<std::int64_t>(value) ? MetadataType::i64 : MetadataType::u64));
        put(pairs_.bytes, value);
        return checked();
    }
    Result<void> negative_integer(std::int64_t value) override {
        if (in_array()) return array_.integer(static_cast<std::uint64_t>(value), value < 0), checked();
        DECANT_CHECK(begin_pair(MetadataType::i64));
        put(pairs_.bytes, value);
        return checked();
    }
    Result<void> real(double value) override {
        if (in_array()) return array_.real(value), checked();
        DECANT_CHECK(begin_pair(MetadataType::f64));
        put(pairs_.bytes, value);
        return checked();
    }
    Result<void> string(std::string_view value) override {
        if (in_array()) return array_.string(value), checked();
        constexpr std::string_view tag = ".__float__";
        const NamedReal* named = find_named_real(value);
        if (named != nullptr && path_ == tag.substr(1)) return not_an_object();
        if (named != nullptr && path_.ends_with(tag)) {
            path_.resize(path_.size() - tag.size());
            return real(named->value);
        }
        DECANT_CHECK(begin_pair(MetadataType::string));
        put_string(pairs_.bytes, value);
        return checked();
    }
    Result<void> key(std::string_view value) override {
        if (in_array()) return array_.key(value), checked();
        path_.resize(levels_.back());
        if (!path_.empty()) path_.push_back('.');
        path_ += value;
        if (value.empty() || path_.size() > longest_key)
            return Error{ErrorCode::bad_format,
                         text("a key has ", path_.size(), " bytes with those that it lies in; 1 to ", longest_key,
                              " are allowed"),
                         text("key ", detail::quoted(path_)), ""};
        keys_.push_back(path_);
        key_bytes_ += path_.size();
        return checked();
    }
    Result<void> begin_object() override {
        if (in_array()) return array_.begin_object(), checked();
        levels_.push_back(path_.size());
        return {};
    }
    Result<void> end_object() override {
        if (in_array()) return array_.end_object(), checked();
        levels_.pop_back();
        return {};
    }
    Result<void> begin_array() override {
        DECANT_CHECK(inside());
        if (in_array())
            array_.begin_array();
        else
            array_.begin();
        return checked();
    }
    Result<void> end_array() override {
        array_.end_array();
        if (in_array()) return {};
        ++pairs_.count;
        put_string(pairs_.bytes, path_);
        array_.write(pairs_.bytes);
        return checked();
    }

    [[nodiscard]] Result<ConfigPairs> finish() {
        std::sort(keys_.begin(), keys_.end());
        const auto twin = std::adjacent_find(keys_.begin(), keys_.end());
        if (twin != keys_.end())
            return Error{ErrorCode::bad_format, "the key occurs twice", text("key ", detail::quoted(*twin)), ""};
        return std::move(pairs_);
    }

 private:
    static constexpr std::size_t longest_key = 1024;

    [[nodiscard]] bool in_array() const noexcept { return array_.depth() != 0; }
    [[nodiscard]] Result<void> inside() const {
        if (!levels_.empty()) return {};
        return not_an_object();
    }
    [[nodiscard]] static Error not_an_object() { return {ErrorCode::bad_format, "this is not a JSON object", "", ""}; }
    Result<void> begin_pair(MetadataType type) {
        DECANT_CHECK(inside());
        ++pairs_.count;
        put_string(pairs_.bytes, path_);
        put(pairs_.bytes, static_cast<std::uint32_t>(type));
        return {};
    }
    /// Every pair repeats the keys that it lies in: what an ordinary file makes a little of, a hostile one could make
    /// thousands of times its size.
    Result<void> checked() const {
        if (pairs_.bytes.size() + key_bytes_ <= limit_) return {};
        return Error{ErrorCode::bad_format, "its keys are too long for how many and how nested they are",
                     text("key ", detail::quoted(path_)), ""};
    }

    std::size_t limit_;
    ConfigPairs pairs_;
    ConfigArray array_;
    std::string path_;
    std::vector<std::size_t> levels_;  // length of the path of every open object
    std::vector<std::string> keys_;    // those of nulls and objects, too
    std::size_t key_bytes_ = 0;
};

/// Reads a JSON object:
/// - objects in it flatten, with dots: {"rope_scaling": {"factor": 8.0}} is the key `rope_scaling.factor`;
/// - integers become i64 (u64 if larger), other numbers f64, bools and strings themselves; null and {} leave no key;
/// - arrays of integers become i64 (u64), of integers and other numbers f64, of bools and strings the like; an empty
///   one is of i64. Any other array (of arrays, objects, nulls, or mixed) becomes a string, its JSON without spaces;
/// - bare Infinity, -Infinity and NaN and {"__float__": "Infinity"} are numbers.
/// Errors, without the file's name: `bad_format` for what is no JSON object (with the byte), for a key that occurs
/// twice, is empty, or longer than 1024 bytes, and for pairs that would take 32 times the bytes of the text.
[[nodiscard]] inline Result<ConfigPairs> read_config_json(std::string_view json) {
    constexpr std::size_t most_growth = 32, slack = 4096;
    ConfigReader reader(json.size() * most_growth + slack);
    const bool named = std::any_of(named_reals.begin(), named_reals.end(),
                                   [&](const NamedReal& r) { return json.find(r.name) != std::string_view::npos; });
    DECANT_CHECK(named ? parse_json(wrap_named_reals(json), reader) : parse_json(json, reader));
    return reader.finish();
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

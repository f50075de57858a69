// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `TokenizerJson`: what a tokenizer.json says, not yet interpreted. Its two long lists, vocabulary and merges, are
/// kept as views of one string, all else as a tree.

#include <decant/core/result.hpp>
#include <decant/files/json.hpp>
#include <decant/files/json_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

class TokenizerJson : public JsonEvents {
 public:
    struct Piece {
        std::uint32_t begin;  // in the text
        std::uint32_t bytes;
    };
    struct Entry {
        Piece piece;
        std::uint64_t id;
    };
    /// "left right" in one string, as older files have it, where `right` is nothing.
    struct Merge {
        Piece left;
        Piece right;
    };

    JsonTree tree;  ///< with null for vocabulary and merges
    std::vector<Entry> vocabulary;
    std::vector<Merge> merges;

    [[nodiscard]] std::string_view text(Piece piece) const noexcept {
        return std::string_view(text_).substr(piece.begin, piece.bytes);
    }

    Result<void> null() override { return place_ == Place::tree ? tree.null() : unexpected(); }
    Result<void> boolean(bool value) override { return place_ == Place::tree ? tree.boolean(value) : unexpected(); }
    Result<void> real(double value) override { return place_ == Place::tree ? tree.real(value) : unexpected(); }
    Result<void> negative_integer(std::int64_t value) override {
        return place_ == Place::tree ? tree.negative_integer(value) : unexpected();
    }
    Result<void> unsigned_integer(std::uint64_t value) override {
        if (place_ == Place::tree) return tree.unsigned_integer(value);
        if (place_ != Place::vocabulary) return unexpected();
        vocabulary.back().id = value;
        return {};
    }
    Result<void> string(std::string_view value) override {
        if (place_ == Place::tree) return tree.string(value);
        if (place_ == Place::merges) {
            DECANT_TRY(const Piece line, keep(value));
            merges.push_back({line, {0, 0}});
            return {};
        }
        if (place_ != Place::pair || parts_ == 2) return unexpected();
        DECANT_TRY((++parts_ == 1 ? merges.back().left : merges.back().right), keep(value));
        return {};
    }
    Result<void> key(std::string_view value) override {
        if (place_ == Place::vocabulary) {
            DECANT_TRY(const Piece piece, keep(value));
            vocabulary.push_back({piece, 0});
            return {};
        }
        if (depth_ == 1) in_model_ = value == "model";
        if (in_model_ && depth_ == 2)
            list_ = value == "vocab" ? List::vocabulary : value == "merges" ? List::merges : List::none;
        return tree.key(value);
    }
    Result<void> begin_object() override {
        if (place_ == Place::tree && in_model_ && depth_ == 2 && list_ == List::vocabulary) {
            DECANT_CHECK(tree.null());
            if (!vocabulary.empty()) return twice();
            place_ = Place::vocabulary;
        } else if (place_ == Place::tree) {
            DECANT_CHECK(tree.begin_object());
        } else {
            return unexpected();
        }
        ++depth_;
        return {};
    }
    Result<void> end_object() override {
        --depth_;
        if (place_ == Place::tree) return tree.end_object();
        place_ = Place::tree;
        return {};
    }
    Result<void> begin_array() override {
        if (place_ == Place::tree && in_model_ && depth_ == 2 && list_ == List::merges) {
            DECANT_CHECK(tree.null());
            if (!merges.empty()) return twice();
            place_ = Place::merges;
        } else if (place_ == Place::merges) {
            place_ = Place::pair;
            parts_ = 0;
            merges.push_back({});
        } else if (place_ == Place::tree) {
            DECANT_CHECK(tree.begin_array());
        } else {
            return unexpected();
        }
        ++depth_;
        return {};
    }
    Result<void> end_array() override {
        --depth_;
        if (place_ == Place::tree) return tree.end_array();
        if (place_ == Place::pair && parts_ != 2) return unexpected();
        place_ = place_ == Place::pair ? Place::merges : Place::tree;
        return {};
    }

 private:
    enum class Place : std::uint8_t { tree, vocabulary, merges, pair };
    enum class List : std::uint8_t { none, vocabulary, merges };

    [[nodiscard]] Result<Piece> keep(std::string_view value) {
        if (value.size() > (std::numeric_limits<std::uint32_t>::max)() - text_.size())
            return Error{ErrorCode::unsupported, "the vocabulary has more than 4 GB", "", ""};
        const Piece piece{static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(value.size())};
        text_ += value;
        return piece;
    }
    [[nodiscard]] Error unexpected() const {
        if (place_ == Place::vocabulary)
            return {ErrorCode::bad_format, "a piece has no number as its id",
                    vocabulary.empty() ? std::string("model.vocab")
                                       : detail::text("model.vocab, ", detail::quoted(text(vocabulary.back().piece))),
                    ""};
        return {ErrorCode::bad_format, "this is not two pieces",
                detail::text("model.merges, element ", merges.size() - (place_ == Place::pair ? 1 : 0)), ""};
    }
    [[nodiscard]] Error twice() const {
        return {ErrorCode::bad_format, "vocabulary or merges occur twice", "model", ""};
    }

    std::string text_;
    Place place_ = Place::tree;
    List list_ = List::none;
    bool in_model_ = false;
    int parts_ = 0;  // of the merge that is being read
    std::uint32_t depth_ = 0;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

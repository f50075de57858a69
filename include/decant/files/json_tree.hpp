// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `JsonTree`: a small JSON document as values to walk over, for descriptions whose shape varies.

#include <decant/core/result.hpp>
#include <decant/files/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

/// Fill it with `parse_json`. Values are views of the tree. What is not there reads as null, so that a path can be
/// walked without asking at each step.
class JsonTree : public JsonEvents {
    struct Node;

 public:
    enum class Kind : std::uint8_t { null, boolean, number, string, array, object };
    static constexpr std::size_t max_values = std::size_t{1} << 20;

    class Value {
     public:
        [[nodiscard]] Kind kind() const noexcept { return node_ == 0 ? Kind::null : node().kind; }
        [[nodiscard]] bool is_null() const noexcept { return kind() == Kind::null; }
        [[nodiscard]] bool is_string() const noexcept { return kind() == Kind::string; }
        /// Empty for what is no string.
        [[nodiscard]] std::string_view string() const noexcept {
            return is_string() ? node().text : std::string_view();
        }
        /// False for what is not true.
        [[nodiscard]] bool boolean() const noexcept { return kind() == Kind::boolean && node().integer != 0; }
        /// A whole number of 0 or more; `fallback` for anything else.
        [[nodiscard]] std::uint64_t uint(std::uint64_t fallback) const noexcept {
            return kind() == Kind::number && node().whole ? node().integer : fallback;
        }
        /// The name of a member of an object.
        [[nodiscard]] std::string_view key() const noexcept { return node_ == 0 ? std::string_view() : node().key; }
        /// The first member of that name; null if this is no object or has none.
        [[nodiscard]] Value operator[](std::string_view name) const noexcept {
            Value at = kind() == Kind::object ? first() : Value(*tree_, 0);
            while (at.node_ != 0 && at.key() != name) at = at.next();
            return at;
        }
        /// Elements or members: for (auto v = value.first(); v; v = v.next()).
        [[nodiscard]] Value first() const noexcept { return {*tree_, node_ == 0 ? 0 : node().child}; }
        [[nodiscard]] Value next() const noexcept { return {*tree_, node_ == 0 ? 0 : node().next}; }
        explicit operator bool() const noexcept { return node_ != 0; }

     private:
        friend class JsonTree;
        Value(const JsonTree& tree, std::uint32_t node) noexcept : tree_(&tree), node_(node) {}
        [[nodiscard]] const Node& node() const noexcept { return tree_->nodes_[node_]; }

        const JsonTree* tree_;
        std::uint32_t node_;  // 0: nothing
    };

    [[nodiscard]] Value root() const noexcept { return {*this, nodes_.size() > 1 ? 1u : 0u}; }

    Result<void> null() override { return add(Kind::null); }
    Result<void> boolean(bool value) override { return add(Kind::boolean, value ? 1 : 0); }
    Result<void> unsigned_integer(std::uint64_t value) override { return add(Kind::number, value, true); }
    Result<void> negative_integer(std::int64_t) override { return add(Kind::number); }
    Result<void> real(double) override { return add(Kind::number); }
    Result<void> string(std::string_view value) override {
        DECANT_CHECK(add(Kind::string));
        nodes_.back().text = value;
        return {};
    }
    Result<void> key(std::string_view value) override {
        key_ = value;
        return {};
    }
    Result<void> begin_object() override { return open(Kind::object); }
    Result<void> end_object() override { return close(); }
    Result<void> begin_array() override { return open(Kind::array); }
    Result<void> end_array() override { return close(); }

 private:
    struct Node {
        Kind kind = Kind::null;
        bool whole = false;
        std::uint32_t child = 0;
        std::uint32_t next = 0;
        std::uint64_t integer = 0;
        std::string key;
        std::string text;
    };
    struct Open {
        std::uint32_t node;
        std::uint32_t last;  // its latest child
    };

    Result<void> add(Kind kind, std::uint64_t integer = 0, bool whole = false) {
        if (nodes_.size() > max_values)
            return Error{ErrorCode::unsupported, detail::text("the JSON has more than ", max_values, " values"), "",
                         ""};
        const auto index = static_cast<std::uint32_t>(nodes_.size());
        if (!open_.empty()) {
            Open& parent = open_.back();
            (parent.last == 0 ? nodes_[parent.node].child : nodes_[parent.last].next) = index;
            parent.last = index;
        }
        Node& node = nodes_.emplace_back();
        node.kind = kind;
        node.integer = integer;
        node.whole = whole;
        node.key = std::move(key_);
        key_.clear();
        return {};
    }
    Result<void> open(Kind kind) {
        DECANT_CHECK(add(kind));
        open_.push_back({static_cast<std::uint32_t>(nodes_.size() - 1), 0});
        return {};
    }
    Result<void> close() {
        open_.pop_back();
        return {};
    }

    std::vector<Node> nodes_ = std::vector<Node>(1);
    std::vector<Open> open_;
    std::string key_;
};

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/core/error.hpp>

#include "support/catch.hpp"

#include <set>
#include <string>
#include <string_view>

using decant::Error;
using decant::ErrorCode;

TEST_CASE("error: the message is one line of where, what and hint") {
    CHECK(Error{ErrorCode::io, "cannot open", "a.gguf", "check the path"}.message() ==
          "a.gguf: cannot open (check the path)");
    CHECK(Error{ErrorCode::io, "cannot open", "a.gguf", ""}.message() == "a.gguf: cannot open");
    CHECK(Error{ErrorCode::io, "cannot open", "", "check the path"}.message() == "cannot open (check the path)");
    CHECK(Error{ErrorCode::io, "cannot open", "", ""}.message() == "cannot open");
}

TEST_CASE("error: text in it is never a format string") {
    const Error error{ErrorCode::bad_format, "name %s%n", "%99999d", "{}%%"};
    CHECK(error.message() == "%99999d: name %s%n ({}%%)");
}

TEST_CASE("error: callers further out add where they are") {
    Error error{ErrorCode::mismatch, "wrong shape", "tensor \"a\"", "convert again"};
    const Error outer = std::move(error).in("model.gguf").in("models");
    CHECK(outer.code == ErrorCode::mismatch);
    CHECK(outer.where == "models, model.gguf, tensor \"a\"");
    CHECK(outer.what == "wrong shape");
    CHECK(outer.hint == "convert again");
    CHECK(Error{ErrorCode::io, "x", "", ""}.in("model.gguf").where == "model.gguf");
}

TEST_CASE("error: every code has a name of its own") {
    std::set<std::string_view> names;
    for (int code = 0; code <= static_cast<int>(ErrorCode::cancelled); ++code)
        names.insert(decant::name(static_cast<ErrorCode>(code)));
    CHECK(names.size() == static_cast<std::size_t>(ErrorCode::cancelled) + 1);
    CHECK(!names.contains("unknown"));
    CHECK(decant::name(ErrorCode::out_of_memory) == "out_of_memory");
}

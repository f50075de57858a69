// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Lists of tokens as bytes: a 64-bit count and 32 bits for each.

#include <decant/core/config.hpp>
#include <decant/core/result.hpp>
#include <decant/core/token.hpp>
#include <decant/files/reader.hpp>
#include <decant/files/writer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

inline void put_tokens(std::vector<std::byte>& out, std::span<const Token> tokens) {
    put(out, std::uint64_t{tokens.size()});
    for (const Token token : tokens) put(out, id(token));
}
/// Of any value. `what`: "the number of ...". Errors: `bad_format` for more than there are bytes.
[[nodiscard]] inline Result<std::vector<Token>> read_tokens(ByteReader& in, std::string_view what) {
    DECANT_TRY(const std::uint64_t count, in.count(sizeof(std::int32_t), what));
    std::vector<Token> tokens(static_cast<std::size_t>(count));
    for (Token& token : tokens) {
        DECANT_TRY(const auto value, in.number<std::int32_t>("a token"));
        token = Token{value};
    }
    return tokens;
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

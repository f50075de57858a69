// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Numbers and strings as little-endian bytes: what `ByteReader` reads.

#include <decant/core/config.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace decant::inline DECANT_ABI {
namespace detail {

template <class T>
void put(std::vector<std::byte>& out, T value) {
    auto raw = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
    if constexpr (std::endian::native == std::endian::big) std::reverse(raw.begin(), raw.end());
    out.insert(out.end(), raw.begin(), raw.end());
}

/// A 64-bit length and the bytes.
inline void put_string(std::vector<std::byte>& out, std::string_view value) {
    put(out, std::uint64_t{value.size()});
    for (const char c : value) out.push_back(static_cast<std::byte>(c));
}

}  // namespace detail
}  // namespace decant::inline DECANT_ABI

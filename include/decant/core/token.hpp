// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// `Token`: one entry of a vocabulary. A type of its own, so that a count or a position cannot be passed for one.

#include <decant/core/config.hpp>

#include <cstdint>

namespace decant::inline DECANT_ABI {

enum class Token : std::int32_t {};

/// The token's id: its row in the vocabulary, embedding and logits.
[[nodiscard]] constexpr std::int32_t id(Token token) noexcept { return static_cast<std::int32_t>(token); }

}  // namespace decant::inline DECANT_ABI

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Dtypes as values of options.

#include "options.hpp"

#include <decant/core/dtype.hpp>
#include <decant/quant/formats.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace examples {

/// The dtype of a name in either case, of those that numbers can be written in; else a `UsageError` names them.
inline decant::DType dtype_named(const std::string& option, const std::string& wanted) {
    std::string known;
    for (int value = 0; value < static_cast<int>(decant::DType::other); ++value) {
        const auto dtype = static_cast<decant::DType>(value);
        if (!decant::can_quantize(dtype)) continue;
        const std::string_view name = decant::name(dtype);
        const auto same = [](char a, char b) { return a == b || (a >= 'a' && a <= 'z' && a - 'a' + 'A' == b); };
        if (std::equal(wanted.begin(), wanted.end(), name.begin(), name.end(), same)) return dtype;
        known += (known.empty() ? "" : ", ") + std::string(name);
    }
    throw UsageError(option + " takes one of " + known + ", not \"" + wanted + "\"");
}

}  // namespace examples

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include <decant/quant/panel.hpp>

#include "support/catch.hpp"

#include <decant/quant/formats.hpp>

TEST_CASE("panel: blocks of a panel divide blocks of the file and codes fit a byte") {
    for (int value = 0; value < static_cast<int>(decant::DType::other); ++value) {
        decant::visit_format(static_cast<decant::DType>(value), []<class Format>(Format) {
            if constexpr (decant::CodeFormat<Format>) {
                CHECK(decant::traits(Format::dtype).block_elements % Format::panel_block == 0);
                CHECK(Format::panel_block % decant::panel_group == 0);
                CHECK(Format::code_bits <= 8);
                CHECK(Format::bias < 1 << Format::code_bits);
            }
        });
    }
}

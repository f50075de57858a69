// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// The plots, each as an SVG of a given width in pixels. Full precision is `full` in the style sheet, the smaller build
/// `small`, and whatever is compared with them `other`.

#include "results.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace experiment {

[[nodiscard]] inline std::string_view style_of(const Build& build) { return build.full ? "full" : "small"; }

[[nodiscard]] std::string memory_chart(const Results& results, double width);
[[nodiscard]] std::string speed_chart(const Results& results, double width);
[[nodiscard]] std::string timeline_chart(const Results& results, double width);
[[nodiscard]] std::string drip_chart(const Results& results, double width);
[[nodiscard]] std::string cache_time_chart(const Results& results, double width);
[[nodiscard]] std::string cache_bytes_chart(const Results& results, double width);
[[nodiscard]] std::string elevator_chart(const Results& results, double width);
[[nodiscard]] std::string attention_chart(const Results& results, double width);
[[nodiscard]] std::string paging_bars(const Results& results, double width);
[[nodiscard]] std::string paging_chart(const Results& results, double width);
[[nodiscard]] std::string speculation_chart(const Results& results, double width);
[[nodiscard]] std::string reuse_wait_chart(const Results& results, double width);
[[nodiscard]] std::string reuse_tokens_chart(const Results& results, double width);

/// A numbered point of the roofline.
struct RoofPoint {
    std::string name;
    bool full = false;
    double intensity = 0;  ///< operations per byte
    double speed = 0;      ///< operations per second
    std::string share;     ///< of which limit
};
[[nodiscard]] std::vector<RoofPoint> roof_points(const Results& results);
[[nodiscard]] std::string roofline_chart(const Results& results, double width);

}  // namespace experiment

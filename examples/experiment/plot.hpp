// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// Scales, ticks and axes of the plots.

#include "format.hpp"
#include "svg.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace experiment {

/// From numbers to pixels.
class Scale {
 public:
    static Scale linear(double low, double high) { return {low, high > low ? high : low + 1, false}; }
    /// `low` > 0.
    static Scale log(double low, double high) { return {low, high > low ? high : 10 * low, true}; }

    Scale& onto(double from, double to) {
        from_ = from;
        to_ = to;
        return *this;
    }
    [[nodiscard]] double operator()(double value) const {
        const double share = log_ ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
        return from_ + share * (to_ - from_);
    }
    [[nodiscard]] double low() const { return low_; }
    [[nodiscard]] double high() const { return high_; }

    /// Round numbers, about `count` of them: 1, 2 or 5 times a power of ten; on a log scale only those powers if there
    /// are enough of them.
    [[nodiscard]] std::vector<double> ticks(std::size_t count) const {
        std::vector<double> made;
        if (!log_) {
            const double rough = (high_ - low_) / static_cast<double>(count);
            const double power = std::pow(10.0, std::floor(std::log10(rough)));
            const double step = power * (rough / power > 5 ? 10 : rough / power > 2 ? 5 : rough / power > 1 ? 2 : 1);
            for (double at = std::ceil(low_ / step) * step; at <= high_ * (1 + 1e-9); at += step) made.push_back(at);
            return made;
        }
        const bool decades = std::log10(high_ / low_) > 2.5;
        for (double power = std::pow(10.0, std::floor(std::log10(low_))); power <= high_; power *= 10) {
            for (const double factor : {1.0, 2.0, 5.0}) {
                const double at = power * factor;
                if (at >= low_ * (1 - 1e-9) && at <= high_ * (1 + 1e-9) && (!decades || factor == 1.0))
                    made.push_back(at);
            }
        }
        return made;
    }

 private:
    Scale(double low, double high, bool log) : low_(low), high_(high), log_(log) {}

    double low_;
    double high_;
    bool log_;
    double from_ = 0;
    double to_ = 1;
};

/// The next round number above, a good end of an axis that begins at 0.
[[nodiscard]] inline double round_up(double value) {
    if (!(value > 0)) return 1;
    const double power = std::pow(10.0, std::floor(std::log10(value)));
    for (const double factor : {1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0})
        if (value <= power * factor * (1 + 1e-9)) return power * factor;
    return 10 * power;
}

/// A number at a tick, without decimals that say nothing.
[[nodiscard]] inline std::string tick_text(double value) {
    if (std::abs(value) >= 1) {
        const bool whole = std::abs(value - std::round(value)) < 1e-6;
        return whole ? grouped(value) : fixed(value, 1);
    }
    std::string text = fixed(value, 3);
    while (text.find('.') != std::string::npos && (text.back() == '0' || text.back() == '.')) {
        const bool point = text.back() == '.';
        text.pop_back();
        if (point) break;
    }
    return text;
}

/// The rectangle of a plot, with its axes: values up, their name and unit above the axis; the other name below.
struct Panel {
    double left;
    double top;
    double width;
    double height;
    Scale x;
    Scale y;

    Panel(double l, double t, double w, double h, Scale across, Scale up)
        : left(l), top(t), width(w), height(h), x(across.onto(l, l + w)), y(up.onto(t + h, t)) {}

    [[nodiscard]] double right() const { return left + width; }
    [[nodiscard]] double bottom() const { return top + height; }
    [[nodiscard]] XY at(double across, double up) const { return {x(across), y(up)}; }

    void draw_y(Svg& svg, std::string_view name, std::size_t count = 4) const {
        svg.text({left - 34, top - 12}, name, "axis");
        for (const double tick : y.ticks(count)) {
            svg.line({left, y(tick)}, {right(), y(tick)}, "grid");
            svg.text({left - 6, y(tick) + 4}, tick_text(tick), "tick", "end");
        }
    }
    void draw_x(Svg& svg, std::string_view name, const std::vector<double>& ticks) const {
        svg.line({left, bottom()}, {right(), bottom()}, "base");
        double free = left - 40;
        for (const double tick : ticks) {
            const std::string text = tick_text(tick);
            const double half = Svg::width_of(text) / 2;
            svg.line({x(tick), bottom()}, {x(tick), bottom() + 4}, "base");
            if (x(tick) - half < free) continue;
            svg.text({x(tick), bottom() + 18}, text, "tick", "middle");
            free = x(tick) + half + 8;
        }
        svg.text({left + width / 2, bottom() + 36}, name, "axis", "middle");
    }
};

}  // namespace experiment

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#pragma once

/// \file
/// An SVG drawing. Colours and fonts come from the page's style sheet by class, so that one drawing serves light and
/// dark.

#include "format.hpp"
#include "html_text.hpp"

#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace experiment {

struct XY {
    double x = 0;
    double y = 0;
};

class Svg {
 public:
    /// In pixels. `label` is what screen readers say.
    Svg(double width, double height, std::string_view label) {
        body_ = "<svg viewBox=\"0 0 " + number(width) + " " + number(height) + "\" width=\"" + number(width) +
                "\" height=\"" + number(height) + "\" role=\"img\" aria-label=\"" + escaped(label) + "\">\n";
    }

    void line(XY a, XY b, std::string_view style) {
        open("line", style);
        attribute("x1", a.x), attribute("y1", a.y), attribute("x2", b.x), attribute("y2", b.y);
        body_ += "/>\n";
    }
    /// `style` is a class; `hint` is what a pointer over the bar shows.
    void bar(double x, double y, double width, double height, std::string_view style, std::string_view hint = {}) {
        open("rect", style);
        attribute("x", x), attribute("y", y), attribute("width", width < 0 ? 0 : width), attribute("height", height);
        close("rect", hint);
    }
    void dot(XY at, double radius, std::string_view style, std::string_view hint = {}) {
        open("circle", style);
        attribute("cx", at.x), attribute("cy", at.y), attribute("r", radius);
        close("circle", hint);
    }
    void curve(const std::vector<XY>& points, std::string_view style) {
        open("polyline", style);
        body_ += " points=\"";
        for (const XY& point : points) body_ += number(point.x) + "," + number(point.y) + " ";
        body_ += "\"/>\n";
    }
    /// `anchor` is start, middle or end.
    void text(XY at, std::string_view text, std::string_view style = "label", std::string_view anchor = "start") {
        open("text", style);
        attribute("x", at.x), attribute("y", at.y);
        body_ += " text-anchor=\"" + std::string(anchor) + "\">" + escaped(text) + "</text>\n";
    }

    /// Centred along the line from `a` to `b`, above it.
    void text_along(XY a, XY b, std::string_view text, std::string_view style = "label") {
        const double degrees = std::atan2(b.y - a.y, b.x - a.x) * 57.29578;
        open("text", style);
        body_ += " transform=\"translate(" + number((a.x + b.x) / 2) + " " + number((a.y + b.y) / 2) + ") rotate(" +
                 number(degrees) + ")\" y=\"-7\" text-anchor=\"middle\">" + escaped(text) + "</text>\n";
    }

    [[nodiscard]] std::string finish() && { return std::move(body_) + "</svg>\n"; }

    /// About how wide a text of the page's label size is.
    static double width_of(std::string_view text) {
        double width = 0;
        for (const char c : text) {
            const bool narrow = c == ' ' || c == '.' || c == ',' || c == 'i' || c == 'l' || c == 't' || c == ':';
            width += (static_cast<unsigned char>(c) & 0xC0) == 0x80 ? 0.0 : narrow ? 3.9 : 7.1;
        }
        return width;
    }

 private:
    static std::string number(double value) {
        std::string text = fixed(value, 1);
        if (text.ends_with(".0")) text.resize(text.size() - 2);
        return text;
    }
    void open(std::string_view element, std::string_view style) {
        body_ += "<" + std::string(element) + " class=\"" + std::string(style) + "\"";
    }
    void attribute(std::string_view name, double value) {
        body_ += " " + std::string(name) + "=\"" + number(value) + "\"";
    }
    void close(std::string_view element, std::string_view hint) {
        body_ += hint.empty() ? "/>\n" : "><title>" + escaped(hint) + "</title></" + std::string(element) + ">\n";
    }

    std::string body_;
};

}  // namespace experiment

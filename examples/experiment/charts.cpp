// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "charts.hpp"

#include "format.hpp"
#include "plot.hpp"
#include "svg.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace experiment {
namespace {

constexpr double axis_room = 50;   // left of a panel, for the numbers at its ticks
constexpr double below_room = 46;  // below it, for numbers and name
constexpr double above_room = 30;  // above it, for the name of what goes up

std::string with(std::string_view style, std::string_view more) { return std::string(style) + " " + std::string(more); }

/// Horizontal bars over a common axis that begins at 0.
struct BarRow {
    std::string name;
    struct Piece {
        double value;
        std::string style;
    };
    std::vector<Piece> pieces;
    std::string note;  // behind the bar
};

std::string bars(double width, std::string_view label, std::string_view axis, double most,
                 const std::vector<BarRow>& rows) {
    constexpr double step = 46, thickness = 20;
    const double height = 6 + step * static_cast<double>(rows.size()) + below_room;
    Svg svg(width, height, label);
    double note = 0;
    for (const BarRow& row : rows) note = (std::max)(note, Svg::width_of(row.note));
    const Panel panel(5, 6, width - 5 - (std::max)((std::min)(note + 10, width / 3), 14.0), height - 6 - below_room,
                      Scale::linear(0, most), Scale::linear(0, 1));
    for (const double tick : panel.x.ticks(width > 500 ? 5 : 3))
        svg.line({panel.x(tick), panel.top}, {panel.x(tick), panel.bottom()}, "grid");
    double y = 6;
    for (const BarRow& row : rows) {
        svg.text({5, y + 13}, row.name, "label");
        double from = 0;
        for (const BarRow::Piece& piece : row.pieces) {
            svg.bar(panel.x(from), y + 19, panel.x(from + piece.value) - panel.x(from), thickness, piece.style);
            from += piece.value;
        }
        svg.text({panel.x(from) + 6, y + 33}, row.note, "value");
        y += step;
    }
    panel.draw_x(svg, axis, panel.x.ticks(width > 500 ? 5 : 3));
    return std::move(svg).finish();
}

std::vector<double> powers_of_two(double last) {
    std::vector<double> made;
    for (double at = 1; at <= last; at *= 2) made.push_back(at);
    return made;
}

double largest(const std::vector<double>& values) {
    return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
}

/// The tallest values aside, which a hiccup of the system made: where an axis may end.
double quantile(std::vector<double> values, double share) {
    if (values.empty()) return 0.0;
    std::sort(values.begin(), values.end());
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

/// The same without a cache and with it: two lines, each named at its end.
struct TwoLines {
    std::string_view label;
    std::string_view up, across;  // the names of the axes
    struct Point {
        double x;
        double with, without;
        std::string with_text, without_text;
    };
    std::vector<Point> points = {};
    std::vector<double> ticks = {};
};

std::string two_lines(double width, const TwoLines& lines, const Scale& x, const Scale& y) {
    constexpr double height = 280;
    Svg svg(width, height, lines.label);
    const Panel panel(axis_room, above_room, width - axis_room - 84, height - above_room - below_room, x, y);
    panel.draw_y(svg, lines.up);
    std::vector<XY> with_line, without_line;
    for (const TwoLines::Point& point : lines.points) {
        with_line.push_back(panel.at(point.x, point.with));
        without_line.push_back(panel.at(point.x, point.without));
    }
    svg.curve(without_line, "other stroke");
    svg.curve(with_line, "small stroke");
    for (std::size_t i = 0; i < lines.points.size(); ++i) {
        svg.dot(without_line[i], 3.5, "other fill", "without: " + lines.points[i].without_text);
        svg.dot(with_line[i], 3.5, "small fill", "with: " + lines.points[i].with_text);
    }
    const double gap = with_line.back().y - without_line.back().y;
    const double apart = gap < 30 ? (30 - gap) / 2 : 0;
    const auto end_label = [&](XY at, double shift, std::string_view name, std::string_view value,
                               std::string_view style) {
        svg.text({at.x + 9, at.y + shift - 3}, name, with(style, "text"));
        svg.text({at.x + 9, at.y + shift + 12}, value, with(style, "text"));
    };
    end_label(without_line.back(), -apart, "without", lines.points.back().without_text, "other");
    end_label(with_line.back(), apart, "with cache", lines.points.back().with_text, "small");
    panel.draw_x(svg, lines.across, lines.ticks);
    return std::move(svg).finish();
}

std::string reuse_chart(const Results& results, double width, TwoLines lines, double (*value)(const PrefixReuse::Side&),
                        std::string (*text)(const PrefixReuse::Side&)) {
    double most = 0;
    for (const PrefixReuse::Call& call : results.reuse.calls) {
        const auto x = static_cast<double>(lines.points.size() + 1);
        lines.points.push_back({x, value(call.with), value(call.without), text(call.with), text(call.without)});
        lines.ticks.push_back(x);
        most = (std::max)({most, lines.points.back().with, lines.points.back().without});
    }
    lines.across = "call of the tool";
    return two_lines(width, lines, Scale::linear(1, lines.points.back().x), Scale::linear(0, round_up(most * 1.05)));
}

}  // namespace

std::string memory_chart(const Results& results, double width) {
    std::vector<BarRow> rows;
    double most = 0;
    for (const Build& build : results.builds.builds) {
        const auto style = style_of(build);
        const double weights = static_cast<double>(build.weight_bytes) / 1e6;
        rows.push_back({build.label + ": weights", {{weights, with(style, "fill")}}, megabytes(build.weight_bytes)});
        most = (std::max)(most, weights);
        if (!build.resident) continue;
        const double own = static_cast<double>(build.resident->own_bytes) / 1e6;
        const double file = static_cast<double>(build.resident->file_bytes) / 1e6;
        rows.push_back({build.label + ": resident memory",
                        {{own, with(style, "fill strong")}, {file, with(style, "fill pale")}},
                        megabytes(build.resident->own_bytes + build.resident->file_bytes)});
        most = (std::max)(most, own + file);
    }
    return bars(width, "Bytes of the weights and resident memory of each build", "megabytes (MB)", round_up(most),
                rows);
}

std::string speed_chart(const Results& results, double width) {
    const auto one = [&](bool reading, double across) {
        std::vector<BarRow> rows;
        double most = 0;
        for (const Build& build : results.builds.builds) {
            const double speed = reading ? build.prefill_speed() : build.decode_speed();
            rows.push_back({build.label, {{speed, with(style_of(build), "fill")}}, rounded(speed)});
            most = (std::max)(most, speed);
        }
        return bars(across, reading ? "Speed of reading" : "Speed of writing",
                    reading ? "reading (prefill), tokens per second" : "writing (decode), tokens per second",
                    round_up(most), rows);
    };
    const double each = width > 500 ? (width - 32) / 2 : width;
    return "<div class=\"pair\">" + one(true, each) + one(false, each) + "</div>";
}

std::string timeline_chart(const Results& results, double width) {
    const PauseAndDrip& pause = results.pause;
    double end = pause.first_token_seconds;
    for (const double seconds : pause.token_seconds) end += seconds;
    constexpr double height = 150;
    Svg svg(width, height, "Timeline: the pause, then every token");
    const Panel panel(5, 40, width - 15, 50, Scale::linear(0, end), Scale::linear(0, 1));

    svg.bar(panel.x(0), panel.top, panel.x(pause.first_token_seconds) - panel.x(0), panel.height, "other fill pale");
    for (const PauseAndDrip::Chunk& chunk : pause.chunks) {
        if (chunk.seconds < pause.first_token_seconds)
            svg.line({panel.x(chunk.seconds), panel.top}, {panel.x(chunk.seconds), panel.bottom()}, "paper");
    }
    double at = pause.first_token_seconds;
    svg.line({panel.x(at), panel.top}, {panel.x(at), panel.bottom()}, "small stroke thin");
    for (const double seconds : pause.token_seconds) {
        at += seconds;
        svg.line({panel.x(at), panel.top}, {panel.x(at), panel.bottom()}, "small stroke thin");
    }
    const std::string silence = "the pause: " + duration(pause.first_token_seconds) + " of reading";
    const std::string drip =
        width > 500 ? "the drip: " + count(pause.token_seconds.size()) + " tokens" : std::string("the drip");
    const double half = Svg::width_of(drip) / 2;
    const double middle = (std::min)(panel.x((pause.first_token_seconds + end) / 2), width - 5 - half);
    const bool crowded = 5 + Svg::width_of(silence) * 1.1 + 12 > middle - half;
    svg.text({5, crowded ? 16.0 : 32.0}, silence, "value");
    svg.text({middle, 32}, drip, "small text", "middle");
    panel.draw_x(svg, "seconds since the prompt was sent (s)", panel.x.ticks(width > 500 ? 8 : 4));
    return std::move(svg).finish();
}

std::string drip_chart(const Results& results, double width) {
    const PauseAndDrip& pause = results.pause;
    constexpr double height = 230;
    Svg svg(width, height, "Time of every token after the first");
    const auto tokens = static_cast<double>(pause.token_seconds.size());
    const double typical = (std::max)(quantile(pause.token_seconds, 0.95), pause.median_seconds * 1.2) * 1e3;
    const double top = round_up((std::min)(largest(pause.token_seconds) * 1e3, typical * 1.5));
    const Panel panel(axis_room, above_room, width - axis_room - 10, height - above_room - below_room,
                      Scale::linear(0, tokens + 1), Scale::linear(0, top));
    panel.draw_y(svg, "milliseconds for this token (ms)");
    const double radius = width > 500 ? 2.6 : 1.8;
    for (std::size_t i = 0; i < pause.token_seconds.size(); ++i) {
        const double value = pause.token_seconds[i] * 1e3;
        const std::string hint = "token " + count(i + 2) + ": " + duration(pause.token_seconds[i]);
        svg.dot(panel.at(static_cast<double>(i + 1), (std::min)(value, top)), radius,
                value > top ? "small hollow" : "small fill", hint);
    }
    const double middle = panel.y(pause.median_seconds * 1e3);
    svg.line({panel.left, middle}, {panel.right(), middle}, "other stroke dashed");
    svg.text({panel.right(), panel.bottom() - 10},
             "dashed: half of them take less than " + duration(pause.median_seconds), "label", "end");
    panel.draw_x(svg, "token of the answer, after the first", panel.x.ticks(width > 500 ? 8 : 4));
    return std::move(svg).finish();
}

std::string cache_time_chart(const Results& results, double width) {
    const auto& points = results.cache.points;
    TwoLines lines{"Time of the next token with the cache and without it, by length of the context",
                   "milliseconds for the next token (ms), log scale", "tokens of context before it, log scale"};
    double low = 1e300, high = 0;
    for (const auto& point : points) {
        low = (std::min)({low, point.with_seconds, point.without_seconds});
        high = (std::max)({high, point.with_seconds, point.without_seconds});
        lines.ticks.push_back(static_cast<double>(point.context));
        lines.points.push_back({static_cast<double>(point.context), point.with_seconds * 1e3,
                                point.without_seconds * 1e3, duration(point.with_seconds),
                                duration(point.without_seconds)});
    }
    if (points.empty()) return Svg(width, 0, lines.label).finish();
    const double last = static_cast<double>(points.back().context);
    return two_lines(width, lines, Scale::log(static_cast<double>(points.front().context), (std::max)(last, 32.0)),
                     Scale::log(low * 1e3 / 1.5, high * 1e3 * 1.3));
}

std::string cache_bytes_chart(const Results& results, double width) {
    const auto& chunks = results.pause.chunks;
    constexpr double height = 260;
    Svg svg(width, height, "Bytes of the cache beside bytes of the weights, by length of the context");
    const double tokens = static_cast<double>(chunks.back().tokens);
    const double cache = static_cast<double>(chunks.back().cache_bytes) / 1e6;
    const Build& build = results.builds.small();
    const double weights = static_cast<double>(build.weight_bytes) / 1e6;
    const Panel panel(axis_room, above_room, width - axis_room - 10, height - above_room - below_room,
                      Scale::linear(0, tokens), Scale::linear(0, round_up(1.1 * (std::max)(cache, weights))));
    panel.draw_y(svg, "megabytes (MB)");
    svg.line(panel.at(0, weights), panel.at(tokens, weights), "other stroke dashed");
    svg.text({panel.left + 6, panel.y(weights) - 7}, build.label + " weights: " + megabytes(build.weight_bytes),
             "other text");
    std::vector<XY> line{panel.at(0, 0)};
    for (const auto& chunk : chunks)
        line.push_back(panel.at(static_cast<double>(chunk.tokens), static_cast<double>(chunk.cache_bytes) / 1e6));
    std::vector<XY> area = line;
    area.push_back(panel.at(tokens, 0));
    svg.curve(area, "small area");
    svg.curve(line, "small stroke");
    for (std::size_t i = 1; i < line.size(); ++i) {
        svg.dot(line[i], 3, "small fill",
                count(chunks[i - 1].tokens) + " tokens: " + megabytes(chunks[i - 1].cache_bytes));
    }
    // Under its line, where the area is.
    svg.text({panel.right() - 8, panel.bottom() - 10}, "cache: " + megabytes(chunks.back().cache_bytes), "small text",
             "end");
    panel.draw_x(svg, "tokens in the cache", panel.x.ticks(width > 500 ? 6 : 4));
    return std::move(svg).finish();
}

std::string elevator_chart(const Results& results, double width) {
    struct Side {
        std::string_view name;
        double (*value)(const Elevator::Ride&);
        bool log;
    };
    const Side sides[] = {
        {"all together, tokens per second", [](const Elevator::Ride& r) { return r.total_speed(); }, false},
        {"each sequence, tokens per second", [](const Elevator::Ride& r) { return r.single_speed(); }, false},
        {"MB read per token, log scale", [](const Elevator::Ride& r) { return r.bytes_per_token() / 1e6; }, true},
    };
    const bool wide = width > 500;
    const double each = wide ? (width - 2 * 20) / 3 : width;
    std::string out = "<div class=\"pair\">";
    for (const Side& side : sides) {
        constexpr double height = 250;
        Svg svg(each, height, side.name);
        double low = 1e300, high = 0, riders = 1;
        for (const Elevator& elevator : results.elevators) {
            for (const Elevator::Ride& ride : elevator.rides) {
                low = (std::min)(low, side.value(ride));
                high = (std::max)(high, side.value(ride));
                riders = (std::max)(riders, static_cast<double>(ride.sequences));
            }
        }
        const Panel panel(axis_room - 6, above_room, each - axis_room - 6, height - above_room - below_room,
                          Scale::log(1, riders),
                          side.log ? Scale::log(low / 1.3, high * 1.3) : Scale::linear(0, round_up(high * 1.08)));
        panel.draw_y(svg, side.name);
        for (const Elevator& elevator : results.elevators) {
            const Build& build = results.builds.builds[elevator.build];
            std::vector<XY> line;
            for (const Elevator::Ride& ride : elevator.rides)
                line.push_back(panel.at(static_cast<double>(ride.sequences), side.value(ride)));
            svg.curve(line, with(style_of(build), "stroke"));
            for (std::size_t i = 0; i < line.size(); ++i) {
                svg.dot(line[i], 3.5, with(style_of(build), "fill"),
                        count(elevator.rides[i].sequences) + ": " + rounded(side.value(elevator.rides[i])));
            }
        }
        panel.draw_x(svg, "sequences in the pass", powers_of_two(riders));
        out += std::move(svg).finish();
    }
    return out + "</div>";
}

std::string attention_chart(const Results& results, double width) {
    std::vector<Attention::Point> points = results.attention.points;
    if (width < 500 && points.size() > 3) points.erase(points.begin());
    constexpr double height = 300;
    Svg svg(width, height, "Bytes that attention moves, with the matrix of scores and in tiles");
    double most = 0;
    for (const auto& point : points)
        most = (std::max)(most, static_cast<double>(point.naive.read_bytes + point.naive.written_bytes) / 1e6);
    const Panel panel(axis_room, above_room, width - axis_room - 10, height - above_room - below_room,
                      Scale::linear(0, 1), Scale::linear(0, round_up(most * 1.08)));
    panel.draw_y(svg, "megabytes moved (MB)");
    svg.line({panel.left, panel.bottom()}, {panel.right(), panel.bottom()}, "base");
    const double group = panel.width / static_cast<double>(points.size());
    const double thick = (std::min)(group * 0.4, 54.0);
    for (std::size_t i = 0; i < points.size(); ++i) {
        const double middle = panel.left + group * (static_cast<double>(i) + 0.5);
        const auto column = [&](double x, const Attention::Traffic& traffic, std::string_view style) {
            const double read = static_cast<double>(traffic.read_bytes) / 1e6;
            const double written = static_cast<double>(traffic.written_bytes) / 1e6;
            svg.bar(x, panel.y(read), thick, panel.bottom() - panel.y(read), with(style, "fill"), "read");
            svg.bar(x, panel.y(read + written), thick, panel.y(read) - panel.y(read + written),
                    with(style, "fill pale"), "written");
            svg.text({x + thick / 2, panel.y(read + written) - 6}, rounded(read + written), "value", "middle");
        };
        column(middle - thick - 2, points[i].naive, "other");
        column(middle + 2, points[i].tiled, "small");
        svg.text({middle, panel.bottom() + 18}, count(points[i].tokens), "tick", "middle");
    }
    svg.text({panel.left + panel.width / 2, panel.bottom() + 36}, "tokens of context", "axis", "middle");
    return std::move(svg).finish();
}

std::string paging_bars(const Results& results, double width) {
    const Paging& paging = results.paging;
    const auto row = [](std::string_view name, const Paging::Side& side, std::string_view style) {
        const double used = side.used_share * 100, wasted = side.wasted_share * 100;
        return BarRow{std::string(name) + ": " + percent(side.used_share) + " hold tokens, " +
                          percent(side.wasted_share) + " taken but empty",
                      {{used, with(style, "fill")},
                       {wasted, with(style, "fill pale")},
                       {(std::max)(0.0, 100 - used - wasted), "free"}},
                      ""};
    };
    return bars(width, "How the memory of the cache is used", "percent of the cache's memory (%)", 100,
                {row("slots", paging.contiguous, "other"), row("pages", paging.paged, "small")});
}

std::string paging_chart(const Results& results, double width) {
    const Paging& paging = results.paging;
    constexpr double height = 250;
    Svg svg(width, height, "Conversations in the cache at once, step by step");
    std::size_t steps = 1, most = 1;
    for (const Paging::Side* side : {&paging.contiguous, &paging.paged}) {
        steps = (std::max)(steps, side->at_once.size());
        for (const std::size_t guests : side->at_once) most = (std::max)(most, guests);
    }
    const Panel panel(axis_room, above_room, width - axis_room - 10, height - above_room - below_room,
                      Scale::linear(0, static_cast<double>(steps)),
                      Scale::linear(0, round_up(static_cast<double>(most) * 1.05)));
    panel.draw_y(svg, "conversations at once");
    const auto draw = [&](const Paging::Side& side, std::string_view style) {
        const auto pixels = static_cast<std::size_t>(panel.width);
        const std::size_t stride = steps / pixels + 1;
        std::vector<XY> line;
        for (std::size_t i = 0; i < side.at_once.size(); i += stride)
            line.push_back(panel.at(static_cast<double>(i), static_cast<double>(side.at_once[i])));
        line.push_back(panel.at(static_cast<double>(side.at_once.size()), 0));
        svg.curve(line, with(style, "stroke"));
    };
    draw(paging.contiguous, "other");
    draw(paging.paged, "small");
    panel.draw_x(svg, "steps, of one token for each conversation", panel.x.ticks(width > 500 ? 6 : 3));
    return std::move(svg).finish();
}

std::string speculation_chart(const Results& results, double width) {
    const auto one = [&](bool speed, double across) {
        std::vector<BarRow> rows;
        double most = 0;
        for (const Speculation::Task& task : results.speculation.tasks) {
            for (const Speculation::Way& way : task.ways) {
                const bool plain = way.drafts == Speculation::Drafts::none;
                const double value = speed ? way.speed() : way.weight_bytes_per_token() / 1e6;
                rows.push_back({task.name + ", " + drafts_text(way.drafts, results.builds.small().label),
                                {{value, plain ? "other fill" : "small fill"}},
                                rounded(value)});
                most = (std::max)(most, value);
            }
        }
        return bars(across, speed ? "Speed of writing with drafts" : "Bytes of weights per token with drafts",
                    speed ? "tokens per second" : "MB of weights read per token", round_up(most), rows);
    };
    const double each = width > 500 ? (width - 32) / 2 : width;
    return "<div class=\"pair\">" + one(true, each) + one(false, each) + "</div>";
}

std::string reuse_wait_chart(const Results& results, double width) {
    return reuse_chart(
        results, width,
        {"Time to the first token of each call, with the cache of prefixes and without",
         "milliseconds to the first token (ms)", ""},
        [](const PrefixReuse::Side& side) { return side.first_seconds * 1e3; },
        [](const PrefixReuse::Side& side) { return duration(side.first_seconds); });
}

std::string reuse_tokens_chart(const Results& results, double width) {
    return reuse_chart(
        results, width,
        {"Tokens of the context computed in each call, with the cache of prefixes and without", "tokens read", ""},
        [](const PrefixReuse::Side& side) { return static_cast<double>(side.computed); },
        [](const PrefixReuse::Side& side) { return count(static_cast<std::size_t>(side.computed)); });
}

std::vector<RoofPoint> roof_points(const Results& results) {
    const Limits& limits = results.machine.limits;
    std::vector<RoofPoint> points;
    const auto add = [&](std::string name, const Build& build, const Work& work, double seconds) {
        const double arithmetic = arithmetic_share(limits, work, seconds);
        const double bandwidth = work.bytes() / seconds / read_limit(limits, build);
        points.push_back({build.label + ", " + std::move(name), build.full, work.intensity(),
                          work.operations() / seconds,
                          percent(arithmetic) + " of the arithmetic, " + percent(bandwidth) + " of the bandwidth"});
    };
    for (std::size_t i = 0; i < results.builds.builds.size(); ++i) {
        const Build& build = results.builds.builds[i];
        add("writing, 1 sequence", build, build.decode_work, build.decode_seconds);
        for (const Elevator& elevator : results.elevators) {
            if (elevator.build != i || elevator.rides.size() < 2) continue;
            const Elevator::Ride& ride = elevator.rides.back();
            add("writing, " + count(ride.sequences) + " sequences", build, ride.work, ride.seconds);
        }
        add("reading " + count(build.prefill_tokens) + " tokens", build, build.prefill_work, build.prefill_seconds);
    }
    return points;
}

std::string roofline_chart(const Results& results, double width) {
    const Limits& limits = results.machine.limits;
    const std::vector<RoofPoint> points = roof_points(results);
    double bandwidth = limits.bytes_per_second / 1e9;
    for (const Build& build : results.builds.builds) bandwidth = (std::max)(bandwidth, read_limit(limits, build) / 1e9);
    const double integers = limits.integer_operations_per_second / 1e9;
    const double floats = limits.float_operations_per_second / 1e9;

    double left = 0.2, right = 2000, low = bandwidth * left / 4;
    for (const RoofPoint& point : points) {
        left = (std::min)(left, point.intensity / 1.6);
        right = (std::max)(right, point.intensity * 1.6);
        low = (std::min)(low, point.speed / 1e9 / 2);
    }
    const double height = width > 500 ? 400 : 330;
    Svg svg(width, height, "Roofline: speed by operations per byte, under the limits of this machine");
    const Panel panel(axis_room, above_room, width - axis_room - 10, height - above_room - below_room,
                      Scale::log(left, right), Scale::log(low, (std::max)(integers, floats) * 2.2));
    panel.draw_y(svg, "billions of operations per second (Gop/s), log scale");

    // One roof per kind of arithmetic; both share the slope, which is the read bandwidth.
    const double highest = (std::max)(integers, floats);
    const double start = (std::max)(left, low / bandwidth);
    svg.line(panel.at(start, bandwidth * start), panel.at(highest / bandwidth, highest), "roof");
    const auto roof = [&](double speed, const std::string& name) {
        svg.line(panel.at(speed / bandwidth, speed), panel.at(right, speed), "roof");
        svg.text({panel.right() - 4, panel.y(speed) - 7}, name + rounded(speed) + " Gop/s", "label", "end");
    };
    const bool roomy = width > 500;
    roof(integers, roomy ? "8-bit arithmetic: " : "8-bit: ");
    roof(floats, roomy ? "F32 arithmetic: " : "F32: ");
    const double ridge = (std::min)(integers, floats) / bandwidth;
    svg.text_along(panel.at(start, bandwidth * start), panel.at(ridge, bandwidth * ridge),
                   "reading: " + rounded(bandwidth) + " GB/s");

    for (std::size_t i = 0; i < points.size(); ++i) {
        const XY at = panel.at(points[i].intensity, points[i].speed / 1e9);
        svg.dot(at, 9, points[i].full ? "full fill" : "small fill", points[i].name + ": " + points[i].share);
        svg.text({at.x, at.y + 4}, std::to_string(i + 1), "inside", "middle");
    }
    panel.draw_x(svg, "operations per byte that must be read, log scale", panel.x.ticks(6));
    return std::move(svg).finish();
}

}  // namespace experiment

// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "terminal.hpp"

#include "format.hpp"
#include "summary.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace experiment {
namespace {

/// Characters of UTF-8 text: what a column is as wide as.
std::size_t width(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}
std::string padded(std::string_view text, std::size_t columns) {
    std::string out(text);
    if (const std::size_t used = width(text); used < columns) out.append(columns - used, ' ');
    return out;
}

}  // namespace

std::string printable(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
        if (c1) {
            ++i;
        } else if ((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\t') {
            out += text[i];
        }
    }
    return out;
}

void print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}
void print_line(std::string_view text) { print(std::string(text) + "\n"); }

void print_heading(int number, std::string_view title, std::string_view look_at) {
    print_line();
    print(std::to_string(number));
    print("  ");
    print_line(title);
    print("   ");
    print_line(look_at);
}

void print_fact(std::string_view name, std::string_view value, std::string_view note) {
    std::string line = "  " + padded(printable(name), 28) + "  " + padded(printable(value), 22);
    if (!note.empty()) line += "  " + printable(note);
    line.erase(line.find_last_not_of(' ') + 1);
    print_line(line);
}

void print_summary(const Results& results) {
    const std::vector<Build>& builds = results.builds.builds;
    const std::string rule = "  " + std::string(34 + 18 * builds.size(), '-');
    const auto row = [](std::string_view name, const std::vector<std::string>& cells) {
        std::string line = "  " + padded(name, 34);
        for (const std::string& cell : cells) line += "  " + padded(cell, 16);
        line.erase(line.find_last_not_of(' ') + 1);
        print_line(line);
    };
    std::vector<std::string> labels;
    for (const Build& build : builds) labels.push_back(printable(build.label));
    print_line("\n" + rule);
    row("", labels);
    print_line(rule);
    for (const SummaryRow& line : summary_rows(results)) row(line.name, line.cells);
    print_line(rule);
    if (results.builds.scored > 0) {
        print_line("  " + padded("same next word", 34) + "  " +
                   exact_percent(results.builds.agreed, results.builds.scored));
    }
    print_line("  " + padded("pause, " + count(results.pause.prompt_tokens) + " tokens of prompt", 34) + "  " +
               duration(results.pause.first_token_seconds) + ", " + percent(results.pause.prefill_share) +
               " of the arithmetic peak");
    print_line("  " + padded("drip after it", 34) + "  " + rate(1.0 / results.pause.median_seconds) + ", " +
               percent(results.pause.decode_share) + " of the read bandwidth");
    print_line(rule);
}

std::string summary_line(const Results& results) {
    std::string line = printable(results.model) + " on " + printable(results.machine.processor) + ", " +
                       count(results.machine.threads) + (results.machine.threads == 1 ? " thread" : " threads") + ", " +
                       results.machine.limits.instruction_set + ":";
    for (std::size_t i = results.builds.builds.size(); i > 0; --i) {
        const Build& build = results.builds.builds[i - 1];
        line += ' ';
        line += printable(build.label) + " reads " + rate(build.prefill_speed()) + " and writes " +
                rate(build.decode_speed()) + (i > 1 ? ";" : "");
    }
    return line + " (Decant)";
}

}  // namespace experiment

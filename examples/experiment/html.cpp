// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
#include "charts.hpp"
#include "format.hpp"
#include "html_text.hpp"
#include "report.hpp"
#include "style.hpp"
#include "summary.hpp"
#include "terminal.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace experiment {
namespace {

constexpr double wide = 778;    // pixels of a plot beside its text
constexpr double narrow = 350;  // and on a telephone

struct Key {
    std::string style;
    std::string name;
};

std::string legend(const std::vector<Key>& keys) {
    std::string out = "<ul class=\"legend\">";
    for (const Key& key : keys) out += "<li><i class=\"" + key.style + "\"></i>" + escaped(key.name) + "</li>";
    return out + "</ul>\n";
}

using Chart = std::string (*)(const Results&, double);

/// A plot in two widths, of which the style sheet shows one.
std::string figure(const Results& results, Chart chart, std::string_view title, std::string_view note,
                   const std::vector<Key>& keys = {}) {
    std::string out = "<figure><figcaption>" + escaped(title);
    if (!note.empty()) out += "<span>" + escaped(note) + "</span>";
    out += "</figcaption>\n";
    if (!keys.empty()) out += legend(keys);
    return out + "<div class=\"wide\">" + chart(results, wide) + "</div><div class=\"narrow\">" +
           chart(results, narrow) + "</div></figure>\n";
}

std::string operations_text(double operations) {
    return operations >= 999.5e9 ? rounded(operations / 1e12) + " trillion" : rounded(operations / 1e9) + " billion";
}

/// Keeps a number and its unit on one line.
std::string unbroken(std::string text) {
    for (std::size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at + 1)) {
        if (at == 0 || text[at - 1] < '0' || text[at - 1] > '9') continue;
        const std::string_view rest = std::string_view(text).substr(at + 1);
        for (const std::string_view unit : {"%", "s", "ms", "kB", "MB", "GB", "tok/s", "GB/s", "Gop/s"}) {
            const bool ends =
                rest.size() == unit.size() || std::string_view(" .,:;)<").find(rest[unit.size()]) != rest.npos;
            if (rest.starts_with(unit) && ends) {
                text.replace(at, 1, "\u00A0");
                break;
            }
        }
    }
    return text;
}

/// Begins a chapter; `text` may hold markup, and what it quotes is escaped already.
std::string chapter(std::string_view number, std::string_view title, std::string_view look,
                    const std::vector<std::string>& text) {
    std::string out = "<section><div class=\"say\">";
    if (!number.empty()) out += "<p class=\"number\">" + std::string(number) + "</p>";
    out += "<h2>" + std::string(title) + "</h2><p class=\"look\">" + std::string(look) + "</p>";
    for (const std::string& paragraph : text) out += "<p>" + unbroken(paragraph) + "</p>";
    return out + "</div><div class=\"show\">\n";
}
constexpr std::string_view chapter_end = "</div></section>\n";

std::vector<Key> build_keys(const Results& results) {
    std::vector<Key> keys;
    for (const Build& build : results.builds.builds) keys.push_back({std::string(style_of(build)), build.label});
    return keys;
}

std::string stat(std::string_view value, std::string_view text) {
    return "<div><dt>" + escaped(value) + "</dt><dd>" + escaped(text) + "</dd></div>\n";
}

std::string times(double factor) { return rounded(factor) + "\u00D7"; }

std::string opening(const Results& results) {
    const Machine& machine = results.machine;
    std::string out =
        "<header><p class=\"eyebrow\">Decant: the physics of inference</p>"
        "<h1>Where the time and the memory of a language model go</h1><p class=\"on\">" +
        escaped(results.model) + ", " +
        escaped(rounded(static_cast<double>(results.parameters) / 1e6) + " million weights in " +
                count(results.layers) + " layers, on " + machine.processor + ", " + count(machine.threads) +
                (machine.threads == 1 ? " thread, " : " threads, ") + machine.limits.instruction_set) +
        "</p></header>\n<dl class=\"stats\">";
    const auto& builds = results.builds.builds;
    if (builds.size() == 2) {
        out += stat(times(static_cast<double>(builds[0].weight_bytes) / static_cast<double>(builds[1].weight_bytes)),
                    "fewer bytes of weights in " + builds[1].label + " than in " + builds[0].label);
        out += stat(times(builds[1].decode_speed() / builds[0].decode_speed()), "faster writing, one answer at a time");
    } else {
        out += stat(megabytes(builds[0].weight_bytes), "of weights");
        out += stat(rounded(builds[0].decode_speed()) + " tok/s", "of writing, one answer at a time");
    }
    out += stat(duration(results.pause.first_token_seconds),
                "of silence while " + count(results.pause.prompt_words) + " words are read");
    const Elevator& elevator = results.elevators.back();
    const Elevator::Ride& last = elevator.rides.back();
    out += stat(times(last.total_speed() / elevator.rides.front().total_speed()),
                "more tokens per second when " + count(last.sequences) + " sequences ride together");
    return out + "</dl>\n<div class=\"paste\">" + escaped(summary_line(results)) + "</div>\n";
}

std::string answers(const Builds& found) {
    std::string out =
        "<figure><figcaption>The answers, always the likeliest next token</figcaption>"
        "<p class=\"question\">\u201C" +
        escaped(found.prompt) + "\u201D</p><div class=\"answers\">";
    for (const Build& build : found.builds) {
        out += "<div class=\"" + std::string(style_of(build)) + "\"><h3>" + escaped(build.label) + "</h3><p>" +
               escaped(build.answer) + (build.answer_cut ? " [\u2026]" : "") + "</p></div>";
    }
    return out + "</div></figure>\n";
}

std::string two_builds(const Results& results) {
    const Builds& found = results.builds;
    std::vector<std::string> text;
    for (const Build& build : found.builds) {
        text.push_back("<b class=\"name " + std::string(style_of(build)) + "\">" + escaped(build.label) + "</b> " +
                       escaped(build.origin) + ": " + rounded(build.bits_per_weight) + " bits per weight.");
    }
    if (found.builds.size() == 2) {
        text.push_back(
            "Both read the same page of " + count(found.scored) +
            " tokens, and at every place named the token that they thought most likely: the same one at <b>" +
            exact_percent(found.agreed, found.scored) + "</b> of the places. Their answers below share the first " +
            count(found.common_tokens) + " tokens.");
        for (const Build& build : found.builds) {
            if (build.full && !build.given) {
                text.push_back(
                    "Every weight is the same number in both builds. What differs is that block formats are "
                    "multiplied by activations rounded to 8 bits.");
            }
        }
    } else {
        text.push_back("There is no second build: " + escaped(found.missing));
    }
    std::string out =
        chapter("1", "Two builds of one model", "Look at what fewer bytes change, and at what they do not.", text);
    std::vector<Key> keys;
    for (const Build& build : found.builds) {
        const std::string style(style_of(build));
        keys.push_back({style, build.label + " weights"});
        if (build.resident) {
            keys.push_back({style + " strong", build.label + " resident, its own"});
            if (build.resident->file_bytes > 1000000)
                keys.push_back({style + " pale", build.label + " resident, mapped file"});
        }
    }
    out += figure(results, memory_chart, "Memory",
                  "Resident: what this process grew by while the build answered, its cache and workspace included. "
                  "Pages of a mapped file are shared between processes.",
                  keys);
    out += figure(results, speed_chart, "Speed",
                  "Reading takes many tokens in one pass, writing one; both measured on the same text.");
    return out + answers(found) + std::string(chapter_end);
}

std::string pause_and_drip(const Results& results) {
    const PauseAndDrip& found = results.pause;
    const Work& token = found.decode_work;
    std::string out = chapter(
        "2", "The pause and the drip",
        "Look at the silence before the first token, and at how even the rhythm is after it.",
        {"A prompt of " + count(found.prompt_words) + " words, " + count(found.prompt_tokens) +
             " tokens, is read at once, and that is <b>arithmetic</b>: " +
             operations_text(found.prefill_work.operations()) +
             " operations. At the peak of this machine they "
             "would take " +
             duration(found.prefill_share * found.first_token_seconds) + ". It took " +
             duration(found.first_token_seconds) + ", a share of " + percent(found.prefill_share) + ".",
         "Then every token needs all weights once, and all that the cache holds: " + megabytes(token.weight_bytes) +
             " and " + megabytes(token.cache_bytes) +
             ". That is <b>bytes moved</b>: at the read bandwidth of this machine they "
             "would take " +
             duration(found.decode_share * found.median_seconds) + ". A token took " + duration(found.median_seconds) +
             ", a share of " + percent(found.decode_share) + ".",
         "What is missing to 100 % is what better kernels, and a quieter machine, could still win."});
    out += figure(results, timeline_chart, "From the prompt to the last token",
                  "Light cuts in the pause: the prompt is read in pieces of 512 tokens. One line for every token.");
    out += figure(results, drip_chart, "The drip, magnified", "");
    return out + std::string(chapter_end);
}

std::string cache(const Results& results) {
    const CacheEffect& found = results.cache;
    const auto& chunks = results.pause.chunks;
    std::string out = chapter(
        "3", "The cache", "Look at what the next token costs when nothing was kept, and at what keeping costs.",
        {"Keys and values of past tokens are kept. Without them, each new token means reading everything again.",
         found.all_equal() ? "The scores of the next token were compared at every point: <b>equal, bit by bit</b>."
                           : "The scores of the next token <b>differ</b> between the two ways.",
         "The price is " + bytes_text(static_cast<double>(found.bytes_per_token)) + " for every token (" +
             escaped(found.entries) + " entries): after " + count(chunks.back().tokens) + " tokens " +
             megabytes(chunks.back().cache_bytes) + ", beside " + megabytes(results.builds.small().weight_bytes) +
             " of weights."});
    out += figure(results, cache_time_chart, "The next token, with and without", "One of the two lines stays flat.");
    out +=
        figure(results, cache_bytes_chart, "What the cache weighs", "Measured while the prompt of chapter 2 was read.");
    return out + std::string(chapter_end);
}

std::string elevator(const Results& results) {
    std::vector<std::string> text{
        "Weights are read once per pass, whoever waits on them. More sequences in a pass share the trip, as riders "
        "share an elevator: each waits a little longer, and together they get far more."};
    for (const Elevator& found : results.elevators) {
        const Elevator::Ride& first = found.rides.front();
        const Elevator::Ride& last = found.rides.back();
        text.push_back("<b class=\"name " + std::string(style_of(results.builds.builds[found.build])) + "\">" +
                       escaped(results.builds.builds[found.build].label) + "</b> " + count(last.sequences) +
                       " sequences: " + times(last.total_speed() / first.total_speed()) + " the tokens, " +
                       times(last.seconds / first.seconds) + " the wait.");
    }
    std::string out =
        chapter("4", "The elevator", "Look at how little longer a pass takes when more sequences ride along.", text);
    out += figure(results, elevator_chart, "One pass, more and more riders",
                  "Each sequence writes its own text and has its own cache.", build_keys(results));
    return out + std::string(chapter_end);
}

std::string attention_and_paging(const Results& results) {
    const Attention& attention = results.attention;
    const Paging& paging = results.paging;
    const auto& last = attention.points.back();
    const auto total = [](const Attention::Traffic& t) { return static_cast<double>(t.read_bytes + t.written_bytes); };
    double difference = 0;
    for (const auto& point : attention.points)
        difference = point.difference > difference ? point.difference : difference;
    std::string out = chapter(
        "5", "Flash attention and paging",
        "Look at the bytes that never move, and at the memory that is never set aside.",
        {"Attention compares every token with every earlier one. Written down, these scores are a matrix that grows "
         "with the square of the text: " +
             megabytes(last.naive.extra_bytes) + " for one head of one layer at " + count(last.tokens) +
             " tokens. In tiles they never leave fast memory: " + times(total(last.naive) / total(last.tiled)) +
             " fewer bytes moved, and the same result (largest difference " + fixed(difference * 1e6, 2) +
             "\u00B710\u207B\u2076).",
         "Nobody knows how long a conversation will be. A slot for the longest wastes most of itself; pages of " +
             count(paging.block_tokens) + " tokens are taken as they are needed: " +
             times(paging.paged.mean_at_once / paging.contiguous.mean_at_once) +
             " the conversations in the same memory."});
    out += figure(results, attention_chart, "Bytes moved by attention",
                  "One head of " + count(attention.head_dim) + " numbers; every load and store counted while it ran.",
                  {{"other", "matrix of scores: read"},
                   {"other pale", "matrix of scores: written"},
                   {"small", "in tiles: read"},
                   {"small pale", "in tiles: written"}});
    out +=
        figure(results, paging_bars, "What is in the cache\u2019s memory",
               count(paging.conversations) + " conversations of random length, up to " + count(paging.slot_tokens) +
                   " tokens, share room for " + count(paging.cache_tokens) + "; averages while others wait to come in.",
               {{"other", "slots: tokens"},
                {"other pale", "slots: taken but empty"},
                {"small", "pages: tokens"},
                {"small pale", "pages: taken but empty"},
                {"free", "free"}});
    out += figure(results, paging_chart, "How many fit at once",
                  "The same conversations, in the same order, until all are served.",
                  {{"other", "slots of the longest length"}, {"small", "pages, by the library\u2019s own block pool"}});
    return out + std::string(chapter_end);
}

std::string speculation(const Results& results) {
    const Speculation& found = results.speculation;
    const std::string& small = results.builds.small().label;
    using Drafts = Speculation::Drafts;
    std::vector<std::string> text{
        "One sequence alone pays a trip over all weights for every token. If somebody guesses the next tokens, one "
        "trip "
        "checks all guesses at once: right ones are kept, and the first wrong one ends the guess. The text is the same "
        "either way."};
    bool same = true;
    for (const Speculation::Task& task : found.tasks) {
        same = same && task.same;
        const Speculation::Way& plain = task.ways.front();
        if (const auto* way = task.find(Drafts::lookup); way != nullptr && way->drafted > 0) {
            text.push_back("<b>" + escaped(task.name) + "</b>, guesses from what was written before: " +
                           percent(way->accepted_share()) + " of " + count(static_cast<std::size_t>(way->drafted)) +
                           " right, " + rounded(way->tokens_per_pass()) + " tokens per pass, " +
                           times(way->speed() / plain.speed()) + " the speed.");
        }
        if (const auto* way = task.find(Drafts::small)) {
            text.push_back("<b>" + escaped(task.name) + "</b>, the " + escaped(small) +
                           " build guesses for the other: " + percent(way->accepted_share()) + " of " +
                           count(static_cast<std::size_t>(way->drafted)) + " right, " +
                           rounded(way->tokens_per_pass()) + " tokens per pass, " +
                           times(way->speed() / plain.speed()) + " the speed.");
        }
        if (const auto* way = task.find(Drafts::contrary)) {
            const double loss = way->seconds / plain.seconds - 1;
            text.push_back(
                "A draft model that is always wrong (all its scores have the other sign) was asked for only " +
                count(static_cast<std::size_t>(way->drafted)) + " tokens, and cost " +
                (loss > 0 ? percent(loss) : std::string("nothing")) +
                " of this answer's time. An engine lets drafts that do not pay take 2 % of the time, after a "
                "start of a few passes to try.");
        }
    }
    text.push_back(same ? "All ways wrote <b>the same, token for token</b>."
                        : "The ways wrote <b>different texts</b>.");
    std::string out = chapter("6", "Guessing ahead",
                              "Look at how many tokens one trip over the weights brings when guesses are right.", text);
    out += figure(results, speculation_chart, "One answer, with and without guesses",
                  "Written by the " + results.builds.builds[found.build].label +
                      " build. Weights of the draft model are counted, too.",
                  {{"other", "one by one"}, {"small", "with drafts"}});
    return out + std::string(chapter_end);
}

std::string prefix_reuse(const Results& results) {
    const PrefixReuse& found = results.reuse;
    const PrefixReuse::Side with = found.sum(&PrefixReuse::Call::with),
                            without = found.sum(&PrefixReuse::Call::without);
    const PrefixReuse::Call& last = found.calls.back();
    std::string out = chapter(
        "7", "The same beginning", "Look at how soon an agent answers when only what is new of its context is read.",
        {"An agent sends its whole context with every call, and it is the same as last time but for its end. What was "
         "computed is found again, block by block, by its tokens: " +
             count(static_cast<std::size_t>(with.computed)) + " tokens were read in " + count(found.calls.size()) +
             " calls instead of " + count(static_cast<std::size_t>(without.computed)) +
             ". What was new, and a block for each call, would have been " +
             count(static_cast<std::size_t>(found.most)) + ".",
         "The last call, of " + count(last.context) + " tokens, begins to answer after " +
             duration(last.with.first_seconds) + " instead of " + duration(last.without.first_seconds) +
             ". It is <b>arithmetic</b> that is saved: all calls together, their answers included, took " +
             operations_text(with.operations) + " operations instead of " + operations_text(without.operations) +
             ". They moved " + megabytes(with.bytes) + " instead of " + megabytes(without.bytes) +
             ": a pass reads all weights, whether its rows are few or many.",
         found.same ? "Both wrote <b>the same, token for token</b>." : "They wrote <b>different texts</b>."});
    out += figure(results, reuse_wait_chart, "The wait for the first token", "One of the two lines stays flat.");
    out += figure(results, reuse_tokens_chart, "What is read in each call",
                  "Each call adds what a tool has said and the model\u2019s answer of " + count(found.answer_tokens) +
                      " tokens.");
    return out + std::string(chapter_end);
}

std::string roofline(const Results& results) {
    const Limits& limits = results.machine.limits;
    std::vector<std::string> text{
        "Work that does little with each byte runs into the slope, which is memory; work that does much with it runs "
        "into a ceiling, which is arithmetic.",
        "The limits were measured by this program in the same run, on the same threads, with the instructions that "
        "the model uses: the best of many short rounds before and after."};
    for (const Build& build : results.builds.builds) {
        const bool cached = build.weight_bytes < limits.last_cache_bytes;
        if (!cached || build.bytes_per_second <= limits.bytes_per_second * 1.1) continue;
        text.push_back("The weights of " + escaped(build.label) + " (" + megabytes(build.weight_bytes) +
                       ") are read faster than memory allows, since this processor has a cache of " +
                       megabytes(limits.last_cache_bytes) + "; its limit is that speed, " +
                       rounded(build.bytes_per_second / 1e9) + " GB/s.");
    }
    std::string out = chapter("", "Where this run landed", "Look at which limit each kind of work lies under.", text);
    out += figure(results, roofline_chart, "Roofline of this machine", "", build_keys(results));
    out += "<ol class=\"points\">";
    const std::vector<RoofPoint> points = roof_points(results);
    for (std::size_t i = 0; i < points.size(); ++i) {
        out += "<li><b class=\"" + std::string(points[i].full ? "full" : "small") + "\">" + std::to_string(i + 1) +
               "</b><span>" + escaped(points[i].name) + "<span>" + escaped(points[i].share) + "</span></span></li>";
    }
    return out + "</ol>" + std::string(chapter_end);
}

std::string table(const Results& results) {
    std::string out = chapter("", "All in one table", "Look up what you want to tell others.",
                              {"More digits, and every single measurement, are in <b>decant-report.json</b> beside "
                               "this page."});
    out += "<table><thead><tr><th></th>";
    for (const Build& build : results.builds.builds)
        out += "<th class=\"" + std::string(style_of(build)) + "\">" + escaped(build.label) + "</th>";
    out += "</tr></thead><tbody>";
    for (const SummaryRow& row : summary_rows(results)) {
        out += "<tr><td>" + escaped(row.name) + "</td>";
        for (const std::string& cell : row.cells) out += "<td>" + escaped(cell) + "</td>";
        out += "</tr>";
    }
    return out + "</tbody></table>" + std::string(chapter_end);
}

}  // namespace

std::string to_html(const Results& results) {
    return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
           escaped(results.model) + ": the physics of inference</title>\n<style>" + std::string(style_sheet) +
           "</style></head>\n<body><main>\n" + opening(results) + "<div class=\"chapters\">" + two_builds(results) +
           pause_and_drip(results) + cache(results) + elevator(results) + attention_and_paging(results) +
           speculation(results) + prefix_reuse(results) + roofline(results) + table(results) +
           "</div><footer><p>Everything here was measured in one run of " + duration(results.total_seconds) +
           "; nothing is extrapolated. Times are medians of single tokens or the best of a few rounds, bytes and "
           "operations are counted while the model runs. MB are millions of bytes; an operation is a multiplication or "
           "an addition.</p></footer>\n</main></body></html>\n";
}

}  // namespace experiment

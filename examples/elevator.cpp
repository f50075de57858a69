// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// The elevator: people arrive at random, some want a haiku and some an essay. Once they are taken up in full cars that
// leave when all have stepped out (static batching), once whenever a place is free (continuous batching). Writes a page
// that shows who sat where, and what it did to the waiting.
//
//     elevator --model FILE.gguf [--asks 40] [--seats 8] [--essay 160] [--load PERCENT] [--threads N] [--html FILE]

#include <decant/decant.hpp>

#include "experiment/plot.hpp"
#include "experiment/style.hpp"
#include "experiment/svg.hpp"
#include "support/options.hpp"
#include "support/progress.hpp"
#include "support/random.hpp"
#include "support/timing.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::string_view system_prompt =
    "You are the poet of a small hotel by the sea. Guests come to your table in the lobby, name a thing, and you write "
    "about it by hand. Some want three lines to take home, some want to sit and read. You never refuse, you never "
    "explain, and you always begin at once. The guest says: ";
constexpr std::string_view things[] = {
    "the lighthouse", "rain on the window", "my grandmother's piano", "the last train",
    "salt",           "an empty chair",     "the smell of bread",     "a red kite"};

/// One guest.
struct Guest {
    double arrives = 0.0;  // seconds
    bool essay = false;
    std::size_t tokens = 0;
    std::vector<decant::Token> prompt;
};

/// What happened to a guest: seconds since the start.
struct Ride {
    std::size_t seat = 0;
    std::vector<double> tokens;
};

struct Day {
    std::vector<Ride> rides;
    double seconds = 0.0;
};

struct Setup {
    decant::Tokenizer tokenizer;
    decant::Model<decant::Simd> model;
    std::size_t seats;
    std::size_t threads;
    std::size_t essay;
};

std::size_t done(const Day& day, const std::vector<Guest>& guests) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < guests.size(); ++i) count += day.rides[i].tokens.size() == guests[i].tokens ? 1 : 0;
    return count;
}

void wait_until(const examples::Stopwatch& clock, double seconds) {
    const double left = seconds - clock.seconds();
    if (left > 0.0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
}

/// Cars: whoever waits gets in, up to the number of seats; nobody gets in before all are out.
Day ride_in_cars(const Setup& setup, const std::vector<Guest>& guests) {
    decant::Context context{setup.model, decant::ThreadPool(setup.threads), {.rows = 512, .sequences = 16}};
    const decant::KvCache cache{context, {.tokens = setup.seats * (setup.essay + 160)}};
    examples::Progress progress("static batching");
    Day day;
    day.rides.resize(guests.size());
    const examples::Stopwatch clock;
    for (std::size_t next = 0; next < guests.size();) {
        wait_until(clock, guests[next].arrives);
        struct Seat {
            std::size_t guest;
            decant::Sequence<decant::Simd> sequence;
            decant::Token token{};
        };
        std::vector<Seat> car;
        while (next < guests.size() && car.size() < setup.seats && guests[next].arrives <= clock.seconds())
            car.push_back({next++, cache.sequence().value()});
        decant::Sampler sampler{{.temperature = 0.0f}};
        for (std::size_t s = 0; s < car.size(); ++s) {
            Seat& seat = car[s];
            const auto logits = context.prefill(seat.sequence, guests[seat.guest].prompt).value();
            seat.token = sampler.pick(logits, std::as_const(seat.sequence).tokens()).value();
            day.rides[seat.guest].seat = s;
            day.rides[seat.guest].tokens.push_back(clock.seconds());
        }
        while (true) {
            progress.show(done(day, guests), guests.size());
            std::vector<Seat*> riding;
            std::vector<decant::PassPart<decant::Simd>> parts;
            for (Seat& seat : car) {
                if (day.rides[seat.guest].tokens.size() == guests[seat.guest].tokens) continue;
                riding.push_back(&seat);
                parts.push_back({&seat.sequence, {&seat.token, 1}});
            }
            if (riding.empty()) break;
            const auto logits = context.pass(parts).value();
            for (std::size_t i = 0; i < riding.size(); ++i) {
                riding[i]->token = sampler.pick(logits.row(i), std::as_const(riding[i]->sequence).tokens()).value();
                day.rides[riding[i]->guest].tokens.push_back(clock.seconds());
            }
        }
    }
    day.seconds = clock.seconds();
    return day;
}

/// Seats: whoever waits gets the next free one.
Day ride_in_seats(const Setup& setup, const std::vector<Guest>& guests) {
    auto engine = decant::Engine<decant::Simd>::create(setup.model, setup.tokenizer, decant::ThreadPool(setup.threads),
                                                       {.cache_tokens = (setup.seats + 4) * (setup.essay + 160),
                                                        .sequences = static_cast<std::uint32_t>(setup.seats)})
                      .value();
    examples::Progress progress("continuous batching");
    Day day;
    day.rides.resize(guests.size());
    std::vector<bool> taken(setup.seats);
    std::vector<std::size_t> seat_of(guests.size());
    const examples::Stopwatch clock;
    bool more = false;
    for (std::size_t next = 0; next < guests.size() || more;) {
        if (!more) wait_until(clock, guests[next].arrives);
        for (; next < guests.size() && guests[next].arrives <= clock.seconds(); ++next) {
            decant::Ask ask;
            ask.prompt = guests[next].prompt;
            ask.max_tokens = guests[next].tokens;
            ask.ignore_end = true;
            ask.sampler = decant::Sampler{{.temperature = 0.0f}};
            ask.listener = [&, guest = next](const decant::Delta& delta) {
                Ride& ride = day.rides[guest];
                if (ride.tokens.empty()) {
                    ride.seat = static_cast<std::size_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
                    if (ride.seat < taken.size()) taken[ride.seat] = true;
                }
                if (delta.token) ride.tokens.push_back(clock.seconds());
                if (delta.finish != decant::FinishReason::none && ride.seat < taken.size()) taken[ride.seat] = false;
            };
            static_cast<void>(engine.ask(std::move(ask)).value());
        }
        more = engine.step().value();
        progress.show(done(day, guests), guests.size());
    }
    day.seconds = clock.seconds();
    return day;
}

double quantile(std::vector<double> values, double q) {
    if (values.empty()) return 0.0;
    std::sort(values.begin(), values.end());
    return values[std::min(static_cast<std::size_t>(q * static_cast<double>(values.size())), values.size() - 1)];
}

/// What the guests felt.
struct Summary {
    double tokens_per_second = 0.0;
    std::vector<double> first, between;  // seconds

    Summary(const Day& day, const std::vector<Guest>& guests) {
        std::size_t tokens = 0;
        for (std::size_t i = 0; i < guests.size(); ++i) {
            const std::vector<double>& times = day.rides[i].tokens;
            tokens += times.size();
            first.push_back(times.front() - guests[i].arrives);
            for (std::size_t t = 1; t < times.size(); ++t) between.push_back(times[t] - times[t - 1]);
        }
        tokens_per_second = static_cast<double>(tokens) / day.seconds;
    }
};

void print(std::string_view name, const Summary& s) {
    std::printf("%-20s %8.0f  %8.2f %8.2f %8.2f  %10.0f %8.0f\n", std::string(name).c_str(), s.tokens_per_second,
                quantile(s.first, 0.5), quantile(s.first, 0.95), quantile(s.first, 0.99),
                quantile(s.between, 0.5) * 1e3, quantile(s.between, 0.99) * 1e3);
}

std::string seats_chart(std::string_view title, const Day& day, const std::vector<Guest>& guests, std::size_t seats,
                        double seconds) {
    using experiment::Scale;
    const double row = 18.0, height = row * static_cast<double>(seats);
    experiment::Svg svg(1080, height + 90, title);
    const experiment::Panel panel(60, 30, 1000, height, Scale::linear(0, seconds),
                                  Scale::linear(0, static_cast<double>(seats)));
    svg.text({26, 18}, title, "axis");
    for (std::size_t s = 0; s < seats; ++s)
        svg.text({50, panel.top + row * static_cast<double>(s) + 13}, std::to_string(s + 1), "tick", "end");
    for (std::size_t i = 0; i < guests.size(); ++i) {
        const Ride& ride = day.rides[i];
        const double from = panel.x(ride.tokens.front()), to = panel.x(ride.tokens.back());
        svg.bar(from, panel.top + row * static_cast<double>(ride.seat) + 2, std::max(to - from, 1.5), row - 4,
                guests[i].essay ? "full fill" : "small fill",
                std::string(guests[i].essay ? "essay" : "haiku") + ", waited " +
                    experiment::fixed(ride.tokens.front() - guests[i].arrives, 2) + " s");
    }
    panel.draw_x(svg, "seconds", panel.x.ticks(10));
    return std::move(svg).finish();
}

void write_page(const std::string& file, const std::vector<Guest>& guests, const Day& cars, const Day& seats,
                std::size_t count) {
    const Summary a(cars, guests), b(seats, guests);
    const double seconds = std::max(cars.seconds, seats.seconds);
    const auto row = [](std::string_view name, const Summary& s) {
        using experiment::fixed;
        return "<tr><td>" + std::string(name) + "</td><td>" + fixed(s.tokens_per_second, 0) + "</td><td>" +
               fixed(quantile(s.first, 0.5), 2) + "</td><td>" + fixed(quantile(s.first, 0.99), 2) + "</td><td>" +
               fixed(quantile(s.between, 0.5) * 1e3, 0) + "</td><td>" + fixed(quantile(s.between, 0.99) * 1e3, 0) +
               "</td></tr>\n";
    };
    std::ofstream out(file, std::ios::binary);
    out << "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
           "content=\"width=device-width, initial-scale=1\"><title>The elevator</title><style>"
        << experiment::style_sheet
        << "table{border-collapse:collapse;margin:24px 0}td,th{padding:4px 16px;text-align:right;border-bottom:1px "
           "solid "
           "var(--rule)}td:first-child,th:first-child{text-align:left}.seats{overflow-x:auto}</style></"
           "head><body><main>\n"
        << "<header><h1>The elevator</h1><p class=\"on\">" << guests.size()
        << " guests want a haiku (short bars) or an essay (long bars). In cars, everybody waits for the last to step "
           "out; by "
           "seats, whoever waits gets the next free one, and the beginning that all prompts share is computed "
           "once.</p></header>\n<table><tr><th></th><th>tokens/s</th><th>first "
           "token, median s</th><th>99 %</th><th>next token, median ms</th><th>99 %</th></tr>\n"
        << row("cars (static batching)", a) << row("seats (continuous batching)", b)
        << "</table>\n<div class=\"seats\">" << seats_chart("In cars", cars, guests, count, seconds)
        << "</div><div class=\"seats\">" << seats_chart("By seats", seats, guests, count, seconds)
        << "</div>\n</main></body></html>\n";
    if (!out.flush()) throw std::runtime_error("cannot write " + file);
}

/// Tokens per second of a full elevator.
double capacity(const Setup& setup, const std::vector<decant::Token>& prompt) {
    std::vector<Guest> guests(setup.seats);
    for (Guest& guest : guests) guest = {0.0, false, 24, prompt};
    return Summary(ride_in_seats(setup, guests), guests).tokens_per_second;
}

}  // namespace

int main(int argc, char** argv) try {
    const examples::Options options(argc, argv,
                                    {"--model", "--asks", "--seats", "--essay", "--load", "--threads", "--html"});
    if (!options.given("--model")) throw examples::UsageError("give a file: --model FILE.gguf");
    auto weights = decant::Weights::open(options.text("--model", "")).value();
    const Setup setup{decant::Tokenizer::from(weights).value(), decant::Model<decant::Simd>::bind(weights).value(),
                      options.count("--seats", 8, 1, 16), options.count("--threads", 0, 0, 1024),
                      options.count("--essay", 160, 32, 2000)};
    examples::Random random(1);
    std::vector<Guest> guests(options.count("--asks", 40, 1, 10000));
    std::size_t tokens = 0;
    for (Guest& guest : guests) {
        guest.essay = random.below(10) < 3;
        guest.tokens = guest.essay ? setup.essay : 20;
        const std::string text = std::string(system_prompt) + (guest.essay ? "an essay about " : "a haiku about ") +
                                 std::string(things[random.below(std::size(things))]) + ".\n\n";
        guest.prompt = setup.tokenizer.encode(text, {.bos = true});
        tokens += guest.tokens;
    }
    const double load = static_cast<double>(options.count("--load", 80, 1, 1000)) / 100.0;
    const double per_second = capacity(setup, guests.front().prompt) * load;
    const double between = static_cast<double>(tokens) / static_cast<double>(guests.size()) / per_second;
    double now = 0.0;
    for (Guest& guest : guests) guest.arrives = now += random.exponential(between);

    const Day cars = ride_in_cars(setup, guests);
    const Day seats = ride_in_seats(setup, guests);
    std::printf("%zu guests in %.1f s, %zu seats\n\n%-20s %8s  %26s  %19s\n", guests.size(), now, setup.seats, "",
                "tokens/s", "first token: 50 95 99 %, s", "next: 50 99 %, ms");
    print("static batching", Summary(cars, guests));
    print("continuous batching", Summary(seats, guests));
    const std::string file = options.text("--html", "elevator.html");
    write_page(file, guests, cars, seats, setup.seats);
    std::printf("\nWho sat where: %s\n", file.c_str());
} catch (const examples::UsageError& error) {
    std::cerr << "elevator: " << error.what() << '\n';
    return 2;
} catch (const std::exception& error) {
    std::cerr << "elevator: " << error.what() << '\n';
    return 1;
}

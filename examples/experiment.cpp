// Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
// experiment --model FILE: the physics of inference, made visible in seven short chapters. Everything is measured while
// you wait (under three minutes on two cores), nothing is extrapolated. Ends with a table, a JSON file and an HTML
// page.

#include "experiment/chapters.hpp"
#include "experiment/report.hpp"
#include "experiment/settings.hpp"
#include "experiment/terminal.hpp"
#include "support/options.hpp"
#include "support/timing.hpp"

#include <decant/core/processors.hpp>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace {

constexpr const char* usage =
    "usage: experiment --model FILE [--prompt TEXT] [--threads N] [--tokens N] [--out FOLDER] [--quick]\n"
    "  --model    a GGUF or safetensors file, or a Hugging Face folder\n"
    "  --prompt   the question that both builds answer (default: why the sky is blue)\n"
    "  --threads  how many threads work (default: one per processor)\n"
    "  --tokens   longest answer, in tokens (default: 120, or what takes 12 seconds)\n"
    "  --out      where decant-report.html and decant-report.json go (default: here)\n"
    "  --quick    shorter texts and fewer repetitions\n";

experiment::Settings settings_of(int argc, char** argv) {
    const examples::Options options(argc, argv, {"--model", "--prompt", "--threads", "--tokens", "--out"}, {"--quick"});
    experiment::Settings settings;
    settings.model = options.text("--model", "");
    if (settings.model.empty()) throw examples::UsageError("--model is missing");
    settings.prompt = options.text("--prompt", "Why is the sky blue? Explain it in three sentences.");
    settings.threads = options.count("--threads", decant::available_processors(), 1, 1024);
    if (options.given("--tokens")) settings.tokens = options.count("--tokens", 1, 1, 1000000);
    settings.out = options.text("--out", ".");
    settings.quick = options.given("--quick");
    return settings;
}

/// A place for the reports; found out before minutes are spent on measuring.
void prepare(const std::filesystem::path& folder) {
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    if (!std::filesystem::is_directory(folder, failure))
        throw std::runtime_error(folder.string() + ": is not a folder and cannot be made one");
    for (const char* report : {"decant-report.json", "decant-report.html"}) {
        if (!std::ofstream(folder / report, std::ios::binary | std::ios::app))
            throw std::runtime_error((folder / report).string() + ": cannot be written");
    }
}

std::filesystem::path write(const std::filesystem::path& file, const std::string& text) {
    std::ofstream out(file, std::ios::binary);
    out << text << std::flush;
    if (!out) throw std::runtime_error(file.string() + ": cannot be written");
    return std::filesystem::absolute(file).lexically_normal();
}

void run(const experiment::Settings& settings) {
    prepare(settings.out);
    const examples::Stopwatch watch;
    experiment::Experiment experiment(settings);
    experiment.measure_limits();
    experiment.two_builds();
    experiment.pause_and_drip();
    experiment.cache();
    experiment.elevator();
    experiment.attention_and_paging();
    experiment.speculation();
    experiment.prefix_reuse();
    experiment::Results results = experiment.finish();
    results.total_seconds = watch.seconds();

    experiment::print_summary(results);
    experiment::print_line("\n" + experiment::summary_line(results) + "\n");
    const auto json = write(settings.out / "decant-report.json", experiment::to_json(results));
    const auto html = write(settings.out / "decant-report.html", experiment::to_html(results));
    experiment::print_line("The same with plots, for a browser: " + html.string());
    experiment::print_line("All numbers, for programs:          " + json.string());
}

}  // namespace

int main(int argc, char** argv) try { run(settings_of(argc, argv)); } catch (const examples::UsageError& error) {
    std::fprintf(stderr, "experiment: %s\n%s", error.what(), usage);
    return 2;
} catch (const std::exception& error) {
    std::fprintf(stderr, "experiment: %s\n", error.what());
    return 1;
}

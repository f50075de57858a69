#!/usr/bin/env python3
# Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
"""Compares what 8-bit activations cost here and in llama.cpp, on the same files, text and positions.

    benchmarks/accuracy.py --evaluate build/release/examples/evaluate --llama FOLDER --text FILE MODEL.gguf...
                           [--reference eigen|f32] [--chunks 17] [--chunk 512] [--threads N] [--work FOLDER] [--most 1.05]

For each model both engines are judged by KL(reference || engine), where the reference is F32 arithmetic on the very same
(dequantized) weights with an F32 cache, and the engine runs as it does by default, with an F16 cache. The references are two:
llama.cpp's own kernels on an F32 copy of the file for llama.cpp, the Eigen backend for Decant (or --reference f32, which is
faster: see `evaluate`). That they predict the same, and at the same positions, is checked by their perplexities.

FOLDER holds llama-quantize and llama-perplexity. The text needs at least chunks x chunk tokens (and llama.cpp wants two chunks).
The exit status is 1 if a KL divergence is more than --most times llama.cpp's. Needs disk for the F32 copy and for 2 bytes x
vocabulary per scored token, in the work folder (default: a temporary one, removed at the end).
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def call(command, environment=None):
    done = subprocess.run([str(part) for part in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        sys.exit(f"accuracy.py: {' '.join(map(str, command))} failed:\n{text[-2000:]}")
    return text


def number_after(label, text):
    """(value, standard error) of a line of llama-perplexity."""
    found = re.search(rf"{label}\s*[:=]\s*([-0-9.]+)(?:\s*(?:\u00b1|\+/-)\s*([-0-9.]+))?", text)
    if not found:
        sys.exit(f'accuracy.py: no "{label}" in what llama-perplexity printed:\n{text[-2000:]}')
    return float(found[1]), float(found[2] or 0)


def run_llama(options, model, work):
    environment = dict(os.environ, LD_LIBRARY_PATH=f"{options.llama}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    exact = work / (model.stem + ".f32.gguf")
    logits = work / (model.stem + ".logits")
    call([options.llama / "llama-quantize", "--allow-requantize", model, exact, "F32"], environment)
    common = [options.llama / "llama-perplexity", "-c", options.chunk, "-b", options.chunk, "-t", options.threads]
    common += ["-f", options.text, "--kl-divergence-base", logits]
    f32 = ["--chunks", options.chunks, "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    reference = call([*common, "-m", exact, *f32], environment)
    exact.unlink()
    text = call([*common, "-m", model, "--kl-divergence"], environment)
    logits.unlink()
    agreement = number_after("Same top p", text)
    return {
        "reference_perplexity": number_after(r"Final estimate: PPL", reference),
        "perplexity": number_after(r"Mean PPL\(Q\)", text),
        "kl_divergence": number_after("Mean    KLD", text),
        "kl_divergence_median": number_after("Median  KLD", text),
        "kl_divergence_99": number_after("99.0%   KLD", text),
        "agreement": (agreement[0] / 100, agreement[1] / 100),
    }


def run_evaluate(options, model, work):
    out = work / "evaluate.json"
    call([options.evaluate, "--model", model, "--reference", options.reference, "--text", options.text, "--json", out]
         + ["--chunk", options.chunk, "--tokens", options.chunks * options.chunk, "--threads", options.threads])
    values = json.loads(out.read_text())
    if values["tokens"] != options.chunks * (options.chunk - options.chunk // 2 - 1):
        sys.exit(f"accuracy.py: the text is too short: {values['tokens']} tokens were scored")
    return {key: (v["value"], v["error"]) if isinstance(v, dict) else (v, 0) for key, v in values.items()
            if not isinstance(v, str)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--evaluate", required=True, type=pathlib.Path)
    parser.add_argument("--llama", required=True, type=pathlib.Path)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--reference", choices=("eigen", "f32"), default="eigen")
    parser.add_argument("--chunks", type=int, default=17)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--most", type=float, default=1.05)
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or pathlib.Path(temporary)
        for model in options.models:
            theirs, ours = run_llama(options, model, work), run_evaluate(options, model, work)
            print(f"{model.name}, {ours['tokens'][0]} tokens of {options.text.name}")
            print(f"  {'':<24}{'Decant':>12}{'':>12}{'llama.cpp':>12}")
            for key, digits in (("reference_perplexity", 4), ("perplexity", 4), ("kl_divergence", 6),
                                ("kl_divergence_median", 6), ("kl_divergence_99", 6), ("agreement", 4)):
                columns = "".join(f"{v:>12.{digits}f}" + (f" +- {e:<8.{digits}f}" if e else " " * 12)
                                  for v, e in (ours[key], theirs[key]))
                print(f"  {key.replace('_', ' '):<24}{columns}".rstrip())
            ratio = ours["kl_divergence"][0] / theirs["kl_divergence"][0]
            print(f"  KL divergence, ratio    {ratio:>12.3f}", flush=True)
            drift = abs(ours["reference_perplexity"][0] / theirs["reference_perplexity"][0] - 1)
            if drift > 1e-3:
                print(f"  the references differ by {100 * drift:.2f} %: not the same text, positions or model")
            good = good and ratio <= options.most and drift <= 1e-3
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

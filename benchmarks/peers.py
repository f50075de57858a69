#!/usr/bin/env python3
# Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
"""Runs decant-bench and the benchmark programs of llama.cpp and of ik_llama.cpp in turns on the same files.

    benchmarks/peers.py --decant build/bench/benchmarks/decant-bench --llama FOLDER [--ik FOLDER] MODEL.gguf...
                        [--threads 2] [--rounds 3] [--tests pp512,tg128,bd8,bd16,tg128@8192] [--isa SET] [--busy N]

FOLDER holds llama-bench and llama-batched-bench. Tests are those of decant-bench: ppN, tgN and bdN, and tgN@D where the peer
is llama.cpp (-d) or ik_llama.cpp (-gp). Prints one line per file and test: medians of tokens per second, and the median over the
rounds of Decant's speed divided by a peer's in the same round, for machines drift. ik_llama.cpp is given both its ways to lay
weights out (-rtr), and the better one counts. --busy N has N processes burn a processor each meanwhile.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--decant", required=True)
parser.add_argument("--llama")
parser.add_argument("--ik")
parser.add_argument("--threads", default="2")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--tests", default="pp512,tg128,bd8,bd16")
parser.add_argument("--isa")
parser.add_argument("--busy", type=int, default=0)
parser.add_argument("models", nargs="+")
args = parser.parse_args()
tests = args.tests.split(",")
work = tempfile.TemporaryDirectory()  # peers leave logs where they run


def call(*command, log=False):
    """What a program prints; with what it says on the side."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=work.name)
    if done.returncode != 0:
        sys.exit(f"peers.py: {' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr if log else done.stdout


def decant(model):
    isa = ["--isa", args.isa] if args.isa else []
    text = call(pathlib.Path(args.decant).resolve(), "--model", model, "--threads", args.threads, "--tests", args.tests, "--csv", *isa)
    return {name: float(speed) for name, speed in re.findall(r"^(\w+(?:@\d+)?),([\d.]+)$", text, re.MULTILINE)}


def bench(folder, model, *options):
    """Tokens per second of llama-bench's only test."""
    text = call(pathlib.Path(folder, "llama-bench"), "-m", model, "-t", args.threads, "-r", "2", "-o", "json", *options)
    return json.loads(text[text.index("["):text.rindex("]") + 1])[0]["avg_ts"]


def peer(folder, model, is_ik):
    speeds = {}
    for name in tests:
        kind, count, depth = re.fullmatch(r"(pp|tg|bd)(\d+)(?:@(\d+))?", name).groups()
        if kind == "bd":
            text = call(pathlib.Path(folder, "llama-batched-bench"), "-m", model, "-c", 256 * int(count), "-b", "2048",
                        "-ub", "512", "-npp", "128", "-ntg", "64", "-npl", count, "-t", args.threads, log=True)
            cells = [line.split("|") for line in text.splitlines() if re.match(rf"\|\s*128 \|\s*64 \|\s*{count} \|", line)]
            if cells:
                speeds[name] = float(cells[0][8])
        elif depth and is_ik:
            if kind == "tg":
                speeds[name] = bench(folder, model, "-p", "0", "-n", "0", "-gp", f"{depth},{count}")
        else:
            options = ["-p", count if kind == "pp" else "0", "-n", count if kind == "tg" else "0"]
            options += ["-d", depth] if depth else []
            ways = [[], ["-rtr", "1"]] if is_ik else [[]]
            speeds[name] = max(bench(folder, model, *options, *way) for way in ways)
    return speeds


peers = {name: pathlib.Path(folder).resolve() for name, folder in (("llama.cpp", args.llama), ("ik_llama.cpp", args.ik)) if folder}
burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
try:
    print("| file, test | Decant |" + "".join(f" {name} |" for name in peers) + "".join(f" / {name} |" for name in peers))
    print("| --- |" + " --- |" * (1 + 2 * len(peers)), flush=True)
    for model in args.models:
        rounds = []
        for number in range(args.rounds):
            print(f"{pathlib.Path(model).name}: round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
            file = pathlib.Path(model).resolve()
            own = decant(file)
            rounds.append((own, {name: peer(folder, file, name != "llama.cpp") for name, folder in peers.items()}))
        for test in tests:
            cells = [f"{statistics.median(own[test] for own, _ in rounds):.0f}"]
            for name in peers:
                found = [others[name][test] for _, others in rounds if test in others[name]]
                cells.append(f"{statistics.median(found):.0f}" if found else "-")
            for name in peers:
                ratios = [own[test] / others[name][test] for own, others in rounds if test in others[name]]
                cells.append(f"{statistics.median(ratios):.2f}" if ratios else "-")
            print(f"| {pathlib.Path(model).stem} {test} | " + " | ".join(cells) + " |", flush=True)
finally:
    for burner in burners:
        burner.kill()

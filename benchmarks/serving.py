#!/usr/bin/env python3
# Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
"""Serves the same arrivals with Decant's engine and with llama.cpp's server, in turns, and compares.

    benchmarks/serving.py --decant build/bench/benchmarks/serving --server PATH/llama-server MODEL.gguf
                          [--threads 2] [--rounds 3] [--rows burst8,burst16,mixed,prefix] [--seconds 30] [--rate 1.0]
                          [--scale 1.0] [--keep FOLDER]

The rows, each with traces of a fixed seed:
    burst8, burst16  twice as many askers as seats come at once: generated tokens per second
    mixed            askers come at random (Poisson, --rate a second for --seconds) to 8 seats; most have short prompts, some
                     long ones, all begin with the same system prompt: first tokens and gaps between tokens, p50 and p99
    prefix           long prompts, each asked twice, one after the other: the first token of the second time
--scale multiplies the lengths of prompts and answers; --keep keeps traces and results.

Both get the same token ids (at random from 1000 to 30000), the same threads, seats and tokens of cache, answer greedily and ignore the end
of a turn. The server is started anew for each row (-np SEATS, what else is at its defaults: continuous batching and its
cache of prompts); its client reads all streams in one thread, and takes its share of the processors. Decant is called as its hosts call
it, in their own process. Ratios say how many times as good Decant is: more tokens per second, or less time.
"""

import argparse
import json
import pathlib
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--decant", required=True)
parser.add_argument("--server", required=True)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--rows", default="burst8,burst16,mixed,prefix")
parser.add_argument("--seconds", type=float, default=30.0)
parser.add_argument("--rate", type=float, default=1.0)
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--keep")
parser.add_argument("model")
args = parser.parse_args()
model = pathlib.Path(args.model).resolve()
temporary = tempfile.TemporaryDirectory()
folder = pathlib.Path(args.keep) if args.keep else pathlib.Path(temporary.name)
folder.mkdir(parents=True, exist_ok=True)


# ---- traces: lists of requests, as benchmarks/serving.cpp reads them


def length(tokens):
    return max(1, round(tokens * args.scale))


def request(arrival, prompt, max_tokens, **more):
    return {"arrival": round(arrival, 4), "prompt": prompt, "max_tokens": max_tokens, **more}


def tokens(source, count):
    return [source.randrange(1000, 30000) for _ in range(count)]


def burst(seats):
    source = random.Random(1)
    return [request(0.0, tokens(source, length(64)), length(64)) for _ in range(2 * seats)]


def mixed():
    source = random.Random(2)
    system = tokens(source, length(200))
    requests, now = [], 0.0
    while True:
        now += source.expovariate(args.rate)
        if now > args.seconds:
            return requests
        is_long = source.random() < 0.2
        own = tokens(source, length(source.randint(400, 800) if is_long else source.randint(10, 60)))
        requests.append(request(now, system + own, length(source.randint(16, 96))))


def prefix():
    source = random.Random(3)
    requests = []
    for number in range(4):
        prompt = tokens(source, length(1000))
        for again in range(2):
            after = {"after": len(requests) - 1} if requests else {}
            requests.append(request(0.1, prompt, length(16), **after))
    return requests


# ---- the systems: from a trace to {"tokens_per_second", "requests": [{"first_token", "between_tokens"}...]}


def decant(trace, seats, cache):
    command = [args.decant, "--model", model, "--trace", trace, "--seats", seats, "--threads", args.threads, "--cache", cache, "--json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"serving.py: {' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


class Stream:
    """One request to the server, and when its tokens came."""

    def __init__(self, port, wanted, arrival):
        self.arrival, self.lines, self.buffer, self.end = arrival, [], b"", None
        body = json.dumps({"prompt": wanted["prompt"], "n_predict": wanted["max_tokens"], "temperature": 0, "ignore_eos": True,
                           "stream": True}).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)

    def read(self, now):
        """Takes what has come; whether there will be more."""
        data = self.socket.recv(1 << 16)
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        self.lines += [(now, line) for line in lines if line.startswith(b"data: {")]
        if data:
            return True
        self.socket.close()
        self.end = now
        return False

    def result(self, wanted):
        times = []
        for when, line in self.lines:
            event = json.loads(line[len("data: "):])
            if "error" in event:
                sys.exit(f"serving.py: the server says {event}")
            times += [when] * (event.get("tokens_predicted", 0) - len(times))  # half a character comes with the other half
        if len(times) != wanted["max_tokens"]:
            sys.exit(f"serving.py: {len(times)} tokens of {wanted['max_tokens']} from the server:\n{self.buffer[:500]}")
        return {"first_token": times[0] - self.arrival, "between_tokens": [b - a for a, b in zip(times, times[1:])], "last": times[-1]}


def replay(port, requests):
    """Asks each request when its time has come."""
    streams, selector, start = {}, selectors.DefaultSelector(), time.monotonic()
    while len(streams) < len(requests) or selector.get_map():
        now = time.monotonic() - start
        next_arrival = now + 1.0
        for number, wanted in enumerate(requests):
            if number in streams:
                continue
            base = 0.0
            if "after" in wanted:
                before = streams.get(wanted["after"])
                if before is None or before.end is None:
                    continue
                base = before.end
            arrival = base + wanted["arrival"]
            if arrival > now:
                next_arrival = min(next_arrival, arrival)
                continue
            streams[number] = Stream(port, wanted, arrival)
            selector.register(streams[number].socket, selectors.EVENT_READ, streams[number])
        for key, _ in selector.select(max(0.0, next_arrival - (time.monotonic() - start))) if selector.get_map() else []:
            if not key.data.read(time.monotonic() - start):
                selector.unregister(key.fileobj)
        if not selector.get_map():
            time.sleep(max(0.0, min(next_arrival - (time.monotonic() - start), 1.0)) if len(streams) < len(requests) else 0.0)
    results = [streams[number].result(wanted) for number, wanted in enumerate(requests)]
    seconds = max(result["last"] for result in results) - min(stream.arrival for stream in streams.values())
    return {"requests": results, "tokens_per_second": sum(wanted["max_tokens"] for wanted in requests) / seconds}


def llama(requests, seats, cache):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [args.server, "-m", model, "-t", args.threads, "-np", seats, "-c", cache, "--host", "127.0.0.1", "--port", port]
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT)
        try:
            for _ in range(600):
                if server.poll() is not None:
                    break
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                        if answer.status == 200:
                            break
                except OSError:
                    time.sleep(0.1)
            if server.poll() is not None:
                sys.exit(f"serving.py: {' '.join(map(str, command))} ended:\n{(folder / 'server.log').read_text()[-2000:]}")
            replay(port, [request(0.0, list(range(1000, 1016)), 8)])  # what happens once
            return replay(port, requests)
        finally:
            server.terminate()
            server.wait()


# ---- what is compared


def quantile(values, share):
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def first(result):
    return [one["first_token"] for one in result["requests"]]


def between(result):
    return [gap for one in result["requests"] for gap in one["between_tokens"]]


# name: requests, seats, {what: (its value, whether more is better)}
speed = {"tokens/s": (lambda result: result["tokens_per_second"], True)}
latency = {
    "first token p50, ms": (lambda result: 1e3 * quantile(first(result), 0.50), False),
    "first token p99, ms": (lambda result: 1e3 * quantile(first(result), 0.99), False),
    "between tokens p50, ms": (lambda result: 1e3 * quantile(between(result), 0.50), False),
    "between tokens p99, ms": (lambda result: 1e3 * quantile(between(result), 0.99), False),
}
known = {
    "first time: first token, ms": (lambda result: 1e3 * statistics.median(first(result)[0::2]), False),
    "second time: first token, ms": (lambda result: 1e3 * statistics.median(first(result)[1::2]), False),
}
rows = {"burst8": (burst(8), 8, speed), "burst16": (burst(16), 16, speed), "mixed": (mixed(), 8, latency), "prefix": (prefix(), 8, known)}
chosen = args.rows.split(",")
if unknown := set(chosen) - set(rows):
    sys.exit(f"serving.py: unknown rows {', '.join(sorted(unknown))}; there are {', '.join(rows)}")

print("| row | Decant | llama-server | times as good |\n| --- | --- | --- | --- |", flush=True)
for name in chosen:
    requests, seats, measures = rows[name]
    trace = folder / f"{name}.jsonl"
    trace.write_text("".join(json.dumps(one) + "\n" for one in requests))
    # Each seat has room for the longest, in the server's cache, which may be cut into equal parts, too.
    longest = max(len(one["prompt"]) + one["max_tokens"] for one in requests)
    cache = seats * (-(-(longest + 1) // 256) * 256)
    rounds = []
    for number in range(args.rounds):
        print(f"{name}: round {number + 1} of {args.rounds}, {len(requests)} requests", file=sys.stderr, flush=True)
        rounds.append((decant(trace, seats, cache), llama(requests, seats, cache)))
    (folder / f"{name}.json").write_text(json.dumps(rounds))
    for what, (value, more_is_better) in measures.items():
        pairs = [(value(own), value(other)) for own, other in rounds]
        ratios = [own / other if more_is_better else other / own for own, other in pairs]
        own, other, ratio = (statistics.median(values) for values in (*zip(*pairs), ratios))
        print(f"| {name} {what} | {own:.1f} | {other:.1f} | {ratio:.2f} |", flush=True)

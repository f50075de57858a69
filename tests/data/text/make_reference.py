# Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
"""Writes splits.json and smollm2.random.json beside this file: what Hugging Face tokenizers makes of random text.

Needs `pip install tokenizers==0.23.3`, and the reference tokenizer of SmolLM2 as first argument
(../shared/truth/tok/smollm2/tokenizer.json).
"""
import json
import pathlib
import random
import sys

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

PATTERNS = {
    "gpt-2": Split(Regex(GPT2), "isolated"),
    "smollm": Sequence([Digits(individual_digits=True), Split(Regex(GPT2), "isolated")]),
    "llama-bpe": Split(Regex(LLAMA3), "isolated"),
}

# Characters that sit on the edges of the rules.
EDGES = list(" \t\n\r\f\v'sStTrReEvVmMlLdDaz09.,-!<>|_") + [
    "  ", "\n\n", "\r\n", "'ll", "'RE", " '", "\u0085", "\u00a0", "\u2003", "\u2028", "\u3000", "\u200b", "\ufeff",
    "\u017f", "\u212a", "\u00e9", "e\u0301", "\u4e2d", "\u0663", "\u00bd", "\u2167", "\u216b", "\u1f600", "\u0e01\u0e33",
    "\U0001f600", "\U0001f1e9\U0001f1ea", "\U00020bb7", "\U0001d7d8", "\u00ad", "\u0300", "\u2019", "\x00", "\x1f", "\x7f",
]


def edges(rng):
    return "".join(rng.choice(EDGES) for _ in range(rng.randrange(1, 24)))


def anything(rng):
    out = []
    for _ in range(rng.randrange(1, 16)):
        code = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)])
        if not 0xD800 <= code < 0xE000:
            out.append(chr(code))
    return "".join(out)


def main():
    here = pathlib.Path(__file__).parent
    rng = random.Random(20240229)
    texts = [edges(rng) for _ in range(400)] + [anything(rng) for _ in range(200)]
    splits = {}
    for name, rule in PATTERNS.items():
        splits[name] = [[len(word.encode()) for word, _ in rule.pre_tokenize_str(text)] for text in texts]
    (here / "splits.json").write_text(json.dumps({"texts": texts, "word_bytes": splits}, separators=(",", ":")))

    smollm2 = Tokenizer.from_file(sys.argv[1])
    words = "The 12 quick don't I'll  naïve 東京 ünïcode\n\n\tdef f(x): return x**2 + 3.14  # ok".split(" ")
    texts = [edges(rng) for _ in range(150)] + [anything(rng) for _ in range(150)]
    texts += [" ".join(rng.choice(words) for _ in range(12)) for _ in range(60)]
    texts += ["a" * n for n in range(30, 36)] + ["\x04..\x04.", "ab\U00050000cd", "aaaaaaaaaaaaaaaaaaaaaaaa\U000c0000" * 3]
    ids = [smollm2.encode(text, add_special_tokens=False).ids for text in texts]
    (here / "smollm2.random.json").write_text(json.dumps({"texts": texts, "ids": ids}, separators=(",", ":")))


main()

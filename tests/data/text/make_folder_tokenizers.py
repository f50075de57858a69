# Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
"""Writes folder_tokenizers.json to standard output: small tokenizers in the forms that tokenizer.json has, and the ids that
Hugging Face tokenizers give for texts.

Needs Python 3 and `pip install tokenizers==0.23.3`. Run in this folder.
"""
import json
import random

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

MARK = "\u2581"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
corpus = json.load(open("corpus.json"))


def train_bytes():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(t.to_str())["model"]


def train_marks():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", MARK)
    t.train_from_iterator([MARK + line for line in corpus], trainers.BpeTrainer(vocab_size=260, limit_alphabet=70, show_progress=False, max_token_length=12))
    model = json.loads(t.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + sorted(model["vocab"], key=model["vocab"].get)
    model["vocab"] = {piece: i for i, piece in enumerate(pieces)}
    model.update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return model


def added(id, content, **options):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **options}


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(name, *steps):
    return {"type": "Sequence", name: list(steps)}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


BYTES, MARKS = train_bytes(), train_marks()
NB, NM = len(BYTES["vocab"]), len(MARKS["vocab"])
PREPEND = {"type": "Prepend", "prepend": MARK}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
BYTE_ADDED = [added(NB, "<|end|>"), added(NB + 1, "<think>", special=False), added(NB + 2, "<|user|>", rstrip=True), added(NB + 3, "<mask>", lstrip=True),
              added(NB + 4, "<|end|>>", normalized=True), added(NB + 5, "  ", special=False, normalized=True)]
MARK_ADDED = [added(i, name) for i, name in enumerate(["<unk>", "<s>", "</s>"])]
MARK_NORMALIZED = [{**token, "normalized": True} for token in MARK_ADDED] + [added(NM, "<tool>", normalized=True, special=False), added(NM + 1, "<|user|>", rstrip=True)]
WITHOUT_BYTES = {**MARKS, "byte_fallback": False}
forms = {
    "gpt2": ("bytes", {}, None, level(True), None, BYTE_ADDED),
    "smollm": ("bytes", {}, None, sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, level(True)), None, BYTE_ADDED),
    "split gpt2": ("bytes", {}, None, sequence("pretokenizers", split(GPT2, "Removed", True), level(False)), None, BYTE_ADDED[:1]),
    "llama3": ("bytes", {"ignore_merges": True}, None, sequence("pretokenizers", split(LLAMA3), level(False)), None, BYTE_ADDED),
    "qwen2": ("bytes", {}, {"type": "NFC"}, sequence("pretokenizers", split(QWEN2), level(False)), None, BYTE_ADDED[:4]),
    "llama2": ("marks", {}, sequence("normalizers", PREPEND, REPLACE), None, TEMPLATE, MARK_ADDED),
    "llama2 normalized": ("marks", {}, sequence("normalizers", PREPEND, REPLACE), None, TEMPLATE, MARK_NORMALIZED),
    "gemma": ("marks", {}, REPLACE, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}, TEMPLATE, MARK_ADDED + [added(MARKS["vocab"][MARK * 2], MARK * 2, special=False), added(NM, "<u>", normalized=True)]),
    "metaspace first": ("marks", {}, None, metaspace("first", False), None, MARK_ADDED),
    "metaspace always": ("marks", {}, None, metaspace("always", False), None, MARK_ADDED),
    "metaspace never": ("marks", {}, None, metaspace("never", False), None, MARK_ADDED),
    "metaspace split": ("marks", {}, None, metaspace("always", True), None, MARK_ADDED),
    "unknown fused": ("marks", {"byte_fallback": False}, sequence("normalizers", PREPEND, REPLACE), None, None, MARK_ADDED),
    "unknown": ("marks", {"byte_fallback": False, "fuse_unk": False}, sequence("normalizers", PREPEND, REPLACE), None, None, MARK_ADDED),
    "without unknown": ("marks", {"byte_fallback": False, "unk_token": None}, sequence("normalizers", PREPEND, REPLACE), None, None, MARK_ADDED[1:]),
}
random.seed(5)
fragments = ["<|end|>", "<think>", "<|user|>", "<mask>", "<|end|>>", "  ", " ", "\n", "the", " the", "Hello", "'s", "'LL", "12345", "e\u0301", "\u00e9", "\u4e16", "\u0416\u0436", "<s>", "</s>", " </s>",
             "<unk>", "<tool>", " <tool>", "<u>", MARK, MARK * 2, MARK * 3, "x" + MARK, "\U0001F600\U0001F601", "?!", "\t", "\u3000", "a", "<"]
texts = [line for line in corpus if len(line) < 60][:90] + ["".join(random.choice(fragments) for _ in range(random.randrange(1, 10))) for _ in range(160)]
out = {"texts": texts, "models": {"bytes": BYTES, "marks": MARKS}, "tokenizers": []}
for name, (model, changes, normalizer, pre, post, tokens) in forms.items():
    form = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post, "decoder": None}
    t = Tokenizer.from_str(json.dumps({**form, "model": {**{"bytes": BYTES, "marks": MARKS}[model], **changes}}))
    out["tokenizers"].append({"name": name, "model": model, "changes": changes, "form": form, "ids": [t.encode(text, add_special_tokens=False).ids for text in texts]})
print(json.dumps(out, separators=(",", ":")))

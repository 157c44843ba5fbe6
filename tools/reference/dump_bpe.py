#!/usr/bin/env python3
"""Write tests/golden/bpe/*.json: small BPE vocabularies, awkward texts, and their ids by Hugging Face's `tokenizers`.

    dump_bpe.py tests/golden/bpe

Needs `tokenizers` 0.23. Each file: tokens by id, merges as pairs of ids, flags of the model, the split pattern (or how
spaces are treated), and texts with their ids.
"""
import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
SPACE = "\u2581"

PROSE = """The quick brown fox doesn't jump over 1234567 lazy dogs; they've never been there, and I'll say so.
It's the same with Über-große Straßen, naïve cafés and señoritas in Łódź: die Wörter der Sprache sind länger.
Он сказал, что это слово и другое слово. Το γλώσσα αυτή. 日本語の文章と漢字、中文的句子。한국어 문장입니다.
def function(argument, other=None):\n    return argument + other  # comment\n\n\tif (x == 10 && y != 20) { z = "text"; }
https://example.org/path/to/file?name=value&other=1 e-mail@example.org 3.14159 1,000,000 $5.00 50% #tag @name
aaaa aaaaaaaa the the the and and of of to to in in is is that that for for with with as as was was on on
"""


def texts():
    generator = random.Random(7)
    pools = ["abcdefghij", "  \n\t\r\u00a0\u3000", "0123456789²½٣", "!?.,;:'\"()[]{}-_/\\", "éüßñŁÉ", "абвгд", "漢字中文日本",
             "\u0300\u200d\ufe0f", "😀🎉🇩🇪", "\x00\x01\x7f\ue000\U0010ffff", "'sS'tTſ'lL'vVeErR'd"]
    words = PROSE.split() + [" the", "the ", "\n\n", "   ", "\r\n", SPACE, " " + SPACE, "aaaaaaaaaaaaaaaaaaaaaaaaa", "<unk>", "<0x41>"]
    result = ["", " ", "  ", "\n", "a", " a", "a ", "the", SPACE, "\U0010ffff", "a" * 300, "the " * 40, "é" * 100, "x y" * 30]
    while len(result) < 220:
        parts = []
        for _ in range(generator.choice([1, 2, 4, 9])):
            if generator.random() < 0.5:
                parts.append(generator.choice(words))
            else:
                pool = generator.choice(pools)
                parts.append("".join(generator.choice(pool) for _ in range(generator.choice([1, 2, 5]))))
            if generator.random() < 0.4:
                parts.append(" ")
        result.append("".join(parts))
    return result


def write(path, tokenizer, extra):
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [""] * (max(model["vocab"].values()) + 1)
    for token, number in model["vocab"].items():
        tokens[number] = token
    merges = [[model["vocab"][left], model["vocab"][right]] for left, right in model["merges"]]
    cases = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in texts()]
    data = {"tokenizers": tokenizers.__version__, **extra, "tokens": tokens, "merges": merges, "cases": cases}
    for flag in ("ignore_merges", "byte_fallback", "fuse_unk", "unk_token", "continuing_subword_prefix",
                 "end_of_word_suffix"):
        data[flag] = model.get(flag)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=True, separators=(',', ':'))}"
                       for key, value in data.items())
    path.write_text("{" + lines + "}\n")


def byte_level(regex, ignore_merges):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)]
    if regex is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(regex), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    trainer = trainers.BpeTrainer(vocab_size=560, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([PROSE], trainer)
    return tokenizer


def spaced(fallback, fuse):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=fallback, fuse_unk=fuse))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "never")
    special = ["<unk>"] + ([f"<0x{byte:02X}>" for byte in range(256)] if fallback else [])
    trainer = trainers.BpeTrainer(vocab_size=620 if fallback else 360, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([PROSE.replace("漢", "")], trainer)
    return tokenizer


def without_added(tokenizer, pre_tokenizer):
    """The same without added tokens, which are no part of the model."""
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = []
    result = Tokenizer.from_str(json.dumps(data))
    if pre_tokenizer is None:
        data["pre_tokenizer"] = None
        result = Tokenizer.from_str(json.dumps(data))
    return result


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "gpt2.json", byte_level(None, False), {"pattern": "gpt2"})
    # Tokens that no merge makes are words of their own where merges are ignored.
    llama3 = json.loads(byte_level(LLAMA3, True).to_str())
    for word in ("Ġjumper", "dogsled"):
        llama3["model"]["vocab"][word] = len(llama3["model"]["vocab"])
    write(folder / "llama3.json", Tokenizer.from_str(json.dumps(llama3)), {"pattern": "llama3"})
    write(folder / "spaced.json", without_added(spaced(True, True), None), {"split": False})
    write(folder / "spaced_split.json", without_added(spaced(True, True), True), {"split": True})
    write(folder / "spaced_unknown.json", without_added(spaced(False, True), None), {"split": False})


if __name__ == "__main__":
    main()

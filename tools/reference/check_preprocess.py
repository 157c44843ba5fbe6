#!/usr/bin/env python3
"""What `tera preprocess` must write, by a small independent writer: Python's own text files and json module, struct.

    tools/reference/check_preprocess.py --tera build/release/bin/tera     compare on random and awkward documents
    tools/reference/check_preprocess.py --write tests/golden/data         make the files that the tests compare with
    ... --tokenizer-json FILE                                             also with the package `tokenizers`

Needs nothing but Python and, to write, the program zstd.
"""
import argparse
import gzip
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HEADER = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1)


class Bytes:
    """Ids are the bytes of the text."""
    options = ["--tokenizer-type", "ByteTokenizer"]
    vocab_size, eod = 512, 0

    def encode(self, text):
        return list(text.encode("utf-8"))


class Numbers:
    """The text is the ids."""

    def __init__(self, vocab_size):
        self.options = ["--tokenizer-type", "NullTokenizer", "--vocab-size", str(vocab_size)]
        self.vocab_size, self.eod = vocab_size, vocab_size - 1

    def encode(self, text):
        return [int(word) for word in text.split()]


class HuggingFace:
    """A tokenizer.json, by the package that defines what it means."""

    def __init__(self, path):
        import tokenizers
        self.options = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", path]
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.vocab_size = self.tokenizer.get_vocab_size()
        self.eod = None

    def encode(self, text):
        return self.tokenizer.encode(text).ids


def documents_of(path, key, tokenizer, append_eod):
    """For every line a list of sequences, each a list of ids."""
    opened = gzip.open(path, "rt", encoding="utf-8") if str(path).endswith(".gz") else open(path, encoding="utf-8")
    with opened as lines:
        for line in lines:
            text = json.loads(line)[key]
            sequences = [ids for part in (text if isinstance(text, list) else [text]) if (ids := tokenizer.encode(part))]
            if sequences and append_eod:
                sequences[-1] = sequences[-1] + [tokenizer.eod]
            yield sequences


def expected(paths, key, tokenizer, append_eod):
    """The bytes of .bin and .idx."""
    letter, code = ("H", 8) if tokenizer.vocab_size < 65500 else ("i", 4)
    data, lengths, ends = bytearray(), [], [0]
    for path in paths:
        for sequences in documents_of(path, key, tokenizer, append_eod):
            for ids in sequences:
                data += struct.pack(f"<{len(ids)}{letter}", *ids)
                lengths.append(len(ids))
            ends.append(len(lengths))
    pointers, at = [], 0
    for length in lengths:
        pointers.append(at)
        at += length * struct.calcsize("<" + letter)
    index = HEADER + struct.pack("<BQQ", code, len(lengths), len(ends))
    index += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(pointers)}q", *pointers)
    return bytes(data), index + struct.pack(f"<{len(ends)}q", *ends)


AWKWARD = [
    "", " ", "a", "\n", "\r\n", "caf\u00e9", "\u4e2d\u6587", "\U0001f600\U0001f468\u200d\U0001f469", "\u2028\u0085\x7f",
    'say "x\\y"/', "\b\f\t", "\ufeffmark", "\uffff", "\U0010ffff", "x" * 5000,
]
LONG = 3000


def line_of(fields, rng):
    """One object, in one of the ways that JSON allows."""
    text = json.dumps(fields, ensure_ascii=rng.random() < 0.5,
                      separators=rng.choice([(",", ":"), (", ", ": "), (" ,\t", " :  ")]))
    if rng.random() < 0.2:  # of equal keys the last counts
        text = '{"text": [1, {"text": NaN}], ' + text[1:]
    if rng.random() < 0.2:
        text = text.replace('"text"', '"\\u0074e\\u0078t"')
    if rng.random() < 0.2:
        text = text[:-1] + ', "n": [1e999, -0.5E+3, 123456789012345678901234567890, "\\ud800", {}, [], null, -Infinity]}'
    return rng.choice(["", " ", "\t"]) + text + rng.choice(["", " "])


def text_of(rng, numbers):
    if numbers:
        return " ".join(str(rng.randrange(numbers)) for _ in range(rng.choice([0, 1, 5, LONG])))
    return "".join(rng.choice(AWKWARD) for _ in range(rng.choice([0, 1, 2, 8])))


def write_lines(path, rng, count, numbers=0):
    with open(path, "w", encoding="utf-8", newline="") as out:
        for i in range(count):
            text = text_of(rng, numbers)
            if rng.random() < 0.2:
                text = [text_of(rng, numbers) for _ in range(rng.randrange(4))]
            fields = {"id": i, "text": text, "title": text_of(rng, numbers)}
            end = rng.choice(["\n", "\n", "\r\n", "\r"])
            out.write(line_of(fields, rng) + (end if i + 1 < count or rng.random() < 0.5 else ""))


def write_goldens(folder):
    global LONG
    rng, LONG = random.Random(5), 20
    AWKWARD[-1] = "x" * 40
    sources = {"bytes": (Bytes(), 30, 0), "numbers16": (Numbers(65499), 12, 65499), "numbers32": (Numbers(65500), 12, 65500)}
    for name, (tokenizer, count, numbers) in sources.items():
        source = folder / f"{name}.jsonl"
        write_lines(source, rng, count, numbers)
        for key in ("text", "title"):
            for eod, word in ((False, "plain"), (True, "eod")):
                data, index = expected([source], key, tokenizer, eod)
                (folder / f"{name}_{word}_{key}_document.bin").write_bytes(data)
                (folder / f"{name}_{word}_{key}_document.idx").write_bytes(index)
    whole = (folder / "bytes.jsonl").read_bytes()
    half = len(whole) // 2  # in the middle of a line: members and frames know nothing of lines
    pack = [gzip.compress(part, mtime=0) for part in (whole[:half], whole[half:])]
    (folder / "bytes.jsonl.gz").write_bytes(b"".join(pack))
    pack = [subprocess.run(["zstd", "-c"], input=part, stdout=subprocess.PIPE, check=True).stdout
            for part in (whole[:half], whole[half:])]
    (folder / "bytes.jsonl.zst").write_bytes(b"".join(pack))


def run_tera(tera, inputs, prefix, tokenizer, eod, workers):
    command = [tera, "preprocess", "--input", *map(str, inputs), "--output-prefix", str(prefix), *tokenizer.options,
               "--json-keys", "text", "title", "--workers", str(workers)] + (["--append-eod"] if eod else [])
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compare(tera, rounds, tokenizer_json):
    cases = [(Bytes(), 0), (Numbers(100), 100), (Numbers(65499), 65499), (Numbers(65500), 65500), (Numbers(200000), 200000)]
    if tokenizer_json:
        cases.append((HuggingFace(tokenizer_json), 0))
    checked = 0
    for seed in range(rounds):
        rng = random.Random(seed)
        for tokenizer, numbers in cases:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                inputs = [folder / f"{i}.jsonl" for i in range(rng.choice([1, 3]))]
                for path in inputs:
                    write_lines(path, rng, rng.choice([0, 1, 40, 400]), numbers)
                packed = folder / "packed.jsonl.gz"
                packed.write_bytes(gzip.compress(inputs[0].read_bytes()))
                inputs.append(packed)
                if not any(path.stat().st_size for path in inputs[:-1]):
                    continue  # nothing to read is an error
                eod = tokenizer.eod is not None and rng.random() < 0.5
                workers = rng.choice([1, 2, 4])
                run_tera(tera, inputs, folder / "out", tokenizer, eod, workers)
                for key in ("text", "title"):
                    data, index = expected(inputs, key, tokenizer, eod)
                    for ending, wanted in ((".bin", data), (".idx", index)):
                        found = (folder / f"out_{key}_document{ending}").read_bytes()
                        if found != wanted:
                            sys.exit(f"seed {seed}, {tokenizer.options}, eod {eod}, {key}{ending} differs")
                        checked += 1
    print(f"{checked} files have the bytes they should have")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tera", help="the program to check")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokenizer-json")
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if arguments.write:
        folder = arguments.write / "preprocess"
        folder.mkdir(exist_ok=True)
        write_goldens(folder)
    if arguments.tera:
        compare(arguments.tera, arguments.rounds, arguments.tokenizer_json)


if __name__ == "__main__":
    main()

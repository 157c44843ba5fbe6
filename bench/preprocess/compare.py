#!/usr/bin/env python3
"""Time `tera preprocess` beside the same steps in Python with the package `tokenizers`: JSONL to .bin/.idx.

    compare.py --tera build/release/bin/tera --input CORPUS.jsonl --vocab-file V --merge-file M [--workers 2]
               [--python-megabytes 32] [--rounds 3]

GPT-2's vocabulary as vocab.json and merges.txt. The Python pipeline is the usual one: a pool of processes that parse and
encode lines, one process that writes. It is given the first lines of the corpus only, as it is slow; both outputs of
those lines must have the same bytes. bench/tokenize/build_corpus.py makes a corpus. Best of the rounds is printed.
"""
import argparse
import array
import json
import multiprocessing
import os
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import tokenizers

state = {}


def start_worker(vocab_file, merge_file):
    state["tokenizer"] = make_tokenizer(vocab_file, merge_file)


def make_tokenizer(vocab_file, merge_file):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab_file, merge_file))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def encode_line(line):
    return state["tokenizer"].encode(json.loads(line)["text"]).ids


def python_pipeline(source, prefix, arguments):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes are the parallel part
    eod = make_tokenizer(arguments.vocab_file, arguments.merge_file).token_to_id("<|endoftext|>")
    lengths, ends = array.array("i"), array.array("q", [0])
    with multiprocessing.Pool(arguments.workers, start_worker, (arguments.vocab_file, arguments.merge_file)) as pool, \
            open(source, encoding="utf-8") as lines, open(f"{prefix}.bin", "wb") as out:
        for ids in pool.imap(encode_line, lines, 32):
            if ids:
                array.array("H", ids + [eod]).tofile(out)
                lengths.append(len(ids) + 1)
            ends.append(len(lengths))
    pointers, at = array.array("q"), 0
    for length in lengths:
        pointers.append(at)
        at += 2 * length
    with open(f"{prefix}.idx", "wb") as out:
        out.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(ends)))
        for numbers in (lengths, pointers, ends):
            numbers.tofile(out)


def run_tera(source, prefix, arguments):
    subprocess.run([arguments.tera, "preprocess", "--input", source, "--output-prefix", prefix, "--append-eod",
                    "--workers", str(arguments.workers), "--tokenizer-type", "GPT2BPETokenizer",
                    "--vocab-file", arguments.vocab_file, "--merge-file", arguments.merge_file],
                   check=True, stdout=subprocess.DEVNULL)


def megabytes_per_second(call, source, prefix, arguments):
    best = float("inf")
    for _ in range(arguments.rounds):
        start = time.perf_counter()
        call(str(source), str(prefix), arguments)
        best = min(best, time.perf_counter() - start)
    return Path(source).stat().st_size / 1e6 / best


def first_lines(source, target, megabytes):
    with open(source, "rb") as lines, open(target, "wb") as out:
        while out.tell() < megabytes * 1e6 and (line := lines.readline()):
            out.write(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--tera", "--input", "--vocab-file", "--merge-file"):
        parser.add_argument(name, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python-megabytes", type=float, default=32)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first_lines(arguments.input, folder / "part.jsonl", arguments.python_megabytes)
        python = megabytes_per_second(python_pipeline, folder / "part.jsonl", folder / "python", arguments)
        run_tera(str(folder / "part.jsonl"), str(folder / "ours"), arguments)
        for ending in (".bin", ".idx"):
            if (folder / f"ours_text_document{ending}").read_bytes() != (folder / f"python{ending}").read_bytes():
                raise SystemExit(f"the two {ending} files differ")
        tera = megabytes_per_second(run_tera, arguments.input, folder / "ours", arguments)
    print(f"{arguments.workers} workers, load {os.getloadavg()[0]:.1f}, same bytes: tera {tera:.1f} MB/s, "
          f"Python {python:.2f} MB/s, {tera / python:.1f} times as fast")


if __name__ == "__main__":
    main()

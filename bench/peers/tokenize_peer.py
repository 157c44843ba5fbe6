#!/usr/bin/env python3
"""One tokenizer, one pass over a file of {"text": ...} lines on one thread; prints one JSON line.

    tokenize_peer.py tokenizers|gigatoken|fastokens TOKENIZER.json TEXTS.jsonl OUTPUT

Each is called by the fastest way it offers for a list of texts. OUTPUT.ids are int32, OUTPUT.ends int64 with a leading
zero. Times are processor time of the process, which has one thread.
"""
import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import numpy


def run_tokenizers(path, texts):
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    start = time.process_time()
    result = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    seconds = time.process_time() - start
    return tokenizers.__version__, seconds, result


def run_gigatoken(path, texts):
    import importlib.metadata
    import gigatoken
    tokenizer = gigatoken.Tokenizer(path)
    start = time.process_time()
    array = tokenizer.encode_batch(texts, parallel=False)
    seconds = time.process_time() - start
    return importlib.metadata.version("gigatoken"), seconds, [numpy.asarray(row) for row in array]


def run_fastokens(path, texts):
    import importlib.metadata
    import fastokens
    tokenizer = fastokens.Tokenizer.from_json_str(open(path, encoding="utf-8").read())
    start = time.process_time()
    ids, offsets = tokenizer.encode_batch_flat(texts)
    seconds = time.process_time() - start
    ids, offsets = numpy.frombuffer(ids, numpy.uint32), numpy.frombuffer(offsets, numpy.uint64).astype(numpy.int64)
    rows = [ids[begin:end] for begin, end in zip(offsets[:-1], offsets[1:])]
    return importlib.metadata.version("fastokens"), seconds, rows


def main():
    name, path, text_file, output = sys.argv[1:]
    with open(text_file, encoding="utf-8", newline="\n") as file:
        texts = [json.loads(line)["text"] for line in file]
    size = sum(len(text.encode("utf-8")) for text in texts)
    run = {"tokenizers": run_tokenizers, "gigatoken": run_gigatoken, "fastokens": run_fastokens}[name]
    version, seconds, rows = run(path, texts)
    ends = numpy.concatenate([[0], numpy.cumsum([len(row) for row in rows])]).astype(numpy.int64)
    ids = numpy.concatenate([numpy.asarray(row, dtype=numpy.int32) for row in rows])
    ids.tofile(output + ".ids")
    ends.tofile(output + ".ends")
    print(json.dumps({"version": version, "encode_s": seconds, "bytes": size, "ids": len(ids),
                      "MB_per_s": size / 1e6 / seconds}))


if __name__ == "__main__":
    main()

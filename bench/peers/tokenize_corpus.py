#!/usr/bin/env python3
"""Build a mixed corpus from the text that a Debian machine carries.

    tokenize_corpus.py OUTPUT.jsonl [--megabytes 64]

One JSON object per line, {"text": ...}, UTF-8. Three parts by share of bytes: English prose and manuals (half), source
code of several languages (a quarter), translated messages and manuals of all languages there are (a quarter). Files
are taken in sorted order with an even stride over all candidates, so that the same machine gives the same corpus;
a document is cut at 100,000 characters, what is no UTF-8 or was seen already is left out.
"""
import argparse
import gettext
import gzip
import hashlib
import json
import pathlib
import sys
import sysconfig


def read_text(path):
    if path.suffix == ".mo":
        with open(path, "rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog
        messages = [m for m in catalog.values() if isinstance(m, str)]
        return "\n".join(messages)
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    return data.decode("utf-8")


def files_below(roots, suffixes, wanted=lambda path: True):
    found = []
    for root in roots:
        for path in sorted(pathlib.Path(root).rglob("*")):
            if path.is_symlink() or not path.is_file() or path.stat().st_size < 200:
                continue
            if any(path.name.endswith(suffix) for suffix in suffixes) and wanted(path):
                found.append(path)
    return found


def is_foreign_manual(path):
    return len(path.parts) > 5 and not path.parts[4].startswith("man")


def parts():
    library = sysconfig.get_paths()["stdlib"]
    manuals = files_below(["/usr/share/man"], [".gz"])
    prose = files_below(["/usr/share/doc", "/usr/share/info"], [".gz", ".txt", "copyright", "README", ".html", ".md"])
    prose += [path for path in manuals if not is_foreign_manual(path)]
    code = files_below([library, "/usr/share/perl", "/usr/include", "/usr/share/cmake-3.25", "/usr/share/fpcsrc"],
                       [".py", ".pm", ".h", ".hpp", ".cmake", ".pas", ".pp", ".c"])
    languages = files_below(["/usr/share/locale"], [".mo"]) + [path for path in manuals if is_foreign_manual(path)]
    return [("prose", prose, 0.5), ("code", code, 0.25), ("languages", languages, 0.25)]


def documents(files, budget, seen):
    """Documents of the part, the even ones first, until the budget is used."""
    stride = 7
    for start in range(stride):
        for path in files[start::stride]:
            try:
                text = read_text(path)[:100_000]
            except (OSError, ValueError, KeyError, EOFError, IndexError):
                continue
            digest = hashlib.sha1(text.encode("utf-8", "surrogatepass")).digest()
            if digest in seen or not text.strip() or "\0" in text:
                continue
            seen.add(digest)
            try:
                size = len(text.encode("utf-8"))
            except UnicodeEncodeError:
                continue
            yield text
            budget -= size
            if budget <= 0:
                return


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--megabytes", type=float, default=64)
    arguments = parser.parse_args()
    seen = set()
    total = 0
    streams = []
    for name, files, share in parts():
        texts = list(documents(files, share * arguments.megabytes * 1e6, seen))
        size = sum(len(text.encode("utf-8")) for text in texts)
        print(f"{name}: {len(texts)} documents, {size / 1e6:.1f} MB", file=sys.stderr)
        total += size
        streams.append(texts)
    # Evenly interleaved: document k of n stands at (k + 1/2) / n.
    order = sorted((((k + 0.5) / len(texts)), s, k) for s, texts in enumerate(streams) for k in range(len(texts)))
    with open(arguments.output, "w", encoding="utf-8") as output:
        for _, stream, k in order:
            output.write(json.dumps({"text": streams[stream][k]}, ensure_ascii=False) + "\n")
    print(f"total: {total / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()

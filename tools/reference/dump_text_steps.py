#!/usr/bin/env python3
"""Golden results of the steps of tokenizers, made by the packages `tokenizers` 0.23.3 and `sentencepiece` 0.2.2:
normalizers, splitting by patterns, WordPiece, Unigram, and small SentencePiece models. Their vocabularies are trained
here on the texts below. Writes tests/golden/data/text_steps.json, unigram.model and bpe.model.
"""
import collections
import contextlib
import json
import random
import tempfile
from pathlib import Path

import sentence_piece_file
import sentencepiece
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "golden" / "data"

BLOCKS = [(0x20, 0x7e), (0x61, 0x7a), (0x00, 0x20), (0x7f, 0xff), (0x100, 0x24f), (0x300, 0x36f), (0x370, 0x4ff),
          (0x590, 0x6ff), (0x900, 0xdff), (0xe00, 0xfff), (0x1100, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x206f),
          (0x2100, 0x27bf), (0x3040, 0x30ff), (0x32f0, 0x33ff), (0x4e00, 0x4eff), (0xac00, 0xaca0), (0xa7c0, 0xa7ff),
          (0xf900, 0xfaff), (0xfe00, 0xffef), (0x1d400, 0x1d4ff), (0x1f1e6, 0x1f1ff), (0x1f600, 0x1f64f),
          (0x16ea0, 0x16eb8)]
AWKWARD = ["", " ", "a", "The Quick  brown fox\u2019s \u00c5ngstr\u00f6m, na\u00efve caf\u00e9!",
           "\u0130stanbul \u03a3\u0391\u03a3", "e\u0301\u0323o\u0308", "\ufb01ne \u2460\u00bd \u3392 \u32ff \U0001f16c",
           "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab", "\u4e2d\u6587abc\u65e5\u672c\u8a9e",
           "line\r\nnext\tcell\u2028x\u00a0y\u3000z", "a\u200db \u200cc \ufffd \x00\x01",
           "don't DON'T they're \u017f 's 'S",
           "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\u2764\ufe0f",
           "\u0915\u094d\u0937\u093f \u0e01\u0e33", "[UNK] <unk> ##ing \u2581x", "aaaaaaa bbbbbbbb 1234567890",
           "x" * 120]


def texts(count, seed):
    pick, made = random.Random(seed), []
    for _ in range(count):
        blocks = [pick.choice(BLOCKS) for _ in range(pick.randint(1, 3))]
        made.append("".join(chr(pick.randint(*pick.choice(blocks))) for _ in range(pick.randint(1, 14))))
    return AWKWARD + made


def train_text():
    lines = [line for line in (ROOT / "LICENSE").read_text().splitlines() if line.strip()]
    return lines + ["caf\u00e9 na\u00efve \u00fcber \u4e2d\u6587 \u65e5\u672c\u8a9e"] * 4


def sentence_piece(name, rules, **options):
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # paths become part of the model
        Path("rules.tsv").write_text("".join(
            f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}\n" for a, b in rules))
        Path("text").write_text("\n".join(train_text()))
        sentencepiece.SentencePieceTrainer.train(
            input="text", model_prefix="m", normalization_rule_tsv="rules.tsv", vocab_size=400, minloglevel=2,
            num_threads=1, **options)
        model = Path("m.model").read_bytes()
    (DATA / f"{name}.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    cases = []
    for text in texts(50, 5) + train_text()[:20]:
        ids = processor.encode_as_ids(text)
        cases.append([text, ids, processor.decode_ids(ids)])
    return model, {"model": f"{name}.model", "eod": processor.eos_id(), "pad": processor.pad_id(),
                   "bos": processor.bos_id(), "unk": processor.unk_id(), "size": processor.vocab_size(), "cases": cases}


RULES = [("\ufb01", "fi"), ("\u00bd", "1\u20442"), ("A\u030a", "\u00c5"), ("\uff41", "a"), ("\u3000", " "),
         ("\t", " "), ("\u00a0", " "), ("\u200b", ""), ("\u2460", "1"), ("\u00ad", ""), ("e\u0301", "\u00e9"),
         ("\r", " "), ("\n", " ")]


def normalizer_cases(map_bytes):
    steps = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(),
             normalizers.StripAccents(), normalizers.Nmt(), normalizers.ByteLevel(), normalizers.Strip(),
             normalizers.Strip(left=False), normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581"),
             normalizers.Replace(Regex(r" {2,}|\p{Mn}|^\s"), "-"), normalizers.Replace("", "."),
             normalizers.Precompiled(map_bytes)]
    for options in [(True, True, None, True), (True, False, False, False), (False, True, True, False)]:
        steps.append(normalizers.BertNormalizer(*options))
    steps.append(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]))
    inputs = texts(36, 1)
    return {"texts": inputs, "steps": [{"json": json.loads(step.__getstate__()),
                                        "results": [step.normalize_str(text) for text in inputs]} for step in steps]}


def split_cases():
    inputs, splits = texts(24, 2), []
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    patterns = [Regex(r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"),
                Regex(r"\w+|[[:^alpha:]&&[^\d]]$"), Regex(r"a*|\bb"), Regex(r"\p{Han}|\h{2}+|[^\w\s]"), " ", "a"]
    for number, pattern in enumerate(patterns):
        for behavior in behaviors if number in (1, 2, 4) else ["isolated"]:
            for invert in (False, True):
                split = pre_tokenizers.Split(pattern, behavior, invert)
                splits.append({"json": json.loads(split.__getstate__()),
                               "results": [[word for word, _ in split.pre_tokenize_str(text)] for text in inputs]})
    return {"texts": inputs, "splits": splits}


def model_cases(model, words):
    """As a file: numbers are not all read as the doubles that they mean."""
    text = Tokenizer(model).to_str()
    model = Tokenizer.from_str(text).model
    return {"model": json.loads(text)["model"],
            "cases": [[word, [token.id for token in model.tokenize(word)]] for word in words]}


def word_piece_cases():
    lines = sorted({word for line in train_text() for word in line.split()})
    counts = collections.Counter(piece for word in lines for n in (2, 3, 4) for piece in (word[:n], "##" + word[-n:]))
    pieces = sorted(piece for piece, count in counts.items() if count > 3) + lines[::9]
    letters = sorted({letter for word in lines for letter in word})
    pieces = ["[UNK]"] + letters[::2] + ["##" + letter for letter in letters] + pieces
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    words = lines[:120] + texts(60, 3) + ["e" * 100, "e" * 101]
    return model_cases(models.WordPiece(vocabulary, unk_token="[UNK]"), words)


def unigram_cases(model, byte_fallback):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocabulary = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.vocab_size())]
    if byte_fallback:
        vocabulary = vocabulary[:100] + [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    words = ["\u2581" + word for line in train_text() for word in line.split()][:120] + texts(60, 4)
    words += [letter * count for letter in "el=0" for count in (2, 3, 7, 31, 64, 101)]
    return model_cases(models.Unigram(vocabulary, unk_id=0, byte_fallback=byte_fallback), words)


def tie_cases():
    """Runs of a letter can be cut in many ways of equal score: what wins hangs on the last bits of scores and sums."""
    pick, vocabulary, words = random.Random(6), [("<unk>", 0.0)], []
    for letter in "abcdefghijkl":
        vocabulary += [(letter * length, -1.0 - 0.3 * length - pick.random() / 10) for length in (1, 2, 3, 5, 8)]
        words += [letter * count for count in range(20, 140, 9)]
    return model_cases(models.Unigram(vocabulary, unk_id=0, byte_fallback=False), words)


def main():
    unigram, unigram_model = sentence_piece("unigram", RULES, model_type="unigram", hard_vocab_limit=False)
    _, bpe_model = sentence_piece("bpe", [("\u3000", " ")], model_type="bpe", byte_fallback=True,
                                  remove_extra_whitespaces=False, pad_id=3)
    golden = {"normalizers": normalizer_cases(sentence_piece_file.charsmap(unigram)), "splits": split_cases(),
              "word_piece": word_piece_cases(),
              "unigram": [unigram_cases(unigram, False), unigram_cases(unigram, True), tie_cases()],
              "sentence_piece": [unigram_model, bpe_model]}
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (DATA / "text_steps.json").write_text(text + "\n")
    print(len(text), "bytes")


if __name__ == "__main__":
    main()

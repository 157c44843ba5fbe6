"""Small vocabularies of every kind, trained here, and what `tokenizers` makes of awkward strings with them.

    python tools/reference/dump_tokenizers.py     writes tests/golden/tokenizer

NAME.json is a tokenizer.json; NAME.jsonl has a line for each string: its text, its ids, and what they decode to.
first_place.json has normalizers and pre-tokenizers around a Metaspace that marks only where all text begins, with the
ids of some texts for each.
"""
import json
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import awkward_text  # noqa: E402
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,  # noqa: E402
                        processors, trainers)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "golden" / "tokenizer"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
SENTENCES = ["Hello, world!", "The quick brown fox doesn't jump over 12345 lazy dogs.", "  two  spaces ", "tabs\tand\n\nlines\r\n",
             "x<|end|>y <|end|> z", "[MASK]  is lstripped,  [MASK]", "the then there the.", "caf\u00e9 cafe\u0301 CAFE\u0301",
             "\u2581under\u2581lined \u2581\u2581", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "a\u00adb\u200bc", "1\u00bd2\u2167\u0663",
             "foo  bar   baz", "<s>[INST] hi [/INST]</s>", "don't I'LL we\u2019ve", "don ' t do not , really ?"]


def corpus(awkward):
    text = (ROOT / "LICENSE").read_text() + (ROOT / "README.md").read_text()
    return [line + "\n" for line in text.splitlines()] + awkward_text.strings(awkward, 11)


def trained(model, trainer, pre_tokenizer, normalizer=None, awkward=2000):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(corpus(awkward), trainer)
    return tokenizer


def byte_level():
    """As GPT-2, with a normalizer and added tokens of every flag."""
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer = trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=True), normalizers.NFC())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens(["<|end|>", AddedToken("[MASK]", lstrip=True), AddedToken("[/INST]", rstrip=True)])
    tokenizer.add_tokens([AddedToken("the", single_word=True), "caf\u00e9", AddedToken("bar", normalized=False), "  "])
    return tokenizer


def llama3():
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated", invert=False)
    steps = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer = trained(models.BPE(ignore_merges=True), trainer, steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<s>"])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", bos)])])
    return tokenizer


def spaced_model():
    """SentencePiece-like: trained with Metaspace, tokens for all bytes in front."""
    trainer = trainers.BpeTrainer(vocab_size=300, limit_alphabet=80, show_progress=False)
    tokenizer = trained(models.BPE(), trainer, pre_tokenizers.Metaspace("\u2581", "always", False))
    data = json.loads(tokenizer.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    names += [t for t, _ in sorted(data["vocab"].items(), key=lambda item: item[1])]
    return models.BPE({t: i for i, t in enumerate(names)}, [tuple(m) for m in data["merges"]], unk_token="<unk>",
                      fuse_unk=True, byte_fallback=True)


def spaced(model):
    """As Llama 2."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                             special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace(model):
    """The same tokens cut by a pre-tokenizer, and some that are looked for behind it."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "first", True)
    tokenizer.decoder = decoders.Metaspace("\u2581", "first", True)
    tokenizer.add_tokens([AddedToken("<s>", special=True), AddedToken("foo", normalized=True), "the"])
    return tokenizer


def word_piece():
    """As BERT."""
    trainer = trainers.WordPieceTrainer(vocab_size=400, limit_alphabet=120, show_progress=False,
                                        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer = trained(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30), trainer,
                        pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def unigram():
    """As T5, but for the normalizer."""
    trainer = trainers.UnigramTrainer(vocab_size=400, unk_token="<unk>", show_progress=False,
                                      special_tokens=["<pad>", "</s>", "<unk>"])
    steps = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    tokenizer = trained(models.Unigram(), trainer, steps, normalizer, awkward=5)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                             special_tokens=[("</s>", 1)])
    tokenizer.enable_truncation(8)  # to be ignored
    tokenizer.enable_padding(length=16)
    return tokenizer


def mixed():
    """Pre-tokenizers of all other kinds, a suffix at the end of words, unknown characters."""
    trainer = trainers.BpeTrainer(vocab_size=350, limit_alphabet=70, show_progress=False, special_tokens=["<unk>"],
                                  end_of_word_suffix="</w>")
    steps = pre_tokenizers.Sequence([
        pre_tokenizers.Split("lazy", "merged_with_next"), pre_tokenizers.Split(Regex(r"[xyz]+"), "contiguous"),
        pre_tokenizers.CharDelimiterSplit("|"), pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True),
        pre_tokenizers.Punctuation("merged_with_previous")])
    tokenizer = trained(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), trainer, steps, normalizers.Lowercase())
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    tokenizer.add_tokens([AddedToken("QUICK"), AddedToken("Brown", normalized=False)])
    return tokenizer


def first_place():
    """Where does a text begin, behind normalizers that take away, replace or add what it began with?"""
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    characters = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}

    def replace(pattern, content, kind="String"):
        return {"type": "Replace", "pattern": {kind: pattern}, "content": content}

    def sequence(*steps):
        return {"type": "Sequence", "normalizers": list(steps)}

    strip, lower = {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"}
    prepend = {"type": "Prepend", "prepend": "xy"}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": True,
            "lowercase": True}
    charsmap = json.loads((ROOT / "tests/golden/data/text_steps.json").read_text())["normalizers"]["steps"]
    precompiled = next(step["json"] for step in charsmap if step["json"]["type"] == "Precompiled")
    plain = [None, strip, lower, prepend, replace("a", ""), replace("a", "z"), replace("ab", "z"),
             replace("[ab]+", "zz", "Regex"), bert, precompiled, *({"type": form} for form in
             ("NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Nmt", "ByteLevel")),
             sequence(strip, prepend), sequence(prepend, strip), sequence({"type": "NFKC"}, replace("2", "")),
             sequence({"type": "NFKD"}, {"type": "StripAccents"}, lower, precompiled)]
    texts = ["ab", " ab", "  a b", "abab", "Ab", "\u00bd1", "\u0130a", "\u00e9\u0323a", "e\u0301b", "\u0301a", "\u0323\u0301",
             "\u200bab", "\u0007a", "\u0000b", "\u4e2da", "\uac01b", "\u1100\u1161\u11a8", "\ufb01x", "\u0344a", "\ufdfa",
             "\u2581a", "<T>ab", " <T> ab", "1\u00bd", "\r\na", "\u3000a", "\uff76\uff9e", "", " "]
    names = ["<unk>", *sorted(set("".join(texts)) | {chr(c) for c in range(0x20, 0x180)} | set("\u2044\u2581"))]
    token = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    file = {"version": "1.0", "added_tokens": [dict(token, id=len(names), content="<T>", normalized=False),
                                               dict(token, id=len(names) + 1, content="1", normalized=True)],
            "model": {"type": "Unigram", "unk_id": 0, "vocab": [[name, -1.0] for name in names]}}
    cases = []
    for normalizer in plain:
        for pre_tokenizer in (metaspace, {"type": "Sequence", "pretokenizers": [characters, metaspace]}):
            parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
            tokenizer = Tokenizer.from_str(json.dumps({**file, **parts}))
            cases.append({**parts, "ids": [tokenizer.encode(text).ids for text in texts]})
    lines = ",\n".join(json.dumps(case) for case in cases)
    head = f'"file": {json.dumps(file)},\n"texts": {json.dumps(texts)}'
    (FOLDER / "first_place.json").write_text(f'{{{head},\n"cases": [\n{lines}]}}\n')


def dump(name, tokenizer):
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(FOLDER / f"{name}.json"), pretty=False)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    texts = SENTENCES + awkward_text.strings(50, 5, specials)
    with open(FOLDER / f"{name}.jsonl", "w", encoding="utf-8") as out:
        for text in texts:
            ids = tokenizer.encode(text).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            out.write(json.dumps({"text": text, "ids": ids, "decoded": decoded}, ensure_ascii=False,
                                 separators=(",", ":")) + "\n")


def main():
    dump("byte_level", byte_level())
    dump("llama3", llama3())
    model = spaced_model()
    dump("spaced", spaced(model))
    dump("metaspace", metaspace(model))
    dump("word_piece", word_piece())
    dump("unigram", unigram())
    dump("mixed", mixed())
    first_place()


if __name__ == "__main__":
    main()

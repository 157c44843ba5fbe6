#!/usr/bin/env python3
"""Writes tera/tokenizer/unicode/unicode_tables.cpp from the character data inside the source archives of PyPI's unicodedata2.

    pip install regex==2025.11.3   (Unicode 17's grapheme clusters)
    pip download --no-deps --no-build-isolation --no-binary :all: -d ARCHIVES unicodedata2==VERSION   (for each VERSION)
    unicode_tables.py ARCHIVES

Which version of Unicode each table follows was found by asking the `tokenizers` package about every code point; see
VERSIONS. Run by hand; what it writes is committed.
"""
import argparse
import re
import tarfile
import unicodedata
from pathlib import Path

import regex

VERSIONS = {
    "bert": "8.0.0",  # control characters, punctuation and marks of BERT's steps
    "normal": "9.0.0",  # NFC, NFD, NFKC, NFKD and stripped accents
    "regex": "16.0.0",  # classes of regular expressions, there and in tiktoken
    "rust": "17.0.1",  # lower case and numeric characters
}
ROOT = Path(__file__).resolve().parents[2]
CODES = range(0x110000)
CATEGORIES = "Cc Cf Cn Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()


EXPAND = """namespace {

template <class T, std::size_t size, std::size_t count>
constexpr std::array<T, size> expand(const std::int32_t (&runs)[count]) {
  std::array<T, size> values{};
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; i += 2)
    for (std::int32_t n = 0; n < runs[i]; ++n) values[at++] = static_cast<T>(runs[i + 1]);
  return values;
}

}  // namespace
"""


class Database:
    """One version's data, read from the C tables that the package is built from."""

    def __init__(self, archive):
        with tarfile.open(archive) as tar:
            names = [name for name in tar.getnames() if "/py2/" not in name]
            self.data = self._text(tar, names, "unicodedata_db.h")
            self.types = self._text(tar, names, "unicodetype_db.h")
        records = [tuple(map(int, row.split(","))) for row in self._rows(self.data, "_PyUnicode_Database_Records")]
        names = re.findall(r'"(\w+)"', self._array(self.data, "_PyUnicode_CategoryNames"))
        index = self._two_stages(self.data, "index1", "index2", "SHIFT")
        self.category = [names[records[index(code)][0]] for code in CODES]
        self.combining = [records[index(code)][1] for code in CODES]

    @staticmethod
    def _text(tar, names, ending):
        return tar.extractfile(next(name for name in names if name.endswith(ending))).read().decode()

    @staticmethod
    def _array(text, name):
        return re.search(r"\b%s\[\]\s*=\s*\{(.*?)\};" % name, text, re.S).group(1)

    def _rows(self, text, name):
        return [row.strip().rstrip(",") for row in re.findall(r"\{([^{}]*)\}", self._array(text, name))]

    def _numbers(self, text, name):
        return [int(number, 0) for number in re.findall(r"\b(?:0x[0-9a-fA-F]+|\d+)\b", self._array(text, name))]

    def _two_stages(self, text, first, second, shift):
        first, second = self._numbers(text, first), self._numbers(text, second)
        shift = int(re.search(r"#define %s (\d+)" % shift, text).group(1))
        return lambda code: second[(first[code >> shift] << shift) + (code & ((1 << shift) - 1))]

    def decompositions(self):
        """code -> (whether for compatibility only, codes): one step, without Hangul syllables."""
        prefixes = re.findall(r'"([^"]*)"', self._array(self.data, "decomp_prefix"))
        data = self._numbers(self.data, "decomp_data")
        index = self._two_stages(self.data, "decomp_index1", "decomp_index2", "DECOMP_SHIFT")
        steps = {}
        for code in CODES:
            at = index(code)
            if at:
                steps[code] = (prefixes[data[at] & 255] != "", data[at + 1:at + 1 + (data[at] >> 8)])
        return steps

    def lower_case(self):
        """code -> one code; the one character that becomes two (U+0130) is the caller's business."""
        types = [row.split(",") for row in self._rows(self.types, "_PyUnicode_TypeRecords")]
        index = self._two_stages(self.types, "index1", "index2", "SHIFT")
        extended = self._numbers(self.types, "_PyUnicode_ExtendedCase")
        mapped = {}
        for code in CODES:
            lower, flags = int(types[index(code)][1]), int(types[index(code)][5])
            if code == 0x130 or not lower:
                continue
            mapped[code] = extended[lower & 0xffff] if flags & 0x4000 else code + lower
        return {code: lower for code, lower in mapped.items() if lower != code}


def blocks_of(values, size):
    """Values of all code points as (block numbers, distinct blocks one after the other)."""
    numbers, blocks, seen = [], [], {}
    for start in range(0, len(values), size):
        block = tuple(values[start:start + size])
        if block not in seen:
            seen[block] = len(seen)
            blocks += block
        numbers.append(seen[block])
    return numbers, blocks


def lines_of(numbers):
    lines, line = [], ""
    for number in numbers:
        if len(line) + len(str(number)) >= 119:
            lines.append(line)
            line = ""
        line += f"{number},"
    return "\n".join(lines + [line])


def array(kind, name, numbers):
    return f"constexpr std::array<{kind}, {len(numbers)}> {name}{{{{\n{lines_of(numbers)}\n}}}};\n"


def runs(kind, name, numbers):
    """An array written as counts and values, which the compiler expands."""
    pairs = []
    for number in numbers:
        if pairs and pairs[-1][1] == number:
            pairs[-1][0] += 1
        else:
            pairs.append([1, number])
    flat = lines_of([entry for pair in pairs for entry in pair])
    return f"constexpr std::array<{kind}, {len(numbers)}> {name} = expand<{kind}, {len(numbers)}>({{\n{flat}\n}});\n"


def two_stages(name, kind, comment, values, size=128):
    numbers, blocks = blocks_of(values, size)
    number_kind = "std::uint8_t" if max(numbers) < 256 else "std::uint16_t"
    print(f"{name}: {len(numbers)} + {len(blocks)} entries, {max(numbers) + 1} blocks")
    return f"// {comment}\n" + runs(number_kind, f"{name}_block", numbers) + runs(kind, f"{name}_values", blocks)


def kinds(databases):
    """Category of regular expressions and three flags, see unicode.h."""
    bert, regex, rust = databases["bert"].category, databases["regex"].category, databases["rust"].category
    ascii_punctuation = {code for code in range(0x21, 0x7f) if not chr(code).isalnum()}
    for code in CODES:
        value = CATEGORIES.index(regex[code])
        value |= 32 * (rust[code][0] == "N")
        value |= 64 * (bert[code][0] == "P" or code in ascii_punctuation)
        value |= 128 * ((bert[code] in ("Cc", "Cf", "Co") and code not in (9, 10, 13)) or code == 0xfffd)
        yield value


def full_decompositions(steps, compatible):
    """code -> all codes it falls apart into, still in the order of the steps."""
    def expand(code):
        if code not in steps or (steps[code][0] and not compatible):
            return [code]
        return [part for step in steps[code][1] for part in expand(step)]
    return {code: expand(code) for code in steps if expand(code) != [code]}


def compositions(steps, combining):
    """(first, second) -> composed. What once composed always does, so any later version tells the exclusions."""
    pairs = {}
    for code, (compatible, codes) in steps.items():
        if not compatible and len(codes) == 2 and unicodedata.normalize("NFC", chr(code)) == chr(code):
            assert combining[code] == 0
            pairs[tuple(codes)] = code
    return pairs


GRAPHEME_CLASSES = [  # in the order of unicode.h's GraphemeClass
    r"\p{GCB=CR}", r"\p{GCB=LF}", r"\p{GCB=Control}", r"(?=\p{GCB=Extend})\p{InCB=None}",
    r"(?=\p{GCB=Extend})\p{InCB=Extend}", r"(?=\p{GCB=Extend})\p{InCB=Linker}", r"\p{GCB=ZWJ}", r"\p{GCB=Prepend}",
    r"\p{GCB=SpacingMark}", r"\p{GCB=L}", r"\p{GCB=V}", r"\p{GCB=T}", r"\p{GCB=LV}", r"\p{GCB=LVT}",
    r"\p{GCB=Regional_Indicator}", r"\p{Extended_Pictographic}", r"\p{InCB=Consonant}"]


def grapheme_classes():
    classes = [0] * len(CODES)
    for number, pattern in enumerate(GRAPHEME_CLASSES, 1):
        matches = regex.compile(pattern).match
        for code in CODES:
            if matches(chr(code)):
                assert classes[code] == 0, hex(code)
                classes[code] = number
    return classes


def traits(databases, canonical, compatible, pairs):
    """(combining class, flags, grapheme class) of all code points, see unicode_tables.h."""
    bert, normal = databases["bert"].category, databases["normal"]
    hangul = range(0xac00, 0xd7a4)
    seconds = {second for _, second in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11a8, 0x11c3))
    changed = {code for code in canonical if code not in pairs.values()}
    classes = grapheme_classes()
    for code in CODES:
        flags = 1 * (code in changed or code in seconds)  # NFC may change it, or what stands before it
        flags |= 2 * (flags == 1 or compatible.get(code) != canonical.get(code))
        flags |= 4 * (code in canonical or code in hangul)
        flags |= 8 * (code in compatible or code in hangul)
        flags |= 16 * (normal.category[code][0] == "M")
        flags |= 32 * (bert[code] == "Mn")
        yield normal.combining[code], flags, classes[code]


def decomposition_table(name, comment, expansions):
    """Two stages to a place in a pool where a count and as many codes stand; place 0 is for all others."""
    pool, places = [0], [0] * len(CODES)
    for code, codes in expansions.items():
        places[code] = len(pool)
        pool += [len(codes)] + codes
    assert len(pool) < 65536
    return two_stages(name, "std::uint16_t", comment, places, 32) + array("std::uint32_t", f"{name}_pool", pool)


def numbered(name, kind, comment, values):
    """Two stages to the number of a record, and the distinct records."""
    records = sorted(set(values))
    number = {record: i for i, record in enumerate(records)}
    assert len(records) < 256
    texts = [str(record) if isinstance(record, int) else "{%s}" % ",".join(map(str, record)) for record in records]
    return two_stages(name, "std::uint8_t", comment, [number[value] for value in values]) + array(
        kind, f"{name}_records", texts)


SCRIPTS = """Arabic Armenian Bengali Bopomofo Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul
Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala Tamil
Telugu Thai Tibetan""".split()


def property_ranges(categories):
    """Classes of regular expressions that are no sum of categories, as (name, first range, ranges)."""
    others = {"other_alphabetic": r"(?=\p{Alphabetic})[^\p{L}\p{Nl}]", "other_lowercase": r"(?=\p{Lowercase})\P{Ll}",
              "other_uppercase": r"(?=\p{Uppercase})\P{Lu}"}
    names, ranges = [], []
    for name, pattern in list(others.items()) + [(name.lower(), r"\p{Script=%s}" % name) for name in SCRIPTS]:
        matches = regex.compile(pattern).match
        first = len(ranges)
        for code in CODES:
            if categories[code] != "Cn" and matches(chr(code)):  # the package is newer than the version wanted
                if len(ranges) > first and ranges[-1][1] == code - 1:
                    ranges[-1][1] = code
                else:
                    ranges.append([code, code])
        names.append(f'{{"{name}",{first},{len(ranges) - first}}}')
    return ("// Named parts of property_ranges.\n" + array("NamedRanges", "property_names", names) +
            array("CodeRange", "property_ranges", [f"{{{first},{last}}}" for first, last in ranges]))


def composition_table(pairs):
    rows = [f"{{{first},{second},{code}}}" for (first, second), code in sorted(pairs.items())]
    return "// In order of both codes.\n" + array("Composition", "compositions", rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archives", type=Path, help="folder with unicodedata2-VERSION.tar.gz")
    parser.add_argument("--output", type=Path, default=ROOT / "tera" / "tokenizer" / "unicode_tables.cpp")
    options = parser.parse_args()
    archive = {use: options.archives / f"unicodedata2-{version}.tar.gz" for use, version in VERSIONS.items()}
    databases = {use: Database(path) for use, path in archive.items()}
    steps = databases["normal"].decompositions()
    canonical, compatible = full_decompositions(steps, False), full_decompositions(steps, True)
    pairs = compositions(steps, databases["normal"].combining)
    lower = databases["rust"].lower_case()
    parts = [
        "// Made by tools/reference/unicode_tables.py; not for editing.\n// clang-format off\n"
        '#include "tera/tokenizer/unicode/unicode_tables.h"\n\nnamespace tera::unicode_tables {\n' + EXPAND,
        two_stages("kind", "std::uint8_t", "Category in the low five bits, flags above.", list(kinds(databases))),
        numbered("trait", "Trait", "For normal forms and grapheme clusters.",
                 list(traits(databases, canonical, compatible, pairs))),
        numbered("lower", "std::int32_t", "What to add for the lower case.", [lower.get(c, c) - c for c in CODES]),
        decomposition_table("canonical", "Full canonical decompositions.", canonical),
        decomposition_table("compatible", "Full compatible decompositions where they differ from the canonical ones.",
                            {c: codes for c, codes in compatible.items() if codes != canonical.get(c)}),
        composition_table(pairs),
        property_ranges(databases["regex"].category),
        "}  // namespace tera::unicode_tables\n",
    ]
    options.output.write_text("\n".join(parts))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tera/tokenizer/unicode_tables.cpp from the character data inside the source archives of PyPI's unicodedata2.

    pip download --no-deps --no-build-isolation --no-binary :all: -d ARCHIVES unicodedata2==VERSION   (for each VERSION)
    unicode_tables.py ARCHIVES

Which version of Unicode each table follows was found by asking the `tokenizers` package about every code point; see
VERSIONS. Run by hand; what it writes is committed.
"""
import argparse
import re
import tarfile
from pathlib import Path

VERSIONS = {
    "bert": "8.0.0",  # control characters, punctuation and marks of BERT's steps
    "normal": "9.0.0",  # NFC, NFD, NFKC, NFKD and stripped accents
    "regex": "16.0.0",  # classes of regular expressions, there and in tiktoken
    "rust": "17.0.1",  # lower case and numeric characters
}
ROOT = Path(__file__).resolve().parents[2]
CODES = range(0x110000)
CATEGORIES = "Cc Cf Cn Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()


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


def array(declaration, numbers):
    lines, line = [], " "
    for number in numbers:
        text = f" {number},"
        if len(line) + len(text) > 120:
            lines.append(line)
            line = " "
        line += text
    return f"{declaration} = {{\n" + "\n".join(lines + [line]) + "\n};\n"


def two_stages(name, kind, comment, values, size=128):
    numbers, blocks = blocks_of(values, size)
    number_kind = "std::uint8_t" if max(numbers) < 256 else "std::uint16_t"
    print(f"{name}: {len(numbers)} + {len(blocks)} entries, {max(numbers) + 1} blocks")
    return (f"// {comment}\n" + array(f"const {number_kind} {name}_block[{len(numbers)}]", numbers) +
            array(f"const {kind} {name}_values[{len(blocks)}]", blocks))


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archives", type=Path, help="folder with unicodedata2-VERSION.tar.gz")
    parser.add_argument("--output", type=Path, default=ROOT / "tera" / "tokenizer" / "unicode_tables.cpp")
    options = parser.parse_args()
    databases = {use: Database(options.archives / f"unicodedata2-{version}.tar.gz") for use, version in VERSIONS.items()}
    parts = [
        "// Made by tools/reference/unicode_tables.py; not for editing.\n// clang-format off\n"
        '#include "tera/tokenizer/unicode_tables.h"\n\nnamespace tera::unicode_tables {\n',
        two_stages("kind", "std::uint8_t", "Category in the low five bits, flags above.", list(kinds(databases))),
        "}  // namespace tera::unicode_tables\n",
    ]
    options.output.write_text("\n".join(parts))


if __name__ == "__main__":
    main()

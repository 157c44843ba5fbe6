"""Strings that tokenizers stumble over, the same for the same seed."""
import random
import unicodedata

# First and last code points of blocks whose neighbours rarely meet: all large scripts, marks, symbols, private use.
BLOCKS = [
    (0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x61, 0x7A), (0x30, 0x39), (0xA0, 0x24F), (0x250, 0x36F),
    (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x5FF), (0x600, 0x6FF), (0x700, 0x8FF), (0x900, 0xDFF), (0xE00, 0xEFF),
    (0xF00, 0x11FF), (0x1200, 0x139F), (0x13A0, 0x17FF), (0x1800, 0x1CFF), (0x1D00, 0x1FFF), (0x2000, 0x206F),
    (0x2070, 0x218F), (0x2190, 0x27BF), (0x2900, 0x2BFF), (0x2C00, 0x2E7F), (0x2E80, 0x303F), (0x3040, 0x30FF),
    (0x3100, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF),
    (0xE000, 0xE0FF), (0xF900, 0xFDFF), (0xFE00, 0xFFFD), (0x10000, 0x103FF), (0x10400, 0x10FFF), (0x11000, 0x11FFF),
    (0x12000, 0x143FF), (0x16000, 0x18FFF), (0x1B000, 0x1BCFF), (0x1D000, 0x1D7FF), (0x1D800, 0x1DFFF),
    (0x1E000, 0x1EFFF), (0x1F000, 0x1F2FF), (0x1F300, 0x1F6FF), (0x1F900, 0x1FAFF), (0x1FB00, 0x1FBFF),
    (0x20000, 0x2A6DF), (0x2A700, 0x323AF), (0xE0000, 0xE01EF), (0xF0000, 0xF00FF), (0x10FF00, 0x10FFFF),
]  # fmt: skip
# Newer than Unicode 14: letters, digits, marks and ideographs of 15, 15.1, 16 and 17.
NEW = [0x11F04, 0x11F50, 0x11F59, 0x1E4D0, 0x1E4F5, 0x31350, 0x2EBF0, 0x105C0, 0x10D40, 0x10D4F, 0x11BC0, 0x11BF0,
       0x16100, 0x16D40, 0x1CCF0, 0x1E5D0, 0x1E5F1, 0x1FAE9, 0xA7CB, 0x1C89, 0x1C8A, 0x1FADC, 0x323B0, 0x11DB0]
SPACES = [" ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085",
          "\u200b", "\u1680", " \n ", "\t ", " \t\n", "\v", "\f", "\u202f", "\ufeff"]
CONTROLS = [chr(c) for c in range(32)] + ["\x7f", "\u0080", "\u0085", "\u009f", "\u200d", "\u200e", "\u2066", "\ufffd",
                                          "\ufffe", "\uffff", "\u00ad", "\u061c", "\U000e0001", "\U000e007f"]
EMOJI = ["\U0001f600", "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f44d\U0001f3fd",
         "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\u0031\ufe0f\u20e3", "\U0001fae8"]
WORDS = ["the", "The", "THE", "don't", "I'll", "we've", "it's", "IT'S", "he'd", "can\u2019t", "na\u00efve", "na\u0131ve",
         "\u0130stanbul", "stra\u00dfe", "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2", "\ufb01ne", "\u212bngstr\u00f6m",
         "e\u0301", "o\u0308\u0323", "\u1e9b\u0323", "\uac01", "\u1100\u1161\u11a8", "\u32ff", "\u3392", "\u2460\u2461",
         "\u00bd", "\u2167", "1234567", "3.14159", "1,000,000", "0x1F", "camelCase", "PascalCaseWord", "snake_case",
         "HTTPServer", "foo.bar(baz)", "https://example.com/a?b=c&d=%20", "user@example.com", "<b>bold</b>", "C++20",
         "==>", "!!!", "...", "\u2026", "--", "\u2014", "\"quoted\"", "\u201cquoted\u201d", "(a)", "[b]", "{c}", "#tag",
         "@name", "$9.99", "50%", "a/b", "\\n", "\\", "``", "''", "'", "'s", " 's", "\u2581", "\u2581\u2581x", "##ing",
         "\u0120", "\u0120the", "<0x41>", "<0xE2>", "\u4f60\u597d", "\u3053\u3093\u306b\u3061\u306f", "\uc548\ub155",
         "\u043f\u0440\u0438\u0432\u0435\u0442", "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd",
         "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "Xin ch\u00e0o", "\u00c5\u00c4\u00d6"]


def character(rng):
    first, last = rng.choice(BLOCKS)
    while True:
        code = rng.randint(first, last)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def piece(rng, specials):
    kind = rng.randrange(20)
    if kind < 5:
        return rng.choice(WORDS)
    if kind < 8:
        return rng.choice(SPACES)
    if kind < 11:
        return "".join(chr(rng.randint(97, 122)) for _ in range(rng.randint(1, 12)))
    if kind < 14:
        first, last = rng.choice(BLOCKS)
        codes = (rng.randint(first, last) for _ in range(rng.randint(1, 8)))
        return "".join(chr(c) for c in codes if not 0xD800 <= c <= 0xDFFF)
    if kind < 15:
        return chr(rng.choice(NEW)) + ("a" if rng.random() < 0.3 else "")
    if kind < 16:
        return rng.choice(CONTROLS)
    if kind < 17:
        return rng.choice(EMOJI)
    if kind < 18:
        return "".join(character(rng) for _ in range(rng.randint(1, 6)))
    if kind < 19 and specials:
        token = rng.choice(specials)
        cut = rng.random()
        return token if cut < 0.7 else token[: rng.randrange(len(token))] if cut < 0.85 else token.upper()
    return rng.choice("aA1 .\n'\u00e9\u4e2d") * rng.randint(1, 40)


def strings(count, seed, specials=()):
    """`count` strings; most are short, a few long."""
    rng = random.Random(seed)
    specials = sorted(specials)
    result = ["", " ", "\n", "a", "\U0010ffff"]
    while len(result) < count:
        pieces = rng.choice((1, 2, 3, 4, 6, 10, 20, 60 if rng.random() < 0.1 else 5))
        between = rng.choice(("", "", " ", " "))
        text = between.join(piece(rng, specials) for _ in range(pieces))
        if rng.random() < 0.05:
            text = unicodedata.normalize(rng.choice(("NFC", "NFD", "NFKC", "NFKD")), text)
        result.append(text)
    return result[:count]

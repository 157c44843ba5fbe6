#include "tera/tokenizer/unicode/regex_set.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>

#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

// Lower case without what does not count.
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  return plain;
}

struct CategoryName {
  std::string_view short_name, long_name;
  Category first, last;
};

using enum Category;
constexpr std::array category_names = {CategoryName{"c", "other", cc, cs},
                                       CategoryName{"l", "letter", ll, lu},
                                       CategoryName{"m", "mark", mc, mn},
                                       CategoryName{"n", "number", nd, no},
                                       CategoryName{"p", "punctuation", pc, ps},
                                       CategoryName{"s", "symbol", sc, so},
                                       CategoryName{"z", "separator", zl, zs},
                                       CategoryName{"cc", "control", cc, cc},
                                       CategoryName{"cf", "format", cf, cf},
                                       CategoryName{"cn", "unassigned", cn, cn},
                                       CategoryName{"co", "privateuse", co, co},
                                       CategoryName{"ll", "lowercaseletter", ll, ll},
                                       CategoryName{"lm", "modifierletter", lm, lm},
                                       CategoryName{"lo", "otherletter", lo, lo},
                                       CategoryName{"lt", "titlecaseletter", lt, lt},
                                       CategoryName{"lu", "uppercaseletter", lu, lu},
                                       CategoryName{"mc", "spacingmark", mc, mc},
                                       CategoryName{"me", "enclosingmark", me, me},
                                       CategoryName{"mn", "nonspacingmark", mn, mn},
                                       CategoryName{"nd", "decimalnumber", nd, nd},
                                       CategoryName{"nl", "letternumber", nl, nl},
                                       CategoryName{"no", "othernumber", no, no},
                                       CategoryName{"pc", "connectorpunctuation", pc, pc},
                                       CategoryName{"pd", "dashpunctuation", pd, pd},
                                       CategoryName{"pe", "closepunctuation", pe, pe},
                                       CategoryName{"pf", "finalpunctuation", pf, pf},
                                       CategoryName{"pi", "initialpunctuation", pi, pi},
                                       CategoryName{"po", "otherpunctuation", po, po},
                                       CategoryName{"ps", "openpunctuation", ps, ps},
                                       CategoryName{"sc", "currencysymbol", sc, sc},
                                       CategoryName{"sk", "modifiersymbol", sk, sk},
                                       CategoryName{"sm", "mathsymbol", sm, sm},
                                       CategoryName{"so", "othersymbol", so, so},
                                       CategoryName{"zl", "lineseparator", zl, zl},
                                       CategoryName{"zp", "paragraphseparator", zp, zp},
                                       CategoryName{"zs", "spaceseparator", zs, zs}};

CodePointSet categories(Category first, Category last) {
  return CodePointSet::where([=](char32_t c) { return unicode::between(category(c), first, last); });
}

bool add_ranges(CodePointSet& set, std::string_view name) {
  const auto& names = unicode_tables::property_names;
  const auto found = std::ranges::find(names, name, [](const auto& entry) { return std::string_view(entry.name); });
  if (found == names.end()) return false;
  for (std::size_t i = found->first; i < std::size_t{found->first} + found->count; ++i)
    set.add(unicode_tables::property_ranges[i].first, unicode_tables::property_ranges[i].last);
  return true;
}

CodePointSet with_ranges(CodePointSet set, std::string_view name) {
  add_ranges(set, name);
  return set;
}

CodePointSet alphabetic() {
  CodePointSet set = categories(ll, lu);
  set.add(categories(nl, nl));
  return with_ranges(std::move(set), "other_alphabetic");
}

std::optional<CodePointSet> named_property(const std::string& name) {
  CodePointSet set;
  if (name == "any") return set.add(0, unicode::limit - 1), set;
  if (name == "ascii") return set.add(0, 127), set;
  if (name == "space" || name == "whitespace") return CodePointSet::where(is_white_space);
  if (name == "digit") return categories(nd, nd);
  if (name == "alpha" || name == "alphabetic") return alphabetic();
  if (name == "lower" || name == "lowercase") return with_ranges(categories(ll, ll), "other_lowercase");
  if (name == "upper" || name == "uppercase") return with_ranges(categories(lu, lu), "other_uppercase");
  if (name == "alnum") return set = alphabetic(), set.add(categories(nd, nd)), set;
  return {};
}

}  // namespace

CodePointSet::CodePointSet() : words_(size / 64) {}

void CodePointSet::add(char32_t first, char32_t last) {
  for (char32_t c = first; c <= last; ++c) {
    if (c % 64 == 0 && last - c >= 64) {
      words_[c >> 6] = ~std::uint64_t{0};
      c += 63;
    } else {
      words_[c >> 6] |= std::uint64_t{1} << (c & 63);
    }
  }
  drop_surrogates();
}

void CodePointSet::add(const CodePointSet& other) {
  std::ranges::transform(words_, other.words_, words_.begin(), std::bit_or());
}

void CodePointSet::keep(const CodePointSet& other) {
  std::ranges::transform(words_, other.words_, words_.begin(), std::bit_and());
}

void CodePointSet::invert() {
  for (std::uint64_t& word : words_) word = ~word;
  drop_surrogates();
}

void CodePointSet::drop_surrogates() { std::fill(words_.begin() + 0xd800 / 64, words_.begin() + 0xe000 / 64, 0); }

bool CodePointSet::only_ascii() const {
  return std::all_of(words_.begin() + 2, words_.end(), [](std::uint64_t word) { return word == 0; });
}

bool CodePointSet::empty() const {
  return std::ranges::all_of(words_, [](std::uint64_t word) { return word == 0; });
}

std::string CodePointSet::pattern() const {
  if (empty()) return "(?!)";
  std::string ranges = "[";
  for (char32_t c = 0; c < size; ++c) {
    if (words_[c >> 6] == 0) c |= 63;
    if (!contains(c)) continue;
    const char32_t first = c;
    while (c + 1 < size && contains(c + 1)) ++c;
    fmt::format_to(std::back_inserter(ranges), "\\x{{{:x}}}", static_cast<std::uint32_t>(first));
    if (c > first) fmt::format_to(std::back_inserter(ranges), "-\\x{{{:x}}}", static_cast<std::uint32_t>(c));
  }
  return ranges + "]";
}

std::optional<CodePointSet> property_set(std::string_view name) {
  const std::string plain = plain_name(name);
  for (const CategoryName& entry : category_names)
    if (plain == entry.short_name || plain == entry.long_name) return categories(entry.first, entry.last);
  if (auto known = named_property(plain)) return known;
  CodePointSet set;
  if (!add_ranges(set, plain)) return {};  // our own names have a '_', which `plain` has not
  return set;
}

}  // namespace tera

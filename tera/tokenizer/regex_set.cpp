#include "tera/tokenizer/regex_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tera/tokenizer/unicode.h"

namespace tera {
namespace {

bool is_surrogate(char32_t c) { return c >= 0xd800 && c <= 0xdfff; }

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
  CodePointSet set;
  for (char32_t c = 0; c < unicode::limit; ++c)
    if (unicode::between(category(c), first, last)) set.add(c, c);
  return set;
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

CodePointSet white_space() {
  CodePointSet set;
  for (char32_t c = 0; c <= 0x3000; ++c)
    if (is_white_space(c)) set.add(c, c);
  return set;
}

std::optional<CodePointSet> named_property(const std::string& name) {
  CodePointSet set;
  if (name == "any") return set.add(0, unicode::limit - 1), set;
  if (name == "ascii") return set.add(0, 127), set;
  if (name == "space" || name == "whitespace") return white_space();
  if (name == "digit") return categories(nd, nd);
  if (name == "alpha" || name == "alphabetic") return alphabetic();
  if (name == "lower" || name == "lowercase") return with_ranges(categories(ll, ll), "other_lowercase");
  if (name == "upper" || name == "uppercase") return with_ranges(categories(lu, lu), "other_uppercase");
  if (name == "alnum") return set = alphabetic(), set.add(categories(nd, nd)), set;
  return {};
}

}  // namespace

CodePointSet::CodePointSet() : bits_(unicode::limit) {}

void CodePointSet::add(char32_t first, char32_t last) {
  for (char32_t c = first; c <= last; ++c)
    if (!is_surrogate(c)) bits_[c] = true;
}

void CodePointSet::add(const CodePointSet& other) {
  for (char32_t c = 0; c < unicode::limit; ++c)
    if (other.bits_[c]) bits_[c] = true;
}

void CodePointSet::keep(const CodePointSet& other) {
  for (char32_t c = 0; c < unicode::limit; ++c)
    if (!other.bits_[c]) bits_[c] = false;
}

void CodePointSet::invert() {
  for (char32_t c = 0; c < unicode::limit; ++c)
    if (!is_surrogate(c)) bits_[c] = !bits_[c];
}

bool CodePointSet::only_ascii() const { return std::find(bits_.begin() + 128, bits_.end(), true) == bits_.end(); }

bool CodePointSet::empty() const { return std::find(bits_.begin(), bits_.end(), true) == bits_.end(); }

std::string CodePointSet::pattern() const {
  if (empty()) return "(?!)";
  std::string ranges = "[";
  for (char32_t c = 0; c < unicode::limit; ++c) {
    if (!bits_[c]) continue;
    const char32_t first = c;
    while (c + 1 < unicode::limit && bits_[c + 1]) ++c;
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

#include "tera/tokenizer/huggingface/normalize.h"

#include <algorithm>
#include <vector>

#include "tera/base/utf8.h"
#include "tera/tokenizer/huggingface/normalizer.h"
#include "tera/tokenizer/unicode/unicode.h"

namespace tera {
namespace {

using unicode_tables::Composition;
using unicode_tables::Trait;

Trait trait_of(char32_t c) {
  if (c >= unicode::limit) return {0, 0, 0};
  const std::size_t block = unicode_tables::trait_block[c >> 7];
  return unicode_tables::trait_records[unicode_tables::trait_values[block << 7 | (c & 127)]];
}

constexpr bool composes(NormalForm form) { return form == NormalForm::nfc || form == NormalForm::nfkc; }
constexpr bool is_compatible(NormalForm form) { return form == NormalForm::nfkc || form == NormalForm::nfkd; }

// The flag of characters that the form may change, alone or together with those before them.
constexpr std::uint8_t flag_of(NormalForm form) { return static_cast<std::uint8_t>(1U << static_cast<unsigned>(form)); }

namespace hangul {
constexpr char32_t syllables = 0xac00, leads = 0x1100, vowels = 0x1161, tails = 0x11a7;
constexpr char32_t syllable_count = 11172, lead_count = 19, vowel_count = 21, tail_count = 28;
}  // namespace hangul

// One run of characters that may interact: in canonical order, then composed.
class Segment {
 public:
  explicit Segment(NormalForm form) : form_(form) {}

  bool changes() const { return changes_ || !in_order_; }  // whether the run may change

  void add(char32_t c, bool changes) {
    changes_ |= changes;
    if (c - hangul::syllables < hangul::syllable_count) return add_syllable(c - hangul::syllables);
    if (is_compatible(form_))
      if (const std::size_t place = index_of(unicode_tables::compatible_block, unicode_tables::compatible_values, c))
        return add_pool(unicode_tables::compatible_pool.data() + place);
    if (const std::size_t place = index_of(unicode_tables::canonical_block, unicode_tables::canonical_values, c))
      return add_pool(unicode_tables::canonical_pool.data() + place);
    put(c);
  }

  // take(Rewritten), for each character of what it becomes.
  template <class Take>
  void flush(const Take& take) {
    emit(characters_.size(), take);
    changes_ = false;
    flush_size_ = min_flush_size;
  }

  // Flushes the part of a long run with which no later character interacts.
  template <class Take>
  void flush_settled(const Take& take) {
    if (characters_.size() < flush_size_) return;
    std::size_t count = characters_.size() - 1;
    while (count > 0 && !begins_anew(characters_[count])) --count;
    changes_ |= !in_order_;
    emit(count, take);
    flush_size_ = std::max(min_flush_size, 2 * characters_.size());
  }

 private:
  struct Character {
    char32_t code;
    std::uint8_t combining_class;
    std::int16_t change;  // as in Rewritten; no more than a few become one
  };
  static constexpr std::size_t min_flush_size = 4096;

  bool begins_anew(const Character& c) const {
    return c.combining_class == 0 && !(trait_of(c.code).flags & flag_of(form_));
  }

  template <class Take>
  void emit(std::size_t count, const Take& take) {
    if (!in_order_) sort();
    const std::size_t kept = composes(form_) ? compose(count) : count;
    for (std::size_t i = 0; i < kept; ++i) take(Rewritten{characters_[i].code, characters_[i].change});
    characters_.erase(characters_.begin(), characters_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  template <class Blocks, class Values>
  static std::size_t index_of(const Blocks& blocks, const Values& values, char32_t c) {
    return c < unicode::limit ? values[std::size_t{blocks[c >> 5]} << 5 | (c & 31)] : 0;
  }

  void add_pool(const std::uint32_t* entry) {
    for (std::uint32_t i = 1; i <= entry[0]; ++i) put(entry[i], i > 1);
  }

  void add_syllable(char32_t number) {
    const char32_t tail = number % hangul::tail_count, pair = number / hangul::tail_count;
    put(hangul::leads + pair / hangul::vowel_count);
    put(hangul::vowels + pair % hangul::vowel_count, true);
    if (tail != 0) put(hangul::tails + tail, true);
  }

  void put(char32_t c, bool added = false) {
    const std::uint8_t combining_class = trait_of(c).combining_class;
    if (combining_class != 0 && !characters_.empty() && characters_.back().combining_class > combining_class)
      in_order_ = false;
    characters_.push_back({c, combining_class, std::int16_t{added}});
  }

  // Marks between two starters by their classes.
  void sort() {
    const auto is_starter = [](const Character& c) { return c.combining_class == 0; };
    const auto lighter = [](const Character& a, const Character& b) { return a.combining_class < b.combining_class; };
    for (auto first = characters_.begin(); first != characters_.end();) {
      const auto last = std::find_if(first, characters_.end(), is_starter);
      std::stable_sort(first, last, lighter);
      first = std::find_if_not(last, characters_.end(), is_starter);
    }
    in_order_ = true;
  }

  // The first `count` characters; returns how many they become.
  std::size_t compose(std::size_t count) {
    std::size_t kept = 0, starter = count;
    for (std::size_t i = 0; i < count; ++i) {
      const Character next = characters_[i];
      // A character between both with at least this combining class, or a starter, blocks the composition.
      const bool adjacent = starter + 1 == kept;
      const bool blocked =
          starter >= kept || (!adjacent && characters_[kept - 1].combining_class >= next.combining_class);
      const char32_t composed = blocked ? 0 : pair(characters_[starter].code, next.code);
      if (composed != 0) {
        characters_[starter].code = composed;
        characters_[starter].change = static_cast<std::int16_t>(characters_[starter].change + next.change - 1);
        continue;
      }
      if (next.combining_class == 0) starter = kept;
      characters_[kept++] = next;
    }
    return kept;
  }

  // The composition of the two characters, 0 if there is none.
  static char32_t pair(char32_t first, char32_t second) {
    using namespace hangul;
    if (first - leads < lead_count && second - vowels < vowel_count)
      return syllables + ((first - leads) * vowel_count + second - vowels) * tail_count;
    if (first - syllables < syllable_count && (first - syllables) % tail_count == 0 && second > tails &&
        second < tails + tail_count)
      return first + (second - tails);
    const auto& all = unicode_tables::compositions;
    const auto found = std::lower_bound(all.begin(), all.end(), Composition{first, second, 0},
                                        [](const Composition& a, const Composition& b) {
                                          return a.first != b.first ? a.first < b.first : a.second < b.second;
                                        });
    return found != all.end() && found->first == first && found->second == second ? found->composed : 0;
  }

  NormalForm form_;
  std::vector<Character> characters_;
  std::size_t flush_size_ = min_flush_size;
  bool in_order_ = true, changes_ = false;
};

// The start of the last character before which nothing can change, before the first that may: all of the text if
// nothing may change.
std::size_t unchanged_prefix(NormalForm form, std::string_view text) {
  std::size_t safe = 0;
  std::uint8_t last_class = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      i += ascii_prefix(text.substr(i));
      safe = i - 1;
      last_class = 0;
      continue;
    }
    const Utf8Character c = front_character(text.substr(i));
    const Trait trait = trait_of(c.code);
    if (trait.flags & flag_of(form)) return safe;
    if (trait.combining_class != 0 && trait.combining_class < last_class) return safe;
    if (trait.combining_class == 0) safe = i;
    last_class = trait.combining_class;
    i += c.bytes;
  }
  return text.size();
}

}  // namespace

void to_normal_form(NormalForm form, std::string& text) {
  std::size_t same = unchanged_prefix(form, text);
  if (same == text.size()) return;
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  Segment segment(form);
  const auto take = [&](Rewritten character) { append_utf8(out, character.code); };
  for (std::string_view rest = text; !rest.empty(); same = unchanged_prefix(form, rest)) {
    out.append(rest.substr(0, same));
    rest.remove_prefix(same);
    while (!rest.empty()) {
      const Utf8Character c = front_character(rest);
      const Trait trait = trait_of(c.code);
      if (trait.combining_class == 0 && !(trait.flags & flag_of(form)) && segment.changes()) break;
      segment.add(c.code, trait.flags & flag_of(form));
      segment.flush_settled(take);
      rest.remove_prefix(c.bytes);
      Normalizer::check_size(out.size());
    }
    segment.flush(take);
  }
  text = std::move(out);
}

bool FirstPlace::take(Rewritten character) {
  const auto [code, change] = character;
  const std::size_t place = change > 0 && at_ > 0 ? at_ - 1 : at_;
  inside_ = inside_ && (place < start_ || (change > 0 && at_ == 0));
  if (!inside_) return false;
  for (std::int64_t i = change; i <= 0 && at_ < text_.size(); ++i) at_ += front_character(text_.substr(at_)).bytes;
  size_ += utf8_bytes(code);
  return true;
}

std::size_t start_in_normal_form(NormalForm form, std::string_view text, std::size_t start) {
  if (start == 0) return 0;
  Segment segment(form);
  FirstPlace place(text, start);
  bool changes = false, inside = true;
  const auto take = [&](Rewritten character) { inside = place.take(character); };
  for (std::size_t i = 0; i < text.size() && inside;) {
    const Utf8Character c = front_character(text.substr(i));
    const Trait trait = trait_of(c.code);
    const bool may_change = trait.flags & flag_of(form);
    if (i >= start && trait.combining_class == 0 && !may_change)
      break;  // it does not interact with characters before it
    changes |= may_change || trait.combining_class != 0;
    segment.add(c.code, may_change);
    segment.flush_settled(take);
    i += c.bytes;
  }
  segment.flush(take);
  return changes ? place.size() : start;
}

char32_t lower_case(char32_t c) {
  if (c >= unicode::limit) return c;
  const std::size_t block = unicode_tables::lower_block[c >> 7];
  const std::int32_t added = unicode_tables::lower_records[unicode_tables::lower_values[block << 7 | (c & 127)]];
  return static_cast<char32_t>(static_cast<std::int32_t>(c) + added);
}

void to_lower_case(std::string& text) {
  std::size_t i = 0;
  for (; i < text.size() && static_cast<unsigned char>(text[i]) < 0x80; ++i)
    if (text[i] >= 'A' && text[i] <= 'Z') text[i] = static_cast<char>(text[i] + 32);
  if (i == text.size()) return;
  std::string out(text, 0, i);
  out.reserve(text.size() + 8);
  while (i < text.size()) {
    const Utf8Character c = front_character(std::string_view(text).substr(i));
    if (c.code == 0x130)
      out += "i\u0307";
    else
      append_utf8(out, lower_case(c.code));
    i += c.bytes;
  }
  text = std::move(out);
}

bool is_combining_mark(char32_t c) { return trait_of(c).flags & unicode_tables::is_mark_9; }
bool is_bert_accent(char32_t c) { return trait_of(c).flags & unicode_tables::is_nonspacing_mark_8; }

bool is_cjk_ideograph(char32_t c) {
  const auto within = [&](char32_t first, char32_t last) { return c >= first && c <= last; };
  if (c < 0x3400) return false;
  return within(0x4e00, 0x9fff) || within(0x3400, 0x4dbf) || within(0x20000, 0x2a6df) || within(0x2a700, 0x2b73f) ||
         within(0x2b740, 0x2b81f) || within(0x2b920, 0x2ceaf) || within(0xf900, 0xfaff) || within(0x2f800, 0x2fa1f);
}

}  // namespace tera

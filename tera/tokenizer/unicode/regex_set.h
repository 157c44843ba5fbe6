#pragma once
// Sets of code points: the classes of regular expressions, by our own Unicode tables.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

class CodePointSet {
 public:
  CodePointSet();
  // All code points for which `test` holds.
  template <class Test>
  static CodePointSet where(Test test) {
    CodePointSet set;
    for (char32_t c = 0; c < size; ++c)
      if (test(c)) set.words_[c >> 6] |= std::uint64_t{1} << (c & 63);
    set.drop_surrogates();
    return set;
  }

  void add(char32_t first, char32_t last);
  void add(const CodePointSet& other);
  void keep(const CodePointSet& other);  // the intersection
  void invert();
  bool contains(char32_t c) const { return words_[c >> 6] >> (c & 63) & 1; }
  bool only_ascii() const;
  bool empty() const;

  // The set as a class of PCRE2.
  std::string pattern() const;

 private:
  static constexpr char32_t size = 0x110000;
  void drop_surrogates();

  std::vector<std::uint64_t> words_;  // a bit for each code point; surrogates are never set
};

// \p{NAME}: a category ("Lu", "L", "Letter"), a script ("Han"), or a property such as "Alphabetic". Case, spaces, '_'
// and '-' are ignored. None if the name is unknown.
std::optional<CodePointSet> property_set(std::string_view name);

}  // namespace tera

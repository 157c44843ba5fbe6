#pragma once
// Generated tables (unicode_tables.cpp) behind unicode.h and normalize.h; nobody else reads them. Most have two stages:
// the number of the block that a code point lies in, then its value in the block.

#include <array>
#include <cstddef>
#include <cstdint>

namespace tera::unicode_tables {

// Category in the low five bits, flags above.
extern const std::array<std::uint16_t, 8704> kind_block;
extern const std::array<std::uint8_t, 33664> kind_values;

struct Trait {
  std::uint8_t combining_class, flags, grapheme;
};
// Flags of Trait. The first four: the normal form may change this character, or one before it together with it.
enum TraitFlag : std::uint8_t {
  nfc_may_change = 1,
  nfkc_may_change = 2,
  nfd_changes = 4,
  nfkd_changes = 8,
  is_mark_9 = 16,
  is_nonspacing_mark_8 = 32
};
extern const std::array<std::uint8_t, 8704> trait_block;
extern const std::array<std::uint8_t, 26368> trait_values;  // numbers of records
extern const std::array<Trait, 109> trait_records;

extern const std::array<std::uint8_t, 8704> lower_block;
extern const std::array<std::uint8_t, 4864> lower_values;  // numbers of records
extern const std::array<std::int32_t, 84> lower_records;   // what to add

// Blocks of 32. The values are places in a pool, where a count and as many code points stand; place 0 holds none.
extern const std::array<std::uint8_t, 34816> canonical_block;
extern const std::array<std::uint16_t, 4032> canonical_values;
extern const std::array<std::uint32_t, 5465> canonical_pool;
extern const std::array<std::uint8_t, 34816> compatible_block;
extern const std::array<std::uint16_t, 5600> compatible_values;
extern const std::array<std::uint32_t, 9278> compatible_pool;

struct Composition {
  std::uint32_t first, second, composed;
};
extern const std::array<Composition, 940> compositions;  // in order of first and second

// Classes of regular expressions (Unicode 16) that are no sum of categories: scripts, and what the properties
// Alphabetic, Lowercase and Uppercase have beyond letters, letter numbers and cased letters.
struct CodeRange {
  std::uint32_t first, last;
};
struct NamedRanges {
  const char* name;  // in lower case
  std::uint16_t first, count;
};
extern const std::array<NamedRanges, 32> property_names;
extern const std::array<CodeRange, 706> property_ranges;

}  // namespace tera::unicode_tables

#pragma once
// Generated tables (unicode_tables.cpp) of what unicode.h and normalize.h answer; nobody else reads them.

#include <cstdint>

namespace tera::unicode_tables {

// Two stages: the block of 128 code points, then the value. Category in the low five bits, flags above.
extern const std::uint16_t kind_block[8704];
extern const std::uint8_t kind_values[33664];

}  // namespace tera::unicode_tables

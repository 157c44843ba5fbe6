#pragma once
// Translates names of other programs to our keys: Megatron-LM's flags and the keys of Hugging Face's config.json that
// no spelling rule maps to a key.

#include <string>
#include <string_view>

namespace tera {

struct ForeignName {
  std::string_view name;
  std::string_view key;         // empty: we have no such key
  std::string_view note;        // how our key differs; empty where both mean the same
  std::string_view value = {};  // the value of `key` that a flag implies; empty where it is no flag
};

// Looks up the last component of a key, or a flag with underscores. Null when no program has that name.
const ForeignName* find_foreign_name(std::string_view name);

// The end of a message about a value that our key refuses and another program's key accepts; empty when there is none.
std::string note_on_value(std::string_view key, std::string_view value);

}  // namespace tera

#pragma once
// What other programs call things: Megatron-LM's flags and the keys of Hugging Face's config.json, where no rule of
// spelling leads from them to a key.

#include <string>
#include <string_view>

namespace tera {

struct ForeignName {
  std::string_view name;
  std::string_view key;         // empty: there is none
  std::string_view note;        // what is different here; empty where the key is the same thing
  std::string_view value = {};  // of the key, that a switch stands for; empty where it is no switch
};

// By the last part of a key, or a flag with underscores. Null when nobody calls anything so.
const ForeignName* find_foreign_name(std::string_view name);

// What to say of a value that a key does not take, and another program's would: the end of a message, or nothing.
std::string note_on_value(std::string_view key, std::string_view value);

}  // namespace tera

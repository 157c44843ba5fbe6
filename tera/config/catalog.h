#pragma once
// All keys of a run, flat: "model.rope_scaling.factor" with its field and its value in a given config.

#include <string>
#include <string_view>
#include <vector>

#include "tera/base/function_ref.h"
#include "tera/config/field.h"
#include "tera/config/run_config.h"

namespace tera {

// In table order; sections themselves are not visited.
void for_each_value(const RunConfig& config,
                    FunctionRef<void(const std::string& key, const Field&, const void*)> visit);

// The field of a full key; a section's name finds the section. Null when there is none.
const Field* find_field(std::string_view key);

// Every full key, and every section's.
std::vector<std::string> all_keys();

// The keys with this last part.
std::vector<std::string> keys_named(std::string_view name);

// The known key that `key` was most likely meant to be: a slip of the pen, the right name in the wrong section, or
// another program's name for it. Empty when nothing is near.
std::string nearest_key(std::string_view key);

// What to say of a key that is none: "did you mean model.moe.num_experts?", or why there is no such key. Empty when
// nothing is near.
std::string advice_on_key(std::string_view key);

// What is different here from what another program calls so; mostly empty.
std::string_view note_on_key(std::string_view key);

// The value that another program's switch of this name stands for: "bf16"; mostly empty.
std::string_view value_for_key(std::string_view key);

}  // namespace tera

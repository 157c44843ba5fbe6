#pragma once
// All keys of a run, flat: "model.rope_scaling.factor" with its field and its value in a given config.

#include <string>
#include <string_view>
#include <vector>

#include "tera/base/function_ref.h"
#include "tera/config/field.h"
#include "tera/config/run_config.h"

namespace tera {

// Visits in table order; sections themselves are not visited.
void for_each_value(const RunConfig& config,
                    FunctionRef<void(const std::string& key, const Field&, const void*)> visit);

// Finds the field of a full key; the name of a section finds the section. Null when there is none.
const Field* find_field(std::string_view key);

// All full keys, including those of sections.
std::vector<std::string> all_keys();

// All full keys whose last component is `name`.
std::vector<std::string> keys_named(std::string_view name);

// The known key that `key` was most likely meant to be: it has a typo, is in the wrong section, or is another program's
// name. Empty when no key is similar.
std::string nearest_key(std::string_view key);

// The suggestion for an unknown key: "did you mean model.moe.num_experts?", or why there is no such key. Empty when no
// key is similar.
std::string advice_on_key(std::string_view key);

// How our key differs from the key of this name in another program; mostly empty.
std::string_view note_on_key(std::string_view key);

// The value that another program's flag of this name implies: "bf16"; mostly empty.
std::string_view value_for_key(std::string_view key);

}  // namespace tera

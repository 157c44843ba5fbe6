#pragma once
// Checks the limits of our keys, with messages that name keys of a config.json.

#include "tera/config/sections/model.h"
#include "tera/hf/config/hf_json.h"

namespace tera {

// UserError naming the file and its key if a value is outside what the key of the model section allows.
void check_hf_limits(const HfFields& config, const ModelConfig& model);

}  // namespace tera

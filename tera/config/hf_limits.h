#pragma once
// What our own keys allow, said in the words of a config.json.

#include "tera/config/hf_json.h"
#include "tera/config/model.h"

namespace tera {

// UserError naming the file and its key if a value is outside what the key of the model section allows.
void check_hf_limits(const HfFields& config, const ModelConfig& model);

}  // namespace tera

#pragma once
// Default values of model keys per model family (model.arch), for the keys that the user leaves out.

#include "tera/config/sections/model.h"

namespace tera {

void apply_arch_defaults(Arch arch, ModelConfig& model);

}  // namespace tera

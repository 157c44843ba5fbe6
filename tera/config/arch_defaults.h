#pragma once
// What a model family means for the keys that the user leaves out.

#include "tera/config/model.h"

namespace tera {

void apply_arch_defaults(Arch arch, ModelConfig& model);

}  // namespace tera

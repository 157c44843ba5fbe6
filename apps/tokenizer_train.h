#pragma once
// tera tokenizer train.

#include "apps/command.h"

namespace tera {

void add_tokenizer_train(Command parent);

}  // namespace tera

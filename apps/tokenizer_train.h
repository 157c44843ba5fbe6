#pragma once
// tera tokenizer train.

#include <CLI/CLI.hpp>

namespace tera {

void add_tokenizer_train(CLI::App& parent);

}  // namespace tera

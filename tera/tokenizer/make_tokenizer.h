#pragma once
// A tokenizer of any kind, from its options.

#include <filesystem>
#include <memory>
#include <vector>

#include "tera/tokenizer/tokenizer.h"
#include "tera/tokenizer/tokenizer_options.h"

namespace tera {

// UserError, naming the option or the file, if it cannot be made.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options);

// The files that it was made from, which whoever moves the tokenizer takes along.
std::vector<std::filesystem::path> tokenizer_files(const TokenizerOptions& options);

}  // namespace tera

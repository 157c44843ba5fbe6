#pragma once
// Makes a tokenizer of any kind from its options.

#include <filesystem>
#include <memory>
#include <vector>

#include "tera/tokenizer/tokenizer.h"
#include "tera/tokenizer/tokenizer_options.h"

namespace tera {

// UserError, naming the option or the file, if it cannot be made.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options);

// The files of the tokenizer, which have to be copied with it.
std::vector<std::filesystem::path> tokenizer_files(const TokenizerOptions& options);

}  // namespace tera

#pragma once
// The tokenizer of a run in the Hugging Face form, for an export.

#include <string>

#include "tera/config/setup.h"
#include "tera/hf/hf_export.h"
#include "tera/tokenizer/tokenizer.h"

namespace tera {

struct ExportedTokenizer {
  HfTokenizerFiles files;
  std::string remark;  // what the user must know to load it with transformers, or empty
};

// `tokenizer` is the setup's.
ExportedTokenizer export_tokenizer(const Setup& setup, const Tokenizer& tokenizer);

}  // namespace tera

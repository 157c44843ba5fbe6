#pragma once
// The tokenizer of a run in the form that transformers reads, for an export.

#include <string>

#include "tera/checkpoint/hf_export.h"
#include "tera/config/setup.h"
#include "tera/tokenizer/tokenizer.h"

namespace tera {

struct ExportedTokenizer {
  HfTokenizerFiles files;
  std::string remark;  // what transformers will not know by itself, or empty
};

// `tokenizer` is the one of the setup.
ExportedTokenizer export_tokenizer(const Setup& setup, const Tokenizer& tokenizer);

}  // namespace tera

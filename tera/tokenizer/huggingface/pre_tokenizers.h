#pragma once
// Builds pre-tokenizers from the steps of a file.

#include <memory>
#include <span>

#include "tera/tokenizer/huggingface/pre_token_steps.h"
#include "tera/tokenizer/huggingface/pre_tokenizer.h"

namespace tera {

// All steps in a row. With `plain_bytes` the last one, which is ByteLevel, leaves the bytes as they are instead of
// spelling them in GPT-2's alphabet: for models that take words as plain text.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(std::span<const PreTokenStep> steps, bool plain_bytes);

}  // namespace tera

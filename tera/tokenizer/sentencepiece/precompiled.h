#pragma once
// The normalizer of SentencePiece models in a `tokenizer.json`: a table of replacements.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "tera/tokenizer/huggingface/normalizer.h"

namespace tera {

// `charsmap` is base64 of: the trie's size in bytes, the trie as a double array of 32-bit units, replacements ended by
// zeros. A UserError that names `where` if it is broken.
std::unique_ptr<Normalizer> make_precompiled_normalizer(std::string_view charsmap, const std::string& where);

}  // namespace tera

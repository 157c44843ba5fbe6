#pragma once
// The normalizers of a `tokenizer.json`.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tera/tokenizer/huggingface/normalizer.h"

namespace tera {

// From the object under "normalizer"; none for null. `where` names it in messages, such as "FILE: normalizer". Invalid
// or unknown values are a UserError that names the field.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& json, const std::string& where);

struct BertNormalizerOptions {
  bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
};
std::unique_ptr<Normalizer> make_bert_normalizer(const BertNormalizerOptions& options);

}  // namespace tera

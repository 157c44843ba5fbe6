#pragma once
// The normalizers of a `tokenizer.json`.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tera/tokenizer/normalizer.h"

namespace tera {

// From the object under "normalizer"; none for null. `where` names it in messages, such as "FILE: normalizer". What is
// wrong or not known is a UserError that names the field.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& json, const std::string& where);

struct BertNormalizerOptions {
  bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
};
std::unique_ptr<Normalizer> make_bert_normalizer(const BertNormalizerOptions& options);

}  // namespace tera

#pragma once
// The smallest tokenizer.json that a model of 29 words can have.

#include <string>

namespace tera::test {

// Letters are tokens: 2 is a, 27 is z, 28 a blank; 0 begins a text.
inline std::string letters_tokenizer() {
  std::string vocab = R"("<s>": 0, "</s>": 1)";
  for (int i = 0; i < 26; ++i)
    vocab += std::string(", \"") + static_cast<char>('a' + i) + "\": " + std::to_string(i + 2);
  return R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [
    {"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
     "special": true},
    {"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
     "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
    "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "dropout": null, "unk_token": null,
      "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
      "ignore_merges": false, "vocab": {)" +
         vocab + R"(, " ": 28}, "merges": []}})";
}

}  // namespace tera::test

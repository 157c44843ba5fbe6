#pragma once
// Decoders, from the spellings of tokens back to text: the section `decoder` of a `tokenizer.json`.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tera {

// Rewrites a list of tokens, whose concatenation is the text. Only after the last step may they have bytes that are not
// UTF-8.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

std::unique_ptr<Decoder> make_decoder(const nlohmann::json& value, const std::string& path);

}  // namespace tera

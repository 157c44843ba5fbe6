#pragma once
// From the spellings of tokens back to text: what a `tokenizer.json` says under `decoder`.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tera {

// Rewrites a list of tokens, which joined are the text. They may hold bytes that are no UTF-8 only behind the last
// step.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

std::unique_ptr<Decoder> make_decoder(const nlohmann::json& value, const std::string& path);

}  // namespace tera

#pragma once
// Rewrites text before it is cut into words: the first step of a `tokenizer.json`.

#include <memory>
#include <string>

namespace tera {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(std::string& text) const = 0;  // valid UTF-8 in and out
};

}  // namespace tera

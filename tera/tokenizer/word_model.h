#pragma once
// Turns a word into ids: the third step of a `tokenizer.json`.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace tera {

// Scratch space and caches of one thread.
class WordEncoder {
 public:
  virtual ~WordEncoder() = default;
  virtual void encode(std::string_view word, std::vector<std::int32_t>& ids) = 0;  // appends
};

class WordModel {
 public:
  virtual ~WordModel() = default;
  virtual std::unique_ptr<WordEncoder> make_encoder() const = 0;  // must not outlive the model
};

}  // namespace tera

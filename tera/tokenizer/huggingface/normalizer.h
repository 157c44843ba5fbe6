#pragma once
// Rewrites text before it is cut into words: the first step of a `tokenizer.json`.

#include <cstddef>
#include <memory>
#include <string>

namespace tera {

class Normalizer {
 public:
  static constexpr std::size_t max_bytes = std::size_t{1} << 30;  // limit of a text, also while it is rewritten

  virtual ~Normalizer() = default;
  // Valid UTF-8 in and out. A UserError if it becomes too long.
  void apply(std::string& text) const { apply(text, 0); }
  // `start`: how many bytes at the front stand for the first character of the text before all normalizers.
  // Returns the new number, as `tokenizers` counts it.
  std::size_t apply(std::string& text, std::size_t start) const;

  static void check_size(std::size_t bytes);

 protected:
  virtual std::size_t rewrite(std::string& text, std::size_t start) const = 0;
};

}  // namespace tera

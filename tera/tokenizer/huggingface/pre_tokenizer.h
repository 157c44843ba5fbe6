#pragma once
// Cuts text into words, which a model then encodes each on its own: the second step of a `tokenizer.json`.

#include <cstdint>
#include <string>
#include <vector>

namespace tera {

// Pieces of a text, in order and without overlap; the text between them is dropped.
struct PieceText {
  struct Piece {
    std::uint32_t begin, end;  // bytes of `text`
  };
  std::string text;
  std::vector<Piece> pieces;
  std::size_t start = 0;  // bytes at the front that stand for the first character of the input (normalizer.h)
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PieceText& text) const = 0;  // splits the pieces further, and may rewrite them
};

}  // namespace tera

#pragma once
// Cuts text into words, which a model then encodes each on its own: the second step of a `tokenizer.json`.

#include <cstdint>
#include <string>
#include <vector>

namespace tera {

// Pieces of a text, in order and without overlap; what lies between them is dropped.
struct PieceText {
  struct Piece {
    std::uint32_t begin, end;  // bytes of `text`
  };
  std::string text;
  std::vector<Piece> pieces;
  bool at_start = true;  // nothing comes before `text`, not even an added token
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PieceText& text) const = 0;  // cuts the pieces further, and may rewrite them
};

}  // namespace tera

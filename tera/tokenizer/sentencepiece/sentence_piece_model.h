#pragma once
// A SentencePiece model file, read and checked by our own code: the library trusts parts of it blindly.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

struct SentencePieceModel {
  enum class Kind : std::uint8_t { unigram = 1, bpe = 2, word = 3, character = 4 };
  enum class Type : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string_view text;
    float score = 0;
    Type type = Type::normal;
  };

  Kind kind = Kind::unigram;
  std::vector<Piece> pieces;  // by id
  bool byte_fallback = false;
  bool space_behind = false;  // the space of a word stands at its end

  std::string_view charsmap;  // replacements: see precompiled.h, but not in base64
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Views into `bytes`. A UserError that starts with `where` if they are no model.
SentencePieceModel read_sentence_piece_model(std::string_view bytes, const std::string& where);

}  // namespace tera

#pragma once

#include <string>
#include <string_view>

namespace tera {

// What is wrong with the bytes of a SentencePiece model that the library would not notice, or would end the program
// for; empty if nothing. Other faults the library tells itself.
std::string sentence_piece_fault(std::string_view bytes);

}  // namespace tera

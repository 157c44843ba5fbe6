#pragma once
// Splits text where a pattern matches: the pre-tokenizer Split and others like it.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tera/tokenizer/huggingface/pre_tokenizer.h"
#include "tera/tokenizer/unicode/regex.h"

namespace tera {

// How a match is split off; "a-b--c" split at '-':
enum class SplitBehavior : std::uint8_t {
  removed,               // a b c
  isolated,              // a - b - - c
  merged_with_previous,  // a- b- - c
  merged_with_next,      // a -b - -c
  contiguous             // a - b -- c
};

// "Removed", "MergedWithPrevious" and so on; otherwise a UserError that names `where`.
SplitBehavior parse_split_behavior(std::string_view name, std::string_view where);

// The pieces of a text of which `spans` covers all, each moved by `offset`. Empty pieces are left out.
void append_pieces(std::vector<MatchSpan>& spans, SplitBehavior behavior, std::uint32_t offset,
                   std::vector<PieceText::Piece>& pieces);

struct SplitRule {
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // the text between matches is the match
};

std::unique_ptr<PreTokenizer> make_regex_split(Regex pattern, SplitRule rule);
std::unique_ptr<PreTokenizer> make_text_split(std::string pattern, SplitRule rule);

}  // namespace tera

#pragma once
// The pre-tokenizer regular expressions of known vocabularies, as hand-written scanners. Each of them covers all of the
// text: a match begins where the last one ends.

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tera/tokenizer/unicode/regex_translate.h"

namespace tera {

enum class SplitPattern {
  gpt2,         // GPT-2, and ByteLevel with use_regex
  llama3,       // Llama 3, and cl100k of old: numbers in threes
  cl100k,       // as tiktoken spells it today: white space at the end of the text is one word
  qwen2,        // as cl100k, with single digits
  o200k,        // GPT-4o, Llama 4: words by case, contractions with the word
  tekken,       // Mistral's Tekken, Megatron's tiktoken v2
  tiktoken_v1,  // Megatron's tiktoken v1
  deepseek_v3,  // three splits in a row
};

// The known pattern with this regular expression, if there is one.
std::optional<SplitPattern> known_split_pattern(std::string_view regex, RegexDialect dialect);

// The known pattern that equals a sequence of splits, each isolating the matches of its expression.
std::optional<SplitPattern> known_split_pattern(std::span<const std::string> regexes);

// The regular expression of the pattern; empty for one that takes several splits.
std::string_view regex_of(SplitPattern pattern);

// The number of bytes of the first word of the text, which is not empty.
std::size_t first_word_bytes(SplitPattern pattern, std::string_view text);

}  // namespace tera

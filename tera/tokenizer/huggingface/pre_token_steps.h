#pragma once
// The pre-tokenizers of a `tokenizer.json` as a flat list of steps, each with its options: parsed, not yet built.
// Nested sequences are flattened.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tera/base/enum_names.h"
#include "tera/tokenizer/unicode/regex_split.h"

namespace tera {

enum class PreTokenKind : std::uint8_t {
  byte_level,
  metaspace,
  split,
  digits,
  punctuation,
  whitespace,
  whitespace_split,
  bert,
  delimiter,
  fixed_length
};

template <>
struct EnumNames<PreTokenKind> {
  static constexpr std::array values{std::pair{PreTokenKind::byte_level, std::string_view("ByteLevel")},
                                     std::pair{PreTokenKind::metaspace, std::string_view("Metaspace")},
                                     std::pair{PreTokenKind::split, std::string_view("Split")},
                                     std::pair{PreTokenKind::digits, std::string_view("Digits")},
                                     std::pair{PreTokenKind::punctuation, std::string_view("Punctuation")},
                                     std::pair{PreTokenKind::whitespace, std::string_view("Whitespace")},
                                     std::pair{PreTokenKind::whitespace_split, std::string_view("WhitespaceSplit")},
                                     std::pair{PreTokenKind::bert, std::string_view("BertPreTokenizer")},
                                     std::pair{PreTokenKind::delimiter, std::string_view("CharDelimiterSplit")},
                                     std::pair{PreTokenKind::fixed_length, std::string_view("FixedLength")}};
};

// Where Metaspace puts its character before a text that does not begin with it.
enum class PrependScheme : std::uint8_t { always, first, never };

template <>
struct EnumNames<PrependScheme> {
  static constexpr std::array values{std::pair{PrependScheme::always, std::string_view("always")},
                                     std::pair{PrependScheme::first, std::string_view("first")},
                                     std::pair{PrependScheme::never, std::string_view("never")}};
};

struct PreTokenStep {
  PreTokenKind kind = PreTokenKind::whitespace;
  std::string path;               // in the file, for messages
  bool add_prefix_space = false;  // byte_level
  bool use_regex = true;          // byte_level: cut as GPT-2 does
  std::string character;          // metaspace: what stands for a space; delimiter
  PrependScheme prepend = PrependScheme::always;
  bool split = true;    // metaspace: before each such character
  std::string pattern;  // split
  bool is_regex = false;
  SplitBehavior behavior = SplitBehavior::isolated;  // split, punctuation
  bool invert = false;
  bool individual_digits = false;
  std::int64_t length = 0;  // fixed_length, in characters
};

std::vector<PreTokenStep> read_pre_tokenizer(const nlohmann::json& value, const std::string& path);

// The fields that pre-tokenizer and decoder have in common.
struct MetaspaceOptions {
  std::string character;
  PrependScheme prepend = PrependScheme::always;
  bool split = true;
};
MetaspaceOptions read_metaspace(const nlohmann::json& value, const std::string& path);

}  // namespace tera

#include "tera/tokenizer/split_pattern.h"

#include <array>
#include <utility>

#include "tera/tokenizer/split_pattern_scan.h"

namespace tera {

namespace {

using Known = std::pair<std::string_view, SplitPattern>;

// Line ends may be written as such or escaped: both mean the same.
std::string with_escapes(std::string_view regex) {
  std::string escaped;
  for (const char c : regex) {
    if (c == '\r')
      escaped += "\\r";
    else if (c == '\n')
      escaped += "\\n";
    else
      escaped += c;
  }
  return escaped;
}

constexpr std::array<Known, 10> known_patterns{{
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitPattern::gpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitPattern::gpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)", SplitPattern::gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
     R"(\s+(?!\S)|\s+)",
     SplitPattern::llama3},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|)"
     R"(\s+(?!\S)|\s)",
     SplitPattern::cl100k},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
     R"(\s+(?!\S)|\s+)",
     SplitPattern::qwen2},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::o200k},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::tekken},
    {R"([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     SplitPattern::tiktoken_v1},
    {R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)", SplitPattern::tiktoken_v1},
}};

constexpr std::array<std::string_view, 3> deepseek_v3_splits{
    R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)"};

}  // namespace

std::optional<SplitPattern> known_split_pattern(std::string_view regex, RegexDialect dialect) {
  const std::string escaped = with_escapes(regex);
  // To Oniguruma {1,3}+ is not possessive but "any number of times".
  if (dialect == RegexDialect::oniguruma && escaped.find("{1,3}+") != std::string::npos) return std::nullopt;
  for (const auto& [spelling, pattern] : known_patterns)
    if (escaped == spelling) return pattern;
  return std::nullopt;
}

std::optional<SplitPattern> known_split_pattern(std::span<const std::string> regexes) {
  if (regexes.size() == 1) return known_split_pattern(regexes[0], RegexDialect::oniguruma);
  if (regexes.size() != deepseek_v3_splits.size()) return std::nullopt;
  for (std::size_t i = 0; i < regexes.size(); ++i)
    if (with_escapes(regexes[i]) != deepseek_v3_splits[i]) return std::nullopt;
  return SplitPattern::deepseek_v3;
}

std::string_view regex_of(SplitPattern pattern) {
  for (const auto& [spelling, known] : known_patterns)
    if (known == pattern) return spelling;
  return {};
}

std::size_t first_word_bytes(SplitPattern pattern, std::string_view text) {
  return split::with_scanner(pattern, [&](auto scanner) {
    const char* const end = text.data() + text.size();
    return static_cast<std::size_t>(decltype(scanner)::next(text.data(), end) - text.data());
  });
}

}  // namespace tera

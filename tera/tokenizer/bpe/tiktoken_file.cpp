#include "tera/tokenizer/bpe/tiktoken_file.h"

#include <simdjson.h>

#include <array>
#include <charconv>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/tokenizer/bpe/bpe_vocab.h"

namespace tera {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_file_bytes = std::size_t{1} << 30;

std::array<std::int8_t, 256> make_base64_values() {
  std::array<std::int8_t, 256> values;
  values.fill(-1);
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < digits.size(); ++i)
    values[static_cast<unsigned char>(digits[i])] = static_cast<std::int8_t>(i);
  return values;
}

// One entry of Megatron's list.
std::string read_entry(simdjson::dom::element entry, std::size_t index, const fs::path& path) {
  simdjson::dom::object fields;
  if (entry.get(fields)) fail_user("{}: [{}] is no object with rank, token_bytes and token_str", path.string(), index);
  std::uint64_t rank = 0;
  if (fields["rank"].get(rank) || rank != index)
    fail_user("{}: [{}].rank is not {}; ranks count from 0 in order", path.string(), index, index);
  std::string_view base64;
  if (fields["token_bytes"].get(base64)) fail_user("{}: [{}].token_bytes is no string", path.string(), index);
  std::optional<std::string> bytes = decode_base64(base64);
  if (!bytes || bytes->empty()) fail_user("{}: [{}].token_bytes is no base64: '{:.40}'", path.string(), index, base64);
  if (index < 256 && (bytes->size() != 1 || static_cast<unsigned char>((*bytes)[0]) != index))
    fail_user("{}: [{}].token_bytes is not byte {}; the first 256 tokens are the bytes", path.string(), index, index);
  return std::move(*bytes);
}

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  static const std::array<std::int8_t, 256> values = make_base64_values();
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::int8_t value = values[static_cast<unsigned char>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 255);
  }
  return bytes;
}

std::vector<std::string> read_tiktoken_json(const fs::path& path, std::size_t max_tokens) {
  const std::string text = read_whole_file(path, max_file_bytes);
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  const simdjson::error_code error = parser.parse(text).get(root);
  if (error) fail_user("{}: no JSON: {}", path.string(), simdjson::error_message(error));
  simdjson::dom::array entries;
  if (root.get(entries))
    fail_user("{}: a tiktoken vocabulary is a list of tokens; this is something else (of a Tekken file, its \"vocab\")",
              path.string());
  std::vector<std::string> tokens;
  for (const simdjson::dom::element entry : entries) {
    if (tokens.size() == max_tokens) break;
    tokens.push_back(read_entry(entry, tokens.size(), path));
  }
  return tokens;
}

std::vector<std::string> read_tiktoken_lines(const fs::path& path) {
  const std::string text = read_whole_file(path, max_file_bytes);
  std::vector<std::string> tokens;
  std::string_view rest = text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::size_t space = line.find(' ');
    std::optional<std::string> bytes = decode_base64(line.substr(0, space));
    if (space == std::string_view::npos || !bytes || bytes->empty())
      fail_user("{}: line {} is not a token in base64, a space and its rank", path.string(), number);
    const std::string_view digits = line.substr(space + 1);
    std::uint32_t rank = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    require_user(error == std::errc() && end == digits.data() + digits.size() && rank >> BpeVocab::id_bits == 0,
                 "{}: line {}: the rank '{:.40}' is no number below {}", path.string(), number, digits,
                 1 << BpeVocab::id_bits);
    if (tokens.size() <= rank) tokens.resize(rank + 1);
    require_user(tokens[rank].empty(), "{}: line {}: another token has the rank {}", path.string(), number, rank);
    tokens[rank] = std::move(*bytes);
  }
  return tokens;
}

}  // namespace tera

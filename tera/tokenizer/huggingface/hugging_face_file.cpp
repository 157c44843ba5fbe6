#include "tera/tokenizer/huggingface/hugging_face_file.h"

#include <fmt/core.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <optional>
#include <unordered_set>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/joined.h"
#include "tera/tokenizer/huggingface/token_json.h"

namespace tera {
namespace {

namespace dom = simdjson::dom;
using Json = nlohmann::json;
using Merges = std::vector<std::pair<std::int32_t, std::int32_t>>;

// `tokenizers` reads no file with others either.
constexpr std::array<std::string_view, 9> known_parts{"version",        "truncation", "padding",
                                                      "added_tokens",   "normalizer", "pre_tokenizer",
                                                      "post_processor", "decoder",    "model"};
constexpr std::int64_t max_unused_ids = 1'000'000;  // each of them takes memory

// A file and what was parsed of it, which refers to the text of the file.
class ParsedFile {
 public:
  explicit ParsedFile(const std::filesystem::path& path) : text_(read_whole_file(path, max_tokenizer_bytes)) {
    require_user(json_depth(text_, max_json_depth) <= max_json_depth,
                 "{}: lists and objects are nested more than {} deep", path.string(), max_json_depth);
    const std::size_t size = text_.size();
    text_.resize(size + simdjson::SIMDJSON_PADDING);
    const auto error = parser_.parse(text_.data(), size, /*realloc_if_needed=*/false).get(root_);
    if (error) fail_user("{}: not JSON: {}", path.string(), simdjson::error_message(error));
  }
  dom::element root() const { return root_; }

 private:
  std::string text_;
  dom::parser parser_;
  dom::element root_;
};

// The fields of an object, each of which may be there once. Readers differ in which of two they take.
template <class Take>
void for_each_field(dom::object object, const std::string& path, const Take& take) {
  std::unordered_set<std::string_view> seen;
  for (const auto [key, value] : object) {
    require_user(seen.insert(key).second, "{}: '{:.80}' is there twice", path, key);
    take(key, value);
  }
}

// JSON that is small enough to be read field by field. The depth is bounded, so recursion is too.
Json to_json(dom::element value, const std::string& path) {
  switch (value.type()) {
    case dom::element_type::ARRAY: {
      Json list = Json::array();
      for (const dom::element item : dom::array(value)) list.push_back(to_json(item, path));
      return list;
    }
    case dom::element_type::OBJECT: {
      Json object = Json::object();
      for_each_field(dom::object(value), path, [&](std::string_view key, dom::element field) {
        object[std::string(key)] = to_json(field, path);
      });
      return object;
    }
    case dom::element_type::INT64: {
      const std::int64_t number = std::int64_t(value);
      return number < 0 ? Json(number) : Json(static_cast<std::uint64_t>(number));
    }
    case dom::element_type::UINT64: return std::uint64_t(value);
    case dom::element_type::DOUBLE: return double(value);
    case dom::element_type::STRING: return std::string(std::string_view(value));
    case dom::element_type::BOOL: return bool(value);
    case dom::element_type::NULL_VALUE: return nullptr;
  }
  return nullptr;
}

struct Vocab {
  std::vector<std::string> tokens;
  std::size_t count = 0;
};

// {"token": id, ...}.
Vocab read_vocab(dom::element value, const std::string& path) {
  dom::object entries;
  require_user(value.get(entries) == simdjson::SUCCESS, "{}: an object of tokens and their ids was expected", path);
  Vocab vocab;
  std::vector<bool> taken;
  std::int64_t ids = 0;
  for (const auto [token, id_value] : entries) {
    std::int64_t id = -1;
    if (id_value.get(id) != simdjson::SUCCESS || id < 0 || id >= max_token_ids)
      fail_user("{}: the id of '{:.80}' is not a whole number below {}", path, token, max_token_ids);
    ids = std::max(ids, id + 1);
  }
  require_user(ids <= 4 * static_cast<std::int64_t>(entries.size()) + max_unused_ids,
               "{}: ids up to {} for {} tokens are too far apart", path, ids - 1, entries.size());
  std::unordered_set<std::string_view> spelled;
  for (const auto [token, id_value] : entries)
    require_user(spelled.insert(token).second, "{}: '{:.80}' is there twice", path, token);
  vocab.tokens.resize(static_cast<std::size_t>(ids));
  taken.resize(vocab.tokens.size());
  for (const auto [token, id_value] : entries) {
    const auto id = static_cast<std::size_t>(std::int64_t(id_value));
    if (taken[id]) fail_user("{}: '{:.80}' and '{:.80}' have the same id {}", path, vocab.tokens[id], token, id);
    taken[id] = true;
    vocab.tokens[id] = token;
    ++vocab.count;
  }
  return vocab;
}

// [["token", score], ...], whose ids are their indices.
void read_scored_vocab(dom::element value, TokenizerFile& file) {
  const std::string path = file.path_of("model.vocab");
  dom::array entries;
  require_user(value.get(entries) == simdjson::SUCCESS, "{}: a list of tokens and their scores was expected", path);
  require_user(static_cast<std::int64_t>(entries.size()) < max_token_ids, "{}: more than {} tokens", path,
               max_token_ids);
  for (const dom::element entry : entries) {
    dom::array pair;
    std::string_view token;
    double score = 0;
    const std::size_t i = file.tokens.size();
    if (entry.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(token) != simdjson::SUCCESS ||
        pair.at(1).get(score) != simdjson::SUCCESS)
      fail_user("{}[{}]: a token and its score were expected", path, i);
    file.tokens.emplace_back(token);
    file.scores.push_back(score);
  }
  file.vocab_count = file.tokens.size();
}

// One merge: both halves must be tokens. `index` is its position, for messages.
class MergeReader {
 public:
  MergeReader(const TokenIndex& ids, std::string path) : ids_(ids), path_(std::move(path)) {}
  Merges merges;

  void add(std::string_view left, std::string_view right, std::size_t index) {
    merges.emplace_back(id_of(left, index), id_of(right, index));
  }
  void add_line(std::string_view line, std::size_t index) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      fail_user("{}[{}]: two tokens with a space between them were expected, not '{:.80}'", path_, index, line);
    add(line.substr(0, space), line.substr(space + 1), index);
  }

 private:
  std::int32_t id_of(std::string_view token, std::size_t index) const {
    const std::int32_t id = ids_.find(token);
    if (id < 0) fail_user("{}[{}]: '{:.80}' is not a token of the vocabulary", path_, index, token);
    return id;
  }
  const TokenIndex& ids_;
  std::string path_;
};

// "a b" or ["a", "b"], all in the same form.
Merges read_merges(dom::element value, const TokenIndex& ids, const std::string& path) {
  dom::array entries;
  require_user(value.get(entries) == simdjson::SUCCESS, "{}: a list of merges was expected", path);
  MergeReader reader(ids, path);
  reader.merges.reserve(entries.size());
  std::size_t index = 0;
  for (const dom::element entry : entries) {
    dom::array pair;
    std::string_view left, right;
    if (entry.get(left) == simdjson::SUCCESS) {
      if (!left.starts_with("#version")) reader.add_line(left, index);
    } else if (entry.get(pair) == simdjson::SUCCESS && pair.size() == 2 && pair.at(0).get(left) == simdjson::SUCCESS &&
               pair.at(1).get(right) == simdjson::SUCCESS) {
      reader.add(left, right, index);
    } else {
      fail_user("{}[{}]: two tokens were expected", path, index);
    }
    ++index;
  }
  return std::move(reader.merges);
}

void read_model(dom::element model, TokenizerFile& file) {
  const std::string path = file.path_of("model");
  dom::object fields;
  require_user(model.get(fields) == simdjson::SUCCESS, "{}: an object was expected", path);
  std::optional<dom::element> vocab, merges;
  Json small = Json::object();
  for_each_field(fields, path, [&](std::string_view key, dom::element value) {
    if (key == "vocab")
      vocab = value;
    else if (key == "merges")
      merges = value;
    else
      small[std::string(key)] = to_json(value, path);
  });
  file.parts["model"] = std::move(small);
  require_user(vocab.has_value(), "{} is missing", file.path_of("model.vocab"));
  if (vocab->is_array()) return read_scored_vocab(*vocab, file);
  Vocab read = read_vocab(*vocab, file.path_of("model.vocab"));
  file.tokens = std::move(read.tokens);
  file.vocab_count = read.count;
  if (merges) file.merges = read_merges(*merges, TokenIndex(file.tokens), file.path_of("model.merges"));
}

void check_choice(JsonFields& fields, const char* key, std::initializer_list<std::string_view> choices) {
  const std::string chosen = fields.text(key);
  require_user(std::ranges::find(choices, chosen) != choices.end(), "{} is '{:.80}'; there are {}", fields.path_of(key),
               chosen, joined(choices, ", "));
}

// Texts are neither cut nor padded. What `tokenizers` cannot read is refused all the same: something is wrong with it.
void check_truncation(const Json& value, const std::string& path) {
  if (value.is_null()) return;
  JsonFields fields(value, path);
  fields.unsigned_integer("max_length");
  fields.unsigned_integer("stride");
  check_choice(fields, "strategy", {"LongestFirst", "OnlyFirst", "OnlySecond"});
  if (value.contains("direction")) check_choice(fields, "direction", {"Left", "Right"});
}

void check_padding(const Json& value, const std::string& path) {
  if (value.is_null()) return;
  JsonFields fields(value, path);
  for (const char* key : {"pad_id", "pad_type_id"}) fields.unsigned_integer(key);
  fields.unsigned_integer("pad_to_multiple_of", 0);
  fields.text("pad_token");
  check_choice(fields, "direction", {"Left", "Right"});
  if (const Json& strategy = fields.at("strategy"); strategy.is_object() && strategy.size() == 1)
    JsonFields(strategy, fields.path_of("strategy")).unsigned_integer("Fixed");
  else
    check_choice(fields, "strategy", {"BatchLongest"});
}

}  // namespace

TokenizerFile read_tokenizer_file(const std::filesystem::path& path) {
  const ParsedFile parsed(path);
  TokenizerFile file{.name = path.string(), .parts = {}, .tokens = {}, .scores = {}, .merges = {}};
  dom::object root;
  dom::element model;
  require_user(parsed.root().get(root) == simdjson::SUCCESS, "{}: an object was expected", file.name);
  require_user(root["model"].get(model) == simdjson::SUCCESS, "{}: model is missing; is this a tokenizer.json?",
               file.name);
  for_each_field(root, file.name, [&](std::string_view key, dom::element value) {
    if (std::ranges::find(known_parts, key) == known_parts.end())
      fail_user("{} is not known; there are {}", file.path_of(key.substr(0, 80)), joined(known_parts, ", "));
    const std::string part = file.path_of(key);
    if (key == "truncation")
      check_truncation(to_json(value, part), part);
    else if (key == "padding")
      check_padding(to_json(value, part), part);
    else if (key != "model")
      file.parts[std::string(key)] = to_json(value, part);
  });
  read_model(model, file);
  return file;
}

std::vector<std::string> read_vocab_json(const std::filesystem::path& path) {
  const ParsedFile parsed(path);
  return read_vocab(parsed.root(), path.string()).tokens;
}

Merges read_merges_text(const std::filesystem::path& path, const TokenIndex& ids) {
  const std::string text = read_whole_file(path, max_tokenizer_bytes);
  MergeReader reader(ids, path.string());
  std::size_t line = 1;
  for (std::string_view rest = text; !rest.empty(); ++line) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view merge = rest.substr(0, end);
    if (merge.ends_with('\r')) merge.remove_suffix(1);
    if (!merge.starts_with("#version") && !merge.empty()) reader.add_line(merge, line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return std::move(reader.merges);
}

}  // namespace tera

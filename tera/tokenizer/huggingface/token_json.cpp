#include "tera/tokenizer/huggingface/token_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/utf8.h"

namespace tera {

using Json = nlohmann::json;

std::size_t json_depth(std::string_view text, std::size_t limit) {
  std::size_t depth = 0, deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size() && deepest <= limit; ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

Json read_json_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const std::string text = read_whole_file(path, max_bytes);
  require_user(json_depth(text, max_json_depth) <= max_json_depth, "{}: lists and objects are nested more than {} deep",
               path.string(), max_json_depth);
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  require_user(!value.is_discarded(), "{}: not JSON", path.string());
  return value;
}

std::string_view json_kind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::boolean: return "true or false";
    case Json::value_t::string: return "a string";
    case Json::value_t::array: return "a list";
    case Json::value_t::object: return "an object";
    default: return "a number";
  }
}

void fail_json(const std::string& path, std::string_view wanted, const Json& found) {
  fail_user("{}: {} was expected, not {}", path, wanted, json_kind(found));
}

std::string item_path(const std::string& path, std::size_t index) { return fmt::format("{}[{}]", path, index); }

JsonFields::JsonFields(const Json& value, std::string path) : value_(value), path_(std::move(path)) {
  if (!value.is_object()) fail_json(path_, "an object", value);
}

std::string JsonFields::path_of(std::string_view key) const {
  return fmt::format("{}{}{}", path_, path_.ends_with(' ') ? "" : ".", key);
}

const Json* JsonFields::find(const char* key) {
  asked_.emplace_back(key);
  const auto it = value_.find(key);
  return it == value_.end() || it->is_null() ? nullptr : &*it;
}

const Json& JsonFields::at(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) fail_user("{} is missing", path_of(key));
  return *value;
}

std::string JsonFields::text(const char* key) {
  const Json& value = at(key);
  if (!value.is_string()) fail_json(path_of(key), "a string", value);
  return value.get<std::string>();
}

std::optional<std::string> JsonFields::text_if(const char* key) {
  if (find(key) == nullptr) return std::nullopt;
  return text(key);
}

std::string JsonFields::text(const char* key, std::string_view absent) {
  return text_if(key).value_or(std::string(absent));
}

bool JsonFields::flag(const char* key) {
  const Json& value = at(key);
  if (!value.is_boolean()) fail_json(path_of(key), "true or false", value);
  return value.get<bool>();
}

bool JsonFields::flag(const char* key, bool absent) { return find(key) == nullptr ? absent : flag(key); }

std::int64_t JsonFields::unsigned_integer(const char* key) {
  constexpr auto max_value = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const Json& value = at(key);
  const bool valid = value.is_number_unsigned() ? value.get<std::uint64_t>() <= max_value
                                                : value.is_number_integer() && value.get<std::int64_t>() >= 0;
  if (!valid) fail_json(path_of(key), "a whole number from 0 up", value);
  return value.get<std::int64_t>();
}

std::int64_t JsonFields::unsigned_integer(const char* key, std::int64_t absent) {
  return find(key) == nullptr ? absent : unsigned_integer(key);
}

std::string JsonFields::character(const char* key) {
  std::string value = text(key);
  require_user(!value.empty() && next_utf8(value).bytes == value.size(), "{}: one character was expected, not '{:.40}'",
               path_of(key), value);
  return value;
}

const Json& JsonFields::list(const char* key) {
  const Json& value = at(key);
  if (!value.is_array()) fail_json(path_of(key), "a list", value);
  return value;
}

void JsonFields::finish() const {
  for (const auto& [key, value] : value_.items())
    if (std::ranges::find(asked_, std::string_view(key)) == asked_.end() && !value.is_null())
      fail_user("{} is not known", path_of(key.substr(0, 80)));
}

}  // namespace tera

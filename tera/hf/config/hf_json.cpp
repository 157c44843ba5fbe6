#include "tera/hf/config/hf_json.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "tera/base/error.h"
#include "tera/base/utf8.h"
#include "tera/tokenizer/huggingface/token_json.h"

namespace tera {

HfJson parse_hf_json(std::string_view text, const std::string& where) {
  require_user(json_depth(text, max_json_depth) <= max_json_depth, "{}: lists and objects are nested more than {} deep",
               where, max_json_depth);
  require_user(valid_utf8_prefix(text) == text.size(), "{}: not UTF-8 text", where);
  HfJson value = HfJson::parse(text, nullptr, /*allow_exceptions=*/false);
  require_user(!value.is_discarded(), "{}: not JSON", where);
  require_user(value.is_object(), "{}: must be one JSON object", where);
  return value;
}

HfFields::HfFields(const HfJson& object, std::string where) : object_(&object), where_(std::move(where)) {}

const HfJson* HfFields::find(const char* key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

void HfFields::fail_kind(const char* key, std::string_view wanted) const {
  fail_user("{}{} is {:.80}, and should be {}", where_, key, find(key)->dump(), wanted);
}

std::optional<std::int64_t> HfFields::integer(const char* key) const {
  const HfJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto max_value = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value->is_number_unsigned() && value->get<std::uint64_t>() > max_value) fail_kind(key, "a smaller number");
  if (value->is_number_integer()) return value->get<std::int64_t>();
  const double number = value->is_number() ? value->get<double>() : 0.5;
  if (number != std::trunc(number) || std::abs(number) > 0x1p53) fail_kind(key, "a whole number");
  return static_cast<std::int64_t>(number);
}

std::optional<double> HfFields::number(const char* key) const {
  const HfJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail_kind(key, "a number");
  return value->get<double>();
}

std::optional<bool> HfFields::flag(const char* key) const {
  const HfJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail_kind(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> HfFields::text(const char* key) const {
  const HfJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail_kind(key, "a string");
  return value->get<std::string>();
}

std::optional<HfFields> HfFields::object(const char* key) const {
  const HfJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail_kind(key, "an object");
  return HfFields(*value, fmt::format("{}{}.", where_, key));
}

std::optional<std::vector<std::string>> HfFields::texts(const char* key) const {
  const HfJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> out;
  if (!value->is_array()) fail_kind(key, "a list of strings");
  for (const HfJson& item : *value) {
    if (!item.is_string()) fail_kind(key, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::optional<std::vector<std::int64_t>> HfFields::integers(const char* key) const {
  const HfJson* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> out;
  if (!value->is_array()) fail_kind(key, "a list of whole numbers");
  for (const HfJson& item : *value) {
    if (!item.is_number_integer()) fail_kind(key, "a list of whole numbers");
    out.push_back(item.get<std::int64_t>());
  }
  return out;
}

std::int64_t HfFields::size(std::initializer_list<const char*> names, std::int64_t absent) const {
  constexpr std::int64_t max_value = (std::int64_t{1} << 31) - 1;
  for (const char* name : names) {
    if (!has(name)) continue;
    const std::int64_t value = integer(name).value_or(0);
    require_user(value >= 1 && value <= max_value, "{}{} is {:.80}, and should be a whole number from 1 to {}", where_,
                 name, object_->at(name).dump(), max_value);
    return value;
  }
  return absent;
}

void HfFields::refuse(const char* key, std::string_view supported) const {
  const HfJson* value = find(key);
  fail_user("{}{} is {:.80}, which is not supported; {}", where_, key, value ? value->dump() : "absent", supported);
}

}  // namespace tera

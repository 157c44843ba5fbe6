#include "tera/tokenizer/model_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "tera/base/error.h"

namespace tera {

using nlohmann::json;

namespace {

bool is_count(const json& value) {
  return value.is_number_unsigned() || (value.is_number_integer() && value.get<std::int64_t>() >= 0);
}

}  // namespace

ModelReader::ModelReader(const json& model, std::string where, std::initializer_list<std::string_view> fields)
    : model_(model), where_(std::move(where)) {
  require_user(model_.is_object(), "{} is no JSON object", where_);
  for (const auto& [name, value] : model_.items())
    require_user(name == "type" || std::ranges::find(fields, name) != fields.end(),
                 "{} is a field that tera does not know", field(name));
}

std::string ModelReader::field(std::string_view name) const { return fmt::format("{}.{}", where_, name); }

const json* ModelReader::find(const char* name) const {
  const auto found = model_.find(name);
  return found == model_.end() || found->is_null() ? nullptr : &*found;
}

const json& ModelReader::at(const char* name) const {
  const json* found = find(name);
  if (found == nullptr) fail_user("{} is missing", field(name));
  return *found;
}

const json& ModelReader::object(const char* name) const {
  const json& found = at(name);
  require_user(found.is_object(), "{} is no JSON object", field(name));
  return found;
}

const json& ModelReader::list(const char* name) const {
  const json& found = at(name);
  require_user(found.is_array(), "{} is no list", field(name));
  return found;
}

std::string ModelReader::text(const char* name) const {
  const json& found = at(name);
  require_user(found.is_string(), "{} is no text", field(name));
  return found.get<std::string>();
}

std::size_t ModelReader::count(const char* name) const {
  const json& found = at(name);
  require_user(is_count(found), "{} is no count", field(name));
  return found.get<std::size_t>();
}

bool ModelReader::flag_or(const char* name, bool otherwise) const {
  const json* found = find(name);
  require_user(found == nullptr || found->is_boolean(), "{} is neither true nor false", field(name));
  return found == nullptr ? otherwise : found->get<bool>();
}

std::int32_t ModelReader::id(const json& value, std::string_view name, std::string_view token) const {
  constexpr std::uint64_t most = std::numeric_limits<std::int32_t>::max() - 1;
  if (!is_count(value) || value.get<std::uint64_t>() > most)
    fail_user("{}: the id of '{:.60}' is {:.40}, no number from 0 to {}", field(name), token, value.dump(), most);
  return value.get<std::int32_t>();
}

}  // namespace tera

#pragma once
// The object under "model" of a `tokenizer.json`, read field by field; what is wrong is a UserError that names it.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tera {

class ModelReader {
 public:
  // Fields other than these and "type" are refused.
  ModelReader(const nlohmann::json& model, std::string where, std::initializer_list<std::string_view> fields);

  std::string field(std::string_view name) const;
  const nlohmann::json& at(const char* name) const;
  const nlohmann::json* find(const char* name) const;  // null is as absent
  const nlohmann::json& object(const char* name) const;
  const nlohmann::json& list(const char* name) const;
  std::string text(const char* name) const;
  std::size_t count(const char* name) const;
  bool flag_or(const char* name, bool otherwise) const;
  std::int32_t id(const nlohmann::json& value, std::string_view name, std::string_view token) const;

 private:
  const nlohmann::json& model_;
  std::string where_;
};

}  // namespace tera

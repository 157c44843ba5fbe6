#pragma once
// Typed access to a JSON object of a config.json. Null counts as absent, except for has(); a value of the wrong type is
// a UserError that names the file and the key.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

using HfJson = nlohmann::ordered_json;  // keys stay in the order of the file

// UserError unless the text is one object of limited depth.
HfJson parse_hf_json(std::string_view text, const std::string& where);

class HfFields {
 public:
  HfFields(const HfJson& object, std::string where);

  const std::string& where() const { return where_; }  // for messages: "DIR/config.json: "
  bool has(const char* key) const { return object_->contains(key); }
  const HfJson* find(const char* key) const;  // null if it is absent or JSON null
  bool is_null(const char* key) const { return has(key) && find(key) == nullptr; }

  std::optional<std::int64_t> integer(const char* key) const;
  std::optional<double> number(const char* key) const;  // accepts integers
  std::optional<bool> flag(const char* key) const;
  std::optional<std::string> text(const char* key) const;
  std::optional<HfFields> object(const char* key) const;
  std::optional<std::vector<std::string>> texts(const char* key) const;
  std::optional<std::vector<std::int64_t>> integers(const char* key) const;

  // The first of the names that is present, which must be an integer of at least 1; `absent` if none is.
  std::int64_t size(std::initializer_list<const char*> names, std::int64_t absent) const;
  // UserError: the value of `key` is not supported. `supported` completes the message: "full_attention is".
  [[noreturn]] void refuse(const char* key, std::string_view supported) const;

 private:
  [[noreturn]] void fail_kind(const char* key, std::string_view wanted) const;

  const HfJson* object_;
  std::string where_;
};

}  // namespace tera

#pragma once
// The JSON files of tokenizers. They are data from anywhere: size and depth are checked before anything is built from
// them, and values are read with messages that say where they stand ("tokenizer.json: decoder.decoders[1].type").

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

constexpr std::size_t max_tokenizer_bytes = std::size_t{1} << 30;
constexpr std::size_t max_json_depth = 64;  // published tokenizers have 8

// The nesting depth of lists and objects in a text, at most one beyond the limit.
std::size_t json_depth(std::string_view text, std::size_t limit);

// The content of a small file.
nlohmann::json read_json_file(const std::filesystem::path& path, std::size_t max_bytes);

// The fields of one object. A field that was never read is an error in finish(): it may change the meaning.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& value, std::string path);  // UserError if it is no object

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const;

  const nlohmann::json* find(const char* key);  // none where it is missing or null
  const nlohmann::json& at(const char* key);    // UserError where it is missing or null
  std::string text(const char* key);
  std::string text(const char* key, std::string_view absent);
  std::optional<std::string> text_if(const char* key);
  bool flag(const char* key);
  bool flag(const char* key, bool absent);
  std::int64_t unsigned_integer(const char* key);
  std::int64_t unsigned_integer(const char* key, std::int64_t absent);
  std::string character(const char* key);  // one, as UTF-8
  const nlohmann::json& list(const char* key);
  void ignore(const char* key) { find(key); }

  void finish() const;  // UserError if a field was not read

 private:
  const nlohmann::json& value_;
  std::string path_;
  std::vector<std::string_view> asked_;
};

// "null", "a string", ... for messages.
std::string_view json_kind(const nlohmann::json& value);

[[noreturn]] void fail_json(const std::string& path, std::string_view wanted, const nlohmann::json& found);

// "path[3]".
std::string item_path(const std::string& path, std::size_t index);

}  // namespace tera

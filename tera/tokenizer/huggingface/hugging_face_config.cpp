#include "tera/tokenizer/huggingface/hugging_face_config.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/tokenizer/huggingface/hugging_face_file.h"
#include "tera/tokenizer/huggingface/token_json.h"

namespace tera {
namespace {

using Json = nlohmann::json;

constexpr std::size_t max_config_bytes = std::size_t{64} << 20;
constexpr std::array<const char*, 7> role_keys{"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

// "<s>" or {"content": "<s>", "lstrip": false, ...}.
AddedToken read_token(const Json& value, const std::string& path) {
  if (value.is_string()) return {.content = value.get<std::string>(), .normalized = false, .special = true};
  JsonFields fields(value, path);
  AddedToken token{.content = fields.text("content"),
                   .single_word = fields.flag("single_word", false),
                   .lstrip = fields.flag("lstrip", false),
                   .rstrip = fields.flag("rstrip", false)};
  token.special = fields.flag("special", true);
  token.normalized = fields.flag("normalized", !token.special);
  return token;
}

class ConfigReader {
 public:
  SpecialTokensConfig config;

  // Values of the second file override those of the first.
  void read(const Json& file, const std::string& name) {
    JsonFields fields(file, name + ": ");
    for (std::size_t i = 0; i < role_keys.size(); ++i)
      if (const Json* token = fields.find(role_keys[i]))
        config.named[i] = read_token(*token, fields.path_of(role_keys[i]));
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"})
      if (const Json* extra = fields.find(key); extra != nullptr && extra->is_array())
        read_extra(*extra, fields.path_of(key));
    if (const Json* listed = fields.find("added_tokens_decoder"))
      read_listed(*listed, fields.path_of("added_tokens_decoder"));
  }

 private:
  void read_extra(const Json& list, const std::string& path) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      AddedToken token = read_token(list[i], item_path(path, i));
      const auto same = [&](const AddedToken& other) { return other.content == token.content; };
      if (std::ranges::none_of(config.extra, same)) config.extra.push_back(std::move(token));
    }
  }

  // {"50256": {"content": ...}, ...}
  void read_listed(const Json& value, const std::string& path) {
    if (!value.is_object()) fail_json(path, "an object", value);
    std::map<std::int64_t, AddedToken> by_id;
    for (const auto& [key, token] : value.items()) {
      std::int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      require_user(error == std::errc{} && end == key.data() + key.size() && id >= 0 && id < max_token_ids,
                   "{}: '{:.40}' is not a token id", path, key);
      by_id[id] = read_token(token, path + "." + key);
    }
    for (auto& [id, token] : by_id) config.listed.push_back(std::move(token));
  }
};

}  // namespace

std::optional<SpecialTokensConfig> read_special_tokens(const std::filesystem::path& folder) {
  const auto config_file = folder / "tokenizer_config.json", map_file = folder / "special_tokens_map.json";
  ConfigReader reader;
  bool found = false, listed = false;
  if (path_exists(config_file)) {
    const Json config = read_json_file(config_file, max_config_bytes);
    reader.read(config, config_file.string());
    found = true;
    listed = config.contains("added_tokens_decoder");
  }
  // A config that lists its added tokens is complete; older tokenizers have a separate file.
  if (!listed && path_exists(map_file)) {
    reader.read(read_json_file(map_file, max_config_bytes), map_file.string());
    found = true;
  }
  if (!found) return std::nullopt;
  return std::move(reader.config);
}

}  // namespace tera

#include "tera/tokenizer/huggingface/post_processor.h"

#include <limits>
#include <map>

#include "tera/base/error.h"
#include "tera/tokenizer/huggingface/token_json.h"

namespace tera {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::int32_t read_id(const Json& value, const std::string& path) {
  constexpr auto max_id = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > max_id) fail_json(path, "a token id", value);
  return value.get<std::int32_t>();
}

// ["[SEP]", 102].
std::int32_t read_named_id(JsonFields& fields, const char* key) {
  const Json& pair = fields.list(key);
  require_user(pair.size() == 2 && pair[0].is_string(), "{}: a token and its id were expected", fields.path_of(key));
  return read_id(pair[1], item_path(fields.path_of(key), 1));
}

std::map<std::string, Ids> read_special_tokens(const Json& value, const std::string& path) {
  std::map<std::string, Ids> tokens;
  if (!value.is_object()) fail_json(path, "an object", value);
  for (const auto& [name, token] : value.items()) {
    JsonFields fields(token, path + "." + name.substr(0, 80));
    const Json& ids = fields.list("ids");
    Ids& read = tokens[name];
    for (std::size_t i = 0; i < ids.size(); ++i) read.push_back(read_id(ids[i], item_path(fields.path_of("ids"), i)));
    fields.ignore("id");
    fields.ignore("tokens");
    fields.finish();
  }
  return tokens;
}

PostProcessor read_template(JsonFields& fields) {
  const auto tokens = read_special_tokens(fields.at("special_tokens"), fields.path_of("special_tokens"));
  const Json& pieces = fields.list("single");
  fields.ignore("pair");
  PostProcessor result;
  int texts = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    JsonFields piece(pieces[i], item_path(fields.path_of("single"), i));
    const Json *token = piece.find("SpecialToken"), *sequence = piece.find("Sequence");
    piece.finish();
    require_user((token == nullptr) != (sequence == nullptr), "{}: one of SpecialToken and Sequence was expected",
                 piece.path());
    JsonFields inner(token != nullptr ? *token : *sequence,
                     piece.path_of(token != nullptr ? "SpecialToken" : "Sequence"));
    const std::string id = inner.text("id");
    inner.ignore("type_id");
    inner.finish();
    if (token != nullptr) {
      const auto known = tokens.find(id);
      require_user(known != tokens.end(), "{}: '{:.80}' is not one of the special_tokens", inner.path_of("id"), id);
      Ids& to = texts == 0 ? result.before : result.after;
      to.insert(to.end(), known->second.begin(), known->second.end());
    } else {
      require_user(id == "A" && ++texts == 1, "{}: the text must stand once in a template for one text", inner.path());
    }
  }
  require_user(texts == 1, "{}: the text must stand once in a template for one text", fields.path_of("single"));
  return result;
}

PostProcessor read_sequence(JsonFields& fields);

PostProcessor read_one(const Json& value, const std::string& path) {
  JsonFields fields(value, path);
  const std::string type = fields.text("type");
  PostProcessor result;
  if (type == "Sequence") {
    result = read_sequence(fields);
  } else if (type == "TemplateProcessing") {
    result = read_template(fields);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    result.before.push_back(read_named_id(fields, "cls"));
    result.after.push_back(read_named_id(fields, "sep"));
  } else if (type != "ByteLevel") {
    fail_user(
        "{}: post-processors of type '{:.80}' are not supported; there are TemplateProcessing, BertProcessing, "
        "RobertaProcessing, ByteLevel and Sequence",
        fields.path_of("type"), type);
  }
  for (const char* offsets_only : {"trim_offsets", "add_prefix_space", "use_regex"}) fields.ignore(offsets_only);
  fields.finish();
  return result;
}

PostProcessor read_sequence(JsonFields& fields) {
  PostProcessor result;
  const Json& list = fields.list("processors");
  bool adds = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string path = item_path(fields.path_of("processors"), i);
    PostProcessor one = read_one(list[i], path);
    if (one.before.empty() && one.after.empty()) continue;
    require_user(!adds, "{}: a second post-processor that adds tokens is not supported", path);
    adds = true;
    result = std::move(one);
  }
  return result;
}

}  // namespace

PostProcessor read_post_processor(const Json& value, const std::string& path) { return read_one(value, path); }

}  // namespace tera

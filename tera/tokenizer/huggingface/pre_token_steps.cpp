#include "tera/tokenizer/huggingface/pre_token_steps.h"

#include "tera/base/error.h"
#include "tera/tokenizer/huggingface/token_json.h"

namespace tera {
namespace {

using Json = nlohmann::json;

template <NamedEnum E>
E choice(JsonFields& fields, const char* key, E absent) {
  const auto name = fields.text_if(key);
  if (!name) return absent;
  const auto value = parse_enum<E>(*name);
  if (!value) fail_user("{}: '{:.40}' is not {}", fields.path_of(key), *name, list_names<E>());
  return *value;
}

// {"String": "..."} or {"Regex": "..."}.
void read_pattern(JsonFields& fields, PreTokenStep& step) {
  JsonFields pattern(fields.at("pattern"), fields.path_of("pattern"));
  const auto text = pattern.text_if("String"), regex = pattern.text_if("Regex");
  pattern.finish();
  require_user(text.has_value() != regex.has_value(), "{}: one of String and Regex is needed", pattern.path());
  step.is_regex = regex.has_value();
  step.pattern = regex ? *regex : *text;
}

class StepReader {
 public:
  std::vector<PreTokenStep> steps;

  void read(const Json& value, const std::string& path) {
    JsonFields fields(value, path);
    const std::string type = fields.text("type");
    if (type == "Sequence") {
      const Json& list = fields.list("pretokenizers");
      for (std::size_t i = 0; i < list.size(); ++i) read(list[i], item_path(fields.path_of("pretokenizers"), i));
    } else {
      read_one(fields, type);
    }
    fields.finish();
  }

 private:
  void read_one(JsonFields& fields, const std::string& type) {
    const auto kind = parse_enum<PreTokenKind>(type == "Delimiter" ? "CharDelimiterSplit" : type);
    if (!kind)
      fail_user("{}: pre-tokenizers of type '{:.80}' are not supported; there are {} and Sequence",
                fields.path_of("type"), type, list_names<PreTokenKind>());
    PreTokenStep step{.kind = *kind, .path = fields.path(), .character = {}, .pattern = {}};
    read_options(fields, step);
    steps.push_back(std::move(step));
  }

  static void read_options(JsonFields& fields, PreTokenStep& step) {
    switch (step.kind) {
      case PreTokenKind::byte_level:
        step.add_prefix_space = fields.flag("add_prefix_space");
        step.use_regex = fields.flag("use_regex", true);
        fields.ignore("trim_offsets");
        break;
      case PreTokenKind::metaspace: {
        const MetaspaceOptions options = read_metaspace(fields);
        step.character = options.character;
        step.prepend = options.prepend;
        step.split = options.split;
        break;
      }
      case PreTokenKind::split:
        read_pattern(fields, step);
        step.behavior = parse_split_behavior(fields.text("behavior"), fields.path_of("behavior"));
        step.invert = fields.flag("invert");
        break;
      case PreTokenKind::digits: step.individual_digits = fields.flag("individual_digits"); break;
      case PreTokenKind::punctuation:
        step.behavior = parse_split_behavior(fields.text("behavior", "Isolated"), fields.path_of("behavior"));
        break;
      case PreTokenKind::delimiter: step.character = fields.character("delimiter"); break;
      case PreTokenKind::fixed_length:
        step.length = fields.unsigned_integer("length", 5);
        require_user(step.length > 0, "{}: must be at least 1", fields.path_of("length"));
        break;
      case PreTokenKind::whitespace:
      case PreTokenKind::whitespace_split:
      case PreTokenKind::bert: break;
    }
  }

  static MetaspaceOptions read_metaspace(JsonFields& fields) {
    MetaspaceOptions options{.character = fields.character("replacement")};
    const bool prefix = fields.flag("add_prefix_space", true);
    options.prepend = choice(fields, "prepend_scheme", PrependScheme::always);
    options.split = fields.flag("split", true);
    fields.ignore("str_rep");
    require_user(prefix || options.prepend == PrependScheme::never,
                 "{}: false, which does not go with the prepend_scheme", fields.path_of("add_prefix_space"));
    return options;
  }
  friend MetaspaceOptions tera::read_metaspace(const Json& value, const std::string& path);
};

}  // namespace

std::vector<PreTokenStep> read_pre_tokenizer(const Json& value, const std::string& path) {
  StepReader reader;
  reader.read(value, path);
  return std::move(reader.steps);
}

MetaspaceOptions read_metaspace(const Json& value, const std::string& path) {
  JsonFields fields(value, path);
  fields.ignore("type");
  const MetaspaceOptions options = StepReader::read_metaspace(fields);
  fields.finish();
  return options;
}

}  // namespace tera
